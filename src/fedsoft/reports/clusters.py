"""Show what clusters are: whose they are, what tells them apart, and where the differences between clients lie."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedsoft.evaluation.values import ClusterProfile, PriorSummary
from fedsoft.reports.cells import Values, column, measured
from fedsoft.reports.numbers import factor, metric_name
from fedsoft.reports.page import Axis, Block, Cell, Column, Figure, Panel, RunRef, Series, Table, Text, heads
from fedsoft.reports.run_loader import Finished, Group
from fedsoft.training.notices import capital

MOST_ROWS = 16  # of parameters in a table; the largest ones
MOST_INPUTS = 12  # in a figure
SHARES = ("between sources", "within sources", "noise")


def cluster_blocks(group: Group) -> list[Block]:
    """Return everything about clusters: tables, a picture and the evidence."""
    figures = [block for run in group.runs[:1] for block in _figure(run)]
    said = [capital(sentence) for _, prior in _priors(group)[:1] for sentence in prior.sentences]
    return [*profile_tables(group), *figures, *variance_tables(group), *(Text(f"{one}.") for one in said)]


# --- what tells centers apart -----------------------------------------------------------------------------------------


def profile_tables(group: Group, most: int = 5) -> list[Table]:
    """Return every center with its clients and what tells it apart, seed by seed: centers are numbered at random."""
    rows = []
    for run in group.runs:
        for s, one in enumerate(run.scores.clusters.profiles if run.scores.clusters else []):
            name = f"c{s}" if len(group.runs) == 1 else f"seed {run.spec.seed}, c{s}"
            rows.append((Cell(name), *_profile(one, run, most)))
    if not rows:
        return []
    classes = group.first.scores.higher_is_better
    differs = "differs on" if classes else "differs by"
    notes = (
        "Differs on: the share of points for which it predicts another class than all centers together."
        if classes
        else "Differs by: root mean square, in standard deviations of the targets, from all centers together.",
        "Told by: how much more than under the mean center one standard deviation of an input moves the "
        f"{'log-odds' if classes else 'prediction'}, or how much more often a class is predicted.",
    )
    columns = (
        Column("center", numeric=False), Column("clients"), Column("share"), Column(differs),
        Column("told by", numeric=False, wrap=True), Column("typical clients", numeric=False, wrap=True),
    )  # fmt: skip
    return [Table("profiles-table", "What tells the centers apart", columns, tuple(rows), notes)]


def _profile(one: ClusterProfile, run: Finished, most: int) -> tuple[Cell, ...]:
    apart = column([[one.apart]], [(run.ref,)], "accuracy" if run.scores.higher_is_better else "")[0]
    percent = " %" * (run.scores.higher_is_better and one.apart is not None)
    return (
        Cell(str(one.clients), one.clients), Cell(f"{100 * one.share:.0f} %", one.share),
        Cell(f"{apart.text}{percent}", apart.value, runs=apart.runs), Cell(one.told_by(most)),
        Cell(", ".join(one.members)),
    )  # fmt: skip


def _figure(run: Finished) -> list[Block]:
    """Draw the effects of inputs, or how often classes are predicted: a point for each center."""
    profiles = run.scores.clusters.profiles if run.scores.clusters else []
    by_input = any(one.effects for one in profiles)
    found = [
        {e.name: e.effect for e in one.effects} if by_input else {c.name: 100 * c.more for c in one.classes}
        for one in profiles
    ]
    largest = {name: max(abs(row.get(name, 0)) for row in found) for row in found for name in row}
    names = sorted(largest, key=lambda name: -largest[name])[:MOST_INPUTS]
    if not names:
        return []
    series = [
        Series(f"c{s}", [row[name] for name in names], list(range(len(names))), "scatter", labels=names, colour=s)
        for s, row in enumerate(found)
        if row
    ]
    unit = "log-odds" if run.scores.higher_is_better else "prediction"
    across = f"effect on the {unit}" if by_input else "predicted more often, %"
    middle = Series("all centers", [0.0, 0.0], [-0.5, len(names) - 0.5], dashed=True, colour=7)
    panel = Panel("", Axis(across), Axis("", names=tuple(names)), (*series, middle))
    about = f"The {'inputs' if by_input else 'classes'} that tell the centers apart, a point for each center: "
    about += f"{across}, compared with all centers together."
    return [Figure("profiles-figure", "What tells the centers apart", about, (panel,), origin=(run.ref,))]


# --- where differences lie --------------------------------------------------------------------------------------------


def _priors(group: Group) -> list[tuple[RunRef, PriorSummary]]:
    return [(run.ref, run.scores.prior) for run in group.runs if run.scores.prior is not None]


def variance_tables(group: Group) -> list[Table]:
    """Return how much of the difference between clients lies where; over seeds as means."""
    found = _priors(group)
    if not found:
        return []
    refs, first = tuple(ref for ref, _ in found), found[0][1]
    seeds = [{row.name: row for row in (*prior.variance, prior.total)} for _, prior in found]
    largest = sorted(first.variance, key=lambda row: -row.total)[:MOST_ROWS]
    names = [row.name for row in first.variance if row in largest] + [first.total.name]
    names = names if len(first.variance) > 1 else names[-1:]
    totals: list[Values] = [[seed[name].total for seed in seeds] for name in names]
    cells = column(totals, [refs] * len(names))
    shares = [
        measured([[seed[name].shares[part] for seed in seeds] for name in names], [refs] * len(names), _percent)
        for part in range(len(SHARES))
    ]
    rows = tuple((Cell(name), *row) for name, *row in zip(names, cells, *shares, strict=True))
    unit = metric_name(first.unit)
    notes = (
        f"In all: {unit} per point of a client that ignores the difference, to second order, at the clients' inputs.",
        "Noise: the part of the differences within sources that the clients' own points do not tell.",
        "Rows of single parameters are as if only these differed: they do not add up.",
    )
    caption = f"Differences between clients: {unit} per point, and where it lies"
    return [Table("variance-table", caption, heads("in", ["in all", *SHARES]), rows, notes, foot=int(len(rows) > 1))]


def evidence_of(groups: Sequence[Group]) -> list[str]:
    """Return a sentence that compares methods by their evidence, mean over seeds, where several have one."""
    found = {
        group.label: [prior.evidence.charged for _, prior in _priors(group) if prior.evidence.tells_centers]
        for group in groups
    }
    means = {label: statistics.fmean(values) for label, values in found.items() if values}
    if len(means) < 2:
        return []
    each = ", ".join(f"{label} {value:.4f}" for label, value in means.items())
    best = max(means, key=means.__getitem__)
    return [f"log evidence per point, less 1 for each number of the prior: {each}; highest for {best}"]


def _percent(value: float) -> str:
    return f"{factor('accuracy') * value:.0f} %"
