"""The page of one run, or of the same run over several seeds."""

from __future__ import annotations

from collections.abc import Sequence

from fedsoft.centers.collapse import standing
from fedsoft.centers.drift import changes
from fedsoft.reports import parts
from fedsoft.reports.cells import column, known, mean_of
from fedsoft.reports.clients import Clients
from fedsoft.reports.clustermodels import cluster_models
from fedsoft.reports.course import convergence
from fedsoft.reports.material import Group
from fedsoft.reports.page import (
    Axis,
    Block,
    Cell,
    Figure,
    Page,
    Panel,
    Section,
    Series,
    Table,
    Text,
    Verdict,
)
from fedsoft.reports.tables import best_centers, withheld_centers
from fedsoft.trust.guards import exclusions, silence
from fedsoft.trust.privacy import statements


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
        Section("centers", "Cluster models", tuple(cluster_models(group))),
        Section("convergence", "Convergence", tuple(convergence(group))),
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
                            parts.heads("run", ["error of u"]), tuple(zip(names, cells, strict=True)),
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
    spreads = [(label, [s[key] for s in group.scores])
               for key, label in (("personal_train", "training"), ("personal_held_out", "held out"))
               if all(s.get(key) for s in group.scores)]  # fmt: skip
    kinds = ("mean", "median", "worst_decile")
    columns = [column([[s[kind] for s in values] for _, values in spreads], [group.refs] * len(spreads), metric)
               for kind in kinds]  # fmt: skip
    rows = tuple(
        (Cell(label), *(c[i] for c in columns), Cell(str(values[0]["clients"]), values[0]["clients"]))
        for i, (label, values) in enumerate(spreads)
    )
    table = Table("personal-table", f"Personal models: {parts.unit(metric)} on the client's own points",
                  parts.heads("points", ["mean", "median", "worst decile", "clients"]), rows,
                  ("Worst decile: mean over the tenth of clients that fare worst.",))  # fmt: skip
    if clients is None:
        return [table, Text(why_not)]
    figure = parts.personal_figure({"": clients}, metric, (group.first.ref,), both=True, seeds=len(group.runs))
    return [table] if figure is None else [table, figure]


def _cost(group: Group) -> Table:
    seeds = [Group(f"seed {run.spec.seed}", (run,)) for run in group.runs]
    return parts.cost_table(seeds, [one.label for one in seeds], "run")
