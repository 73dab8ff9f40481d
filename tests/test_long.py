"""Long runs: memory stays where it is, and logs grow by a line a round."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest

from fedsoft.flower.request import Request
from fedsoft.flower.server import event_log
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.training import RoundRecord
from tests.flower import places

ROUNDS, EARLY = 2000, 200
SMALL = ["clients=6", "points=[6, 9]", "K=2", "epochs=1", "test_points=10", "dimension=3", "solver=sgd"]
RECORD = 4000  # bytes that a round may leave in memory: its record, which `history` keeps
LINE = 1500  # bytes of a line of the log


@pytest.mark.slow
def test_memory_is_flat_over_two_thousand_rounds(tmp_path: Path) -> None:
    held: dict[int, int] = {}

    def look(record: RoundRecord) -> None:
        if record.round in (EARLY, ROUNDS):
            gc.collect()
            held[record.round] = tracemalloc.get_traced_memory()[0]

    chosen = spec.read("synthetic-10-90", [*SMALL, f"rounds={ROUNDS}", "score_every=100"])
    tracemalloc.start()
    try:
        folder, finished = execute(chosen, tmp_path / "run", RunOptions(workers=1, callbacks=[look]))
    finally:
        tracemalloc.stop()
    assert finished
    grown = (held[ROUNDS] - held[EARLY]) / (ROUNDS - EARLY)
    assert grown < RECORD, f"{grown:.0f} bytes a round"
    sizes = {path.name: path.stat().st_size for path in folder.path.iterdir()}
    assert sizes["rounds.jsonl"] < LINE * ROUNDS
    # One state and one table of usual losses, whatever the number of rounds.
    assert sum(sizes.values()) - sizes["rounds.jsonl"] - sizes["outcome.json"] < 20_000
    assert sizes["outcome.json"] < 200_000
    assert not list(folder.path.glob(".*"))


@pytest.mark.slow
def test_a_line_of_the_log_does_not_grow_with_the_clients(tmp_path: Path) -> None:
    lengths = []
    for clients in (20, 2000):
        chosen = spec.read("synthetic-10-90", [*SMALL, "rounds=2", f"clients={clients}"])
        folder, _ = execute(chosen, tmp_path / str(clients), RunOptions(workers=1))
        lengths.append(max(map(len, (folder.path / "rounds.jsonl").read_bytes().splitlines())))
    assert lengths[1] < lengths[0] + 100


@pytest.mark.slow
def test_logs_of_a_federation_grow_by_messages_not_by_what_is_in_them(tmp_path: Path) -> None:
    """Two lines for each message to a node, of a bounded length; nothing at all of what clients send."""
    lengths = []
    for rounds in (2, 4):
        post = places.Direct(places.shards(tmp_path / f"nodes-{rounds}", 2))
        folder = places.run(places.spec(rounds=rounds), tmp_path / f"run-{rounds}", post, nodes=2)
        lines = (folder.path / "wire.jsonl").read_bytes().splitlines()
        assert len(lines) == 2 * len(post.sent)
        assert max(map(len, lines)) < 300
        lengths.append(len(lines))
    assert lengths[1] <= 2 * lengths[0]


def test_logs_of_a_federation_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LIMIT", 2000)
    logs = event_log.EventLog(lambda text: None)
    logs.folder = tmp_path
    hello = Request(kind="hello", experiment="e", attempt=1, spec={})
    for t in range(100):
        logs.t = t
        logs.message("down", 1, hello, ("head", b"body"))
    new, old = (tmp_path / name for name in ("wire.jsonl", "wire.1.jsonl"))
    assert {path.name for path in tmp_path.iterdir()} == {new.name, old.name}
    assert max(new.stat().st_size, old.stat().st_size) < 2200
    rounds = [json.loads(line)["round"] for path in (old, new) for line in path.read_text("utf-8").splitlines()]
    assert rounds == list(range(100 - len(rounds), 100))  # the last ones, without a gap
