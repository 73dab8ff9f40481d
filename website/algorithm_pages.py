"""A page for each algorithm: its docstring, a figure of what moves where, its results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.leaderboard.data import Board, FederationData
from fedsoft.leaderboard.plan import read_plan
from fedsoft.leaderboard.quantities import quantity, summary
from fedsoft.reports import catalogue
from website.drawing import drawing
from website.gather import DOCS
from website.watching import KINDS_OF_NEEDS, watch

INTRODUCTION = """\
# Algorithms

All of them run on the same engine with the same draws, take part in `fedsoft compare`, and pass one conformance suite;
each is checked against a closed form and in its limits. Which one to take is a question about your clients:
[`fedsoft recommend`](../recommend.md) measures it.

In the maths, k is a client, $n_k$ the number of its training points, $f_k$ its mean loss, $w_k$ its model, $c_s$ a
center, N
the number of clients, S the number of centers. One *task* is one local solve: `epochs` passes over the client's points.
"""
COLUMNS = ("centers", "personal", "worst_decile", "newcomers", "bytes")


def write(target: Path) -> list[str]:
    """Write all pages under `target`; return their names."""
    folder = target / "algorithms"
    folder.mkdir()
    rows = ["| algorithm | idea | the server sees | use it |\n| --- | --- | --- | --- |"]
    pages = ["algorithms/index.md"]
    for name in plugins.names("algorithms"):
        thing = plugins.find("algorithms", name)
        found = catalogue.sections(inspect.getdoc(thing) or "")
        watched = watch(name)
        text = page(name, thing, found, drawing(thing.__name__, watched))
        (folder / f"{name}.md").write_text(text, "utf-8")
        about = " ".join(found["about"].split("\n\n")[0].split())
        use = " ".join(found["Use it"].split())
        rows.append(f"| [{thing.__name__}]({name}.md) | {about} | {watched.needs} | {use} |")
        pages.append(f"algorithms/{name}.md")
    (folder / "index.md").write_text(f"{INTRODUCTION}\n" + "\n".join(rows) + f"\n\n{KINDS_OF_NEEDS}\n", "utf-8")
    return pages


def page(name: str, thing: Any, found: dict[str, str], figure: str) -> str:
    """Return the page of one algorithm."""
    first, *more = found["about"].split("\n\n")
    parts = [f"# {thing.__name__}", first, *more]
    for title, heading in (("When to use it", "Use it"), ("When not", "Avoid it")):
        parts += [f"**{title}:** {' '.join(found[heading].split())}"] if heading in found else []
    parts += ["## What moves where", figure, f"**Cost to a client per round:** {' '.join(found['Cost'].split())}"]
    parts += ["## Maths", catalogue.maths(found["Maths"])]
    parts += ["## Settings", catalogue.settings_table(name, found["Arguments"])] if "Arguments" in found else []
    parts += ["## Run it", f"```sh\nfedsoft run synthetic-10-90 --set algorithm.name={name}\n```", "In Python:"]
    parts += [f"```python\n{example(thing, found)}\n```"]
    parts += ["## Results", results(name), "## Reference", " ".join(found["Reference"].split())]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def example(thing: Any, found: dict[str, str]) -> str:
    """Return a call in Python with the settings of the docstring's example, which is a test."""
    made = next((line for line in found["Example"].splitlines() if thing.__name__ in line), f">>> {thing.__name__}()")
    begin = made.index(thing.__name__)
    depth, end = 0, len(made)
    for place in range(made.index("(", begin), len(made)):
        depth += {"(": 1, ")": -1}.get(made[place], 0)
        if not depth:
            end = place + 1
            break
    return f"import fedsoft as fs\n\nalgorithm = fs.{made[begin:end]}"


def results(name: str) -> str:
    """Return what the leaderboard has of one algorithm at equal work, or how to measure it."""
    rows, most = [], 0
    for data, title, methods in _federations(name):
        for method in methods:
            cell = data.cells[f"{method}/work"]
            cells = [summary(cell, f"{column}:±", data) for column in COLUMNS]
            rows.append(f"| {title} | {data.metric} | `{cell.label}` | {' | '.join(cells)} |")
            most = max(most, len(cell.finished))
    if not rows and (why := _impossible(name)):
        return f"It has no result on the [leaderboard](../leaderboard.md): {'; '.join(why)}."
    if not rows:
        other = "fedavg" if name == "fedsoft" else "fedsoft"
        command = f"fedsoft compare synthetic-10-90 -a {other},{name} --budget work"
        return f"Not on the [leaderboard](../leaderboard.md) yet. `{command}` measures it."
    titles = [quantity(column).title for column in COLUMNS]
    head = f"| federation | metric | tuned as | {' | '.join(titles)} |\n|{' --- |' * (3 + len(titles))}\n"
    return (
        f"{head}{chr(10).join(rows)}\n\nMean ± standard deviation over up to {most} seeds, at the client work of "
        "FedSoft's own run; *tuned as* has the learning rate and what else was chosen, on other seeds. From the "
        "[leaderboard](../leaderboard.md), which has all methods side by side."
    )


def _impossible(name: str) -> list[str]:
    """Return why an algorithm has no result where it was tried."""
    board, plan = Board(DOCS / "leaderboard"), read_plan()
    found = []
    for federation, entry in plan.federations.items():
        data = board.read(federation)
        cell = data.cells.get(f"{name}/work") if data is not None else None
        if cell is not None and cell.problem:
            found.append(f"{entry.title}, {cell.problem}")
    return found


def _federations(name: str) -> Iterator[tuple[FederationData, str, list[str]]]:
    """Yield what was measured of each federation, its title, and the methods that are this algorithm."""
    board, plan = Board(DOCS / "leaderboard"), read_plan()
    for federation, entry in plan.federations.items():
        data = board.read(federation)
        methods = [method for method, row in plan.methods.items() if row.algorithm.partition("(")[0] == name]
        found = [method for method in methods if data and f"{method}/work" in data.cells]
        found = [method for method in found if data and data.cells[f"{method}/work"].finished]
        if data is not None and found:
            yield data, entry.title, found
