"""What a node can make of a server: it speaks for its own clients only, and a lie costs the others nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.algorithms.fedsoft import FedSoft
from fedsoft.core.contract import State, job
from fedsoft.core.replies import MIXTURE, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.flower.keys import make_key
from fedsoft.flower.server.engine import QuorumError
from fedsoft.flower.server.identity import fingerprint, fingerprint_of
from fedsoft.flower.wire import WireMessage
from fedsoft.runs.folder import RunFolder
from fedsoft.settings import settings
from tests.flower.places import Direct, alone, events, key_of, node_at, run, shard, shards, spec, state
from tests.helpers import trained

Spoil = Callable[[int, WireMessage, WireMessage], WireMessage | str]


def centers(folder: RunFolder) -> torch.Tensor:
    return state(folder)["centers"]


def size_of(folder: RunFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


# --- identity ---------------------------------------------------------------------------------------------------------


def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    """Of a key that `ssh-keygen -t ecdsa -b 384` made, with what its `-lf` printed."""
    line = (
        b"ecdsa-sha2-nistp384 "
        b"AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBDQfo9/u+4BecOZRok0sTYnCJ1dPpD/N+64m2JZ2p6Z4vwB+"
        b"i+/gWNVjTvi8VsP6qoyksJi4r/HHvluRSE2DM7unwAVT3+nhXC7m2xdDUzbHxE8f5i2jYi6az7gMIcf+8g=="
        b" x"
    )
    assert fingerprint(line) == "SHA256:oOoV+NK+2aUZ6cn7KYZzILmOBCKgTMWxUlKyNDqa1qY"
    assert fingerprint(line[:-30]) == ""  # cut off: no key
    make_key(tmp_path / "key")
    found = fingerprint_of(tmp_path / "key.pub")
    assert len(found) == 50
    assert found.startswith("SHA256:")
    for wrong in (b"", b"\x00", b"-----BEGIN PUBLIC KEY-----\n", b"ssh-rsa"):
        assert fingerprint(wrong) == ""


def test_one_node_cannot_be_everybody(tmp_path: Path) -> None:
    """It comes first and claims all names; the real ones are taken in all the same."""
    nodes = {0: node_at(tmp_path / "thief", shard(0, 1).replace("node-0", "thief"))} | shards(tmp_path)
    folder = run(spec(), tmp_path / "far", Direct(nodes))
    assert "belongs to another key" in events(folder, "refused")[0]["reason"]
    assert {entry["node"] for entry in events(folder, "joined")} == {"node-0", "node-1", "node-2", "node-3"}
    assert torch.equal(centers(folder), centers(alone(spec(), tmp_path / "local")))


def test_a_node_without_a_key_speaks_for_nobody(tmp_path: Path) -> None:
    class NoKeys(Direct):
        def nodes(self) -> dict[int, str]:
            return dict.fromkeys(self.there, "")

    with pytest.raises(QuorumError, match="8 of 8 clients are not connected"):
        run(spec(), tmp_path / "far", NoKeys(shards(tmp_path)))


def test_keys_stand_in_the_run_s_file() -> None:
    about = {"name": "nodes", "input": [3]}
    for wrong in (["a", "b"], {"a": ""}, {"a": "SHA256:short"}, {"a": "MD5:" + "A" * 43}, {}):
        with pytest.raises(fs.InputError, match=r"dataset\.clients"):
            spec(dataset=about | {"clients": wrong})


# --- claims -----------------------------------------------------------------------------------------------------------

KEYS = {name: key_of(k) for k, name in enumerate("abc")}
OWN = {"name": "nodes", "clients": KEYS, "input": [3], "task": "regression"}


def own_nodes(tmp_path: Path) -> dict[int, Any]:
    nodes = {}
    for k, name in enumerate("abc"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        x = np.random.default_rng(k).standard_normal((60, 3)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=(x @ np.array([1.0, -2.0, k])).astype(np.float32))
        nodes[k] = node_at(folder, f'name = "{name}"\nworkers = 1\n[data]\npath = "{name}.npz"\n')
    return nodes


def claim(points: int) -> Spoil:
    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        return (
            WireMessage(answer.head | {"sizes": [points]}, {})
            if (number, asked.head["kind"]) == (2, "hello")
            else answer
        )

    return spoil


def test_a_client_cannot_claim_more_points_than_the_run_s_file_allows(tmp_path: Path) -> None:
    what = spec("fedavg", dataset=OWN)
    for points in (2**40, 1_000_001, 0, -1):
        folder = tmp_path / f"far{points}"
        with pytest.raises(QuorumError, match="1 of 3 clients are not connected"):
            run(what, folder, Direct(own_nodes(tmp_path), claim(points)))
        assert f"client 'c' claims {points} points" in events(RunFolder.open(folder), "refused")[0]["reason"]


def test_a_client_cannot_claim_a_hundred_times_the_points_of_the_others(tmp_path: Path) -> None:
    """It would be the average. Whoever knows that it is right says so in the terms."""
    what = spec("fedavg", dataset=OWN)
    with pytest.raises(QuorumError, match="client 'c' claims 900000 points, 18750 times the median"):
        run(what, tmp_path / "far", Direct(own_nodes(tmp_path), claim(900_000)))
    folder = run(what, tmp_path / "known", Direct(own_nodes(tmp_path), claim(900_000)), points=0)
    assert len(folder.records()) == 3


def test_a_client_cannot_claim_work_that_its_points_cannot_have(tmp_path: Path) -> None:
    """A claim of 2^62 gradients would end every run with a budget."""

    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if number == 4 and asked.head.get("job") == "train":
            return WireMessage(answer.head | {"cost": {"gradients": 2**62, "evaluations": 0}}, answer.tensors)
        return answer

    folder = run(spec("fedavg", rounds=3, work=10**6), tmp_path / "far", Direct(shards(tmp_path), spoil))
    assert len(folder.records()) == 3
    assert all("it claims a cost that its" in entry["reason"] for entry in events(folder, "dropped"))
    assert {name for entry in events(folder, "dropped") for name in entry["clients"]} == {"6", "7"}
    assert max(record.gradients for record in folder.records()) < 10**6


@pytest.mark.parametrize("name", ["fedavg", "fedsoft", "ifca", "fedem", "fedroute", "ditto", "apfl", "pfedme"])
def test_what_honest_clients_claim_is_accepted(name: str, tmp_path: Path) -> None:
    folder = run(spec(name, rounds=3), tmp_path / "far", Direct(shards(tmp_path)))
    assert not events(folder, "dropped")


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["names", "nothing", "more", "shape", "dtype", "rank"])
def test_a_lone_malformed_answer_is_left_out(kind: str, tmp_path: Path) -> None:
    """What is right follows from algorithm and model: nobody else has answered who could be compared with."""

    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if asked.head.get("round") != 1 or "w" not in answer.tensors:
            return answer
        if number != 4:
            return ""
        w = answer.tensors["w"]
        wrong = {
            "names": {"v": w}, "nothing": {}, "more": {"w": w, "x": w.clone()}, "shape": {"w": w[:, :-1].contiguous()},
            "dtype": {"w": w.double()}, "rank": {"w": w[:, :, None].contiguous()},
        }  # fmt: skip
        return WireMessage(answer.head, wrong[kind])

    with pytest.raises(QuorumError, match="0 of 8 clients answered 'train' of round 1"):
        run(spec("fedavg"), tmp_path / "far", Direct(shards(tmp_path), spoil), patience=0)
    folder = RunFolder.open(tmp_path / "far")
    told = {entry["reason"] for entry in events(folder, "dropped") if entry["node"] == "node-3"}
    assert any("should" in reason for reason in told), told
    assert torch.equal(centers(run(spec("fedavg"), tmp_path / "far", Direct(shards(tmp_path)))),
                       centers(alone(spec("fedavg"), tmp_path / "local")))  # fmt: skip


@pytest.mark.parametrize("where", ["head", "clients", "nesting", "body"])
def test_long_answers_cost_nothing(where: str, tmp_path: Path) -> None:
    """A head of 60 MB used to take 1.3 GB and 100 s: it is not parsed."""
    big = 60 * 2**20

    class Long(Direct):
        def exchange(self, messages: Any, seconds: float) -> Any:
            for number, answer in super().exchange(messages, seconds):
                if number != 4 or not isinstance(answer, tuple):
                    yield number, answer
                    continue
                head, body = answer
                texts = {
                    "head": json.dumps(json.loads(head) | {"x": "y" * big}),
                    "clients": json.dumps(json.loads(head) | {"clients": ["6"] * (big // 6)}),
                    "nesting": '{"a":' * (big // 8) + "1" + "}" * (big // 8),
                }
                yield number, (texts.get(where, head), body + bytes(big) if where == "body" else body)

    began = time.perf_counter()
    with pytest.raises(QuorumError, match="2 of 8 clients are not connected"):
        run(spec("fedavg"), tmp_path / "far", Long(shards(tmp_path)))
    folder = RunFolder.open(tmp_path / "far")
    assert "far too long" in events(folder, "refused")[0]["reason"]
    assert time.perf_counter() - began < 30
    assert size_of(folder) < 100_000


@pytest.mark.parametrize("text", ["x" * 20 * 2**20, "\x1b[31m\x07" * 1000, "a\nb\r" * 999])
def test_error_texts_are_cut_and_harmless(text: str, tmp_path: Path) -> None:
    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if number != 4 or asked.head.get("kind") != "job":
            return answer
        return f"Flower error 2: {text}" if asked.head["round"] else WireMessage({"node": text, "refused": text}, {})

    folder = run(spec("fedavg"), tmp_path / "far", Direct(shards(tmp_path), spoil))
    raw = (folder.path / "federation.jsonl").read_bytes()
    assert size_of(folder) < 200_000
    assert not any(control in raw for control in (b"\x1b", b"\x07", b"\\u001b", b"\\u0007", b"\\n"))


@pytest.mark.parametrize("lie", [-1e29, -1e-3, float("inf"), 1e31])
def test_scores_that_nobody_can_have_are_left_out(lie: float, tmp_path: Path) -> None:
    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if number != 4 or asked.head["kind"] != "scores":
            return answer
        return WireMessage(answer.head, {name: torch.full_like(value, lie) for name, value in answer.tensors.items()})

    folder = run(spec("fedavg"), tmp_path / "far", Direct(shards(tmp_path), spoil))
    scores = folder.scores()
    assert scores is not None
    assert scores.personal_train is not None
    assert 0 <= scores.personal_train.mean < 1e3
    assert events(folder, "unscored")[0]["node"] == "node-3"


# --- privacy ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_client_moves_centers_by_no_more_than_stated(tmp_path: Path) -> None:
    """With `clip`, on nodes: their norms are not compared with those of others, which one of them could change."""
    pytest.importorskip("dp_accounting")
    clip, K = 1.0, 8

    def moved(scale: float) -> torch.Tensor:
        def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
            if asked.head.get("job") != "train":
                return answer
            w = answer.tensors["w"] * torch.tensor([[1.0], [9.0]])[: len(answer.tensors["w"])]  # half of them long
            if number == 4:
                w = answer.tensors["w"] * scale
            return WireMessage(answer.head, {"w": w})

        what = spec({"name": "fedavg"}, rounds=1, privacy={"clip": clip, "noise": 1e-9})
        folder = run(what, tmp_path / f"far{scale}", Direct(shards(tmp_path / str(scale)), spoil))
        assert not events(folder, "dropped")
        return centers(folder)

    # Two clients of eight are at that node: each may move the center by 2 C / K.
    for scale in (1e3, -1.0, 1e-6):
        assert float((moved(scale) - moved(1.0)).norm()) <= 2 * (2 * clip / K) + 1e-6


@settings
class Renamed(FedSoft):
    """FedSoft, whose estimation has another name, and takes place twice."""

    def round(self, state: State, t: int, ask: Any) -> tuple[State, dict[str, Any]]:
        ask("counted_otherwise", ask.everyone, centers=state.centers)
        return super().round(state, t, ask)

    @job(u=MIXTURE)
    def counted_otherwise(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return super().estimate(site, mine, shared)


def test_epsilon_is_counted_where_noise_is_added(tmp_path: Path) -> None:
    """Whatever a job is called, and however often it asks."""
    pytest.importorskip("dp_accounting")
    federation = fs.datasets.synthetic(partition="10:90", clients=8, points=(20, 30), seed=0)
    options: dict[str, Any] = {"rounds": 4, "solver": fs.SGD(epochs=1)}
    for algorithm, expected in ((FedSoft(S=2, tau=2), [1, 1, 2, 2]), (Renamed(S=2, tau=2), [2, 3, 5, 6])):
        run = trained(algorithm, federation, fs.models.linear(), privacy=fs.Privacy(counts=1.0), **options)
        told = [record.privacy for record in run.history if record.privacy is not None]
        assert [one.estimations for one in told] == expected
        exact = fs.Privacy(counts=1.0 / math.sqrt(expected[-1]))
        from fedsoft.safety.accountant import gaussian_epsilon

        assert told[-1].counts_epsilon == pytest.approx(gaussian_epsilon(exact.counts, 1e-5))


def test_the_server_of_a_federation_counts_too(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    noise = {"counts": 2.0, "update_clip": 1.0, "update_noise": 3.0}
    what = spec({"name": "fedsoft", "S": 2, "tau": 2}, rounds=4, privacy=noise)
    far = run(what, tmp_path / "far", Direct(shards(tmp_path))).records()[-1].privacy
    here = alone(what, tmp_path / "local").records()[-1].privacy
    assert far is not None
    assert (far.estimations, far.updates) == (2, 4)
    assert far == here
    assert (far.sent_epsilon or 0) > max(far.counts_epsilon or 0, far.updates_epsilon or 0)


def test_runs_that_differ_in_a_setting_share_no_noise() -> None:
    """In a simulation, too: the same seed, another lambda. Equal but for noise in the first round, so it would show."""
    pytest.importorskip("dp_accounting")
    federation = fs.datasets.synthetic(partition="10:90", clients=200, points=(60, 80), seed=0)
    options: dict[str, Any] = {"rounds": 1, "solver": fs.SGD(epochs=1), "seed": 3}
    found = {}
    for lam in (1.0, 1.1):
        for counts in (0.0, 4.0):
            privacy = fs.Privacy(counts=counts)
            run = trained(FedSoft(S=2, lam=lam), federation, fs.models.linear(), privacy=privacy, **options)
            found[lam, counts] = run.state.u[:, 0]
    first, second = (found[lam, 4.0] - found[lam, 0.0] for lam in (1.0, 1.1))
    assert torch.equal(found[1.0, 0.0], found[1.1, 0.0])
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.25
