"""Differences over seeds as a table, ranks as a critical-difference figure, and runs that failed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from fedsoft.evaluation.failures import RunEnd, failed
from fedsoft.evaluation.ranks import ranks_of
from fedsoft.evaluation.seed_tests import FEWEST, SeedDifference
from fedsoft.reports.measures import Measured
from fedsoft.reports.numbers import factor, places
from fedsoft.reports.page import Axis, Cell, Figure, Panel, Series, Table, heads
from fedsoft.reports.regressions import ToFirst, by_seed, how_tested
from fedsoft.reports.run_loader import Group

ONE_MODEL = "fedavg"  # the method whose centers are one model for all


def difference_table(found: Sequence[ToFirst], first: str, metric: str, id_: str = "differences-table") -> Table:
    """Show how methods differ from the first: mean and interval over seeds, wins and corrected p-values."""
    measures = list(dict.fromkeys(one.measure for one in found))
    known = {(one.method, one.measure): one for one in found}
    digits = {
        measure: places([factor(metric) * one.difference.mean for one in found if one.measure == measure])
        for measure in measures
    }
    rows = []
    for method in dict.fromkeys(one.method for one in found):
        row = [Cell(method)]
        for measure in measures:
            row += _cells(known.get((method, measure)), factor(metric), digits[measure])
        rows.append(tuple(row))
    titles = [title for measure in measures for title in (measure, "ahead in", "p")]
    scaled = any(one.tested.mean != one.difference.mean for one in found)
    note = (f"Above 0: better than {first}. In brackets Student's 95 % interval of the mean. p: {how_tested(found)}"
            f"{', after division by the mean squared distance of the sources of each draw' * scaled}.")  # fmt: skip
    return Table(id_, f"Differences to {first}, seed by seed", heads("method", titles), tuple(rows),
                 (note,))  # fmt: skip


def _cells(one: ToFirst | None, scale: float, digits: int) -> list[Cell]:
    if one is None:
        return [Cell("-")] * 3
    found, tested = one.difference, one.tested
    p = "-" if tested.test == "none" else f"{tested.corrected:.2g}"
    return [
        Cell(interval(found, scale, digits), scale * found.mean),
        Cell(f"{found.wins:g} of {found.seeds}", found.wins),
        Cell(p, None if tested.test == "none" else tested.corrected, best=tested.is_better),
    ]


def interval(found: SeedDifference, scale: float, digits: int) -> str:
    """Write a mean with its interval.

    >>> interval(SeedDifference(1.0, 0.5, 1.5, 5, 5, 0.01, 0.06), 1.0, 2)
    '1.00 [0.50, 1.50]'
    """
    mean = f"{scale * found.mean:.{digits}f}"
    if not math.isfinite(found.low):
        return mean
    return f"{mean} [{scale * found.low:.{digits}f}, {scale * found.high:.{digits}f}]"


def rank_figure(
    values: Mapping[str, Mapping[int, float]], measure: str, higher_is_better: bool, id_: str = "ranks"
) -> Figure | None:
    """Draw mean ranks with Nemenyi's critical difference; None with fewer than three methods or five common seeds."""
    ranks = ranks_of(values, higher_is_better=higher_is_better) if len(values) > 2 else None
    if ranks is None or ranks.seeds < FEWEST:
        return None
    means, half = [*ranks.mean.values()], ranks.critical / 2
    series = Series("mean rank", means, list(range(len(means))), "bar", low=[mean - half for mean in means],
                    high=[mean + half for mean in means])  # fmt: skip
    panel = Panel("", Axis("mean rank, 1 is best", low=0.0), Axis("", names=tuple(ranks.mean)), (series,))
    notes = (
        f"Whiskers: half of Nemenyi's critical difference ({ranks.critical:.2f} ranks, 5 %) to either side, so methods "
        "whose whiskers overlap are not told apart.",
        f"Friedman's test that all {len(means)} are alike over {ranks.seeds} seeds: p = {ranks.p:.2g}.",
    )
    id_ = f"{id_}-" + re.sub(r"[^a-z]+", "-", measure.lower()).strip("-")
    caption = f"Critical differences of ranks by {measure}"
    return Figure(id_, caption, f"Mean rank of every method over seeds by {measure}, the best first.", (panel,), notes)


def failures_of(groups: Sequence[Group], rows: Sequence[Measured]) -> dict[str, int]:
    """Return how many runs of each method failed, those included that diverged; see `evaluation.failures`."""
    pairs = [*zip(groups, rows, strict=True)]
    one_model: dict[int, float] = {}
    for group, row in pairs:
        if group.first.spec.algorithm.name == ONE_MODEL and not one_model:
            one_model = by_seed(row.seeds, row.best_on(None))
    return {row.algorithm: len(row.diverged) + sum(failed(_ends(group, row, one_model))) for group, row in pairs}


def _ends(group: Group, row: Measured, one_model: Mapping[int, float]) -> list[RunEnd]:
    higher, found = group.first.scores.higher_is_better, []
    # Some runs may have failed to part centers. Where there is one source, there is nothing to part.
    several = any(len(c) > 1 and len(c[0]) > 1 for run in group.runs if (c := run.scores.centers))

    def error(value: float | None) -> float | None:
        return None if value is None else 1 - value if higher else value

    for run, centers, personal in zip(group.runs, row.best_on(None), row.personal_held_out, strict=True):
        scores = run.scores
        constants = [stick.held_out.mean for stick in scores.yardsticks if stick.held_out is not None]
        known = sum(scores.oracle) / len(scores.oracle) if scores.oracle else scores.noise_floor
        found.append(RunEnd(
            centers=error(centers), several=several, personal=error(personal),
            oracle=error(known) or 0.0, one_model=error(one_model.get(run.spec.seed)),
            constant=min((error(value) or 0.0 for value in constants), default=None),
        ))  # fmt: skip
    return found
