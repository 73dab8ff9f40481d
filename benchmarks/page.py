"""The tables of pages, from what `make bench` saved.

    python -m benchmarks.page

What stands between two marks of a page is written anew; a test holds that pages and results agree. A row is shown as it
was measured last; where not all rows are of one commit, each says of which it is.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import algorithms, growth, limits, startup
from benchmarks.markdown import duration, number, table
from benchmarks.rows import ROWS

ROOT = Path(__file__).parent.parent
SAVED = Path(__file__).with_name("results.json")
HEADLINE = ("synthetic", "synthetic-fedjax", "letters", "letters-tuned", "letters-fedjax", "lstm", "transformer")
WRITTEN = "benchmarks/results.json", "docs/speed.md", "README.md"


@dataclass(frozen=True)
class Part:
    """Something other than a ratio of two sides: how it is measured, by repeats and whether quickly, and shown."""

    measure: Callable[[int, bool], dict[str, Any]]
    block: Callable[[dict[str, Any]], str]


PARTS = {
    "limits": Part(limits.part, limits.block),
    "commands": Part(startup.part, startup.block),
    "drawn": Part(growth.part, growth.block),
    "growth": Part(growth.growth_part, growth.growth_block),
    "algorithms": Part(algorithms.part, algorithms.block),
}


def commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it other than those that are written here; None
    outside of a checkout."""
    rest = [f":!{name}" for name in WRITTEN]
    try:
        found, changed = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
            for words in (["rev-parse", "--short", "HEAD"], ["diff", "--quiet", "HEAD", "--", ".", *rest])
        )
    except OSError:
        return None
    return f"{found.stdout.strip()}{'+' * changed.returncode}" if found.returncode == 0 else None


def speed(results: dict[str, Any]) -> str:
    """The machine, and a table of all rows, as far as they were measured."""
    return rows_of(results, tuple(ROWS))


def rows_of(results: dict[str, Any], names: tuple[str, ...], *, goals: bool = True) -> str:
    """The machine, and a table of these rows, as far as they were measured."""
    rows = {name: results["rows"][name] for name in names if "ratio" in results["rows"].get(name, {})}
    commits = {row.get("commit") for row in rows.values()}
    several = len(commits) > 1
    heads = ["work", "against", "theirs", "fedsoft", "ratio", "lowest to highest", *["goal"] * goals]
    heads += ["commit"] if several else []
    lines = []
    for name, row in rows.items():
        ours, theirs = (duration(row[side]["median"]) for side in ("ours", "theirs"))
        goal = f"{'at most ' if ROWS[name].at_most else ''}{ROWS[name].reach:g}"
        spread = f"{number(row['lowest'])} to {number(row['highest'])}"
        cells = [ROWS[name].work, ROWS[name].against, theirs, ours, f"**{number(row['ratio'])}**", spread]
        cells += [goal] * goals
        lines.append(cells + ([row.get("commit") or "earlier"] if several else []))
    return f"{_about(results['machine'], None if several else next(iter(commits), None))}\n\n{table(heads, lines)}"


def part(name: str) -> Callable[[dict[str, Any]], str]:
    """How a part is shown, with its commit where that is not the one of the rows."""

    def block(results: dict[str, Any]) -> str:
        found = results.get("parts", {}).get(name)
        if found is None:
            return "Not measured yet."
        commits = {row.get("commit") for row in results["rows"].values() if "ratio" in row}
        said = "" if commits == {found.get("commit")} else f"\n\nMeasured at commit {found.get('commit') or 'earlier'}."
        return PARTS[name].block(found) + said

    return block


PAGES: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "docs/speed.md": {"speed": speed, **{name: part(name) for name in PARTS}},
    "README.md": {"speed": lambda results: rows_of(results, HEADLINE, goals=False)},
}


def written(page: str, results: dict[str, Any], blocks: dict[str, Callable[[dict[str, Any]], str]]) -> str:
    """The text of a page with its tables anew."""
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise SystemExit(f"a page should have the marks {begin} and {end} once")
        text = f"{begin}\n{block(results)}\n{end}"
        page = pattern.sub(lambda _, text=text: text, page)
    return page


def _about(machine: dict[str, Any], commit: str | None) -> str:
    """One sentence on the machine."""
    (product, convolution), copy = machine["rates"]["gemm"].values(), machine["rates"]["copy"]["6.7 MB"]
    told = (
        "{cpu}, {cores} cores (two threads do {free_cores:.2f} times the work of one), load {load} at the start, "
        "torch {torch}, Python {python}".format(**machine)
    )
    rates = f"a large product {product:.0f} GFLOP/s, a convolution {convolution:.0f}, a copy in cache {copy:.0f} GB/s"
    return f"{told}; {rates}{f'; commit {commit}' if commit else ''}."


def main() -> None:
    results = json.loads(SAVED.read_text("utf-8"))
    for name, blocks in PAGES.items():
        path = ROOT / name
        path.write_text(written(path.read_text("utf-8"), results, blocks), "utf-8")


if __name__ == "__main__":
    main()
