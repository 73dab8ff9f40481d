"""Show a comparison as tables in the terminal, as CSV, and as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsoft.evaluation.scores import Scores
from fedsoft.reports.common_sections import cost_table
from fedsoft.reports.compare_page import courses, personal_bars, quality_table
from fedsoft.reports.measures import Measured
from fedsoft.reports.numbers import several, unit
from fedsoft.reports.page import Axis, Cell, Figure, Panel, csv_text
from fedsoft.reports.pictures import draw
from fedsoft.reports.regressions import behind
from fedsoft.reports.run_loader import Group, finished
from fedsoft.reports.tables import grid
from fedsoft.studies.compare import Comparison

BUDGETS = {"rounds": "same rounds", "work": "same client work", "bytes": "same bytes"}
LISTED = ("algorithm", "seeds", "runs", "best_center", "metrics", "diverged")  # what has columns of its own


@dataclass(frozen=True)
class ComparisonReport:
    """The runs of a comparison, read once."""

    comparison: Comparison
    groups: list[Group]
    rows: list[Measured]

    @staticmethod
    def of(comparison: Comparison) -> ComparisonReport:
        found = comparison.folders.items()
        groups = [Group(label, tuple(finished(folder) for folder in folders)) for label, folders in found]
        rows = [Measured.of(group, comparison.diverged.get(group.label)) for group in groups]
        return ComparisonReport(comparison, groups, rows)

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
    def worse(self) -> list[str]:
        """Return a sentence for each method that falls behind the first."""
        return behind(self.rows, self.scores.sources, self.scores.higher_is_better)

    def tables(self, width: int) -> list[Table]:
        """Return mean ± standard deviation over seeds with the cost beside it, and oracle and noise floor below.

        One table, or several one below the other where it would not fit into `width` columns.
        """
        seeds = max(len(row.seeds) + len(row.diverged) for row in self.rows)
        title = (f"{self.comparison.base.label}: {unit(self.scores.metric)}; {several(seeds, 'seed')}, "
                 f"{BUDGETS[self.comparison.budget]}")  # fmt: skip
        quality = quality_table(self.groups, self.rows)
        names = [row.algorithm + (f" ({len(row.diverged)} diverged)" if row.diverged else "") for row in self.rows]
        names += [row[0].text for row in quality.rows[len(names) :]]
        made: list[Table] = []
        part: dict[str, list[Cell]] = {}
        for table in (quality, cost_table(self.groups, "algorithm")):
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
                view.add_row(Text(name), *cells, style="" if i < len(self.rows) else "dim")
        for label in self.failed:
            view.add_row(Text(label), Text("diverged", style="red"))
        return view

    def csv(self) -> str:
        sources = max((len(best) for row in self.rows for best in row.best_center or []), default=0)
        values = [key for key in asdict(self.rows[0]) if key not in LISTED]
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        further = [(name, kind) for name in names for kind in ("held_out", "worst_decile")]
        lines: list[list[object]] = [
            ["algorithm", "seed", "run", *(f"best_center_{j}" for j in range(sources)), *values,
             *(f"{name}_{kind}" for name, kind in further)]
        ]  # fmt: skip
        for row in self.rows:
            for i, seed in enumerate(row.seeds):
                best = row.best_center[i] if row.best_center else [""] * sources
                scored = [row.metric(name, kind)[i] for name, kind in further]
                own = [getattr(row, key)[i] for key in values]
                lines.append([row.algorithm, seed, row.runs[i], *best, *own, *scored])
        return csv_text(lines)

    def png(self) -> bytes:
        """Return the error of the best centers against client work, and the personal models at the end."""
        figures = [*courses(self.groups)[:1], *personal_bars(self.groups)]
        panels = tuple(figure.panels[0] for figure in figures) or (Panel("nothing was scored", Axis(""), Axis(""), ()),)
        seeds = several(len(self.groups[0].runs), "seed")
        title = f"{self.comparison.base.label}: {seeds}, mean and standard deviation"
        return draw(Figure("comparison", title, "", panels), title)
