"""Show a comparison as tables in the terminal, as CSV, and as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsoft.evaluation.values import Scores
from fedsoft.reports.clusters import evidence_of
from fedsoft.reports.common_sections import cost_table
from fedsoft.reports.measures import Measured
from fedsoft.reports.method_figures import courses, personal_bars
from fedsoft.reports.method_table import quality_table
from fedsoft.reports.numbers import several, unit
from fedsoft.reports.page import Axis, Cell, Figure, Panel
from fedsoft.reports.pictures import draw
from fedsoft.reports.regressions import ToFirst, ahead, behind, how_tested, restless, scale_of, to_first, unsettled
from fedsoft.reports.results import WIDTH, StudyResult
from fedsoft.reports.run_loader import Group, finished
from fedsoft.reports.tables import grid
from fedsoft.studies.compare import Comparison

BUDGETS = {
    "rounds": "same rounds",
    "work": "same client work",
    "bytes": "same bytes",
    "converged": "rounds until more do not help",
}
LISTED = ("algorithm", "seeds", "runs", "best_center", "metrics", "diverged")  # what has columns of its own


@dataclass(frozen=True, repr=False)
class ComparisonReport(StudyResult):
    """The runs of a comparison, read once.

    Arguments:
        comparison: which runs they are.
        groups: the runs of each method; measured: their values, as lists over seeds.
        scratch: holds the runs where no folder was given.
        brief: tables have scores alone, without what these cost.
    """

    comparison: Comparison
    groups: list[Group]
    measured: list[Measured]
    scratch: object = None
    brief: bool = False

    @staticmethod
    def of(comparison: Comparison, scratch: object = None) -> ComparisonReport:
        found = comparison.folders.items()
        groups = [Group(label, tuple(finished(folder) for folder in folders)) for label, folders in found]
        rows = [Measured.of(group, comparison.diverged.get(group.label)) for group in groups]
        return ComparisonReport(comparison, groups, rows, scratch)

    @property
    def scores(self) -> Scores:
        """Return the scores of the first run, for what all runs share."""
        return self.groups[0].first.scores

    @property
    def failed(self) -> dict[str, dict[int, str]]:
        """Return the algorithms without a finished run."""
        lost = self.comparison.diverged.items()
        return {label: seeds for label, seeds in lost if label not in self.comparison.folders}

    @property
    def divergences(self) -> list[str]:
        """Return a sentence for each algorithm with a run that diverged."""
        found = []
        for label, seeds in self.comparison.diverged.items():
            seed, why = next(iter(seeds.items()))
            count = len(seeds) + len(self.comparison.folders.get(label, []))
            found.append(f"{label} diverged with {len(seeds)} of {count} seeds; seed {seed}: {why}")
        return found

    @property
    def name(self) -> str:
        return self.comparison.name

    @property
    def worse(self) -> list[str]:
        """Return a sentence for each method that falls behind the first."""
        return behind(self.differences, self.measured[0].algorithm)

    @property
    def better(self) -> list[str]:
        """Return a sentence for each method that is ahead of the first."""
        return ahead(self.differences, self.measured[0].algorithm)

    @property
    def differences(self) -> list[ToFirst]:
        """Return how every other method differs from the first, seed by seed."""
        return to_first(self.measured, self.scores.higher_is_better, scale_of(self.groups))

    @property
    def restless(self) -> list[str]:
        """Return a sentence about the methods whose runs still improved when they ended."""
        return restless(self._unsettled)

    @property
    def _unsettled(self) -> dict[str, list[int]]:
        """Return the seeds of each method whose runs had not come to rest."""
        return unsettled(self.groups, higher=self.scores.higher_is_better)

    @property
    def sentences(self) -> list[str]:
        tested = how_tested(self.differences)
        verdicts = [*self.worse, *self.better, *([tested] if tested else [])]
        return [*self.divergences, *self.restless, *verdicts, *evidence_of(self.groups)]

    def rows(self) -> list[dict[str, Any]]:
        sources = max((len(best) for row in self.measured for best in row.best_center or []), default=0)
        values = [key for key in asdict(self.measured[0]) if key not in LISTED]
        names = dict.fromkeys(name for row in self.measured for name in row.metrics)
        further = [(name, kind) for name in names for kind in ("held_out", "worst_decile")]
        unsettled = self._unsettled
        found = []
        for row in self.measured:
            for i, seed in enumerate(row.seeds):
                best = row.best_center[i] if row.best_center else [""] * sources
                found.append(
                    {"algorithm": row.algorithm, "seed": seed, "run": row.runs[i]}
                    | {f"best_center_{j}": value for j, value in enumerate(best)}
                    | {key: getattr(row, key)[i] for key in values}
                    | {f"{name}_{kind}": row.metric(name, kind)[i] for name, kind in further}
                    | {"settled": seed not in unsettled[row.algorithm]}
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        lost = [{"algorithm": label, "diverged": seeds} for label, seeds in self.failed.items()]
        unsettled = self._unsettled
        rows = [row.to_dict() | {"unsettled": unsettled[row.algorithm]} for row in self.measured]
        return {
            "budget": self.comparison.budget, "algorithms": [*rows, *lost], "worse": self.worse, "better": self.better,
            "differences": [
                {"algorithm": one.method, "measure": one.measure, **one.difference.to_dict(),
                 "scaled": one.tested.to_dict()} for one in self.differences
            ],
        }  # fmt: skip

    def files(self) -> dict[str, bytes]:
        return {"comparison.csv": self.to_csv().encode(), "figure.png": self.png()}

    def tables(self, width: int = WIDTH) -> list[Table]:
        """Return mean ± standard deviation over seeds with the cost beside it, and oracle and noise floor below.

        One table, or several one below the other where it would not fit into `width` columns.
        """
        seeds = max(len(row.seeds) + len(row.diverged) for row in self.measured)
        title = (f"{self.comparison.base.label}: {unit(self.scores.metric)}; {several(seeds, 'seed')}, "
                 f"{BUDGETS[self.comparison.budget]}")  # fmt: skip
        quality = quality_table(self.groups, self.measured)
        restless = self._unsettled
        names = [
            f"{'~' * bool(restless[row.algorithm])}{row.algorithm}"
            + (f" ({len(row.diverged)} diverged)" if row.diverged else "")
            for row in self.measured
        ]
        names += [row[0].text for row in quality.rows[len(names) :]]
        made: list[Table] = []
        part: dict[str, list[Cell]] = {}
        for table in (quality,) if self.brief else (quality, cost_table(self.groups, "algorithm")):
            for i, column in enumerate(table.columns[1:], 1):
                wider = part | {column.title.replace(" ", "\n", 1): [row[i] for row in table.rows]}
                if part and Console(width=1000).measure(self._table(title, names, wider)).maximum > width:
                    made.append(self._table(title, names, part))
                    wider, title = {head: wider[head] for head in wider.keys() - part.keys()}, ""
                part = wider
        return [*made, self._table(title, names, part)]

    def _table(self, title: str, names: list[str], columns: dict[str, list[Cell]]) -> Table:
        view = grid(title or None, ["algorithm", *columns], left=["algorithm"])
        for i, name in enumerate(names):
            cells = [column[i].text if i < len(column) else "" for column in columns.values()]
            if any(cells):
                view.add_row(Text(name), *cells, style="" if i < len(self.measured) else "dim")
        for label in self.failed:
            view.add_row(Text(label), Text("diverged", style="red"))
        return view

    def png(self) -> bytes:
        """Return the error of the best centers against client work, and the personal models at the end."""
        figures = [*courses(self.groups)[:1], *personal_bars(self.groups)]
        panels = tuple(figure.panels[0] for figure in figures) or (Panel("nothing was scored", Axis(""), Axis(""), ()),)
        seeds = several(len(self.groups[0].runs), "seed")
        title = f"{self.comparison.base.label}: {seeds}, mean and standard deviation"
        return draw(Figure("comparison", title, "", panels), title)
