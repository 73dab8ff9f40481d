"""Make the runs of a cell again, and compare them to the bit with what the data says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from fedsoft.errors import InputError
from fedsoft.leaderboard.data import Board, CellName, Result
from fedsoft.leaderboard.plan import Plan
from fedsoft.leaderboard.run import Filler

TIMES = ("seconds",)  # what differs from run to run


@dataclass(frozen=True)
class Checked:
    """One run that was made again.

    Arguments:
        seed: of the run.
        same: whether every bit that was computed is the same, and every number in the data is that of the run.
        differing: names of the numbers that differ: in the data, and now.
        largest: of these differences, relative.
    """

    seed: int
    same: bool
    differing: dict[str, tuple[object, object]]
    largest: float

    def sentence(self, name: CellName) -> str:
        """Say how the run compares."""
        if self.same:
            return f"{name}, seed {self.seed}: the same to the bit"
        if not self.differing:
            return f"{name}, seed {self.seed}: the digest differs, the numbers agree in all digits that are saved"
        told = ", ".join(f"{key} {old} is now {new}" for key, (old, new) in self.differing.items())
        return f"{name}, seed {self.seed}: differs by up to {self.largest:.1e}: {told}"


def check(
    board: Board, plan: Plan, name: CellName, seeds: Sequence[int] | None = None, say: Callable[[str], object] = id
) -> list[Checked]:
    """Make runs of a cell again, by default all of them."""
    filler = Filler(board, plan, name.federation, say)
    cell = filler.data.cells.get(name.key)
    if cell is None or not cell.runs:
        raise InputError(f"cell '{name}' has no runs: fill it with 'fedsoft leaderboard run {name}'")
    there = {run.seed: run for run in cell.runs}
    for seed in seeds or ():
        if seed not in there:
            raise InputError(f"cell '{name}' has no run with seed {seed}: should be one of {sorted(there)}")
    found = []
    for seed in seeds or there:
        say(f"{name}, seed {seed}")
        run, _ = filler.player.result(filler.spec(name, cell, seed), filler.base.rounds)
        found.append(compared(there[seed], run.rounded))
    return found


def compared(old: Result, new: Result) -> Checked:
    """Compare what the data says with a run that was made again."""
    before, after = asdict(old), asdict(new)
    differing = {
        key: (before[key], after[key]) for key in before if key not in (*TIMES, "digest") and before[key] != after[key]
    }
    gaps = [_gap(a, b) for a, b in differing.values()]
    return Checked(old.seed, not differing and old.digest == new.digest, differing, max(gaps, default=0.0))


def _gap(old: object, new: object) -> float:
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return 1.0
    return abs(new - old) / max(abs(old), abs(new), 1e-300)
