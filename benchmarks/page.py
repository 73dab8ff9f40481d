"""The table of docs/speed.md, from what `make bench` saved.

    python -m benchmarks.page

What stands between the two marks of a page is written anew; a test holds that pages and results agree. A row is shown
as it was measured last; where not all rows are of one commit, each says of which it is.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.rows import ROWS

ROOT = Path(__file__).parent.parent
SAVED = Path(__file__).with_name("results.json")
PAGES = {"docs/speed.md": tuple(ROWS)}
MARKS = "<!-- speed: begin -->", "<!-- speed: end -->"


def commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it; None outside of a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def block(results: dict[str, Any], names: tuple[str, ...]) -> str:
    """The machine, and a table of these rows, as far as they were measured."""
    rows = {name: results["rows"][name] for name in names if "ratio" in results["rows"].get(name, {})}
    commits = {row.get("commit") for row in rows.values()}
    several = len(commits) > 1
    heads = ["work", "against", "theirs", "fedsoft", "ratio", "lowest to highest", "goal"]
    heads += ["commit"] if several else []
    lines = [_about(results["machine"], None if several else next(iter(commits), None)), ""]
    lines += [_line(heads), _line(["---"] * len(heads))]
    for name, row in rows.items():
        ours, theirs = (_time(row[side]["median"]) for side in ("ours", "theirs"))
        goal = f"{'at most ' if ROWS[name].at_most else ''}{ROWS[name].aim or ROWS[name].reach:g}"
        spread = f"{_number(row['lowest'])} to {_number(row['highest'])}"
        cells = [ROWS[name].work, ROWS[name].against, theirs, ours, f"**{_number(row['ratio'])}**", spread, goal]
        lines.append(_line(cells + ([row.get("commit") or "earlier"] if several else [])))
    return "\n".join(lines)


def written(page: str, results: dict[str, Any], names: tuple[str, ...]) -> str:
    """The text of a page with its table anew."""
    begin, end = MARKS
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise SystemExit(f"a page should have the marks {begin} and {end} once")
    return pattern.sub(lambda _: f"{begin}\n{block(results, names)}\n{end}", page)


def _about(machine: dict[str, Any], commit: str | None) -> str:
    """One sentence on the machine."""
    gemm, copy = machine["rates"]["gemm"]["1024 square"], machine["rates"]["copy"]["6.7 MB"]
    told = (
        "{cpu}, {cores} cores (two threads do {free_cores:.2f} times the work of one), load {load} at the start, "
        "torch {torch}, Python {python}".format(**machine)
    )
    return f"{told}; a large product {gemm:.0f} GFLOP/s, a copy in cache {copy:.0f} GB/s" + (
        f"; commit {commit}." if commit else "."
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _time(seconds: float) -> str:
    scale, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * scale:.3g} {unit}"


def main() -> None:
    results = json.loads(SAVED.read_text("utf-8"))
    for name, rows in PAGES.items():
        path = ROOT / name
        path.write_text(written(path.read_text("utf-8"), results, rows), "utf-8")


if __name__ == "__main__":
    main()
