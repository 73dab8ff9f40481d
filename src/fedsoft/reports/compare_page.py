"""The page of several methods beside each other."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedsoft.evaluation.seed_tests import FEWEST, corrected, difference
from fedsoft.evaluation.spread import Spread
from fedsoft.reports.cells import Values, column, known, mean_of
from fedsoft.reports.clients import Clients
from fedsoft.reports.common_sections import (
    band,
    cost_table,
    environment_section,
    facts,
    look_at_clients,
    personal_figure,
    settings_section,
    thin,
)  # fmt: skip
from fedsoft.reports.measures import Measured, shown_sources
from fedsoft.reports.metrics import metric_names
from fedsoft.reports.numbers import factor, metric_name, unit
from fedsoft.reports.page import (
    Axis,
    Block,
    Cell,
    Figure,
    Level,
    Page,
    Panel,
    Section,
    Series,
    Table,
    Text,
    Verdict,
    heads,
)  # fmt: skip
from fedsoft.reports.regressions import (
    CENTERS,
    PERSONAL,
    ahead,
    behind,
    by_seed,
    how_tested,
    restless,
    scale_of,
    to_first,
    unsettled,
)
from fedsoft.reports.run_loader import Group
from fedsoft.reports.run_page import mixture_panel, unknown_panel
from fedsoft.reports.seed_tables import difference_table, failures_of, rank_figure
from fedsoft.training.records import RoundRecord


def comparison_page(groups: Sequence[Group], made_by: str = "") -> Page:
    """Methods side by side: quality, error against cost, mixtures, personal models, cost."""
    data = list(dict.fromkeys(group.first.spec.data_title for group in groups))
    seeds = sorted({run.spec.seed for group in groups for run in group.runs})
    over_seeds = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    rows = [Measured.of(group) for group in groups]
    looked = {group.label: look_at_clients(group.first) for group in groups}
    clients = {label: found for label, (found, _) in looked.items() if found is not None}
    why_not = [Text(f"{label}: {why}") for label, (found, why) in looked.items() if found is None]
    found = [
        Section("in-short", "In short", (*_verdicts(groups, rows), *_told(groups, rows))),
        Section("methods", "Methods", (quality_table(groups, rows),)),
        Section("differences", "Differences over seeds", tuple(_differences(groups, rows))),
        Section("convergence", "Error against cost", tuple(courses(groups))),
        Section("mixtures", "Mixtures", tuple(_mixtures(groups, clients))),
        Section("personal", "Personal models", (*_personal(groups, clients), *why_not)),
        Section("cost", "Cost", (cost_table(groups, "method"),)),
        Section("what", "What was run", (facts(groups),)),
        settings_section(groups),
        environment_section(groups),
    ]
    lead = f"{len(groups)} runs of different settings" if len(data) > 1 else f"{len(groups)} methods on the same data"
    over = ", mean ± standard deviation" if max(len(group.runs) for group in groups) > 1 else ""
    sections = tuple(section for section in found if section.blocks)
    refs = tuple(ref for group in groups for ref in group.refs)
    return Page(f"Comparison on {' and '.join(data)}", f"{lead}, {over_seeds}{over}.", sections, refs, made_by)


def _higher(groups: Sequence[Group]) -> bool:
    return groups[0].first.scores.higher_is_better


def _metric(groups: Sequence[Group]) -> str:
    return groups[0].first.scores.metric


# --- quality ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
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


def _measures(groups: Sequence[Group]) -> list[_Measure]:
    metric, higher, runs = _metric(groups), _higher(groups), groups[0].scores

    def best(title: str, j: int | None) -> _Measure:
        oracle = [None if s.oracle is None else statistics.mean(s.oracle) if j is None else s.oracle[j] for s in runs]
        floor = [s.noise_floor for s in runs]
        floor = floor[:1] if len(set(floor)) == 1 else floor  # then it has no standard deviation
        return _Measure(title, lambda row: row.best_on(j), metric, higher, oracle, floor)

    def constant(value: Callable[[Spread], float]) -> tuple[Values, ...]:
        sticks = [[s.yardsticks[i].held_out for s in runs] for i in range(len(_yardsticks(groups)))]
        return tuple([None if spread is None else value(spread) for spread in spreads] for spreads in sticks)

    found = [best(f"best on {name}", j) for j, name in enumerate(shown_sources(groups))]
    return [
        *(found or [best("best center, mean", None)]),
        _Measure("error of u", lambda row: row.recovery, "share", False),
        _Measure("personal, training", lambda row: row.personal_train, metric, higher),
        _Measure("personal, held out", lambda row: row.personal_held_out, metric, higher,
                 constants=constant(lambda spread: spread.mean)),
        _Measure("worst decile", lambda row: row.worst_decile, metric, higher,
                 constants=constant(lambda spread: spread.worst_decile)),
        *_further(groups),
    ]  # fmt: skip


def _further(groups: Sequence[Group]) -> Iterator[_Measure]:
    """Yield the metrics that runs asked for beside the model's own: mean and worst decile on held-out points."""
    for name in metric_names(groups):
        higher = next(s.metrics[name].higher_is_better for g in groups for s in g.scores if name in s.metrics)
        for title, kind in (("held out", "held_out"), ("worst decile", "worst_decile")):
            yield _Measure(
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
    moving = unsettled(groups, higher=_higher(groups))
    body = [
        (Cell(f"{'~' * bool(moving[group.label])}{group.label}"), *(cells[i] for cells in columns))
        for i, group in enumerate(groups)
    ]
    for i, name in enumerate(below, len(groups)):
        cells = [cells[i] for cells in columns]
        if any(cell.value is not None for cell in cells):
            body.append((Cell(name), *(cell if cell.value is not None else Cell("") for cell in cells)))
    name = unit(_metric(groups))
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


def _verdicts(groups: Sequence[Group], rows: Sequence[Measured]) -> list[Block]:
    """Return who comes first, and whether that depends on the seed."""
    metric, higher = _metric(groups), _higher(groups)
    name = metric_name(metric)
    wanted = [
        _Measure(f"its best centers ({name}, mean over sources)", lambda row: row.best_on(None), metric, higher),
        _Measure("its mixtures (mean |u - true share|)", lambda row: row.recovery, "share", False),
        _Measure(f"its personal models ({name} on held-out points)", lambda row: row.personal_held_out, metric, higher),
    ]
    return [verdict for measure in wanted if (verdict := _first(groups, rows, measure)) is not None]


def _first(groups: Sequence[Group], rows: Sequence[Measured], measure: _Measure) -> Verdict | None:
    """Return who comes first by a measure; None where fewer than two methods have it."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        found = {seed: v for seed, v in zip(row.seeds, measure.of(row), strict=True) if v is not None}
        if found:
            values[row.algorithm] = found
    if len(values) < 2:
        return None
    mean = {label: statistics.mean(per_seed.values()) for label, per_seed in values.items()}
    first, *others = sorted(mean, key=lambda label: mean[label], reverse=measure.higher)
    scale = scale_of(groups) if measure.metric == "mse" else None
    to_others = [
        difference(values[first], values[label], higher_is_better=measure.higher, scale=scale) for label in others
    ]
    gain = corrected(to_others)[0]
    one, two = (f"{100 * mean[label]:.1f} %" if measure.metric == "accuracy" else f"{mean[label]:#.3g}"
                for label in (first, others[0]))  # fmt: skip
    sentence = f"{first} comes first by {measure.title}: {one}, then {others[0]} with {two}"
    rule = f"{'largest' if measure.higher else 'smallest'} mean over seeds"
    refs = tuple(ref for group in groups if group.label in (first, others[0]) for ref in group.refs)
    if gain is None or gain.seeds < 2:
        return Verdict(f"{sentence}.", rule, None, refs)
    rule += (f"; holds where the difference to the second is not chance: p < 5 %, seed by seed, with Holm's correction "
             f"for the {len(others)} others, over at least {FEWEST} seeds")  # fmt: skip
    holds = None if gain.test == "none" else gain.is_better
    return Verdict(f"{sentence}; ahead in {gain.wins:g} of {gain.seeds} seeds.", rule, holds, refs)


def _told(groups: Sequence[Group], rows: Sequence[Measured]) -> list[Block]:
    """Return whose runs still improved, and, where all have the same seeds, who falls behind the first or is ahead."""
    found = restless(unsettled(groups, higher=_higher(groups)))
    if len({tuple(row.seeds) for row in rows}) == 1:
        apart, first = to_first(rows, _higher(groups), scale_of(groups)), rows[0].algorithm
        found += [*behind(apart, first), *ahead(apart, first), *filter(None, [how_tested(apart)])]
    return [Text(f"{sentence}.") for sentence in found]


def _differences(groups: Sequence[Group], rows: Sequence[Measured]) -> Iterator[Block]:
    """Yield how the methods differ from the first, and their ranks, where there are seeds enough."""
    apart = to_first(rows, _higher(groups), scale_of(groups))
    if any(one.tested.seeds > 1 for one in apart):
        yield difference_table(apart, rows[0].algorithm, _metric(groups))
    for measure, of in ((CENTERS, lambda row: row.best_on(None)), (PERSONAL, lambda row: row.personal_held_out)):
        values = {row.algorithm: by_seed(row.seeds, of(row)) for row in rows}
        figure = rank_figure({label: found for label, found in values.items() if found}, measure, _higher(groups))
        if figure is not None:
            yield figure


# --- error against cost -----------------------------------------------------------------------------------------------


def courses(groups: Sequence[Group]) -> list[Figure]:
    """Return the error of the best centers against client work and against traffic; nothing without scored centers."""
    metric = _metric(groups)
    axes: dict[str, tuple[str, Callable[[RoundRecord], int]]] = {
        "Against client work": ("gradients per client", lambda record: record.gradients),
        "Against traffic": ("bytes per client, both ways", lambda record: record.bytes),
    }
    oracle = mean_of([statistics.mean(s.oracle) for s in groups[0].scores if s.oracle])
    levels = () if oracle is None else (Level("oracle", factor(metric) * oracle),)
    panels = []
    for title, (label, cost) in axes.items():
        found = [_course(group, cost, metric, i, len(groups)) for i, group in enumerate(groups)]
        series = tuple(one for one in found if one is not None)
        if not series:
            return []
        axis = Axis(f"test {unit(metric)} of the best centers", log=metric == "mse")
        panels.append(Panel(title, Axis(label), axis, series, levels))
    bands = any(len(s.low) for panel in panels for s in panel.series)
    return [Figure("courses", "Error of the best centers against what it took",
                   "For every method the error of the best center, mean over sources, from round to round: across, "
                   "what had been spent by then.", tuple(panels),
                   ("Band: one standard deviation over seeds.",) if bands else (),
                   tuple(ref for group in groups for ref in group.refs))]  # fmt: skip


def _course(group: Group, cost: Callable[[RoundRecord], int], metric: str, colour: int, lines: int) -> Series | None:
    length = min(len(run.scored) for run in group.runs)
    chosen, spent, errors = thin(length), [], []
    for run in group.runs:
        sums = list(itertools.accumulate(map(cost, run.records)))
        records = [run.scored[i] for i in chosen]
        spent.append([sums[record.round - 1] / run.clients for record in records])
        errors.append([statistics.mean(record.best) for record in records])
    if not length:
        return None
    mean, low, high = band(errors, metric, lines)
    x = [statistics.mean(values) for values in zip(*spent, strict=True)]
    return Series(group.label, x, mean, low=low, high=high, colour=colour)


# --- clients ----------------------------------------------------------------------------------------------------------


def _mixtures(groups: Sequence[Group], clients: dict[str, Clients]) -> list[Block]:
    panels, origin = [], []
    for group in groups:
        found = clients.get(group.label)
        if found is None or found.u is None:
            continue
        known_truth = found.shares is not None and bool(group.first.scores.sources)
        panels.append(mixture_panel(group.label, found, group.first.scores.sources) if known_truth
                      else unknown_panel(group.label, found))  # fmt: skip
        origin.append(group.first.ref)
    if not panels:
        return []
    notes = ("One seed of each method: the first.",) if max(len(group.runs) for group in groups) > 1 else ()
    return [Figure("mixtures-figure", "Mixture of every client as each method sees it",
                   "Each point is a client: its true share across where that is known, the estimated share u upwards.",
                   tuple(panels), notes, tuple(origin))]  # fmt: skip


def personal_bars(groups: Sequence[Group]) -> list[Figure]:
    """Return personal models on held-out points, a bar for each method; nothing where no points are held out."""
    metric = _metric(groups)
    spreads = [[s.personal_held_out.mean for s in group.scores if s.personal_held_out] for group in groups]
    rows = [(group, values) for group, values in zip(groups, spreads, strict=True) if values]
    if not rows:
        return []
    scale = factor(metric)
    means = [scale * statistics.mean(values) for _, values in rows]
    gaps = [scale * statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in rows]
    low = [m - g for m, g in zip(means, gaps, strict=True)] if any(gaps) else []
    high = [m + g for m, g in zip(means, gaps, strict=True)] if any(gaps) else []
    series = Series("held out", means, list(range(len(rows))), "bar", low=low, high=high)
    names = tuple(group.label for group, _ in rows)
    panel = Panel("", Axis(f"{unit(metric)} on held-out points"), Axis("", names=names), (series,))
    return [Figure("personal-bars", "Personal models on the clients' held-out points, mean over clients",
                   "A bar for each method, with one standard deviation over seeds.", (panel,),
                   ("Whiskers: one standard deviation over seeds.",) if any(gaps) else (),
                   tuple(ref for group, _ in rows for ref in group.refs))]  # fmt: skip


def _personal(groups: Sequence[Group], clients: dict[str, Clients]) -> list[Block]:
    origin = tuple(group.first.ref for group in groups if group.label in clients)
    seeds = max(len(group.runs) for group in groups)
    return [*personal_bars(groups), *personal_figure(clients, _metric(groups), origin, both=False, seeds=seeds)]
