"""A page for each algorithm: its docstring, a figure of what moves where, its results."""

from __future__ import annotations

import csv
import inspect
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from fedsoft import plugins
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
COLUMNS = {
    "best_center_0": "best center θ0", "best_center_1": "best center θ1", "recovery": "error of u",
    "personal_train": "personal, training", "personal_held_out": "personal, held out", "worst_decile": "worst decile",
}  # fmt: skip


def write(target: Path) -> list[str]:
    """Write all pages under `target`; return their names."""
    folder = target / "algorithms"
    folder.mkdir()
    results = measured()
    rows = ["| algorithm | idea | the server sees | use it |\n| --- | --- | --- | --- |"]
    pages = ["algorithms/index.md"]
    for name in plugins.names("algorithms"):
        thing = plugins.find("algorithms", name)
        found = catalogue.sections(inspect.getdoc(thing) or "")
        watched = watch(name)
        text = page(name, thing, found, drawing(thing.__name__, watched), results.get(name))
        (folder / f"{name}.md").write_text(text, "utf-8")
        about = " ".join(found["about"].split("\n\n")[0].split())
        use = " ".join(found["Use it"].split())
        rows.append(f"| [{thing.__name__}]({name}.md) | {about} | {watched.needs} | {use} |")
        pages.append(f"algorithms/{name}.md")
    (folder / "index.md").write_text(f"{INTRODUCTION}\n" + "\n".join(rows) + f"\n\n{KINDS_OF_NEEDS}\n", "utf-8")
    return pages


def page(name: str, thing: Any, found: dict[str, str], figure: str, rows: list[dict[str, str]] | None) -> str:
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
    parts += ["## Results", results_table(name, rows), "## Reference", " ".join(found["Reference"].split())]
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


def measured() -> dict[str, list[dict[str, str]]]:
    """Return the lines of the comparison on the paper's synthetic federation, by algorithm."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    path = DOCS / "comparison.csv"
    for row in csv.DictReader(path.open(encoding="utf-8")) if path.is_file() else ():
        found[row["algorithm"].partition("(")[0]].append(row)
    return found


def results_table(name: str, rows: list[dict[str, str]] | None) -> str:
    """Return what was measured of one algorithm, or where to look."""
    board = " The [leaderboard](../leaderboard.md) has all data sets." if (DOCS / "leaderboard.md").is_file() else ""
    if not rows:
        command = f"fedsoft compare synthetic-10-90 -a fedsoft,{name} --budget work"
        return f"Not part of the [comparison of all algorithms](../comparison.md).{board} `{command}` measures it."
    head = f"| {' | '.join(COLUMNS.values())} |\n|{' --- |' * len(COLUMNS)}\n"
    cells = [_mean([row[key] for row in rows]) for key in COLUMNS]
    seeds = len({row["seed"] for row in rows})
    return (
        f"{head}| {' | '.join(cells)} |\n\nTest MSE on the paper's synthetic 10:90 federation (noise floor 1), mean "
        f"over {seeds} seeds, from the [comparison of all algorithms](../comparison.md), every one at FedSoft's "
        f"client work.{board}"
    )


def _mean(values: list[str]) -> str:
    known = [float(value) for value in values if value]
    return f"{mean(known):.3g}" if known else "-"
