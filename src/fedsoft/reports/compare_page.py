"""The page of several methods beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from fedsoft.evaluation.seed_tests import FEWEST, corrected, difference
from fedsoft.reports.clients import Clients
from fedsoft.reports.common_sections import (
    cost_table,
    environment_section,
    facts,
    look_at_clients,
    personal_figure,
    settings_section,
)  # fmt: skip
from fedsoft.reports.measures import Measured
from fedsoft.reports.method_figures import courses, personal_bars
from fedsoft.reports.method_table import Measure, is_higher_better, metric_of, quality_table
from fedsoft.reports.numbers import metric_name
from fedsoft.reports.page import Block, Figure, Page, Section, Text, Verdict
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
from fedsoft.reports.seed_tables import difference_table, rank_figure


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
        Section("in-short", "In short", (*_verdicts(groups, rows), *_remarks(groups, rows))),
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


# --- in short --------------------------------------------------------------------------------------------------------


def _verdicts(groups: Sequence[Group], rows: Sequence[Measured]) -> list[Block]:
    """Return who comes first, and whether that depends on the seed."""
    metric, higher = metric_of(groups), is_higher_better(groups)
    name = metric_name(metric)
    wanted = [
        Measure(f"its best centers ({name}, mean over sources)", lambda row: row.best_on(None), metric, higher),
        Measure("its mixtures (mean |u - true share|)", lambda row: row.recovery, "share", False),
        Measure(f"its personal models ({name} on held-out points)", lambda row: row.personal_held_out, metric, higher),
    ]
    return [verdict for measure in wanted if (verdict := _first(groups, rows, measure)) is not None]


def _first(groups: Sequence[Group], rows: Sequence[Measured], measure: Measure) -> Verdict | None:
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


def _remarks(groups: Sequence[Group], rows: Sequence[Measured]) -> list[Block]:
    """Return whose runs still improved, and, where all have the same seeds, who falls behind the first or is ahead."""
    found = restless(unsettled(groups, higher=is_higher_better(groups)))
    if len({tuple(row.seeds) for row in rows}) == 1:
        apart, first = to_first(rows, is_higher_better(groups), scale_of(groups)), rows[0].algorithm
        found += [*behind(apart, first), *ahead(apart, first), *filter(None, [how_tested(apart)])]
    return [Text(f"{sentence}.") for sentence in found]


def _differences(groups: Sequence[Group], rows: Sequence[Measured]) -> Iterator[Block]:
    """Yield how the methods differ from the first, and their ranks, where there are seeds enough."""
    apart = to_first(rows, is_higher_better(groups), scale_of(groups))
    if any(one.tested.seeds > 1 for one in apart):
        yield difference_table(apart, rows[0].algorithm, metric_of(groups))
    for measure, of in ((CENTERS, lambda row: row.best_on(None)), (PERSONAL, lambda row: row.personal_held_out)):
        values = {row.algorithm: by_seed(row.seeds, of(row)) for row in rows}
        figure = rank_figure(
            {label: found for label, found in values.items() if found}, measure, is_higher_better(groups)
        )
        if figure is not None:
            yield figure


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


def _personal(groups: Sequence[Group], clients: dict[str, Clients]) -> list[Block]:
    origin = tuple(group.first.ref for group in groups if group.label in clients)
    seeds = max(len(group.runs) for group in groups)
    return [*personal_bars(groups), *personal_figure(clients, metric_of(groups), origin, both=False, seeds=seeds)]
