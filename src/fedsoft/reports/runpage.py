"""The page of one run, or of the same run over several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsoft.centers.collapse import standing
from fedsoft.centers.drift import changes
from fedsoft.reports import parts
from fedsoft.reports.cells import column, known, mean_of
from fedsoft.reports.clients import Clients
from fedsoft.reports.material import Finished, Group
from fedsoft.reports.page import (
    Axis,
    Block,
    Cell,
    Column,
    Figure,
    Level,
    Page,
    Panel,
    Section,
    Series,
    Table,
    Text,
    Verdict,
)
from fedsoft.reports.served import served, served_course
from fedsoft.reports.tables import best_centers, withheld_centers
from fedsoft.trust.guards import exclusions, silence
from fedsoft.trust.privacy import statements

UNKNOWN = "The sources of this data are not known, so the centers are not scored against them."


def run_page(group: Group, made_by: str = "") -> Page:
    """Everything there is to say about a run; over several seeds as means and deviations."""
    first = group.first
    clients, why_not = parts.look_at_clients(first)
    title = f"{parts.algorithm_name(first)} on {parts.data_words(first)}"
    seeds = f"{len(group.runs)} seeds, mean ± deviation" if len(group.runs) > 1 else f"seed {first.spec.seed}"
    lead = f"{first.spec.about}. " if first.spec.about else ""
    found = [
        Section("in-short", "In short", (*_verdicts(group, clients), *_warnings(group))),
        Section("what", "What was run", (parts.facts([group]),)),
        Section("centers", "Cluster models", tuple(_centers(group))),
        Section("convergence", "Convergence", tuple(_convergence(group))),
        Section("mixtures", "Mixtures", tuple(_mixtures(group, clients, why_not))),
        Section("personal", "Personal models", tuple(_personal(group, clients, why_not))),
        Section("cost", "Cost", (_cost(group),)),
        parts.settings_section([group]),
        parts.environment_section([group]),
    ]
    sections = tuple(section for section in found if section.blocks)
    return Page(title, f"{lead}{seeds[0].upper()}{seeds[1:]}.", sections, group.refs, made_by)


# --- in short ---------------------------------------------------------------------------------------------------------


def _verdicts(group: Group, clients: Clients | None) -> list[Block]:
    found: list[Block] = []
    all_scores, count = [run.scores for run in group.runs], len(group.runs)
    sources = group.first.scores["sources"]
    if group.first.scores["centers"] and len(sources) > 1:
        own = sum(len(set(scores["best"])) == len(sources) for scores in all_scores)
        where = "" if count == 1 else f" in {own} of {count} runs"
        found.append(Verdict(f"Every source is served best by a center of its own{where}.",
                             "the best center on the test set of each source is a different one, in every run",
                             own == count, group.refs))  # fmt: skip
    oracle = [mean_of([b / o for b, o in zip(best_centers(s) or [], s["oracle"], strict=True)])
              for s in all_scores if s["centers"] and s["oracle"] and s["metric"] == "mse"]  # fmt: skip
    if known(oracle):
        found.append(Verdict(f"The best centers have {mean_of(oracle):.1f} times the error of the oracle.",
                             "test error of the best center divided by that of the oracle, mean over sources and "
                             "seeds; the oracle is trained on the points of its source alone",
                             None, group.refs))  # fmt: skip
    if (recovery := mean_of(group.values("recovery"))) is not None:
        rule = "mean over clients and sources of |u - true share|"
        sentence = f"The estimated mixtures are off by {recovery:.3f} on average"
        if clients is None or clients.shares is None:
            return [*found, Verdict(f"{sentence}.", rule, None, group.refs)]
        even = mean_of([abs(share - 1 / len(row)) for row in clients.shares for share in row]) or 0.0
        sentence += f"; equal shares for everybody would be off by {even:.3f}."
        rule += f"; holds when it is below that of equal shares (of the clients of seed {group.first.spec.seed})"
        found.append(Verdict(sentence, rule, recovery < even, group.refs))
    return found


def _warnings(group: Group) -> list[Block]:
    """Centers that collapsed, clients that were not believed, and clients whose mixture changed."""
    found: list[Block] = []
    for run, ref in zip(group.runs, group.refs, strict=True):
        seed = f" (seed {run.spec.seed})" if len(group.runs) > 1 else ""
        for text in standing(run.records):
            rule = "a center has less than a tenth of an even share of the points, or is as good as a copy of another"
            found.append(Verdict(f"In the end {text}{seed}.", f"{rule}; holds when there is none", False, (ref,)))
        for text in statements(run.records[-1].get("privacy", {}) if run.records else {}):
            rule = "Gaussian noise, composed over the run by the accountant dp-accounting; see docs/privacy.md"
            found.append(Verdict(f"Privacy of {text}{seed}.", rule, None, (ref,)))
        for text in withheld_centers(run.spec, run.records).values():
            rule = "the effective number of clients of a center is below privacy.floor"
            found.append(Verdict(f"{text[0].upper()}{text[1:]}{seed}.", rule, None, (ref,)))
        for text in silence(run.records):
            rule = "replies that came and were believed, counted in every round"
            found.append(Verdict(f"{text[0].upper()}{text[1:]}{seed}.", rule, False, (ref,)))
        for text in exclusions(run.records):
            rule = "replies that are not finite, out of range, or far longer than the median are left out of averages"
            found.append(Verdict(f"{text[0].upper()}{text[1:]}{seed}.", rule, None, (ref,)))
        for text in changes(run.records):
            rule = "a client's u is far from its usual mixture while the others' are calm"
            found.append(Verdict(f"{text[0].upper()}{text[1:]}{seed}.", rule, None, (ref,)))
    return found


# --- cluster models ---------------------------------------------------------------------------------------------------


def _centers(group: Group) -> list[Block]:
    scores = group.first.scores
    if not scores["centers"]:
        unknown: list[Block] = [*served(group), Text(UNKNOWN)]
        return unknown if not scores["sources"] else [Text("This method has no centers.")]
    if len(group.runs) == 1:
        return [_center_table(group)]
    blocks: list[Block] = [_best_table(group)]
    return [_aligned_table(group), *blocks] if _one_to_one(group) else blocks


def _one_to_one(group: Group) -> bool:
    """Whether in every run each source has exactly one center that stands for it, so that centers can be averaged."""
    sources = len(group.first.scores["sources"])
    return all(sorted(run.scores["alignment"] or []) == list(range(sources)) for run in group.runs)


def _reference(group: Group) -> list[tuple[str, list[list[float | None]]]]:
    """Oracle and noise floor, as columns by source."""
    sources = range(len(group.first.scores["sources"]))
    found: list[tuple[str, list[list[float | None]]]] = []
    if group.first.scores["oracle"]:
        found.append(("oracle", [[s["oracle"][j] for s in map(_scores, group.runs)] for j in sources]))
    if group.first.scores.get("noise_floor") is not None:
        floors: list[float | None] = [s.get("noise_floor") for s in map(_scores, group.runs)]
        found.append(
            ("noise floor", [floors[:1] for _ in sources] if len(set(floors)) == 1 else [floors for _ in sources])
        )
    return found


def _scores(run: Finished) -> dict[str, Any]:
    return run.scores


def _by_source(
    group: Group, values: list[list[list[float | None]]], heads: Sequence[str], best: bool
) -> list[tuple[Cell, ...]]:
    """Rows by source: `values[j][i]` over seeds in column i, the best of each row marked, then what to compare with."""
    scores, metric = group.first.scores, group.first.scores["metric"]
    extra = _reference(group)
    rows = []
    for j, source in enumerate(scores["sources"]):
        entries = values[j] + [per_source[j] for _, per_source in extra]
        cells = column(entries, [group.refs] * len(entries), metric, scores["higher_is_better"] if best else None,
                       peers=len(heads))  # fmt: skip
        rows.append((Cell(source), *cells))
    return rows


def _center_table(group: Group) -> Table:
    scores = group.first.scores
    heads = [f"c{s}" for s in range(len(scores["centers"]))]
    values = [[[center[j]] for center in scores["centers"]] for j in range(len(scores["sources"]))]
    pairs = ", ".join(f"c{s} for {scores['sources'][j]}" for s, j in enumerate(scores["alignment"] or []))
    notes = ("Best center of each source marked.", f"Centers stand for sources one to one where they can: {pairs}.")
    return Table("centers-table", f"Test {_metric(group)} of every center on every source",
                 _heads("source", [*heads, *(name for name, _ in _reference(group))]),
                 tuple(_by_source(group, values, heads, True)), notes)  # fmt: skip


def _aligned_table(group: Group) -> Table:
    sources = group.first.scores["sources"]
    values: list[list[list[float | None]]] = [[[] for _ in sources] for _ in sources]
    for scores in map(_scores, group.runs):
        for s, stands_for in enumerate(scores["alignment"]):
            for j in range(len(sources)):
                values[j][stands_for].append(scores["centers"][s][j])
    heads = [f"center of {name}" for name in sources]
    return Table("centers-table", f"Test {_metric(group)} of every center on every source",
                 _heads("source", [*heads, *(name for name, _ in _reference(group))]),
                 tuple(_by_source(group, values, heads, True)),
                 ("Best center of each source marked. Centers are numbered by chance, so over seeds they are "
                  "matched by the source that they stand for.",))  # fmt: skip


def _best_table(group: Group) -> Table:
    """Run by run: the best center of each source, and which it is."""
    sources, metric = group.first.scores["sources"], group.first.scores["metric"]
    per_source = []
    for j in range(len(sources)):
        cells = column(
            [[(best_centers(run.scores) or [])[j]] for run in group.runs], [(run.ref,) for run in group.runs], metric
        )
        named = [f"{cell.text} (c{run.scores['best'][j]})" for cell, run in zip(cells, group.runs, strict=True)]
        per_source.append([Cell(text, cell.value, runs=cell.runs) for text, cell in zip(named, cells, strict=True)])
    heads, columns = [f"best on {name}" for name in sources], per_source
    if all(run.scores.get("distance") for run in group.runs) and metric == "mse":
        ratio = [[mean_of(best_centers(run.scores) or []) or math.nan] for run in group.runs]
        scaled = [[r[0] / run.scores["distance"]] for r, run in zip(ratio, group.runs, strict=True)]
        columns = [*columns, column(scaled, [(run.ref,) for run in group.runs])]
        heads.append("mean / |θ - θ'|²")
    rows = tuple(
        (Cell(f"seed {run.spec.seed}", run.spec.seed), *(c[i] for c in columns)) for i, run in enumerate(group.runs)
    )
    return Table(
        "best-table", f"Best center of each source, seed by seed: test {_metric(group)}", _heads("run", heads), rows
    )


def _heads(first: str, others: Sequence[str]) -> tuple[Column, ...]:
    return (Column(first, numeric=False), *map(Column, others))


def _metric(group: Group) -> str:
    return parts.unit(group.first.scores["metric"])


# --- convergence ------------------------------------------------------------------------------------------------------


def _convergence(group: Group) -> list[Block]:
    """The paper's Fig. 1: the error of all centers on each source, and below it the mean importance weights."""
    runs = group.runs
    length = min(len(run.records) for run in runs)
    if not length or not all(run.records[0].get("centers") for run in runs):
        return served_course(group.first)
    if any(withheld_centers(run.spec, run.records) for run in runs):
        return [Text("Courses are left out: a center is not published (privacy.floor).")]
    averaged = len(runs) > 1 and _one_to_one(group)
    shown = [*runs] if averaged else [group.first]
    sources = group.first.scores["sources"]
    errors = [_error_panel(shown, j, length, averaged) for j in range(len(sources))]
    weights = [_weight_panel(shown, j, length, averaged) for j in range(len(sources)) if _has_weights(shown)]
    bands = any(len(series.low) for panel in errors for series in panel.series)
    notes = ["Band: one deviation over seeds."] if bands else [f"Mean over {len(runs)} seeds."] if averaged else []
    if not averaged and len(runs) > 1:
        notes.append("One seed, the first: the centers of different seeds cannot be matched one to one.")
    origin = tuple(run.ref for run in shown)
    alt = "Test error of every center over the rounds, one panel for each source"
    if len(sources) <= 2 and weights:
        alt += "; below, the mean importance weights u of the clients that have most of that source"
        return [Figure("convergence-figure", "Centers and importance weights over the rounds, as in the paper's Fig. 1",
                       f"{alt}.", (*errors, *weights), tuple(notes), origin)]  # fmt: skip
    blocks: list[Block] = [
        Figure("convergence-figure", "Centers over the rounds", f"{alt}.", tuple(errors), tuple(notes), origin)
    ]
    if weights:
        blocks.append(Figure("weights-figure", "Importance weights over the rounds",
                             "Mean importance weights u over the rounds, one panel for the clients that have most of "
                             "each source.", tuple(weights), tuple(notes), origin))  # fmt: skip
    return blocks


def _has_weights(runs: Sequence[Finished]) -> bool:
    return all("weights" in run.records[0] for run in runs)


def _names(run: Finished, averaged: bool) -> list[tuple[str, int]]:
    """Every center with its colour: named by its source where seeds are averaged, by its number otherwise."""
    if averaged:
        return [(f"center of {name}", j) for j, name in enumerate(run.scores["sources"])]
    return [(f"c{s}", s) for s in range(max(len(record["centers"]) for record in run.records))]


def _center(run: Finished, i: int, averaged: bool) -> int:
    """The number of the i-th center that is drawn."""
    return run.scores["alignment"].index(i) if averaged else i


def _error_panel(runs: Sequence[Finished], j: int, length: int, averaged: bool) -> Panel:
    scores = runs[0].scores
    metric = scores["metric"]
    chosen = parts.thin(length)
    names, series = _names(runs[0], averaged), []
    for i, (name, colour) in enumerate(names):
        courses = [[_at(run.records[t]["centers"], _center(run, i, averaged), j) for t in chosen] for run in runs]
        mean, low, high = parts.band(courses, metric, len(names))
        series.append(Series(name, [t + 1 for t in chosen], mean, low=low, high=high, colour=colour))
    levels = []
    if scores["oracle"]:
        level = mean_of([run.scores["oracle"][j] for run in runs])
        levels.append(Level("oracle", parts.factor(metric) * (level or math.nan)))
    axis = Axis(f"test {parts.unit(metric)}", log=metric == "mse")
    return Panel(f"Source {scores['sources'][j]}", Axis("round"), axis, tuple(series), tuple(levels))


def _weight_panel(runs: Sequence[Finished], j: int, length: int, averaged: bool) -> Panel:
    scores = runs[0].scores
    chosen = parts.thin(length)
    names = _names(runs[0], averaged)
    series = []
    for i, (name, colour) in enumerate(names):
        courses = [[_at(run.records[t]["weights"], j, _center(run, i, averaged)) for t in chosen] for run in runs]
        mean, low, high = parts.band(courses, "share", len(names))
        series.append(Series(name, [t + 1 for t in chosen], mean, low=low, high=high, colour=colour))
    levels = []
    for source in range(len(scores["sources"])):
        share = mean_of([_at(run.scores.get("shares") or [], j, source) for run in runs])
        colour = source if averaged else next((s for s, of in enumerate(scores["alignment"]) if of == source), None)
        if share is not None:
            levels.append(Level("true share", share, colour))
    axis = Axis("mean u", low=-0.02, high=1.02)
    return Panel(f"Clients with mostly {scores['sources'][j]}", Axis("round"), axis, tuple(series), tuple(levels))


def _at(table: list[list[float]], i: int, j: int) -> float:
    """An entry of a table that may have grown over the rounds; NaN where it was not there yet."""
    return table[i][j] if i < len(table) and j < len(table[i]) else math.nan


# --- clients ----------------------------------------------------------------------------------------------------------


def _mixtures(group: Group, clients: Clients | None, why_not: str) -> list[Block]:
    blocks: list[Block] = []
    refs = group.refs
    if known(group.values("recovery")):
        rows = [[value] for value in group.values("recovery")]
        cells = column([*rows, *([group.values("recovery")] if len(rows) > 1 else [])],
                       [*((ref,) for ref in refs), *([refs] if len(rows) > 1 else [])])  # fmt: skip
        names = [Cell(f"seed {run.spec.seed}", run.spec.seed) for run in group.runs] + [Cell("mean")] * (len(rows) > 1)
        blocks.append(Table("recovery-table", "Error of the estimated mixtures: mean |u - true share|",
                            _heads("run", ["error of u"]), tuple(zip(names, cells, strict=True)),
                            foot=int(len(rows) > 1)))  # fmt: skip
    if clients is None:
        return [*blocks, Text(why_not)]
    if clients.u is None:
        return blocks
    first = group.first.ref
    if clients.shares is not None and group.first.scores["sources"]:
        blocks.append(Figure("mixtures-figure", "Estimated against true mixture, every client",
                             "Each point is a client and a source: its true share among the client's points across, "
                             "the estimated share u upwards. On the diagonal the estimate is right.",
                             (mixture_panel("", clients, group.first.scores["sources"]),),
                             notes=(f"Seed {first.seed}.",) if len(refs) > 1 else (), origin=(first,)))  # fmt: skip
    else:
        blocks.append(Figure("mixtures-figure", "Estimated mixture of every client",
                             "Clients in the order of their share of the first center; a point for each center.",
                             (unknown_panel("", clients),), origin=(first,)))  # fmt: skip
    return blocks


def mixture_panel(title: str, clients: Clients, sources: Sequence[str]) -> Panel:
    """Estimated against true shares. With two sources one of them says it all."""
    assert clients.u is not None
    assert clients.shares is not None
    shown = range(len(sources)) if len(sources) > 2 else range(1)
    series = [
        Series(str(sources[j]), [row[j] for row in clients.shares], [row[j] for row in clients.u], "scatter",
               labels=[f"client {name}" for name in clients.names], colour=j)
        for j in shown
    ]  # fmt: skip
    diagonal = Series("u = true share", [0.0, 1.0], [0.0, 1.0], dashed=True, colour=7)
    label = f"u of {sources[0]}" if len(sources) <= 2 else "u"
    across = f"true share of {sources[0]}" if len(sources) <= 2 else "true share"
    return Panel(title, Axis(across, low=-0.03, high=1.03), Axis(label, low=-0.03, high=1.03), (*series, diagonal))


def unknown_panel(title: str, clients: Clients) -> Panel:
    """Estimated mixtures where the truth is unknown."""
    assert clients.u is not None
    order = sorted(range(len(clients.names)), key=lambda k: clients.u[k] if clients.u else [])
    series = [
        Series(f"c{s}", list(range(1, len(order) + 1)), [clients.u[k][s] for k in order], "scatter",
               labels=[f"client {clients.names[k]}" for k in order], colour=s)
        for s in range(len(clients.u[0]))
    ]  # fmt: skip
    return Panel(title, Axis("client"), Axis("u", low=-0.03, high=1.03), tuple(series))


def _personal(group: Group, clients: Clients | None, why_not: str) -> list[Block]:
    metric = group.first.scores["metric"]
    spreads = [(label, [s[key] for s in map(_scores, group.runs)])
               for key, label in (("personal_train", "training"), ("personal_held_out", "held out"))
               if all(s.get(key) for s in map(_scores, group.runs))]  # fmt: skip
    kinds = ("mean", "median", "worst_decile")
    columns = [column([[s[kind] for s in values] for _, values in spreads], [group.refs] * len(spreads), metric)
               for kind in kinds]  # fmt: skip
    rows = tuple(
        (Cell(label), *(c[i] for c in columns), Cell(str(values[0]["clients"]), values[0]["clients"]))
        for i, (label, values) in enumerate(spreads)
    )
    table = Table("personal-table", f"Personal models: {parts.unit(metric)} on the client's own points",
                  _heads("points", ["mean", "median", "worst decile", "clients"]), rows,
                  ("Worst decile: mean over the tenth of clients that fare worst.",))  # fmt: skip
    if clients is None:
        return [table, Text(why_not)]
    figure = parts.personal_figure({"": clients}, metric, (group.first.ref,), both=True, seeds=len(group.runs))
    return [table] if figure is None else [table, figure]


def _cost(group: Group) -> Table:
    seeds = [Group(f"seed {run.spec.seed}", (run,)) for run in group.runs]
    return parts.cost_table(seeds, [one.label for one in seeds], "run")
