"""The page of one run, or of the same run over several seeds."""

from __future__ import annotations

from collections.abc import Sequence

from fedsoft import plugins
from fedsoft.evaluation.values import Scores
from fedsoft.reports.cells import column, known, mean_of
from fedsoft.reports.clients import Clients
from fedsoft.reports.cluster_models import cluster_models
from fedsoft.reports.clusters import cluster_blocks
from fedsoft.reports.common_sections import (
    cost_table,
    environment_section,
    facts,
    look_at_clients,
    personal_figure,
    personal_table,
    settings_section,
)  # fmt: skip
from fedsoft.reports.convergence import convergence
from fedsoft.reports.metrics import metric_tables
from fedsoft.reports.page import Axis, Block, Cell, Figure, Page, Panel, Section, Series, Table, Text, Verdict, heads
from fedsoft.reports.run_loader import Group
from fedsoft.reports.withheld import withheld_centers
from fedsoft.safety.privacy import statements
from fedsoft.training.notices import Kind, capital, drift, exclusions, members, warnings


def run_page(group: Group, made_by: str = "") -> Page:
    """Everything there is to say about a run; over several seeds as means and standard deviations."""
    first = group.first
    clients, why_not = look_at_clients(first)
    title = f"{plugins.title('algorithms', first.spec.algorithm.name)} on {first.spec.data_title}"
    seeds = f"{len(group.runs)} seeds, mean ± standard deviation" if len(group.runs) > 1 else f"seed {first.spec.seed}"
    by_seed = [Group(f"seed {run.spec.seed}", (run,)) for run in group.runs]
    lead = f"{first.spec.about}. " if first.spec.about else ""
    found = [
        Section("in-short", "In short", (*_verdicts(group, clients), *_warnings(group))),
        Section("what", "What was run", (facts([group]),)),
        Section("centers", "Cluster models", tuple(cluster_models(group))),
        Section("clusters", "What the clusters are", tuple(cluster_blocks(group))),
        Section("convergence", "Convergence", tuple(convergence(group))),
        Section("mixtures", "Mixtures", tuple(_mixtures(group, clients, why_not))),
        Section("personal", "Personal models", tuple(_personal(group, clients, why_not))),
        Section("cost", "Cost", (cost_table(by_seed, "run"),)),
        settings_section([group]),
        environment_section([group]),
    ]
    sections = tuple(section for section in found if section.blocks)
    return Page(title, f"{lead}{seeds[0].upper()}{seeds[1:]}.", sections, group.refs, made_by)


# --- in short ---------------------------------------------------------------------------------------------------------


def _verdicts(group: Group, clients: Clients | None) -> list[Block]:
    found: list[Block] = []
    all_scores, count = [run.scores for run in group.runs], len(group.runs)
    sources = group.first.scores.sources
    if group.first.scores.centers and len(sources) > 1:
        own = sum(len(set(scores.best or [])) == len(sources) for scores in all_scores)
        where = "" if count == 1 else f" in {own} of {count} runs"
        found.append(Verdict(f"Every source is served best by a center of its own{where}.",
                             "the best center on the test set of each source is a different one, in every run",
                             own == count, group.refs))  # fmt: skip
    oracle = [_to_oracle(scores) for scores in all_scores]
    if known(oracle):
        found.append(Verdict(f"The best centers have {mean_of(oracle):.1f} times the error of the oracle.",
                             "test error of the best center divided by that of the oracle, mean over sources and "
                             "seeds; the oracle is trained on the points of its source alone",
                             None, group.refs))  # fmt: skip
    if (recovery := mean_of(group.recoveries)) is not None:
        rule = "mean over clients and sources of |u - true share|"
        sentence = f"The estimated mixtures are off by {recovery:.3f} on average"
        if clients is None or clients.shares is None:
            return [*found, Verdict(f"{sentence}.", rule, None, group.refs)]
        even = mean_of([abs(share - 1 / len(row)) for row in clients.shares for share in row]) or 0.0
        sentence += f"; equal shares for everybody would be off by {even:.3f}."
        rule += f"; holds when it is below that of equal shares (of the clients of seed {group.first.spec.seed})"
        found.append(Verdict(sentence, rule, recovery < even, group.refs))
    return found


def _to_oracle(scores: Scores) -> float | None:
    """Return the error of the best centers divided by that of the oracle, mean over sources."""
    if scores.of_best is None or not scores.oracle or scores.metric != "mse":
        return None
    return mean_of([best / oracle for best, oracle in zip(scores.of_best, scores.oracle, strict=True)])


RULES: dict[Kind, tuple[str, bool | None]] = {
    Kind.UNUSED: ("a center has less than a tenth of an even share of the points; holds when there is none", False),
    Kind.COPY: ("a center is as good as a copy of another one; holds when there is none", False),
    Kind.SILENCE: ("replies that came and were accepted, counted in every round", False),
    Kind.EXCLUDED: ("replies that are not finite, out of range, or far longer than the median are left out of averages",
                    None),
    Kind.DRIFT: ("a client's u is far from its usual mixture while the others' are calm", None),
    Kind.MEMBERS: ("the run went on with other clients than it began with", None),
}  # fmt: skip
"""How each kind of notice comes about, and whether something is claimed by it."""
PRIVACY = "Gaussian noise, composed over the run by the accountant dp-accounting; see docs/privacy.md"
WITHHELD = "the effective number of clients of a center is below privacy.floor"


def _warnings(group: Group) -> list[Block]:
    """Return verdicts on centers that collapsed, on privacy, and on clients that stand out."""
    found: list[Block] = []
    for run in group.runs:
        seed = f" (seed {run.spec.seed})" if len(group.runs) > 1 else ""
        spent = run.records[-1].privacy if run.records else None
        notices = [*warnings(run.records), *exclusions(run.records), *members(run.records), *drift(run.records)]
        hidden = withheld_centers(run.spec, run.records).values()
        claims = [(notice.sentence, *RULES[notice.kind]) for notice in notices]
        claims += [(f"Privacy of {text}", PRIVACY, None) for text in statements(spent)]
        claims += [(capital(text), WITHHELD, None) for text in hidden]
        found += [Verdict(f"{sentence}{seed}.", rule, holds, (run.ref,)) for sentence, rule, holds in claims]
    return found


# --- clients ----------------------------------------------------------------------------------------------------------


def _mixtures(group: Group, clients: Clients | None, why_not: str) -> list[Block]:
    blocks: list[Block] = []
    refs = group.refs
    if known(group.recoveries):
        rows = [[value] for value in group.recoveries]
        cells = column([*rows, *([group.recoveries] if len(rows) > 1 else [])],
                       [*((ref,) for ref in refs), *([refs] if len(rows) > 1 else [])])  # fmt: skip
        names = [Cell(f"seed {run.spec.seed}", run.spec.seed) for run in group.runs] + [Cell("mean")] * (len(rows) > 1)
        blocks.append(Table("recovery-table", "Error of the estimated mixtures: mean |u - true share|",
                            heads("run", ["error of u"]), tuple(zip(names, cells, strict=True)),
                            foot=int(len(rows) > 1)))  # fmt: skip
    if clients is None:
        return [*blocks, Text(why_not)]
    if clients.u is None:
        return blocks
    first = group.first.ref
    if clients.shares is not None and group.first.scores.sources:
        blocks.append(Figure("mixtures-figure", "Estimated against true mixture, every client",
                             "Each point is a client and a source: its true share among the client's points across, "
                             "the estimated share u upwards. On the diagonal the estimate is right.",
                             (mixture_panel("", clients, group.first.scores.sources),),
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
    tables = [personal_table(group), *metric_tables(group, clients=True)]
    if clients is None:
        return [*tables, Text(why_not)]
    metric, seeds = group.first.scores.metric, len(group.runs)
    return [*tables, *personal_figure({"": clients}, metric, (group.first.ref,), both=True, seeds=seeds)]
