"""The table of several methods: a column for each measure, and below it what anybody could reach."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedsoft.evaluation.spread import Spread
from fedsoft.reports.cells import Values, column, known
from fedsoft.reports.measures import Measured, shown_sources
from fedsoft.reports.metrics import metric_names
from fedsoft.reports.numbers import metric_name, unit
from fedsoft.reports.page import Cell, Table, heads
from fedsoft.reports.regressions import unsettled
from fedsoft.reports.run_loader import Group
from fedsoft.reports.seed_tables import failures_of


def is_higher_better(groups: Sequence[Group]) -> bool:
    """Return whether larger values of the model's own metric are better."""
    return groups[0].first.scores.higher_is_better


def metric_of(groups: Sequence[Group]) -> str:
    """Return the name of the model's own metric."""
    return groups[0].first.scores.metric


@dataclass(frozen=True)
class Measure:
    """A column of the table of methods: its values over seeds, and what the first method's runs are compared with."""

    title: str
    of: Callable[[Measured], Values]
    metric: str
    higher: bool
    oracle: Values = ()
    floor: Values = ()
    constants: tuple[Values, ...] = ()  # of each yardstick


def _yardsticks(groups: Sequence[Group]) -> list[str]:
    """Return the names of the constant predictors that all runs of the first method were compared with."""
    names = [[stick.name for stick in scores.yardsticks] for scores in groups[0].scores]
    return names[0] if all(one == names[0] for one in names) else []


def _measures(groups: Sequence[Group]) -> list[Measure]:
    metric, higher, runs = metric_of(groups), is_higher_better(groups), groups[0].scores

    def best(title: str, j: int | None) -> Measure:
        oracle = [None if s.oracle is None else statistics.mean(s.oracle) if j is None else s.oracle[j] for s in runs]
        floor = [s.noise_floor for s in runs]
        floor = floor[:1] if len(set(floor)) == 1 else floor  # then it has no standard deviation
        return Measure(title, lambda row: row.best_on(j), metric, higher, oracle, floor)

    def constant(value: Callable[[Spread], float]) -> tuple[Values, ...]:
        sticks = [[s.yardsticks[i].held_out for s in runs] for i in range(len(_yardsticks(groups)))]
        return tuple([None if spread is None else value(spread) for spread in spreads] for spreads in sticks)

    found = [best(f"best on {name}", j) for j, name in enumerate(shown_sources(groups))]
    return [
        *(found or [best("best center, mean", None)]),
        Measure("error of u", lambda row: row.recovery, "share", False),
        Measure("personal, training", lambda row: row.personal_train, metric, higher),
        Measure("personal, held out", lambda row: row.personal_held_out, metric, higher,
                 constants=constant(lambda spread: spread.mean)),
        Measure("worst decile", lambda row: row.worst_decile, metric, higher,
                 constants=constant(lambda spread: spread.worst_decile)),
        *_further(groups),
    ]  # fmt: skip


def _further(groups: Sequence[Group]) -> Iterator[Measure]:
    """Yield the metrics that runs asked for beside the model's own: mean and worst decile on held-out points."""
    for name in metric_names(groups):
        higher = next(s.metrics[name].higher_is_better for g in groups for s in g.scores if name in s.metrics)
        for title, kind in (("held out", "held_out"), ("worst decile", "worst_decile")):
            yield Measure(
                f"{metric_name(name)}, {title}", lambda row, name=name, kind=kind: row.metric(name, kind), name, higher
            )


def quality_table(groups: Sequence[Group], rows: Sequence[Measured]) -> Table:
    refs = [group.refs for group in groups]
    titles, columns = [], []
    below = ["oracle", "noise floor", *(f"{name} alone" for name in _yardsticks(groups))]
    for measure in _measures(groups):
        values = [measure.of(row) for row in rows]
        if any(map(known, values)):
            titles.append(measure.title)
            constants = measure.constants or ((),) * (len(below) - 2)
            shown = [*values, measure.oracle, measure.floor, *constants]
            columns.append(column(shown, [*refs, *[refs[0]] * len(below)], measure.metric, measure.higher,
                                  peers=len(groups)))  # fmt: skip
    lost = failures_of(groups, rows)
    if any(lost.values()):
        titles.append("failed")
        counts = [(lost[one.algorithm], len(one.seeds) + len(one.diverged)) for one in rows]
        columns.append([*(Cell(f"{some} of {all_}", some) for some, all_ in counts), *[Cell("")] * len(below)])
    moving = unsettled(groups, higher=is_higher_better(groups))
    body = [
        (Cell(f"{'~' * bool(moving[group.label])}{group.label}"), *(cells[i] for cells in columns))
        for i, group in enumerate(groups)
    ]
    for i, name in enumerate(below, len(groups)):
        cells = [cells[i] for cells in columns]
        if any(cell.value is not None for cell in cells):
            body.append((Cell(name), *(cell if cell.value is not None else Cell("") for cell in cells)))
    name = unit(metric_of(groups))
    sources = "of centers on each source's test set, and " if shown_sources(groups) else ""
    shown = {row[0].text for row in body[len(groups) :]}
    notes = [
        "Best of each column marked.",
        "The oracle is trained on the points of its source alone." if "oracle" in shown else "",
        "A constant alone is what anybody could predict." if shown - {"oracle", "noise floor"} else "",
        "~: still improving when its runs ended." if any(moving.values()) else "",
        "Failed: diverged, worse than a constant or than one model, or far from what the method usually reaches."
        if any(lost.values())
        else "",
    ]
    return Table(
        "methods-table", f"{name} {sources}of personal models on the client's points",
        heads("method", titles), tuple(body),
        notes=(" ".join(filter(None, notes)),),
        foot=len(body) - len(groups),
    )  # fmt: skip
