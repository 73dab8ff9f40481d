"""Show runs as tables in the terminal."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsoft.evaluation.values import Scores
from fedsoft.reports import page
from fedsoft.reports.cells import Over, Values, known
from fedsoft.reports.cluster_models import cluster_models
from fedsoft.reports.clusters import profile_tables, variance_tables
from fedsoft.reports.common_sections import personal_table
from fedsoft.reports.metrics import metric_tables
from fedsoft.reports.narrow import NarrowingTable
from fedsoft.reports.numbers import metric_name, number, size, unit
from fedsoft.reports.run_list import BUDGET, state_of
from fedsoft.reports.run_loader import Finished
from fedsoft.reports.run_loader import Group as Seeds
from fedsoft.reports.withheld import withheld_centers, without_centers
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec, code_in
from fedsoft.safety.privacy import statements
from fedsoft.training.notices import (
    Kind,
    Notice,
    capital,
    drift,
    exclusions,
    members,
    of_scores,
    silence,
    warnings,
)
from fedsoft.training.records import RoundRecord, Totals


def grid(
    title: str | None, heads: Iterable[str], left: Collection[str] = (), frame: box.Box = box.SIMPLE_HEAD
) -> Table:
    """Return a table without rows; columns are aligned to the right but for those in `left`."""
    table = NarrowingTable(title=title and Text(title), title_justify="left", box=frame)
    for head in heads:
        table.add_column(Text(head), justify="left" if head in left else "right", no_wrap=True)
    return table


def shown(table: page.Table, title: str, starred: bool) -> Table:
    """Return a table of a page for the terminal, the best underlined, or `starred` where text cannot be underlined."""
    left = [column.title for column in table.columns if not column.numeric]
    view = grid(title, [column.title for column in table.columns], left, box.HEAVY_HEAD)
    for head, column in zip(view.columns, table.columns, strict=True):
        head.no_wrap = not column.wrap
    for row in table.rows:
        view.add_row(*(best_marked(cell, starred) for cell in row))
    return view


def best_marked(cell: page.Cell, starred: bool) -> Text:
    return Text(f"{'*' * (cell.best and starred)}{cell.text}", style="bold underline" if cell.best else "")


def _mixtures(scores: Scores) -> Text:
    pairs = ", ".join(f"c{s} = {scores.sources[j]}" for s, j in enumerate(scores.alignment or []))
    even = scores.recovery_uniform
    guess = "" if even is None else f", equal shares would give {even:.3f}"
    return Text(f"Mixtures: mean |u - true share| = {scores.recovery:.3f}{guess} ({pairs})")


def _cost(records: Sequence[RoundRecord]) -> Text:
    total = Totals.of(records)
    return Text(
        f"Cost: {total.rounds} rounds in {total.seconds:.1f} s, {total.gradients / 1e6:.2f} M gradients, "
        f"{size(total.bytes_down)} down, {size(total.bytes_up)} up"
    )


HEADS = {
    Kind.EXCLUDED: "Excluded",
    Kind.DRIFT: "Drift",
    Kind.SCORES: "Note",
    Kind.MEMBERS: "Clients",
}  # what a notice begins with; others are warnings


def _yellow(notices: Sequence[Notice]) -> list[Text]:
    return [Text(f"{HEADS.get(notice.kind, 'Warning')}: {notice.text}", style="yellow") for notice in notices]


def _ended(folder: RunFolder, records: Sequence[RoundRecord]) -> list[str]:
    """Return who ended a run before its time, and which round is used."""
    outcome, found = folder.outcome(), list[str]()
    if outcome is not None and outcome.ended_by:
        found.append(f"Ended by {outcome.ended_by} after round {len(records)}")
    if outcome is not None and outcome.rounds < len(records):
        found.append(f"Used as it was after round {outcome.rounds}, the best on held-out points")
    return found


def _parent(folder: RunFolder) -> list[str]:
    parent = folder.info.parent
    return [] if parent is None else [f"Goes on from {parent.run} after round {parent.rounds}"]


def run_view(folder: RunFolder, starred: bool = False) -> RenderableType:
    """Return everything there is to say about one run."""
    scores, records = folder.scores(), folder.records()
    spec = folder.recorded
    head = Text(spec.title, style="bold")
    if scores is None:
        where = f"after round {len(records)} of {spec.rounds}"
        if (problem := folder.diverged) is not None:
            left = Text(f"diverged {where}: {problem}", style="yellow")
        else:
            way = "the command that began it" if folder.at_nodes else f"fedsoft resume {folder.name}"
            left = Text(f"stopped {where}: go on with {way}")
        return Group(head, left, *_yellow([*silence(records), *exclusions(records)]), _cost(records), *_kept(folder))
    hidden = withheld_centers(spec, records)
    run = Finished(folder, spec, without_centers(scores, hidden), records, folder.info)
    parts: list[RenderableType] = [head]
    if run.info.about:
        parts.append(Text(f"Data: {run.info.about}"))
    parts.append(Text())
    one = Seeds("", (run,))
    about = (*(() if scores.sources else profile_tables(one, most=3)), *variance_tables(one))
    for table in (*cluster_models(one), personal_table(one), *metric_tables(one, clients=False), *about):
        if isinstance(table, page.Table):
            parts += [shown(table, _title(table, scores.metric, starred), starred), Text()]
    if scores.recovery is not None:
        parts.append(_mixtures(scores))
    if scores.prior is not None:
        parts += [Text(capital(sentence)) for sentence in scores.prior.sentences]
    parts += _yellow([*warnings(records), *of_scores(scores)])
    parts += [Text(f"Withheld: {text}", style="yellow") for text in hidden.values()]
    parts += [Text(f"Privacy: {text}") for text in statements(records[-1].privacy if records else None)]
    parts += _yellow([*exclusions(records), *members(records), *drift(records)])
    if state_of(folder) == BUDGET:
        parts.append(Text(f"Ended by its budget, after {len(records)} of at most {spec.rounds} rounds"))
    parts += [Text(text) for text in (*_ended(folder, records), *_parent(folder))]
    parts += [_cost(records), *_kept(folder), *_global_model(folder, spec), Text(f"Saved: {folder.path}")]
    if (folder.path / "figure.png").exists():
        parts.append(Text(f"Figure: {folder.path / 'figure.png'}"))
    return Group(*parts)


def _global_model(folder: RunFolder, spec: RunSpec) -> list[Text]:
    """Say how to see what one model for all would reach: it has to be trained. Nothing where no command could."""
    if spec.algorithm.name == "fedavg" or spec.dataset.name == "nodes" or spec.parent is not None:
        return []
    if code_in(spec.to_dict()):  # of the user's own, and not beside the file in the run's folder; or made in Python
        return []
    own = [spec.algorithm.name, *(name for name in ("fedavg", "local") if name != spec.algorithm.name)]
    file = shlex.quote(str(folder.path / "spec.toml"))
    return [Text(f"One global model: fedsoft compare {file} -a {','.join(own)} --seeds {spec.seed}", overflow="fold")]


def _title(table: page.Table, metric: str, starred: bool) -> str:
    how = "*: best" if starred else "best underlined"
    return f"Cluster models: test {unit(metric)} ({how})" if table.id == "centers-table" else table.caption


def _kept(folder: RunFolder) -> list[Text]:
    """Name the rounds whose states are kept, the first and last few of many."""
    rounds = [*map(str, folder.states.kept)]
    shown = rounds if len(rounds) <= 12 else [*rounds[:3], "...", *rounds[-3:]]
    return [Text(f"Kept: the state of rounds {', '.join(shown)} (fedsoft.load(path, round=N))")] if rounds else []


def seeds_table(all_scores: list[Scores]) -> Table:
    """Return means and standard deviations over seeds, each source with its best center."""
    first = all_scores[0]
    title = f"{metric_name(first.metric)} over {len(all_scores)} seeds: mean ± std"
    table = grid(title, ("what", "value"), ("what",), box.HEAVY_HEAD)

    def add(label: str, values: Values, share: bool = False, metric: str = first.metric) -> None:
        over = Over(tuple(known(values)))
        table.add_row(Text(label), over.cell(lambda v: f"{v:.3f}" if share else number(v, metric)).text)

    for j, source in enumerate(first.sources if first.centers else []):
        best = [scores.of_best[j] if scores.of_best else None for scores in all_scores]
        add(f"best center on {source}", best)
        if first.distance:
            scaled = [b / s.distance if b and s.distance else None for b, s in zip(best, all_scores, strict=True)]
            add("  divided by |θ - θ'|²", scaled, share=True)
    if first.oracle:
        add("oracle", [statistics.mean(scores.oracle) for scores in all_scores if scores.oracle])
    add("personal, training", [s.personal_train and s.personal_train.mean for s in all_scores])
    if first.personal_held_out is not None:
        add("personal, held out", [s.personal_held_out and s.personal_held_out.mean for s in all_scores])
    for name in first.metrics:
        of_each = [one.held_out if (one := scores.metrics.get(name)) else None for scores in all_scores]
        for label, value in (("held out", lambda s: s.mean), ("worst decile", lambda s: s.worst_decile)):
            if any(of_each):
                add(f"{metric_name(name)}, {label}", [s and value(s) for s in of_each], metric=name)
    if first.recovery is not None:
        add("mean |u - true share|", [scores.recovery for scores in all_scores], share=True)
    return table
