"""The table: every row measured with both sides taking turns, shown, saved, and compared with the last one."""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.machine import MB
from benchmarks.markdown import duration, number
from benchmarks.rows import ROWS, Row
from benchmarks.sides import Process

CHANGED = 0.15  # times move by so much on their own

Result = dict[str, Any]


def measure(name: str, repeats: int, small: bool) -> Result:
    """Both sides in turns: their times per unit, and the ratio of each turn, so that a slow moment hits both."""
    row = ROWS[name]
    obstacle = row.obstacle()
    if obstacle:
        return {"skipped": obstacle}
    with ExitStack() as stack:
        theirs, ours = (stack.enter_context(Process(name, side, small)) for side in ("theirs", "ours"))
        theirs.wait()
        ours.wait()
        seconds: dict[str, list[float]] = {"theirs": [], "ours": []}
        for _ in range(repeats):
            for side, process in (("theirs", theirs), ("ours", ours)):
                spent, units = process.ask("go")
                seconds[side].append(spent / units)
        held = {side: process.ask("memory") for side, process in (("theirs", theirs), ("ours", ours))}
        difference = ours.ask("check")
    turns = [row.ratio(a, b) for a, b in zip(seconds["theirs"], seconds["ours"], strict=True)]
    return {
        "theirs": _summary(seconds["theirs"]), "ours": _summary(seconds["ours"]), "unit": row.unit,
        "ratio": _round(statistics.median(turns)), "lowest": _round(min(turns)), "highest": _round(max(turns)),
        "of_the_best": _round(row.ratio(min(seconds["theirs"]), min(seconds["ours"]))),
        "repeats": repeats, "difference": difference, "bytes": held,
    }  # fmt: skip


def show(results: dict[str, Result], last: dict[str, Result], free_cores: float) -> Table:
    """The table, with the ratios of the last time. What two workers reach is judged only where two cores are free."""
    table = Table("row", "work", "against")
    for column in ("theirs", "ours", "MB", "ratio", "from-to", "reach", "reached", "last time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, result in results.items():
        row = ROWS[name]
        if "skipped" in result:
            table.add_row(name, row.work, row.against, "", "", "", "", "", _reach(row), "skipped", "")
            continue
        before = last.get(name, {}).get("ratio")
        ratio = result["ratio"]
        table.add_row(
            name, row.work, row.against, duration(result["theirs"]["median"]), duration(result["ours"]["median"]),
            _memory(result), _times(ratio), f"{number(result['lowest'])}-{number(result['highest'])}", _reach(row),
            "yes" if row.reached(ratio) else "busy" if row.two_cores and free_cores < row.reach else "NO",
            "" if before is None else change(row, before, ratio),
        )  # fmt: skip
    return table


def change(row: Row, before: float, now: float) -> str:
    """The ratio of the last time, with a word where it changed by more than times move on their own."""
    better = before / now if row.at_most else now / before
    word = "" if abs(now / before - 1) <= CHANGED else " better" if better > 1 else " WORSE"
    return f"{_times(before)}{word}"


def read(path: Path) -> Result:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def save(path: Path, content: Result) -> None:
    """All at once: a stop leaves the old file."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    beside.replace(path)


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"median": _round(statistics.median(seconds)), "best": _round(min(seconds))}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _reach(row: Row) -> str:
    return f"{'at most ' if row.at_most else ''}{_times(row.reach)}"


def _memory(result: Result) -> str:
    """The most that the two sides held, beyond what their imports take."""
    held = result.get("bytes")
    return "" if held is None else f"{held['theirs'] / MB:.0f}/{held['ours'] / MB:.0f}"


def _times(ratio: float) -> str:
    return f"{number(ratio)} x"
