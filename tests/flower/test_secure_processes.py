"""Sums over a federation of real processes: four nodes, TLS and node keys on; nodes are killed in every stage."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedsoft.flower.node.client_memory import ClientMemory
from fedsoft.runs.folder import RunFolder
from tests.flower.places import alone, events, spec, state
from tests.flower.processes import wait
from tests.flower.test_processes import CLIENTS, Place
from tests.flower.test_sums import STAGES, without

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("secure"))
    try:
        yield place
    finally:
        place.federation.down()
        place.door.close()


def test_the_plain_run_within_the_error_of_coding_and_no_reply_in_all_that_crossed(place: Place) -> None:
    far = place.submit("fedsoft", algorithm="fedsoft", rounds=2, secure=True).finished()
    plain = alone(spec("fedsoft", rounds=2), place.runs / "plain")
    assert torch.allclose(state(far)["centers"], state(plain)["centers"], rtol=1e-4, atol=1e-4)
    passed = b"".join(into + out for _, into, out in place.door.passed)
    rows = kept(place, far)
    assert len(rows) == 16
    assert not any(row in passed for row in rows)
    assert b'"unmask"' in passed
    assert state(far)["centers"].numpy().tobytes() in passed  # by scores: what is sent would have been found
    said = (place.federation.node(0) / "worker.log").read_text("utf-8")
    assert all(key in said for key in place.federation.fingerprints)


def kept(place: Place, run: RunFolder) -> list[bytes]:
    """The last models and mixtures of all clients, as their nodes keep them."""
    experiment = json.loads((run.path / "federation.json").read_text("utf-8"))["experiment"]
    found = []
    for k in range(4):
        last = ClientMemory(place.federation.node(k) / "memory" / "runs" / experiment).last
        assert last is not None
        found += [row.numpy().tobytes() for name in ("w", "u") for row in last.tensors()[name]]
    return found


def test_a_node_is_killed_in_every_stage(place: Place) -> None:
    """One after the other, in rounds 0 to 4: its clients are missing there, unless their numbers were sent.

    Keys are agreed on anew whenever a node was lost.
    """
    run = place.submit("killed", algorithm="fedavg", rounds=6, secure=True)
    for t, stage in enumerate(STAGES):
        before = ("train", *STAGES)[t]  # each round begins with new keys: a node was lost in the one before

        def said(way: str, what: str, t: int = t) -> bool:
            return any(
                (e["way"], e["round"], e["node"], e.get("stage", e.get("job"))) == (way, t, "node-1", what)
                for e in run.lines("wire.jsonl")
            )

        # Stopped first, so that it does not answer before it is killed.
        wait(lambda said=said, before=before: said("up", before), f"{before} of round {t}")
        worker = int((place.federation.node(1) / "worker.ready").read_text("utf-8"))
        os.kill(worker, signal.SIGSTOP)
        wait(lambda said=said, stage=stage: said("down", stage), f"{stage} of round {t}")
        os.kill(worker, signal.SIGKILL)
    far = run.finished()
    assert len(far.records()) == 6
    left = {(entry["round"], entry["stage"]) for entry in events(far, "left a sum")}
    assert {entry["node"] for entry in events(far, "left a sum")} == {"node-1"}
    assert left == {(t, stage) for t, stage in enumerate(STAGES)}
    # Beside the sums that it left, a node may miss a job while its worker starts again.
    missed = {(entry["round"], name) for entry in events(far, "dropped") for name in entry["clients"]}
    missed |= {(t, name) for t, stage in left if stage not in ("check", "unmask") for name in CLIENTS["node-1"]}
    assert {name for _, name in missed} == set(CLIENTS["node-1"])

    def away(job: str, t: int, names: list[str]) -> np.ndarray:
        return np.array([(t, name) in missed for name in names])

    assert torch.allclose(state(far)["centers"], without(away, 6), rtol=1e-5, atol=1e-6)
