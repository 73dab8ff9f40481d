"""A federation of real processes on loopback: one SuperLink and four nodes, TLS on, node authentication on.

All tests share one federation. They wait for events and never for a time, except where Flower itself has one: a node
that was killed is let in again after up to a minute.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import fedsoft as fs
from fedsoft.flower import project
from fedsoft.flower.keys import make_certificates, make_key
from fedsoft.flower.local_cluster import flwr
from fedsoft.flower.local_cluster.cluster import LocalCluster, free_port
from fedsoft.flower.local_cluster.files import ClusterSettings
from fedsoft.flower.local_cluster.flwr import HOST, command
from fedsoft.flower.node.client_memory import ClientMemory
from fedsoft.flower.server.terms import Terms, read_terms
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.studies.launch import launch
from fedsoft.training.callbacks import TensorBoard

from .places import alone, equal, spec
from .processes import PATIENCE, Door, Submitted, burners, start_dishonest, wait

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning"),
]

CLIENTS = {"node-0": ["0", "1"], "node-1": ["2", "3"], "node-2": ["4", "5"], "node-3": ["6", "7"]}


class Place:
    """The federation, its door, and a folder for runs."""

    def __init__(self, folder: Path) -> None:
        self.federation, self.runs = LocalCluster(folder / "f"), folder / "runs"
        self.federation.create(4)
        self.door = Door(self.federation)
        self.terms()
        self.federation.up(4, through=self.door.address)

    def terms(self, **changes: Any) -> None:
        values = {"timeout": 200.0, "assembly": 600.0, "quorum": 0.5, **changes}
        text = "".join(f"{key} = {value}\n" for key, value in values.items())
        (self.federation.folder / "terms.toml").write_text(text, "utf-8")
        assert read_terms(self.federation.folder) == Terms(**values)

    def submit(self, name: str, **changes: Any) -> Submitted:
        return Submitted(self.federation, spec(**changes), self.runs / name)

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.federation.processes.read()[name]
            process.signal(signal.SIGKILL)
            wait(lambda process=process: not process.alive, f"the end of {name}")

    def start_node(self, k: int) -> None:
        self.federation.start_worker(k)
        self.federation.start_supernode(k, through=self.door.address)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("flower"))
    try:
        yield place
    finally:
        started = place.federation.processes.read().values()
        place.federation.down()
        place.door.close()
        assert not any(process.alive for process in started)


@pytest.fixture(scope="module")
def three(place: Place) -> dict[str, RunFolder]:
    """Three algorithms, one after the other."""
    wanted: dict[str, dict[str, Any]] = {
        "fedsoft": {"algorithm": {"name": "fedsoft", "K": 5}, "rounds": 3},
        "ifca": {"algorithm": "ifca", "rounds": 1},
        "fedem": {"algorithm": {"name": "fedem", "S": 2}, "rounds": 1},
    }
    return {name: place.submit(name, **changes).finished() for name, changes in wanted.items()}


def test_algorithms_end_in_the_same_bits_as_in_one_process(three: dict[str, RunFolder], tmp_path: Path) -> None:
    for name, folder in three.items():
        local = alone(folder.spec(), tmp_path / name)
        assert equal(local, folder), name
        assert local.scores() == folder.scores(), name
        assert all(record.dropped == record.late == 0 for record in folder.records()), name


def test_no_point_crosses_the_wire(place: Place, three: dict[str, RunFolder]) -> None:
    """All that passed the door, in both directions. What should have passed is there, so it would have been found."""
    assert {path.rpartition("/")[0] for path, _, _ in place.door.passed} == {"/v1/fleet"}
    passed = b"".join(into + out for _, into, out in place.door.passed)
    experiment = json.loads((three["fedem"].path / "federation.json").read_text("utf-8"))["experiment"]
    for k in range(4):  # the mixtures that clients keep are those that they sent
        kept = ClientMemory(place.federation.node(k) / "memory" / "runs" / experiment).last
        assert kept is not None
        assert kept.tensors()["pi"].numpy().tobytes() in passed
    assert b"centers" in passed
    assert b'"hello"' in passed
    points = fs.datasets.synthetic(partition="10:90", clients=8, points=(5, 16), dimension=3, test_points=20)
    rows = [
        values.to(kind).numpy().tobytes()
        for part in (points.train, points.held_out)
        for values in part.x
        for kind in (torch.float32, torch.float64)
    ]
    assert len(rows) > 100
    assert not any(row in passed for row in rows)


def test_what_each_message_holds(three: dict[str, RunFolder]) -> None:
    """Message by message: kind, number and length. A model of 3 numbers, 2 centers, 2 clients at a node."""
    lines = (three["fedsoft"].path / "wire.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    kinds = {(entry["kind"], entry.get("job")) for entry in entries}
    assert kinds == {("hello", None), ("job", "estimate"), ("job", "train"), ("scores", None)}
    assert all(entry["head"] < 1500 and entry["body"] < 400 for entry in entries)
    up = [entry for entry in entries if entry["way"] == "up" and entry.get("job") == "train"]
    assert up
    assert all(entry["body"] <= 8 + 64 + 2 * 3 * 4 for entry in up)  # a header, and 3 numbers for each of 2 clients


def test_starting_what_runs_changes_nothing(place: Place) -> None:
    before = place.federation.processes.read()
    place.federation.up(4, through=place.door.address)
    assert place.federation.processes.read() == before


def test_strangers_are_refused(place: Place, tmp_path: Path) -> None:
    """An unknown key, a wrong authority, and registering one's own key through the door."""
    federation = place.federation
    make_key(tmp_path / "stranger")
    make_certificates(tmp_path / "other")
    before = len(place.door.passed)

    def connect(key: Path, authority: Path) -> tuple[int, str]:
        line = [command("flower-supernode"), "--superlink", place.door.address, "--root-certificates", str(authority),
                "--auth-supernode-private-key", str(key), "--max-retries", "1", "--host", HOST,
                "--port", str(free_port())]  # fmt: skip
        with (tmp_path / "log").open("w+b") as log:
            node = subprocess.Popen(
                line, env=flwr.environment(federation), stdout=log, stderr=log, start_new_session=True
            )
            try:
                code = node.wait(timeout=PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.pid, signal.SIGKILL)  # it may leave a process behind
                node.wait()
            log.seek(0)
            return code, log.read().decode()

    code, output = connect(tmp_path / "stranger", federation.authority)
    assert code != 0
    assert "SuperNode ID" not in output
    assert len(place.door.passed) > before  # it came to the SuperLink, which refused it
    code, output = connect(federation.key(0), tmp_path / "other" / "ca.pem")
    assert code != 0
    assert "SuperNode ID" not in output

    outside = LocalCluster(tmp_path / "outside")
    shutil.copytree(federation.authority.parent, outside.authority.parent)
    outside.write_settings(ClusterSettings(place.door.address, 0))
    with pytest.raises(fs.FedsoftError, match="Flower refused 'supernode register'"):
        flwr.register(outside, [tmp_path / "stranger.pub"])
    assert place.door.turned_away
    assert all(path.startswith("/v1/control") for path in place.door.turned_away)
    assert connect(tmp_path / "stranger", federation.authority)[0] != 0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")
def test_the_project_s_nginx_lets_only_the_fleet_through(place: Place, tmp_path: Path) -> None:
    federation, port = place.federation, free_port()
    project.write_project(tmp_path / "project")
    text = (tmp_path / "project" / "server" / "nginx.conf").read_text("utf-8")
    for old, new in (
        ("listen 443 ssl", f"listen {HOST}:{port} ssl"), ("127.0.0.1:8000", federation.settings.address),
        ("/etc/fedsoft/certificates", str(federation.authority.parent)), ("/run/", f"{tmp_path}/"),
        ("/var/log/", f"{tmp_path}/"), ("/tmp/fedsoft", f"{tmp_path}/fedsoft"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(text, "utf-8")
    trusted = ssl.create_default_context(cafile=str(federation.authority))

    def status(path: str) -> int:
        request = urllib.request.Request(f"https://{HOST}:{port}{path}", data=b"", method="POST")
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except urllib.error.URLError:
            return 0

    server = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"])
    try:
        wait(lambda: server.poll() is not None or status("/v1/nothing"), "nginx")
        for path in (
            "/v1/control/register-node",
            "/v1/runtime/push-messages",
            "/",
            "/v1/fleet/../control/register-node",
        ):
            assert status(path) == 403, path
        # Refused by the SuperLink, for want of a body.
        assert status("/v1/fleet/activate-node") not in (0, 403, 404, 502)
    finally:
        server.terminate()
        server.wait()


def test_nodes_killed_in_each_phase_come_back_with_their_memory(place: Place) -> None:
    place.terms(timeout=40.0)
    run = place.submit("killed", rounds=60)
    experiment = (
        wait(lambda: run.lines("wire.jsonl"), "the run")
        and json.loads((run.path / "federation.json").read_text("utf-8"))["experiment"]
    )

    def memory(k: int) -> ClientMemory:
        return ClientMemory(place.federation.node(k) / "memory" / "runs" / experiment)

    before = {}
    for k, job, rounds in ((1, "estimate", (2, 4, 6)), (2, "train", (2, 3, 4, 5, 6, 7))):
        wait(lambda job=job, rounds=rounds: any(len(run.asked(t, job)) == 4 for t in rounds), f"the ask '{job}'")
        place.kill(f"supernode-{k}", f"worker-{k}")
        before[k] = memory(k).last
        place.start_node(k)

    def back() -> bool:
        """Somebody was dropped, and now everybody answers again."""
        records = run.lines("rounds.jsonl")
        gone = {client for entry in run.lines("federation.jsonl") if entry["event"] == "dropped"
                for client in entry["clients"]}  # fmt: skip
        return gone >= {"2", "3", "4", "5"} and len(records) > 2 and records[-1]["dropped"] == 0

    wait(back, "both nodes to be back", seconds=600)
    place.federation.stop(run.number)
    for k, old in before.items():
        new = memory(k).last
        assert old is not None
        assert new is not None
        assert new.number > old.number  # it went on from what it had kept: anew it would have begun at 0
        assert new.position.round > old.position.round
    named = [entry for entry in run.lines("federation.jsonl") if entry["event"] == "dropped"]
    assert {entry["node"] for entry in named} == {"node-1", "node-2"}
    place.terms()


def free(path: Path) -> bool:
    """Whether nobody works on a run."""
    with (path / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def apps(place: Place) -> list[psutil.Process]:
    """The server's apps that are there."""
    return psutil.Process(place.federation.processes.read()["launcher"].pid).children()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_lost_superlink_leaves_a_run_that_ends_in_the_same_bits(
    place: Place, tmp_path: Path, how: signal.Signals
) -> None:
    """While the app sends; on a busy machine, where that takes longest. All must answer: else bits may differ."""
    place.terms(quorum=1.0)
    name, lost = f"lost-{how.name}", place.federation.processes.read()["superlink"]
    with burners(4):
        run = place.submit(name, rounds=4)
        wait(lambda: len(run.asked(2, "estimate")) == 4, "the third round")
        lost.signal(how)
        wait(lambda: free(run.path), "the run to be let go of", seconds=60)
        wait(lambda: not apps(place), "the end of the server's app", seconds=20)
    outcome = run.submitted.outcome()
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.count("SuperLink") == 1
    assert "resume the run with the same command" in outcome.error
    assert len(run.lines("rounds.jsonl")) == 2
    place.kill("superlink")
    place.federation.start_superlink()
    again = place.submit(name, rounds=4)
    folder = again.finished()
    assert all(record.dropped == 0 for record in folder.records()), again.lines("federation.jsonl")
    assert json.loads((folder.path / "federation.json").read_text("utf-8"))["attempt"] == 2
    assert equal(alone(folder.spec(), tmp_path / "local"), folder)
    place.terms()


def test_a_node_that_lies_is_left_out_and_named(place: Place, tmp_path: Path) -> None:
    """Not finite, a wrong shape, a tenfold norm, nothing at all: one round each. The first round is honest."""
    lies = {"1": "nan", "2": "shape", "3": "norm", "4": "silence"}
    (tmp_path / "lies.json").write_text(json.dumps(lies), "utf-8")
    place.kill("worker-3")
    start_dishonest(place.federation, 3, tmp_path / "lies.json", seconds=33.0)
    place.terms(timeout=30.0)
    folder = place.submit("lies", algorithm="fedavg", rounds=5, solver={"name": "sgd", "lr": 0.05}).finished()
    found = [json.loads(line) for line in (folder.path / "federation.jsonl").read_text("utf-8").splitlines()]
    reasons = {
        entry["round"]: entry["reason"] for entry in found if entry["event"] == "dropped" and entry["node"] == "node-3"
    }
    assert "not finite" in reasons[1]
    assert "should be float32[3]" in reasons[2]
    assert "times the median" in reasons[3]
    assert "no answer within 30 s" in reasons[4] or "Flower error" in reasons[4]
    assert {client for e in found if e["event"] == "dropped" for client in e["clients"]} == set(CLIENTS["node-3"])
    assert [record.answered for record in folder.records()] == [8, 6, 6, 6, 6]
    point = folder.checkpoint()
    assert point is not None
    assert bool(torch.isfinite(point.state.centers).all())


def test_a_run_may_start_a_federation_of_its_own(tmp_path: Path) -> None:
    """As `fedsoft run ... --engine flower` does. With chunks as they come, sums round differently in the last bits."""
    what, reported = spec(rounds=2), []
    log = TensorBoard(tmp_path / "far" / "tensorboard")
    stage = RunOptions(engine="flower", workers=2, callbacks=[reported.append, log])
    folder, finished = launch(what, tmp_path / "far", stage)
    assert finished
    assert [*log.folder.glob("events.*")]  # by the server's app
    assert [record.round for record in reported] == [1, 2]
    local = execute(what, tmp_path / "local", RunOptions())[0]
    first, second = local.checkpoint(), folder.checkpoint()
    assert first is not None
    assert second is not None
    here, there = first.state.tensors(), second.state.tensors()
    for name in here:
        assert torch.allclose(here[name], there[name], rtol=1e-5, atol=1e-6), name
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".federation")] == []
    assert launch(what, tmp_path / "far", stage)[1]  # it is finished: nothing is started again
