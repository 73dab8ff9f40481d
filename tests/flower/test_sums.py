"""Runs with `secure = true` at nodes: the plain run's numbers, of which the server sees sums only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs

pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')

from fedsoft.core.replies import Kind
from fedsoft.flower.keys import make_key
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
from fedsoft.safety.dropouts import Dropouts
from fedsoft.secure.protection import Secure
from tests.flower.places import Direct, QuietNode, alone, describe, events, node_at, shard, spec, state

pytestmark = pytest.mark.slow

STAGES = ("keys", "shares", "numbers", "unmask")
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
    assert torch.allclose(state(far)["centers"], state(plain)["centers"], rtol=1e-4, atol=1e-5)
    assert "u" not in state(far)


def test_it_ends_in_the_bits_of_the_simulation(tmp_path: Path) -> None:
    """Clients of a node are added up first: integers have the same sum in any order."""
    what = spec("fedsoft", rounds=3, secure=True)
    here, far = alone(what, tmp_path / "here"), run(what, tmp_path / "far", Keyed(keyed(tmp_path)))
    assert torch.equal(state(here)["centers"], state(far)["centers"])


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
    (here,) = node.loaded.values()
    states = here.host.client_states
    return [row.numpy().astype(np.float32).tobytes() for name in ("w", "u") for row in states[name]]


@pytest.mark.parametrize("stage", STAGES)
def test_a_node_may_be_lost_in_any_stage(stage: str, tmp_path: Path) -> None:
    """The round goes on without its clients; later rounds have them again."""
    transport = Keyed(keyed(tmp_path), silent(2, stage))
    far = run(spec("fedavg", rounds=3, secure=True), tmp_path / "far", transport)
    assert [record.round for record in far.records()] == [1, 2, 3]
    left = events(far, "left a sum")
    assert [(entry["node"], entry["round"], entry["stage"]) for entry in left] == [("node-1", 1, stage)]
    assert "no answer within" in left[0]["reason"]
    present = [0, 1, 4, 5, 6, 7] if stage != "unmask" else [*range(8)]

    def away(job: str, t: int, names: list[str]) -> np.ndarray:
        return np.array([t == 1 and int(name) not in present for name in names])

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
    assert torch.equal(state(far)["centers"], state(alone(what, tmp_path / "here"))["centers"])


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
        asked = Asked(exchange, request, told.clients, told.homes, nodes, {"w": Kind.MODEL}, {"w": (3,)})
        asked.sums = 1 if opens else 2  # other sums, so that other masks are made
        if opens:  # the very same sum tells nothing new
            asked.opened("w", "", 1, last.tensors["weights"])
        else:
            with pytest.raises(QuorumError):
                asked.opened("w", "", 1, last.tensors["weights"])
            assert ("opened before" if restarted else "would show 1.000") in transport.quiet[1].said[-1]


def transport_sent(done: list[WireMessage], transport: Keyed) -> list[tuple[int, WireMessage, None]]:
    """The jobs of a run, for the nodes that have their clients."""
    homes = {tuple(asked.head["clients"]): asked for asked in done if asked.head["kind"] == "job"}
    names = [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    return [(number, homes[names[number - 1]], None) for number in transport.there]


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
