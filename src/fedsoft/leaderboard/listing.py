"""What is on the leaderboard and what is missing, with about what it would take."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from fedsoft.leaderboard.data import PRESET, Board, Budget, Cell, FederationData
from fedsoft.leaderboard.plan import Entry, Plan

FURTHER = 5  # trials of settings beside rate and epochs, on average


@dataclass(frozen=True)
class State:
    """One cell.

    Arguments:
        cell: its name.
        state: `complete`, `partial`, `not run`, or `not possible`.
        runs, wanted: how many are there, of how many.
        seconds: what is missing would take about so long on one core; 0 for nothing.
        hash: of the runs.
        why: it is not possible.
    """

    cell: str
    state: str
    runs: int
    wanted: int
    seconds: float
    hash: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def states(board: Board, plan: Plan, federations: list[str], methods: list[str]) -> list[State]:
    """Return every cell that the plan names."""
    found = []
    for federation in federations:
        entry, data = plan.entry(federation), board.read(federation)
        for method in methods:
            for budget in entry.budgets if method != PRESET else entry.budgets[:1]:
                found.append(_state(f"{federation}/{method}/{budget}", entry, data, method, budget))
    return found


def _state(name: str, entry: Entry, data: FederationData | None, method: str, budget: Budget) -> State:
    wanted = len(entry.reported)
    cell = None if data is None else data.cells.get(f"{method}/{budget}")
    if cell is not None and cell.problem:
        return State(name, "not possible", 0, wanted, 0.0, why=cell.problem)
    there = 0 if cell is None else sum(run.seed in entry.reported for run in cell.runs)
    each = seconds_of(entry, data, method)
    missing = (wanted - there) * each * (4 if budget == "converged" else 1)
    if missing and method != PRESET and budget == "work" and entry.tuned_on is None:
        tuned = data is not None and method in data.tuned
        trials = len(entry.rates) * len(entry.epochs or (1, 2)) + FURTHER
        missing += 0.0 if tuned else each * trials * entry.tuning[1]
    state = "complete" if there >= wanted else "partial" if there else "not run"
    return State(name, state, there, wanted, missing, "" if cell is None or not there else cell.hash)


def seconds_of(entry: Entry, data: FederationData | None, method: str) -> float:
    """Return what a run takes: as measured for the method, for the other methods, or as the plan says."""
    cells: dict[str, Cell] = {} if data is None else dict(data.cells)
    own = [run.seconds for name, cell in cells.items() if name.startswith(f"{method}/") for run in cell.finished]
    others = [run.seconds for cell in cells.values() for run in cell.finished]
    return statistics.median(own or others or [entry.seconds])
