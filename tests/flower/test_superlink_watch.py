"""What the server's app and the command that follows it do when the SuperLink is lost."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')

from flwr.app import Context, Message, RecordDict

import fedsoft as fs
from fedsoft.flower import submit
from fedsoft.flower.local_cluster import flwr
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.server import server_app, superlink_watch
from fedsoft.flower.server.grid_transport import GridTransport
from fedsoft.flower.server.superlink_watch import WatchedGrid, raise_when_signalled
from fedsoft.flower.server.terms import Terms
from fedsoft.flower.submission import Outcome, Submission, SubmittedRun
from fedsoft.flower.submit import follow
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions

from .grids import OwnGrid
from .places import spec


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (superlink_watch, "LOOK", 0.02), (superlink_watch, "PROBE", 0.1), (superlink_watch, "LOST", 0.5),
        (submit, "LOOK", 0.02), (submit, "WATCH", 0.05), (submit, "LAST", 0.5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What nobody sets before the test is over."""
    event = threading.Event()
    yield event
    event.set()


class Answering(OwnGrid):
    """A grid that fetches messages in one way, and says which nodes there are in another."""

    def __init__(self, pull: Callable[[], Any], nodes: Callable[[], Any]) -> None:
        self.pull, self.nodes = pull, nodes

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.pull() or []

    def get_nodes(self) -> Any:
        return self.nodes() or []

    def get_node_ids(self) -> Iterable[int]:
        return [int(node) for node in self.get_nodes()]


def refuse() -> None:
    raise httpx.ConnectError("nobody is there")


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_call_that_does_not_come_back_is_given_up_when_nothing_else_does(never: threading.Event, how: str) -> None:
    grid = Answering(never.wait, never.wait if how == "hangs" else refuse)
    with pytest.raises(fs.FedsoftError, match=r"^the SuperLink does not answer: restart it, then resume"):
        WatchedGrid(grid).pull_messages(["a"])


def test_the_way_to_nodes_is_watched(never: threading.Event) -> None:
    with pytest.raises(fs.FedsoftError, match="the SuperLink does not answer"):
        GridTransport(Answering(never.wait, never.wait)).nodes()


def test_a_call_may_take_long_while_the_superlink_answers(never: threading.Event) -> None:
    asked: list[float] = []
    grid = Answering(lambda: never.wait(1.5) or ["much"], lambda: asked.append(time.monotonic()))
    assert WatchedGrid(grid).pull_messages(["a"]) == ["much"]
    assert len(asked) > 2


def test_a_call_that_finds_nobody_says_so_and_other_errors_stay() -> None:
    with pytest.raises(fs.FedsoftError, match=r"does not answer \(nobody is there\): restart it"):
        WatchedGrid(Answering(refuse, refuse)).pull_messages([])

    def wrong() -> None:
        raise ValueError("something else")

    with pytest.raises(ValueError, match=r"^something else$"):
        WatchedGrid(Answering(wrong, wrong)).pull_messages([])


def test_a_signal_from_another_thread_ends_a_call_that_hangs(
    never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flower sends it when what started the app is gone: the main thread is not woken up by it."""
    monkeypatch.setattr(superlink_watch, "LOST", 600.0)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    waiting = threading.Event()
    thread = threading.Thread(target=lambda: waiting.wait() and signal.raise_signal(signal.SIGINT))
    thread.start()
    with pytest.raises(fs.FedsoftError, match=r"^Flower ended the run"), raise_when_signalled():
        WatchedGrid(Answering(lambda: waiting.set() or never.wait(), list)).pull_messages([])
    thread.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_app_leaves_an_outcome(never: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server_app, "run_submission", lambda submission, grid: GridTransport(grid).nodes())
    submitted = SubmittedRun(tmp_path / "run.json")
    submitted.submit(
        Submission(spec=spec().to_dict(), label="", folder=tmp_path, terms=Terms(quorum=0.3), allow=[], keys=["k"])
    )
    assert submitted.submission().terms == Terms(quorum=0.3)
    assert submitted.outcome() is None
    context = Context(7, 0, {}, RecordDict(), {"submission": str(submitted.path)})
    with pytest.raises(fs.FedsoftError, match="does not answer"):
        server_app.main(Answering(never.wait, never.wait), context)
    assert submitted.outcome() == Outcome(run=7, error=f"the SuperLink does not answer: {superlink_watch.RESUME}")


class Service(LocalCluster):
    """A federation whose SuperLink is a service of the system, which nobody started here; it takes any run."""

    def submit(self, submission: Path) -> int:
        return 1

    def status(self, number: int) -> str:
        return "unknown"  # as Flower's command says when it reaches nobody


@pytest.mark.parametrize("outcome", [None, Outcome(run=1, error="Flower ended the run")])
def test_who_follows_a_run_notices_that_the_service_is_gone(
    outcome: Outcome | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path / "f")
    service.create(1)
    if outcome is not None:  # the app says so as well, a little later
        looks = iter([None] * 10)
        monkeypatch.setattr(SubmittedRun, "outcome", lambda self: next(looks, outcome))
    with pytest.raises(fs.FedsoftError, match=r"^the SuperLink of '.*' is gone: start it .* with the same command$"):
        follow(service, spec(), tmp_path / "run", RunOptions(signals=False))


class Busy(Service):
    """A federation that answers questions about a run in this order, the last one again and again."""

    @property
    def gone(self) -> bool:
        return False

    def status(self, number: int) -> str:
        said = ANSWERS.pop(0) if len(ANSWERS) > 1 else ANSWERS[0]
        if said is None:
            raise fs.FedsoftError("Flower did not answer")
        return said


ANSWERS: list[str | None] = []


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([None, None, "running", None, None, "finished:completed"], None),
        ([None, None, None], "Flower did not answer"),
        (["running", "finished:failed"], "Flower ended run 1 without an outcome"),
    ],
)
def test_who_follows_a_run_bears_with_a_busy_superlink(
    answers: list[str | None], error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions may stay without an answer; after the end of a run its app has time to write the outcome."""
    monkeypatch.setattr(submit, "CHECK", 0.02)
    service = Busy(tmp_path / "f")
    service.create(1)
    ANSWERS[:] = answers
    folder, _ = execute(spec(rounds=1), tmp_path / "run", RunOptions(signals=False))
    if error is not None:
        with pytest.raises(fs.FedsoftError, match=error):
            follow(service, spec(rounds=1), folder.path, RunOptions(signals=False))
        return
    done = Outcome(run=1, finished=True)
    monkeypatch.setattr(SubmittedRun, "outcome", lambda self: done if len(ANSWERS) == 1 else None)
    assert follow(service, spec(rounds=1), folder.path, RunOptions(signals=False))[1]


def test_who_follows_a_run_accepts_that_it_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path / "f")
    service.create(1)
    folder, _ = execute(spec(rounds=1), tmp_path / "run", RunOptions(signals=False))
    looks = iter([None] * 10)
    monkeypatch.setattr(SubmittedRun, "outcome", lambda self: next(looks, Outcome(run=1, finished=True)))
    assert follow(service, spec(rounds=1), folder.path, RunOptions(signals=False))[1]


def test_a_service_that_listens_is_there(tmp_path: Path) -> None:
    service = Service(tmp_path / "f")
    service.create(1)
    assert service.gone
    host, _, port = service.settings.address.partition(":")
    with socket.create_server((host, int(port))):
        assert not service.gone


def test_a_command_of_flower_that_hangs_is_one_sentence(tmp_path: Path) -> None:
    federation = LocalCluster(tmp_path / "f")
    federation.create(1)
    with pytest.raises(fs.FedsoftError, match=r"^Flower did not answer 'list local' within 0[.]01 s: is its"):
        flwr.flwr(federation, [["list", "local"]], seconds=0.01)
