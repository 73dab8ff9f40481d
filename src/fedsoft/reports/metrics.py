"""The metrics that runs asked for, beside the model's own: of personal models, client by client, and of centers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.values import MetricScores
from fedsoft.reports.cells import Over, Values, column, known
from fedsoft.reports.numbers import number, unit
from fedsoft.reports.page import Cell, Table, heads
from fedsoft.reports.run_loader import Group

MOST_CLIENTS = 2000  # in a table of single clients

KINDS: dict[str, Callable[[Spread], float]] = {
    "mean": lambda s: s.mean, "median": lambda s: s.median, "worst decile": lambda s: s.worst_decile,
}  # fmt: skip


def metric_names(groups: Sequence[Group]) -> list[str]:
    """Return the metrics that any of the runs asked for, in the order of the first that did."""
    return list(dict.fromkeys(name for group in groups for scores in group.scores for name in scores.metrics))


def of_runs(group: Group, name: str, value: Callable[[MetricScores], float | None]) -> list[float | None]:
    """Return something of a metric for each run; None where it was not asked for or is not defined."""
    found = [scores.metrics.get(name) for scores in group.scores]
    return [None if one is None else value(one) for one in found]


def held_out(group: Group, name: str, kind: Callable[[Spread], float] = KINDS["mean"]) -> list[float | None]:
    """Return a metric of personal models on held-out points for each run."""
    return of_runs(group, name, lambda one: None if one.held_out is None else kind(one.held_out))


def metric_tables(group: Group, *, clients: bool) -> list[Table]:
    """Return the tables of a run's metrics, nothing where it asked for none; with `clients` also client by client."""
    names = metric_names([group])
    if not names:
        return []
    found = [_personal(group, names), *_centers(group, names), *(_by_client(group, names) if clients else ())]
    return [table for table in found if table.rows]


def _personal(group: Group, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        for points, of in (("training", lambda one: one.train), ("held out", lambda one: one.held_out)):
            columns = [_over(group, name, of, kind) for kind in KINDS.values()]
            if not columns[0].values:
                continue
            constant = _over(group, name, lambda one, of=of: _constant(one, of), KINDS["mean"])
            spread = next(s for one in group.scores if name in one.metrics and (s := of(one.metrics[name])) is not None)
            cells = [over.cell(lambda v, name=name: number(round(v, 12), name)) for over in (*columns, constant)]
            rows.append((Cell(f"{unit(name)}, {points}"), *cells, Cell(str(spread.clients), spread.clients)))
    return Table(
        "metrics-table", "Metrics of personal models on the client's own points",
        heads("metric, points", [*KINDS, "constant", "clients"]), tuple(rows),
        ("Worst decile: mean over the worst tenth of clients. Constant: the better of what predicts the same for "
         "all points of a client, and for all points. Clients where a metric is not defined do not count.",),
    )  # fmt: skip


def _over(
    group: Group, name: str, of: Callable[[MetricScores], Spread | None], kind: Callable[[Spread], float]
) -> Over:
    values = of_runs(group, name, lambda one: None if (spread := of(one)) is None else kind(spread))
    return Over(tuple(known(values)), group.refs)


def _constant(one: MetricScores, of: Callable[[MetricScores], Spread | None]) -> Spread | None:
    """Return the better of the constant predictors, on the points that `of` looks at."""
    train = of(one) is one.train
    spreads = [spread for y in one.yardsticks if (spread := y.train if train else y.held_out) is not None]
    best = max if one.higher_is_better else min
    return best(spreads, key=lambda spread: spread.mean) if spreads else None


def _centers(group: Group, names: Sequence[str]) -> Iterator[Table]:
    """Centers on the test set of every source, or else on the points of clients; of the first run."""
    first = group.first.scores
    notes = (f"Seed {group.first.spec.seed}.",) if len(group.runs) > 1 else ()
    for i, name in enumerate(names):
        one = first.metrics.get(name)
        if one is None:
            continue
        columns: dict[str, Values] = {}
        if one.centers:
            columns = {f"on {source}": [row[j] for row in one.centers] for j, source in enumerate(first.sources)}
        elif one.on_all is not None and one.on_own is not None:
            columns = {"on all clients": one.on_all, "on its own clients": one.on_own}
        cells = [column([[v] for v in values], [(group.first.ref,)] * len(values), name, one.higher_is_better)
                 for values in columns.values()]  # fmt: skip
        rows = tuple((Cell(f"c{s}"), *row) for s, row in enumerate(zip(*cells, strict=True)))
        title = f"Cluster models: {unit(name)}"
        yield Table(f"metrics-centers-{i}", title, heads("center", [*columns]), rows, notes)


def _by_client(group: Group, names: Sequence[str]) -> Iterator[Table]:
    """Every client's value on its held-out points, of the first run."""
    run = group.first
    found = {name: one.by_client_held_out for name in names if (one := run.scores.metrics.get(name)) is not None}
    clients = run.folder.data.names
    if not found or len(clients) > MOST_CLIENTS or any(len(values) != len(clients) for values in found.values()):
        return
    cells = [column([[v] for v in values], [(run.ref,)] * len(values), name) for name, values in found.items()]
    rows = tuple((Cell(client), *row) for client, *row in zip(clients, *cells, strict=True))
    notes = (f"Seed {run.spec.seed}.",) if len(group.runs) > 1 else ()
    yield Table("metrics-clients", "Metrics of every client's personal model on its held-out points",
                heads("client", [unit(name) for name in found]), rows, notes)  # fmt: skip
