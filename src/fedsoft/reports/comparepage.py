"""The page of several methods beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsoft.reports import parts
from fedsoft.reports.behind import behind
from fedsoft.reports.cells import Values, column, known, mean_of
from fedsoft.reports.clients import Clients
from fedsoft.reports.comparison import MOST_SOURCES
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
from fedsoft.reports.runpage import mixture_panel, unknown_panel
from fedsoft.reports.tables import best_centers, metric_name


def comparison_page(groups: Sequence[Group], made_by: str = "") -> Page:
    """Methods side by side: quality, error against cost, mixtures, personal models, cost."""
    data = list(dict.fromkeys(parts.data_words(group.first) for group in groups))
    seeds = sorted({run.spec.seed for group in groups for run in group.runs})
    told = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    looked = {group.label: parts.look_at_clients(group.first) for group in groups}
    clients = {label: found for label, (found, _) in looked.items() if found is not None}
    why_not = [Text(f"{label}: {why}") for label, (found, why) in looked.items() if found is None]
    found = [
        Section("in-short", "In short", (*_verdicts(groups), *_behind(groups))),
        Section("methods", "Methods", (_quality(groups),)),
        Section("convergence", "Error against cost", tuple(_courses(groups))),
        Section("mixtures", "Mixtures", tuple(_mixtures(groups, clients))),
        Section("personal", "Personal models", (*_personal(groups, clients), *why_not)),
        Section("cost", "Cost", (parts.cost_table(groups, [group.label for group in groups], "method"),)),
        Section("what", "What was run", (parts.facts(groups),)),
        parts.settings_section(groups),
        parts.environment_section(groups),
    ]
    lead = f"{len(groups)} runs of different settings" if len(data) > 1 else f"{len(groups)} methods on the same data"
    over = ", mean ± deviation" if max(len(group.runs) for group in groups) > 1 else ""
    sections = tuple(section for section in found if section.blocks)
    refs = tuple(ref for group in groups for ref in group.refs)
    return Page(f"Comparison on {' and '.join(data)}", f"{lead}, {told}{over}.", sections, refs, made_by)


def _higher(groups: Sequence[Group]) -> bool:
    return bool(groups[0].first.scores["higher_is_better"])


def _metric(groups: Sequence[Group]) -> str:
    return str(groups[0].first.scores["metric"])


# --- quality ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
    """A column of the table of methods: a value of every run."""

    title: str
    of: Callable[[Finished], float | None]
    metric: str
    higher: bool | None
    reference: Callable[[Finished, str], float | None] = lambda run, key: None


def _sources(groups: Sequence[Group]) -> list[str]:
    """The sources, where all runs have the same few of them."""
    found = [group.first.scores["sources"] for group in groups]
    return found[0] if all(names == found[0] for names in found) and len(found[0]) <= MOST_SOURCES else []


def _on(j: int | None) -> Callable[[Finished], float | None]:
    def value(run: Finished) -> float | None:
        best = best_centers(run.scores)
        return None if best is None else statistics.mean(best) if j is None else best[j]

    return value


def _known(j: int | None) -> Callable[[Finished, str], float | None]:
    def value(run: Finished, key: str) -> float | None:
        found = run.scores.get(key)
        if isinstance(found, list):
            return statistics.mean(found) if j is None else found[j]
        return found

    return value


def _part(key: str, kind: str) -> Callable[[Finished], float | None]:
    return lambda run: run.scores[key][kind] if run.scores.get(key) else None


def _measures(groups: Sequence[Group]) -> list[_Measure]:
    metric, higher, sources = _metric(groups), _higher(groups), _sources(groups)
    best = [_Measure(f"best on {name}", _on(j), metric, higher, _known(j)) for j, name in enumerate(sources)]
    best = best or [_Measure("best center, mean", _on(None), metric, higher, _known(None))]
    return [
        *best,
        _Measure("error of u", lambda run: run.scores["recovery"], "share", False),
        _Measure("personal, training", _part("personal_train", "mean"), metric, higher),
        _Measure("personal, held out", _part("personal_held_out", "mean"), metric, higher),
        _Measure("worst decile", _part("personal_held_out", "worst_decile"), metric, higher),
    ]


def _quality(groups: Sequence[Group]) -> Table:
    refs = [group.refs for group in groups]
    titles, columns = [], []
    for measure in _measures(groups):
        values: list[Values] = [[measure.of(run) for run in group.runs] for group in groups]
        if not any(map(known, values)):
            continue
        for key in ("oracle", "noise_floor"):
            found = [measure.reference(run, key) for run in groups[0].runs]
            values.append(found[:1] if key == "noise_floor" and len(set(found)) == 1 else found)  # it has no deviation
        titles.append(measure.title)
        columns.append(column(values, [*refs, refs[0], refs[0]], measure.metric, measure.higher, peers=len(groups)))
    rows = [(Cell(name), *(cells[i] for cells in columns)) for i, name in enumerate([g.label for g in groups])]
    for i, name in ((len(groups), "oracle"), (len(groups) + 1, "noise floor")):
        cells = [cells[i] for cells in columns]
        if any(cell.value is not None for cell in cells):
            rows.append((Cell(name), *(cell if cell.value is not None else Cell("") for cell in cells)))
    name = parts.unit(_metric(groups))
    return Table(
        "methods-table", f"{name} of centers on each source's test set, and of personal models on the client's points",
        (Column("method", numeric=False), *map(Column, titles)), tuple(rows),
        notes=("Best of each column marked. The oracle is trained on the points of its source alone."
               if len(rows) > len(groups) else "Best of each column marked.",),
        foot=len(rows) - len(groups),
    )  # fmt: skip


def _verdicts(groups: Sequence[Group]) -> list[Block]:
    """Who comes first, and whether that depends on the seed."""
    metric = _metric(groups)
    words = {"higher": "largest", "lower": "smallest"}
    wanted = [
        (_Measure("", _on(None), metric, _higher(groups)),
         f"its best centers ({metric_name(metric)}, mean over sources)"),
        (_Measure("", lambda run: run.scores["recovery"], "share", False),
         "its mixtures (mean |u - true share|)"),
        (_Measure("", _part("personal_held_out", "mean"), metric, _higher(groups)),
         f"its personal models ({metric_name(metric)} on held-out points)"),
    ]  # fmt: skip
    found: list[Block] = []
    for measure, what in wanted:
        values = {g.label: {run.spec.seed: v for run in g.runs if (v := measure.of(run)) is not None} for g in groups}
        values = {label: per_seed for label, per_seed in values.items() if per_seed}
        if len(values) < 2:
            continue
        ranked = sorted(values, key=lambda label: statistics.mean(values[label].values()), reverse=bool(measure.higher))
        first, second = ranked[:2]
        shared = sorted(values[first].keys() & values[second].keys())
        gains = [values[first][s] - values[second][s] for s in shared]
        ahead = sum(gain > 0 if measure.higher else gain < 0 for gain in gains)
        means = [statistics.mean(values[label].values()) for label in (first, second)]
        texts = [f"{100 * m:.1f} %" if measure.metric == "accuracy" else f"{m:#.3g}" for m in means]
        sentence = f"{first} comes first by {what}: {texts[0]}, then {second} with {texts[1]}"
        sentence += f"; ahead in {ahead} of {len(shared)} seeds." if len(shared) > 1 else "."
        rule = f"{words['higher' if measure.higher else 'lower']} mean over seeds"
        if len(shared) > 1:
            rule += "; holds when the first is ahead of the second with every seed"
        refs = tuple(ref for group in groups if group.label in (first, second) for ref in group.refs)
        found.append(Verdict(sentence, rule, ahead == len(shared) if len(shared) > 1 else None, refs))
    return found


def _behind(groups: Sequence[Group]) -> list[Block]:
    """Who falls behind the first, where all have the same seeds."""
    if len({tuple(run.spec.seed for run in group.runs) for group in groups}) > 1:
        return []
    rows = []
    for group in groups:
        best = [best_centers(run.scores) for run in group.runs]
        rows.append({
            "algorithm": group.label, "seeds": [run.spec.seed for run in group.runs],
            "best_center": best if all(b is not None for b in best) else None,
            "personal_held_out": [_part("personal_held_out", "mean")(run) for run in group.runs],
        })  # fmt: skip
    return [Text(f"{sentence}.") for sentence in behind(rows, _sources(groups), _higher(groups))]


# --- error against cost -----------------------------------------------------------------------------------------------


def _courses(groups: Sequence[Group]) -> list[Block]:
    metric = _metric(groups)
    axes = {
        "gradients per client": ("gradients",),
        "bytes per client, both ways": ("bytes_down", "bytes_up"),
    }
    panels = []
    for label, keys in axes.items():
        series = [
            s for i, group in enumerate(groups) if (s := _course(group, keys, metric, i, len(groups))) is not None
        ]
        if not series:
            return []
        levels = []
        oracle = mean_of([statistics.mean(run.scores["oracle"]) for run in groups[0].runs if run.scores["oracle"]])
        if oracle is not None:
            levels.append(Level("oracle", parts.factor(metric) * oracle))
        axis = Axis(f"test {parts.unit(metric)} of the best centers", log=metric == "mse")
        panels.append(Panel(f"Against {'client work' if 'gradients' in keys else 'traffic'}", Axis(label), axis,
                            tuple(series), tuple(levels)))  # fmt: skip
    bands = any(len(s.low) for panel in panels for s in panel.series)
    return [Figure("courses", "Error of the best centers against what it took",
                   "For every method the error of the best center, mean over sources, from round to round: across, "
                   "what had been spent by then.", tuple(panels),
                   ("Band: one deviation over seeds.",) if bands else (),
                   tuple(ref for group in groups for ref in group.refs))]  # fmt: skip


def _course(group: Group, keys: tuple[str, ...], metric: str, colour: int, lines: int) -> Series | None:
    length = min(len(run.records) for run in group.runs)
    if not length or not all(run.records[0].get("best") for run in group.runs):
        return None
    chosen, spent, errors = parts.thin(length), [], []
    for run in group.runs:
        total, sums = 0.0, []
        for record in run.records[:length]:
            total += sum(record.get(key, 0) for key in keys)
            sums.append(total / run.clients)
        spent.append([sums[t] for t in chosen])
        errors.append([statistics.mean(run.records[t]["best"]) for t in chosen])
    mean, low, high = parts.band(errors, metric, lines)
    x = [statistics.mean(values) for values in zip(*spent, strict=True)]
    return Series(group.label, x, mean, low=low, high=high, colour=colour)


# --- clients ----------------------------------------------------------------------------------------------------------


def _mixtures(groups: Sequence[Group], clients: dict[str, Clients]) -> list[Block]:
    panels, origin = [], []
    for group in groups:
        found = clients.get(group.label)
        if found is None or found.u is None:
            continue
        known_truth = found.shares is not None and bool(group.first.scores["sources"])
        panels.append(mixture_panel(group.label, found, group.first.scores["sources"]) if known_truth
                      else unknown_panel(group.label, found))  # fmt: skip
        origin.append(group.first.ref)
    if not panels:
        return []
    notes = ("One seed of each method: the first.",) if max(len(group.runs) for group in groups) > 1 else ()
    return [Figure("mixtures-figure", "Mixture of every client as each method sees it",
                   "Each point is a client: its true share across where that is known, the estimated share u upwards.",
                   tuple(panels), notes, tuple(origin))]  # fmt: skip


def _personal(groups: Sequence[Group], clients: dict[str, Clients]) -> list[Block]:
    metric = _metric(groups)
    blocks: list[Block] = []
    spreads = [[v for run in g.runs if (v := _part("personal_held_out", "mean")(run)) is not None] for g in groups]
    rows = [(group, values) for group, values in zip(groups, spreads, strict=True) if values]
    if rows:
        scale = parts.factor(metric)
        means = [scale * statistics.mean(values) for _, values in rows]
        gaps = [scale * statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in rows]
        spread = any(gaps)
        low = [m - g for m, g in zip(means, gaps, strict=True)] if spread else []
        high = [m + g for m, g in zip(means, gaps, strict=True)] if spread else []
        series = Series("held out", means, list(range(len(rows))), "bar", low=low, high=high)
        names = tuple(group.label for group, _ in rows)
        panel = Panel("", Axis(f"{parts.unit(metric)} on held-out points"), Axis("", names=names), (series,))
        blocks.append(Figure("personal-bars", "Personal models on the clients' held-out points, mean over clients",
                             "A bar for each method, with one deviation over seeds.", (panel,),
                             ("Whiskers: one deviation over seeds.",) if spread else (),
                             tuple(ref for group, _ in rows for ref in group.refs)))  # fmt: skip
    origin = tuple(group.first.ref for group in groups if group.label in clients)
    seeds = max(len(group.runs) for group in groups)
    figure = parts.personal_figure(clients, metric, origin, both=False, seeds=seeds) if clients else None
    return [*blocks, figure] if figure is not None else blocks
