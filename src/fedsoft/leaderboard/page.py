"""The leaderboard as one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedsoft.leaderboard.data import PRESET, Board, Budget, Cell, FederationData
from fedsoft.leaderboard.listing import State, states
from fedsoft.leaderboard.plan import Entry, Plan
from fedsoft.leaderboard.quantities import NOT_RUN, QUANTITIES, summary, yardsticks
from fedsoft.leaderboard.standings import MEASURES, Standings
from fedsoft.reports import page as parts
from fedsoft.reports.numbers import duration, several, unit
from fedsoft.reports.page import Block, Page, Section, Table, heads
from fedsoft.reports.regressions import how_tested
from fedsoft.reports.seed_tables import difference_table, rank_figure

COLUMNS = ("centers", "recovery", "personal", "worst_decile", "newcomers", "rounds", "gradients", "evaluations",
           "bytes_down", "bytes_up", "seconds")  # fmt: skip
SPREAD = ("centers", "personal", "worst_decile", "newcomers")  # with their standard deviation
BUDGETS: dict[Budget, str] = {"work": "at equal work", "bytes": "at equal bytes", "converged": "converged"}


def board_page(board: Board, plan: Plan) -> Page:
    """Return the whole page: standings of all federations, and what is missing."""
    known = {name: data for name in plan.federations if (data := board.read(name)) is not None}
    listed = states(board, plan, [*plan.federations], [PRESET, *plan.methods])
    sections = [
        Section("overview", "Best centers at equal work", tuple(_overview(plan, known, "centers"))),
        Section("overview-personal", "Personal models at equal work", tuple(_overview(plan, known, "personal"))),
    ]
    for name, data in known.items():
        for budget, words in BUDGETS.items():
            found = tuple(_blocks(plan.entry(name), Standings(data, budget)))
            if found:
                sections.append(Section(f"{name}-{budget}", f"{plan.entry(name).title}, {words}", found))
    sections.append(Section("missing", "What was not run", (_missing(plan, listed),)))
    lead = (
        "Methods by federations. Every method is tuned on seeds of its own, by held-out points of clients, and then "
        "run with seeds that nobody has looked at before. A tenth of the clients never takes part: the newcomers. "
        "Mean ± standard deviation over seeds."
    )
    return Page("Leaderboard", lead, tuple(sections), made_by="Made by 'fedsoft leaderboard build'.")


def _overview(plan: Plan, known: dict[str, FederationData], what: str) -> Iterator[Block]:
    names = [name for name, data in known.items() if any(QUANTITIES[what].values(cell) for cell in data.cells.values())]
    lost = {name: Standings(known[name], "work").failures for name in names}
    seeds = {name: len(plan.entry(name).reported) for name in names}
    whole = {
        name: all(_is_whole(known[name].cells.get(f"{method}/work"), seeds[name]) for method in [PRESET, *plan.methods])
        for name in names
    }
    rows: list[tuple[parts.Cell, ...]] = []
    for method in [PRESET, *plan.methods]:
        cells = [known[name].cells.get(f"{method}/work") for name in names]
        if any(cell is not None and cell.runs for cell in cells):
            texts = [
                _counted(_text(cell, what, known[name]), cell, lost[name].get(method, 0), seeds[name])
                for name, cell in zip(names, cells, strict=True)
            ]
            rows.append((parts.Cell(method), *texts))
    count, rows = len(rows), _marked(rows, [known[name].higher_is_better if whole[name] else None for name in names])
    rows += _sticks(known, names, what)
    if names:
        titles = [f"{plan.entry(name).title} ({unit(known[name].metric)})" for name in names]
        yield Table(
            f"overview-{what}-table", f"{QUANTITIES[what].title}, mean over seeds", heads("method", titles),
            tuple(rows),
            ("'preset' is FedSoft as published, untuned: its work is everybody's budget. In brackets how many of the "
             "runs failed, which a mean hides. The best of each column that is complete, as far as its digits go, is "
             "marked: what is told apart by more than chance stands below.",),
            foot=len(rows) - count,
        )  # fmt: skip


def _counted(shown: parts.Cell, cell: Cell | None, failed: int, seeds: int) -> parts.Cell:
    """Return a cell with what its mean does not say: runs that failed, and that not all were made yet."""
    if cell is None or not cell.runs:
        return shown
    said = [*([f"{failed} of {len(cell.runs)} failed"] * bool(failed)),
            *([f"{len(cell.runs)} of {seeds} seeds"] * (len(cell.runs) < seeds))]  # fmt: skip
    return replace(shown, text=f"{shown.text} ({', '.join(said)})") if said else shown


def _is_whole(cell: Cell | None, seeds: int) -> bool:
    """Return whether a cell has all its runs, or cannot have any."""
    return cell is not None and (bool(cell.problem) or len(cell.runs) >= seeds)


def _marked(rows: list[tuple[parts.Cell, ...]], higher: list[bool | None]) -> list[tuple[parts.Cell, ...]]:
    """Return the rows with the best values of each column marked, and those that are written alike; None: leave it."""
    found = [list(row) for row in rows]
    for j, high in enumerate(higher, start=1):
        values = [(value, row[j].text) for row in rows if isinstance(value := row[j].value, float)]
        if values and high is not None:
            _, text = (max if high else min)(values)
            for row in found:
                row[j] = replace(row[j], best=row[j].text == text)
    return [tuple(row) for row in found]


def _sticks(known: dict[str, FederationData], names: list[str], what: str) -> list[tuple[parts.Cell, ...]]:
    sticks = {name: yardsticks(known[name]) for name in names}
    rows = []
    for stick in dict.fromkeys(one for found in sticks.values() for one in found):
        texts = [_text(sticks[name].get(stick), what, known[name], "-") for name in names]
        if any(cell.text != "-" for cell in texts):
            rows.append((parts.Cell(stick), *texts))
    return rows


def _text(cell: Cell | None, what: str, data: FederationData, absent: str = NOT_RUN) -> parts.Cell:
    text = absent if cell is None else "not possible" if cell.problem else summary(cell, what, data)
    values = QUANTITIES[what].values(cell) if cell is not None else []
    return parts.Cell(text, sum(values) / len(values) if values else None)


def _blocks(entry: Entry, found: Standings) -> Iterator[Block]:
    data, budget = found.data, found.budget
    if not found.cells:
        return
    name, lost = data.name, found.failures
    rows = []
    for method, cell in found.cells.items():
        centers, *texts = [_spread(cell, what, data) for what in COLUMNS]
        failed = parts.Cell(f"{lost[method]} of {len(cell.runs)}", lost[method])
        rows.append((parts.Cell(method), centers, failed, *texts, parts.Cell(cell.label), parts.Cell(cell.hash),
                     parts.Cell(f"fedsoft leaderboard check {name}/{method}/{budget}")))  # fmt: skip
    count = len(rows)
    for stick, cell in yardsticks(data).items():
        centers, *texts = [_spread(cell, what, data) for what in COLUMNS[:5]]
        rows.append((parts.Cell(stick), centers, parts.Cell(""), *texts,
                     *[parts.Cell("")] * (len(COLUMNS) - 5 + 3)))  # fmt: skip
    first, *titles = [QUANTITIES[what].title for what in COLUMNS]
    columns = (*heads("method", [first, "failed", *titles]), *(
        parts.Column(title, numeric=False, wrap=True) for title in ("setting", "hash", "made again by")
    ))  # fmt: skip
    seeds = len(entry.reported)
    notes = (
        f"{unit(data.metric)}; {several(data.clients, 'client')}, {several(data.newcomers, 'newcomer')}. Gradients, "
        "evaluations (points scored without training) and bytes are per client. Failed: diverged, worse than a "
        "constant guess or than one model for all, or far from what the method usually reaches. Seconds on a shared "
        "machine.",
        *([f"Not all cells have {seeds} seeds yet."] if any(len(c.runs) < seeds for c in found.cells.values()) else []),
        *(f"{method}: not possible here ({why})." for method, why in found.impossible.items()),
    )
    yield Table(f"{name}-{budget}-table", f"{entry.title}, {BUDGETS[budget]}", columns, tuple(rows), notes,
                foot=len(rows) - count)  # fmt: skip
    if found.differences and found.reference is not None:
        first = found.reference
        yield difference_table(found.differences, first, data.metric, f"{name}-{budget}-differences")
        yield _in_words(found, first, f"{name}-{budget}-in-words")
    for measure, of in MEASURES.items():
        values = {method: seeded for method in found.cells if (seeded := found.values(method, of))}
        most = max((len(seeded) for seeded in values.values()), default=0)
        whole = {method: seeded for method, seeded in values.items() if len(seeded) == most}
        figure = rank_figure(whole, measure, data.higher_is_better, f"{name}-{budget}-ranks")
        if figure is not None:
            yield figure


def _in_words(found: Standings, first: str, id_: str) -> Table:
    """Return which methods are better and worse than the reference, and which are not told apart from it."""
    rows = []
    for measure in MEASURES:
        groups: dict[str, list[str]] = {"better": [], "not told apart": [], "worse": []}
        for one in found.differences:
            if one.measure == measure:
                word = "better" if one.tested.is_better else "worse" if one.tested.is_worse else "not told apart"
                groups[word].append(one.method)
        rows.append((parts.Cell(measure), *(parts.Cell(", ".join(names) or "-") for names in groups.values())))
    columns = (parts.Column("", numeric=False), *(
        parts.Column(title, numeric=False, wrap=True)
        for title in (f"better than {first}", "not told apart", f"worse than {first}")
    ))  # fmt: skip
    seeds = max((one.tested.seeds for one in found.differences), default=0)
    note = (
        f"Better and worse: over {several(seeds, 'seed')}, {how_tested(found.differences)}. Not told apart: the seeds "
        "do not show a difference, which does not say that there is none."
    )
    return Table(id_, f"What differs from {first} by more than chance", columns, tuple(rows), (note,))


def _spread(cell: Cell, what: str, data: FederationData) -> parts.Cell:
    shown = _text(cell, what, data)
    return parts.Cell(summary(cell, f"{what}:±", data), shown.value) if what in SPREAD else shown


def _missing(plan: Plan, listed: list[State]) -> Table:
    rows = []
    for name, entry in plan.federations.items():
        for budget in entry.budgets:
            cells = [one for one in listed if one.cell.startswith(f"{name}/") and one.cell.endswith(f"/{budget}")]
            done = sum(one.state == "complete" for one in cells)
            cannot = sum(one.state == "not possible" for one in cells)
            left, seconds = len(cells) - done - cannot, sum(one.seconds for one in cells)
            rows.append((
                parts.Cell(entry.title), parts.Cell(BUDGETS[budget]), parts.Cell(str(done), done),
                parts.Cell(str(cannot), cannot), parts.Cell(str(left), left), parts.Cell(duration(seconds), seconds),
                parts.Cell(f"fedsoft leaderboard run {name}"),
            ))  # fmt: skip
    columns = (*heads("federation", ["budget", "complete", "not possible", "not run or partial", "core time missing"]),
               parts.Column("run by", numeric=False))  # fmt: skip
    return Table(
        "missing-table",
        "Cells that were not run",
        columns,
        tuple(rows),
        ("Core time from runs of the same federation where there are any, else a guess of the plan.",),
    )
