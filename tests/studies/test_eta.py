"""The time that is left, from hand-made logs and a clock that is set by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedsoft.runs import spec
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.eta import SOON, Eta, RoundCost, RoundLog, interleaved, method_of


def run(name: str = "fedavg", seed: int = 0, rounds: int = 10) -> RunSpec:
    return spec.read("synthetic-10-90", [f"algorithm.name={name}", f"rounds={rounds}"]).with_seed(seed)


def play(folder: Path, *seconds: float, work: int = 100) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "rounds.jsonl").open("ab") as file:
        for value in seconds:
            record = {"seconds": value, "gradients": work, "bytes_down": 3, "bytes_up": 4}
            file.write(json.dumps(record).encode() + b"\n")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def look(*logs: RoundLog) -> list[RoundLog]:
    for log in logs:
        log.read()
    return [*logs]


def test_a_log_is_read_bit_by_bit(tmp_path: Path) -> None:
    log = RoundLog(tmp_path / "a", run())
    log.read()
    assert (log.rounds, log.seconds) == (0, 0.0)
    play(tmp_path / "a", 4.0, 1.0)
    with (tmp_path / "a" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"seconds": 9')  # a line that is being written
    log.read()
    assert (log.rounds, log.first, log.seconds, log.work, log.bytes) == (2, 4.0, 5.0, 200, 14)
    with (tmp_path / "a" / "rounds.jsonl").open("ab") as file:
        file.write(b'.0, "gradients": 1, "bytes_down": 0, "bytes_up": 0}\n')
    log.read()
    log.read()
    assert (log.rounds, log.seconds, log.work) == (3, 14.0, 201)
    (tmp_path / "a" / "rounds.jsonl").unlink()
    play(tmp_path / "a", 2.0)  # resumed from the first round
    log.read()
    assert (log.rounds, log.first, log.seconds) == (1, 2.0, 2.0)


def test_the_rate_leaves_out_first_rounds_where_there_are_others(tmp_path: Path) -> None:
    one, two = RoundLog(tmp_path / "a", run()), RoundLog(tmp_path / "b", run(seed=1))
    assert RoundCost.of(look(one, two)) is None
    play(tmp_path / "a", 9.0)
    assert RoundCost.of(look(one, two)) == RoundCost(9.0, 100, 7)
    play(tmp_path / "a", 1.0, 2.0)
    play(tmp_path / "b", 9.0, 3.0)
    assert RoundCost.of(look(one, two)) == RoundCost(2.0, 100, 7)


@pytest.mark.parametrize(
    ("limits", "left"),
    [({}, 7), ({"rounds": 2}, 0), ({"work": 550}, 2), ({"work": 100}, 0), ({"bytes": 7 * 5}, 2),
     ({"work": 10**9, "rounds": 5}, 2)],
)  # fmt: skip
def test_budgets_count_as_the_rounds_they_allow(tmp_path: Path, limits: dict[str, int], left: float) -> None:
    play(tmp_path / "a", 1.0, 1.0, 1.0)
    (log,) = look(RoundLog(tmp_path / "a", replace(run(), **limits)))
    rate = RoundCost.of([log])
    assert rate is not None
    assert rate.rounds_left(log) == left


def test_methods_that_cost_different_amounts(tmp_path: Path) -> None:
    """Of one that takes 1 s a round 38 are left, of one that takes 10 s 9 and, not begun, 10 more."""
    clock, specs = Clock(), (run(rounds=40), run("ifca"), run("ifca", 1))
    logs = [RoundLog(tmp_path / name, one) for name, one in zip("abc", specs, strict=True)]
    pace = Eta(2, clock=clock)
    assert pace.left(look(*logs), logs) is None  # nothing was played
    play(tmp_path / "a", 1.0)
    clock.now = 5.0
    assert pace.left(look(*logs), logs) is None  # the first round is seen now: the clock begins
    clock.now += SOON + 1
    play(tmp_path / "a", 1.0)
    assert pace.left(look(*logs), logs) is None  # nothing is known of the dear one
    play(tmp_path / "b", 10.0)
    clock.now = 5.0 + 5.5  # two at a time: 11 s of rounds in 5.5 s, nothing beyond them
    assert pace.left(look(*logs), logs) == pytest.approx((38 * 1.0 + 9 * 10.0 + 10 * 10.0) / 2)
    clock.now = 5.0 + 11.0  # scoring takes as long as training
    assert pace.left(look(*logs), logs) == pytest.approx(2 * (38 * 1.0 + 9 * 10.0 + 10 * 10.0) / 2)
    assert pace.left(look(*logs), logs[2:]) == pytest.approx(2 * 100.0)  # the last one has nobody beside it
    assert pace.left(logs, []) == 0.0


def test_rounds_that_were_saved_before_tell_what_a_method_costs(tmp_path: Path) -> None:
    """But the pace of this machine is that of new rounds."""
    clock, saved, new = Clock(), RoundLog(tmp_path / "a", run()), RoundLog(tmp_path / "b", run(seed=1))
    play(tmp_path / "a", *[2.0] * 10)
    pace = Eta(1, clock=clock)
    assert pace.left(look(saved, new), [new]) is None
    clock.now = 100.0
    assert pace.left(look(saved, new), [new]) is None
    play(tmp_path / "b", 2.0)
    pace.left(look(saved, new), [new])
    play(tmp_path / "b", 2.0, 2.0)
    clock.now += 4.0
    assert pace.left(look(saved, new), [new]) == pytest.approx(7 * 2.0)


def test_before_rounds_are_measured_the_expected_seconds_count(tmp_path: Path) -> None:
    clock, logs = Clock(), [RoundLog(tmp_path / "a", run()), RoundLog(tmp_path / "b", run("ifca"))]
    pace = Eta(2, expected=lambda spec: 30.0 if spec.algorithm.name == "ifca" else 50.0, clock=clock)
    assert pace.left(look(*logs), logs) == 50.0  # as long as the longest
    assert pace.left(look(*logs), logs, later=40.0) == (50 + 30 + 40) / 2
    play(tmp_path / "a", 1.0)
    assert pace.left(look(*logs), logs) == 30.0  # 9 rounds of 1 s, and the other as expected
    assert pace.left(logs, [], later=40.0) == 20.0


def test_every_method_begins_before_any_begins_again() -> None:
    runs = {f"{name}{seed}": run(name, seed) for name in ("fedavg", "ifca", "fedem") for seed in range(2)}
    assert [*interleaved(runs)] == ["fedavg0", "ifca0", "fedem0", "fedavg1", "ifca1", "fedem1"]
    assert interleaved(runs) == runs
    assert method_of(replace(run(), work=5)) == method_of(run(seed=3, rounds=7)) != method_of(run("ifca"))
