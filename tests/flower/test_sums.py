"""Runs with `secure = true` at nodes: the plain run's numbers, of which the server sees sums only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs

pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')

from fedsoft.flower.jobs import Past, mark_of_job
from fedsoft.flower.keys import make_key
from fedsoft.flower.node.sums import NodeSums
from fedsoft.flower.request import Request
from fedsoft.flower.server.engine import FlowerEngine
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.identity import fingerprint_of
from fedsoft.flower.server.sums import Asked, SumExchange
from fedsoft.flower.server.terms import QuorumError, Terms
from fedsoft.flower.submission import Submission
from fedsoft.flower.sum_request import SumRequest
from fedsoft.flower.wire import Packed, WireMessage
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions, federation_of, plan_of
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.accountant import shares_epsilon
from fedsoft.safety.dropouts import Dropouts
from fedsoft.secure.coding import MODELS, NUMBERS
from fedsoft.secure.distributed import Mechanism
from fedsoft.secure.leverage import visible
from fedsoft.secure.protection import Secure
from fedsoft.secure.weighing import Noise, Weighing
from tests.flower.places import Direct, QuietNode, alone, describe, events, node_at, shard, spec, state

pytestmark = pytest.mark.slow

STAGES = ("keys", "shares", "numbers", "check", "unmask")
Spoil = Callable[[int, WireMessage, WireMessage], WireMessage | str]


def keyed(folder: Path, count: int = 4, more: str = "") -> dict[int, QuietNode]:
    """Nodes 1, 2, ... with a shard and a key each."""
    made = {}
    for k in range(count):
        place = folder / f"node-{k}"
        if not (place / "id").exists():
            make_key(place / "id")
        made[k + 1] = node_at(place, f'key = "id"\n{more}{shard(k, count)}')
    return made


def fingerprints(nodes: Mapping[int, QuietNode]) -> list[str]:
    return [fingerprint_of(node.config.path.parent / "id.pub") for node in nodes.values()]


class Keyed(Direct):
    """A transport to nodes that have proved their real keys; `silent`: (node, stage) that does not answer."""

    def __init__(self, nodes: Mapping[int, QuietNode], spoil: Spoil | None = None) -> None:
        super().__init__(nodes, spoil)
        self.quiet = dict(nodes)
        self.keys = dict(zip(nodes, fingerprints(nodes), strict=True))
        self.bytes: list[bytes] = []

    def nodes(self) -> dict[int, str]:
        return self.keys

    def exchange(self, messages: Mapping[int, Packed], seconds: float) -> Iterator[tuple[int, Packed | str]]:
        for head, body in messages.values():
            self.bytes += [head.encode(), body]
        for number, answer in super().exchange(messages, seconds):
            self.bytes += [answer.encode()] if isinstance(answer, str) else [answer[0].encode(), answer[1]]
            yield number, answer


def run(what: RunSpec, path: Path, transport: Keyed, **terms: Any) -> RunFolder:
    for node in transport.there.values():
        describe(what, node)
    given = Terms(**{"assembly": 0.001, **terms})
    keys = [*transport.keys.values()]
    submission = Submission(spec=what.to_dict(), label="", folder=path, terms=given, allow=[], keys=keys)
    make = partial(FlowerEngine, transport=transport, submission=submission, notify=lambda text: None)
    return execute(what, path, RunOptions(chunk=1, engine=make))[0]


def silent(node: int, stage: str, round: int = 1) -> Spoil:
    """A node that is gone from a stage of the first sum of a round on, until the end of the round."""
    gone = set[int]()

    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if asked.head.get("round") != round:
            return answer
        if number == node and asked.head.get("sum", {}).get("stage") == stage:
            gone.add(number)
        return "" if number in gone else answer

    return spoil


@pytest.mark.parametrize("name", ["fedavg", "fedsoft", "fedem", "ifca", "fedprior"])
def test_the_run_is_the_plain_one_within_the_error_of_coding(name: str, tmp_path: Path) -> None:
    plain = alone(spec(name, rounds=3), tmp_path / "plain")
    far = run(spec(name, rounds=3, secure=True), tmp_path / "far", Keyed(keyed(tmp_path)))
    assert torch.allclose(state(far)["centers"], state(plain)["centers"], rtol=1e-4, atol=1e-4)
    assert "u" not in state(far)


@pytest.mark.parametrize("name", ["fedavg", "fedsoft"])
def test_it_ends_in_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    """Clients of a node are added up first: integers have the same sum in any order.

    Where they have few bits, nodes round by draws of their own: there the numbers are equal within a few units.
    """
    what = spec(name, rounds=3, secure=True)
    here, far = alone(what, tmp_path / "here"), run(what, tmp_path / "far", Keyed(keyed(tmp_path)))
    one, other = state(here)["centers"], state(far)["centers"]
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert torch.equal(one, other) is (name == "fedavg")


def test_no_single_model_or_mixture_crosses(tmp_path: Path) -> None:
    """Of all bytes that pass the server, none are those of a reply; the same search finds them in the plain run."""

    def found(secure: bool) -> tuple[int, int]:
        folder = tmp_path / str(secure)
        transport = Keyed(keyed(folder))
        run(spec("fedsoft", rounds=2, secure=secure), folder / "run", transport)
        sent = b"\0".join(transport.bytes)
        rows = [row for node in transport.quiet.values() for row in _kept(node)]
        return sum(row in sent for row in rows), len(rows)

    seen, rows = found(False)
    assert seen > 0
    assert found(True) == (0, rows)


def _kept(node: QuietNode) -> list[bytes]:
    """What the clients of a node keep after a run: their last models and mixtures."""
    (here,) = node.experiments.loaded.values()
    states = here.host.client_states
    return [row.numpy().astype(np.float32).tobytes() for name in ("w", "u") for row in states[name]]


@pytest.mark.parametrize("stage", STAGES)
def test_a_node_may_be_lost_in_any_stage(stage: str, tmp_path: Path) -> None:
    """The round goes on without its clients; later rounds have them again."""
    lost = 0 if stage in ("keys", "shares") else 1  # later keys are agreed on beside the sum before
    transport = Keyed(keyed(tmp_path), silent(2, stage, lost))
    far = run(spec("fedavg", rounds=3, secure=True), tmp_path / "far", transport)
    assert [record.round for record in far.records()] == [1, 2, 3]
    left = events(far, "left a sum")
    assert [(entry["node"], entry["round"], entry["stage"]) for entry in left] == [("node-1", lost, stage)]
    assert "no answer within" in left[0]["reason"]
    present = [0, 1, 4, 5, 6, 7] if stage not in ("check", "unmask") else [*range(8)]

    def away(job: str, t: int, names: list[str]) -> np.ndarray:
        return np.array([t == lost and int(name) not in present for name in names])

    assert torch.allclose(state(far)["centers"], without(away, 3), rtol=1e-5, atol=1e-6)


def without(away: Dropouts, rounds: int) -> Tensor:
    """The centers of FedAvg in this process, without some clients in some rounds."""
    plan = plan_of(spec("fedavg"), RunOptions(chunk=1))
    run = fs.fit(
        plan.recipe.algorithm, federation_of(spec("fedavg")), plan.recipe.model, rounds=rounds,
        solver=plan.recipe.solver, conditions=fs.Conditions(dropout=away), options=fs.FitOptions(chunk=1),
    )  # fmt: skip
    return run.state.centers


def test_below_the_threshold_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    """Two of four nodes are gone, three are needed; what was saved goes on to the same numbers."""
    what = spec("fedsoft", rounds=3, secure=True)

    def gone(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        late = asked.head.get("round") == 1 and asked.head.get("sum", {}).get("stage") == "numbers"
        return "" if number > 2 and late else answer

    with pytest.raises(QuorumError, match="a sum of 'w' of round 1 could not be opened"):
        run(what, tmp_path / "far", Keyed(keyed(tmp_path), gone), patience=0)
    assert "2 of 4 parties sent numbers" in events(RunFolder.open(tmp_path / "far"), "failed sum")[0]["reason"]
    far = run(what, tmp_path / "far", Keyed(keyed(tmp_path)))
    assert torch.allclose(state(far)["centers"], state(alone(what, tmp_path / "here"))["centers"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_server_cannot_open_another_sum_of_the_same_replies(restarted: bool, tmp_path: Path) -> None:
    """After the run it asks for the same sum with one node less: the difference would be the sum of that node."""
    transport = Keyed(keyed(tmp_path))
    what = spec("fedavg", rounds=1, secure=True)
    run(what, tmp_path / "far", transport)
    done = [asked for _, asked, _ in transport.sent]
    if restarted:
        transport = Keyed(keyed(tmp_path))
        jobs = [(number, asked) for number, asked, _ in transport_sent(done, transport)]
        for number, asked in jobs:
            assert "refused" not in transport.there[number].answer(asked).head
    last = next(asked for asked in reversed(done) if asked.head["kind"] == "sum")
    told, request = SumRequest.read(last.head["sum"]), Request.read({k: v for k, v in last.head.items() if k != "sum"})
    nodes = {key: number for number, key in transport.keys.items()}
    for lost, opens in ((None, True), (4, False)):
        transport.spoil = None if lost is None else silent(lost, "numbers", round=0)
        log = EventLog(lambda text: None)
        exchange = SumExchange(transport, Terms(patience=0), log, Secure())
        asked = Asked(
            exchange, request, told.clients, told.homes, told.points, nodes, {"w": (3,)}, frozenset(), past(done)
        )
        exchange.keys = 50 if opens else 60
        asked.sums = 1 if opens else 2  # other sums, so that other masks are made
        what = Weighing(MODELS, last.tensors["weights"])
        if opens:  # the very same sum tells nothing new
            asked.opened("w", "", what)
        else:
            with pytest.raises(QuorumError):
                asked.opened("w", "", what)
            assert ("opened before" if restarted else "would show 1.000") in transport.quiet[1].said[-1]


def marks(sent: list[WireMessage]) -> list[str]:
    """What names the jobs of a run up to the last one."""
    last = next(asked for asked in reversed(sent) if asked.head["kind"] == "job")
    mark = mark_of_job(last.head["job"], last.head["round"], last.under("shared/"))
    return [*last.head["past"], mark]


def past(sent: list[WireMessage]) -> Past:
    return Past.of(marks(sent))


def transport_sent(done: list[WireMessage], transport: Keyed) -> list[tuple[int, WireMessage, None]]:
    """The jobs of a run, for the nodes that have their clients."""
    homes = {tuple(asked.head["clients"]): asked for asked in done if asked.head["kind"] == "job"}
    names = [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    return [(number, homes[names[number - 1]], None) for number in transport.there]


def test_messages_of_a_run_that_come_again_get_nothing_new(tmp_path: Path) -> None:
    """All that a server or somebody in between has recorded: the same answer as before, or none."""
    transport = Keyed(keyed(tmp_path))
    run(spec("fedsoft", rounds=2, secure=True), tmp_path / "far", transport)
    done = [(number, asked, answer) for number, asked, answer in transport.sent if asked.head["kind"] == "sum"]
    assert len(done) == 4 * (2 + 2 * 3)  # keys, for the first sum; then numbers, a check and shares of masks
    for number, asked, answer in reversed(done):
        again = transport.quiet[number].answer(asked)
        assert again.packed() == answer.packed() or again.head["refused"] == "no-sum"
    nodes = Keyed(keyed(tmp_path))  # started again: keys are gone
    for number, asked, _ in done:
        if asked.head["sum"]["stage"] not in ("keys", "shares"):
            assert nodes.quiet[number].answer(asked).head["refused"] == "no-sum"


class Uneven(Keyed):
    """A server that sends node 1 other centers than the rest, for one job."""

    job = "train"

    def exchange(self, messages: Mapping[int, Packed], seconds: float) -> Iterator[tuple[int, Packed | str]]:
        asked = WireMessage.unpacked(*messages[1]) if 1 in messages else WireMessage({}, {})
        if asked.head.get("job") == self.job and asked.head["kind"] == "job":
            sent = {name: value.flip(0) + 1 for name, value in asked.tensors.items()}
            messages = {**messages, 1: WireMessage(asked.head, sent).packed()}
        return super().exchange(messages, seconds)


def test_a_server_that_sends_nodes_different_centers_gets_no_sum(tmp_path: Path) -> None:
    """It would know what the others answer to theirs."""
    transport = Uneven(keyed(tmp_path))
    with pytest.raises(QuorumError):
        run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", transport, patience=0)
    assert "0 good shares of a secret of" in events(RunFolder.open(tmp_path / "far"), "failed sum")[0]["reason"]
    assert "1 parties have signed the same list" in transport.quiet[1].said[-1]


def test_nor_where_that_was_a_job_before(tmp_path: Path) -> None:
    """Which is not summed: one node's clients alone could be made to take one center."""
    transport = Uneven(keyed(tmp_path))
    transport.job = "estimate"
    far = run(spec("fedsoft", rounds=1, secure=True), tmp_path / "far", transport)
    assert {entry["job"] for entry in events(far, "dropped") if "0" in entry["clients"]} == {"train"}
    assert any("other jobs before this one" in text for text in transport.quiet[1].said)


def test_what_is_sent_for_each_client_is_refused(tmp_path: Path) -> None:
    transport = Keyed(keyed(tmp_path))
    run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", transport)
    asked = next(asked for _, asked, _ in transport.sent if asked.head["kind"] == "job")
    sent = {**asked.tensors, "each/w": torch.zeros(2, 3)}
    assert transport.quiet[1].answer(WireMessage(asked.head, sent)).head["refused"] == "no-sum"


@pytest.mark.parametrize("part", ["sums", "counts", "weights"])
def test_a_sum_that_no_clients_can_have_is_not_used(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 adds what it likes to its numbers. Within what others could have sent nobody sees that."""
    transport = Keyed(keyed(tmp_path))
    made = NodeSums._values

    def lie(self: NodeSums, *about: Any) -> list[Tensor]:
        values = made(self, *about)
        if self.identity.name == transport.keys[1]:
            k = ("sums", "counts", "weights").index(part)
            values[k] = values[k] + (2**38 + 2**37 if part == "sums" else -(2**50))
        return values

    monkeypatch.setattr(NodeSums, "_values", lie)
    with pytest.raises(QuorumError):
        run(spec("fedsoft", rounds=1, secure=True), tmp_path / "far", transport, patience=0)
    assert "one that no clients can have" in events(RunFolder.open(tmp_path / "far"), "failed sum")[0]["reason"]


class Hostile:
    """A server after an honest run, that asks for further sums over the last replies: `opened` is what it gets."""

    def __init__(self, transport: Keyed, entry: str = "w") -> None:
        self.transport, sums = transport, [asked for _, asked, _ in transport.sent if asked.head["kind"] == "sum"]
        last = next(asked for asked in reversed(sums) if asked.head["sum"]["entry"] == entry)
        self.told, self.weights = SumRequest.read(last.head["sum"]), last.tensors["weights"]
        self.request = Request.read({key: value for key, value in last.head.items() if key != "sum"})
        self.nodes = {key: number for number, key in transport.keys.items()}
        jobs = [asked for _, asked, _ in transport.sent if asked.head["kind"] == "job"]
        self.around = jobs[-1].tensors["shared/centers"].double()
        self.past, self.tries = past([asked for _, asked, _ in transport.sent]), 0

    def opened(self, what: Weighing, entry: str = "w", by: str = "", shape: tuple[int, ...] = (3,)) -> list[Tensor]:
        """Raises QuorumError where nodes refuse."""
        self.tries += 1
        exchange = SumExchange(
            self.transport, Terms(patience=0), EventLog(lambda text: None), Secure(), keys=50 + 10 * self.tries
        )
        told = self.told
        asked = Asked(exchange, self.request, told.clients, told.homes, told.points, self.nodes, {entry: shape},
                      frozenset({told.around}), self.past)  # fmt: skip
        asked.sums = 10 + self.tries
        return asked.opened(entry, by, what)[0]

    def refused(self, what: Weighing, **about: Any) -> str:
        with pytest.raises(QuorumError):
            self.opened(what, **about)
        return self.transport.quiet[1].said[-1]


def test_the_same_sum_is_not_coded_in_another_way(tmp_path: Path) -> None:
    """Each other reach would tell how many clients are above another value."""
    transport = Keyed(keyed(tmp_path))
    run(spec("ifca", rounds=3, secure=True), tmp_path / "far", transport)
    server = Hostile(transport)
    coding = server.told.coded.coding()
    assert coding.clients == 8
    what = Weighing(coding, server.weights.expand(server.told.count, -1), around=server.around)
    first = server.opened(what, by="s")
    again = server.opened(replace(what, coding=replace(coding, seed=7)), by="s")
    assert torch.equal(coding.decoded(first[0]), coding.decoded(again[0]))  # nodes round by draws of their own
    other = replace(what, coding=replace(coding, reach=coding.reach / 8))
    assert server.refused(other, by="s").endswith("coded in another way")


@pytest.mark.parametrize("changes", [
    {"bits": 64}, {"bits": 8}, {"clients": 3}, {"clients": 0}, {"step": 1e-9}, {"levels": 1},
], ids=str)  # fmt: skip
def test_nodes_decide_how_numbers_are_coded(changes: dict[str, Any], tmp_path: Path) -> None:
    """But for how far they reach. Few bits, or many, would tell more of single clients."""
    transport = Keyed(keyed(tmp_path))
    run(spec("ifca", rounds=3, secure=True), tmp_path / "far", transport)
    server = Hostile(transport)
    what = Weighing(replace(server.told.coded.coding(), **changes), server.weights.expand(2, -1), around=server.around)
    assert "is not coded as 2 sums over 8 clients are" in server.refused(what, by="s")


def test_rounding_is_known_to_nobody(tmp_path: Path) -> None:
    """With draws that a server knows, a sum of few bits would tell where one client alone is near an edge."""
    transport = Keyed(keyed(tmp_path))
    run(spec("ifca", rounds=3, secure=True), tmp_path / "far", transport)
    server = Hostile(transport)
    weights = server.weights.expand(server.told.count, -1)
    what = Weighing(server.told.coded.coding(), weights, around=server.around)
    coding = what.coding
    found = coding.decoded(server.opened(what, by="s")[0].reshape(2, 3))
    rows = torch.stack([row for node in transport.quiet.values() for row in _replies(node)["w"]])
    own = torch.cat([_replies(node)["s"] for node in transport.quiet.values()])
    shares = torch.nn.functional.one_hot(own, 2).T.double()
    sums = [replace(what, own=shares, coding=replace(coding, seed=k)).sum(rows).total for k in range(20)]
    public = [coding.decoded(total) for total in sums]
    assert sum(torch.equal(one, found) for one in public) <= 3  # six small whole numbers may be equal by chance
    assert all(float((one - found).abs().max()) <= 8 * coding.unit for one in public)


def _replies(node: QuietNode) -> Mapping[str, Tensor]:
    """The last replies that a node keeps."""
    (here,) = node.experiments.loaded.values()
    assert here.sums is not None
    return next(reversed(here.sums.kept.values())).replies


WEIGHTS = {
    "last digits": lambda n: (1 + 16.0 ** -torch.arange(8.0, dtype=torch.float64)) / 24,  # a digit for each client
    "powers of 3": lambda n: 3.0 ** -torch.arange(8.0, dtype=torch.float64) / 1.6,  # the last one shows 0.89 of it
    "a little more of one": lambda n: torch.where(torch.arange(8) == 3, 1 + 1e-12, 1.0).double() / 9,
    "other sizes": lambda n: (n + 1) / (n + 1).sum(),
    "not to the last bit": lambda n: (n / n.sum()) * (1 + 2**-52),
    "a negative one": lambda n: torch.tensor([1.0, 1, 1, 1, 1, 1, 1, -1], dtype=torch.float64) / 8,
}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_are_those_of_equal_clients_or_of_their_points(weights: str, tmp_path: Path) -> None:
    """Others could mark each client: what is counted in small numbers, or clipped to signs, is then read off a sum."""
    transport = Keyed(keyed(tmp_path))
    run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", transport)
    server = Hostile(transport)
    n = torch.tensor(server.told.points, dtype=torch.float64)
    found = server.refused(Weighing(MODELS, WEIGHTS[weights](n)[None]))
    assert "weights of a sum should be" in found
    if weights == "other sizes":  # nor do they take the server's word for their own
        server.told = server.told.model_copy(update={"points": [*(n.long() + 1).tolist()]})
        assert "or their points, are not those" in server.refused(Weighing(MODELS, WEIGHTS[weights](n)[None]))


def test_weights_of_clients_own_are_opened_over_the_same_nodes_only(tmp_path: Path) -> None:
    """Their sum comes beside that of the models. As an entry of its own, with a node less, it would tell of that."""
    transport = Keyed(keyed(tmp_path))
    run(spec("ifca", rounds=3, secure=True), tmp_path / "far", transport)
    server = Hostile(transport)
    ones = torch.full((1, 8), 1 / 8, dtype=torch.float64)
    assert "it is not summed by itself" in server.refused(Weighing(NUMBERS, ones), entry="s", shape=())
    transport.spoil = silent(4, "numbers", round=2)
    again = Weighing(server.told.coded.coding(), server.weights.expand(2, -1), around=server.around)
    assert "of this reply was opened before" in server.refused(again, by="s")


def test_counts_of_values_tell_no_node(tmp_path: Path) -> None:
    """Two sums by other weights may tell little of a node that is in one of them alone: their counts would tell all."""
    transport = Keyed(keyed(tmp_path))
    run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", transport)
    server, there = Hostile(transport), torch.tensor([[1.0, 1, 1, 1, 1, 1, 0, 0]], dtype=torch.float64)
    n = torch.tensor([server.told.points], dtype=torch.float64)
    assert float(visible(torch.cat([n, there]), server.told.homes).max()) < 0.9
    transport.spoil = silent(4, "numbers", round=0)
    assert "would show 1.000" in server.refused(Weighing(MODELS, torch.full((1, 8), 1 / 8, dtype=torch.float64)))


def test_a_sum_is_of_as_many_nodes_as_an_owner_asks_for(tmp_path: Path) -> None:
    """A server with one node on its side could ask for the sum of that and of another."""
    nodes = keyed(tmp_path)
    nodes[1] = node_at(tmp_path / "node-0", f'key = "id"\n{shard(0)}[policy]\nnodes = 4\n')
    transport = Keyed(nodes, silent(4, "numbers", round=1))
    with pytest.raises(QuorumError):
        run(spec("fedavg", rounds=2, secure=True), tmp_path / "far", transport, patience=0)
    assert nodes[1].said[-1].endswith("a sum of 3 nodes: policy.nodes asks for 4")


def test_scores_of_single_clients_stay_where_sums_alone_may_leave(tmp_path: Path) -> None:
    """Unless the owner says otherwise. Scores of centers that a server makes up would tell each client's mixture."""
    for said, sent in (("", False), ("scores = true\n", True)):
        nodes = keyed(tmp_path / str(sent))
        for k in range(4):
            text = f'key = "id"\n{shard(k)}[policy]\nsecure = true\n{said}'
            nodes[k + 1] = node_at(tmp_path / str(sent) / f"node-{k}", text)
        transport = Keyed(nodes)
        run(spec("fedavg", rounds=1, secure=True), tmp_path / f"run-{sent}", transport)
        answers = [answer for _, asked, answer in transport.sent if asked.head["kind"] == "scores"]
        assert answers
        assert all(bool(answer.tensors) is sent for answer in answers)


def test_clients_hide_their_models_in_what_they_add(tmp_path: Path) -> None:
    """Noise in shares, at nodes: the run says its epsilon, and scores of single clients are not asked for."""
    private = {"clip": 5.0, "noise": 0.001}
    transport = Keyed(keyed(tmp_path))
    far = run(spec("fedavg", rounds=2, secure=True, privacy=private), tmp_path / "far", transport)
    records = far.records()
    assert records[-1].privacy is not None
    assert records[-1].privacy.epsilon == shares_epsilon(Mechanism(5.0, 0.001, 1, 3, 8, False), 1e-5, 2)
    assert not any(asked.head["kind"] == "scores" for _, asked, _ in transport.sent)
    clipped = alone(spec("fedavg", rounds=2, secure=True, privacy={"clip": 5.0, "noise": 1e-9}), tmp_path / "here")
    away = (state(far)["centers"] - state(clipped)["centers"]).abs().max()
    assert 0 < away < 6 * 2 * 0.001 * 2 * 5.0 / 8 * 1.5
    soft = run(spec("fedsoft", rounds=2, secure=True, privacy=private), tmp_path / "soft", Keyed(keyed(tmp_path / "b")))
    assert bool(state(soft)["centers"].isfinite().all())


def test_no_more_sums_with_noise_are_opened_than_the_run_has_rounds(tmp_path: Path) -> None:
    """What it states is of so many. A server that goes on, by the messages of its next rounds, gets none."""
    what = spec("fedavg", rounds=2, secure=True, privacy={"clip": 1.0, "noise": 1.0})
    transport = Keyed(keyed(tmp_path))
    run(what, tmp_path / "far", transport)
    first = [asked for _, asked, _ in transport.sent if asked.head["kind"] == "job"][-4:]
    seen = marks([asked for _, asked, _ in transport.sent])
    for number, asked in enumerate(first, 1):
        again = WireMessage(asked.head | {"round": 2, "past": seen}, asked.tensors)
        assert "refused" not in transport.quiet[number].answer(again).head
    server = Hostile(transport)
    server.past = Past.of([*seen, mark_of_job("train", 2, first[0].under("shared/"))])
    server.request = server.request.model_copy(update={"round": 2})
    what = Weighing(server.told.coded.coding(), server.weights, around=server.around, noise=Noise(1.0, 1.0))
    assert "2 sums with noise were opened, one for each round of the run" in server.refused(what)


def test_nodes_decide_about_noise_and_not_the_server(tmp_path: Path) -> None:
    """A server that asks for sums without it, with another unit, or with weights that pick out a client."""
    transport = Keyed(keyed(tmp_path))
    run(spec("fedavg", rounds=1, secure=True, privacy={"clip": 1.0, "noise": 1.0}), tmp_path / "far", transport)
    sums = [(number, asked) for number, asked, _ in transport.sent
            if asked.head["kind"] == "sum" and asked.head["sum"]["stage"] == "numbers"]  # fmt: skip
    asked, node = sums[0][1], transport.quiet[sums[0][0]]
    told = asked.head["sum"]
    changes = (
        {"coded": told["coded"] | {"step": told["coded"]["step"] / 2}}, {"around": ""}, {"around": "0" * 64},
        {"coded": told["coded"] | {"bits": 40, "step": 0.0, "clients": 0}},
    )  # fmt: skip
    for change in changes:
        said = node.answer(WireMessage(asked.head | {"sum": told | change | {"number": 5}}, asked.tensors))
        assert said.head["refused"] == "no-sum"
        assert "privacy.clip" in node.said[-1] or "was not sent with job" in node.said[-1]
    weights = {"weights": asked.tensors["weights"] * 0.5}
    assert node.answer(WireMessage(asked.head, weights)).head["refused"] == "no-sum"
    assert "should be 1" in node.said[-1]


@pytest.mark.parametrize("hidden", [False, True])
def test_sums_that_clients_hide_are_opened_once(hidden: bool, tmp_path: Path) -> None:
    """Six nodes of which two are missing the second time: the same noise would cancel in the difference."""
    transport = Keyed(keyed(tmp_path, 6))
    privacy = {"privacy": {"clip": 1.0, "noise": 1.0}} if hidden else {}
    run(spec("fedavg", rounds=1, secure=True, **privacy), tmp_path / "far", transport)
    last = next(asked for _, asked, _ in reversed(transport.sent) if asked.head["kind"] == "sum")
    told, request = SumRequest.read(last.head["sum"]), Request.read({k: v for k, v in last.head.items() if k != "sum"})
    nodes = {key: number for number, key in transport.keys.items()}
    around = next(asked.tensors["shared/centers"] for _, asked, _ in transport.sent if asked.head["kind"] == "job")
    gone = {5, 6}
    transport.spoil = lambda number, asked, answer: "" if number in gone else answer
    exchange = SumExchange(transport, Terms(patience=0), EventLog(lambda text: None), Secure(), keys=50)
    marks = frozenset({told.around})
    asked = Asked(exchange, request, told.clients, told.homes, told.points, nodes, {"w": (3,)}, marks, past(
        [asked for _, asked, _ in transport.sent]
    ))  # fmt: skip
    what = Weighing(told.coded.coding(), last.tensors["weights"])
    if not hidden:
        asked.opened("w", "", what)  # the difference is the sum of two nodes, of neither of which it shows too much
        return
    with pytest.raises(QuorumError):
        asked.opened("w", "", replace(what, around=around.double(), noise=Noise(1.0, 1.0)))
    assert "another sum of 'w' of this reply was opened before" in transport.quiet[1].said[-1]


# --- what cannot be mended --------------------------------------------------------------------------------------------


def test_a_server_that_lies_may_repeat_a_round_with_a_node_less(tmp_path: Path) -> None:
    """It sends the same centers again, a little changed: other replies, as far as a node can see, and nearly the same.

    The difference of the two sums is what the clients of that node sent. Against this there is only noise.
    """
    transport = Keyed(keyed(tmp_path))
    run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", transport)
    jobs = [asked for _, asked, _ in transport.sent if asked.head["kind"] == "job"]
    server = Hostile(transport)
    n = torch.tensor(server.told.points, dtype=torch.float64)
    whole = MODELS.decoded(server.opened(Weighing(MODELS, server.weights))[0])
    own, seen = _replies(transport.quiet[4])["w"], marks([asked for _, asked, _ in transport.sent])
    sent = {name: value * (1 + 1e-6) for name, value in jobs[0].tensors.items()}  # the same for all nodes
    for number, asked in enumerate(jobs, 1):
        transport.quiet[number].answer(WireMessage(asked.head | {"ask": 5, "past": seen}, sent))
    server.past = Past.of([*seen, mark_of_job("train", 0, WireMessage({}, sent).under("shared/"))])
    server.request = server.request.model_copy(update={"ask": 5})
    transport.spoil = silent(4, "numbers", round=0)
    less = MODELS.decoded(server.opened(Weighing(MODELS, server.weights))[0])
    found = (whole - less) * n.sum() / n[6:].sum()
    assert torch.allclose(found, (own.double() * n[6:, None]).sum(0) / n[6:].sum(), rtol=1e-3, atol=1e-4)


# --- what owners decide -----------------------------------------------------------------------------------------------


def test_an_owner_may_ask_for_it(tmp_path: Path) -> None:
    nodes = keyed(tmp_path)
    nodes[1] = node_at(tmp_path / "node-0", f'key = "id"\n{shard(0)}[policy]\nsecure = true\n')
    with pytest.raises(QuorumError, match="2 of 8 clients are not connected"):
        run(spec("fedavg"), tmp_path / "plain", Keyed(nodes))
    assert "policy.secure" in nodes[1].said[-1]
    run(spec("fedavg", secure=True), tmp_path / "far", Keyed(nodes))


def test_a_server_cannot_loosen_what_weights_may_show(tmp_path: Path) -> None:
    nodes = keyed(tmp_path)
    with pytest.raises(QuorumError):
        run(spec("fedavg", secure={"share": 0.99}), tmp_path / "far", Keyed(nodes))
    assert "secure.share = 0.99 is above 0.9" in nodes[1].said[-1]


def test_owners_see_and_may_pin_whom_they_sum_with(tmp_path: Path) -> None:
    nodes = keyed(tmp_path)
    run(spec("fedavg", rounds=1, secure=True), tmp_path / "far", Keyed(nodes))
    keys = sorted(fingerprints(nodes))
    assert f"sums with 4 nodes: {', '.join(keys)}" in nodes[1].said
    pinned = keyed(tmp_path / "pinned", more=f"peers = {json.dumps(keys)}\n")
    with pytest.raises(QuorumError):
        run(spec("fedavg", rounds=1, secure=True), tmp_path / "other", Keyed(pinned), patience=0)
    assert "is not in 'peers' of this node's file" in pinned[1].said[-1]


def test_a_node_without_its_key_takes_no_part(tmp_path: Path) -> None:
    nodes = {k + 1: node_at(tmp_path / f"node-{k}", shard(k)) for k in range(4)}
    for k in range(4):
        make_key(tmp_path / f"node-{k}" / "id")
    with pytest.raises(QuorumError):
        run(spec("fedavg", secure=True), tmp_path / "far", Keyed(nodes))
    assert "must name its 'key'" in nodes[1].said[-1]
