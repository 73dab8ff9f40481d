"""Sources of points in linear models: how near centers come to the oracle, on seeds that nothing else was chosen on.

    python -m benchmarks.sources --cases "8 sources" --seeds 7101 7102    # measure; what is saved is not measured again
    python -m benchmarks.sources --table                                  # the table of everything that is saved

What counts is the test error on each source of the center that fits it best, as a multiple of the error of least
squares on that source's own points. FedEM's settings are the best of GRIDS on TUNING, by the mean of all sources;
`fedlevels` and `fedroute` have nothing to choose. `fedlevels` was developed on seeds 100 and above.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fedsoft as fs
from fedsoft.core.local_solve import Solver
from fedsoft.storage.atomic import write_json

CASES: Mapping[str, dict[str, Any]] = {
    "3 sources": {"partition": "random", "S": 3},
    "6 sources": {"partition": "random", "S": 6},
    "8 sources": {"partition": "random", "S": 8},
    "100 inputs": {"partition": "30:70", "dimension": 100},
    "20 points": {"partition": "30:70", "points": (20, 20)},
}
GRIDS: Mapping[str, list[str]] = {"fedlevels": [""], "fedroute": [""], "fedem": ["xavier", "simplex"]}
TUNING, ROUNDS, NEAR = (100, 101), 40, 1.05


def made(method: str, setting: str, S: int) -> tuple[fs.Algorithm, Solver]:
    """Return an algorithm with `S` centers, and what clients solve with."""
    if method == "fedlevels":
        return fs.FedLevels(S=S), fs.Newton()
    if method == "fedroute":
        return fs.FedRoute(S=S), fs.Exact()
    return fs.FedEM(S=S, first="simplex" if setting == "simplex" else "xavier"), fs.Exact()


def multiples(case: str, method: str, setting: str, seed: int) -> list[float]:
    """Return the error on each source as a multiple of the oracle's."""
    federation = fs.datasets.synthetic(**CASES[case], seed=seed)
    algorithm, solver = made(method, setting, CASES[case].get("S", 2))
    scores = fs.fit(algorithm, federation, fs.models.linear(), rounds=ROUNDS, solver=solver, seed=seed).scores()
    assert scores.centers is not None
    assert scores.oracle is not None
    return [min(each) / oracle for each, oracle in zip(zip(*scores.centers, strict=True), scores.oracle, strict=True)]


class Saved:
    """What was measured, one file for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def measured(self, case: str, method: str, setting: str, seed: int) -> list[float]:
        """Return what was measured before, or measure it now."""
        found = self.read(case, method, setting, seed)
        if found is None:
            found = multiples(case, method, setting, seed)
            write_json(self._path(case, method, setting, seed), found)
            print(f"{case} {method} {setting} {seed}: worst {max(found):.3f}", flush=True)
        return found

    def read(self, case: str, method: str, setting: str, seed: int) -> list[float] | None:
        """Return what was measured before, if anything was."""
        path = self._path(case, method, setting, seed)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def chosen(self, case: str, method: str) -> str:
        """Return the setting that is best on TUNING."""

        def error(setting: str) -> float:
            return statistics.fmean(x for seed in TUNING for x in self.measured(case, method, setting, seed))

        return min(GRIDS[method], key=error) if len(GRIDS[method]) > 1 else GRIDS[method][0]

    def _path(self, case: str, method: str, setting: str, seed: int) -> Path:
        name = "-".join(filter(None, (case.replace(" ", "-"), method, setting, str(seed))))
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}.json"


def lines(saved: Saved, seeds: Sequence[int]) -> Iterator[str]:
    """Yield a table in Markdown: worst source, mean over sources, and runs with every source within 5 %."""
    yield "| | " + " | ".join(GRIDS) + " |"
    yield "| --- |" + " --- |" * len(GRIDS)
    for case in CASES:
        cells = []
        for method in GRIDS:
            found = [
                one
                for seed, setting in itertools.product(seeds, GRIDS[method])
                if (one := saved.read(case, method, setting, seed))
            ]
            near = sum(max(one) <= NEAR for one in found)
            mean = statistics.fmean(x for one in found for x in one) if found else 0.0
            worst = max((x for one in found for x in one), default=0.0)
            cells.append(f"{mean:.3f}, {worst:.3f} ({near} of {len(found)})" if found else "not measured")
        yield f"| {case} | {' | '.join(cells)} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options.add_argument("--methods", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(7101, 7121)))
    options.add_argument("--save", type=Path, default=Path("runs/sources"), help="where results are kept")
    options.add_argument("--table", action="store_true", help="measure nothing, print the table of what is saved")
    given = options.parse_args()
    saved = Saved(given.save)
    for seed, case, method in itertools.product([] if given.table else given.seeds, given.cases, given.methods):
        saved.measured(case, method, saved.chosen(case, method), seed)
    print("\n".join(lines(saved, given.seeds)))


if __name__ == "__main__":
    main()
