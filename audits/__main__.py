"""Run other people's code beside ours, and write down what is found.

    python -m audits                         what there is, and how to get the code
    python -m audits fedem PATH/TO/FedEM     one audit of a checkout that you made
    python -m audits page                    docs/audits.md from what was found

A checkout is ordinary code that runs with your rights: read it first. Findings are kept in audits/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from audits import page
from audits.common import Audit
from audits.foreign import Absent

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def names() -> list[str]:
    """Return the audits: every file here that has one."""
    return sorted(path.stem for path in HERE.glob("[a-z]*.py") if "def audit(" in path.read_text("utf-8"))


def how_to_get(name: str) -> str:
    """Return what an audit says of itself: what it is about and how to get the code."""
    return (import_module(f"audits.{name}").__doc__ or "").strip()


def saved() -> dict[str, dict[str, object]]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def show(found: Audit, console: Console) -> None:
    table = Table(title=f"{found.method}: {found.repository} at {found.commit[:8]}, by {found.by}")
    for column in ("what", "verdict", "difference", "remark"):
        table.add_column(column, overflow="fold")
    for one in found.findings:
        gap = "" if one.difference is None else f"{one.difference:.1e}"
        table.add_row(one.what, one.verdict, gap, one.remark)
    console.print(table)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("audit", nargs="?", choices=[*names(), "page"], help="default: list all")
    options.add_argument("checkout", nargs="?", type=Path, help="folder of the other code")
    chosen = options.parse_args()
    console = Console()
    if chosen.audit is None:
        for name in names():
            console.print(f"[bold]{name}[/]\n{how_to_get(name)}\n", highlight=False)
        return
    if chosen.audit == "page":
        path = HERE.parent / "docs" / "audits.md"
        path.write_text(page.render(saved(), {name: how_to_get(name) for name in names()}), "utf-8")
        console.print(f"written: {path.name}")
        return
    if chosen.checkout is None:
        options.error(f"{chosen.audit} needs the folder of a checkout:\n{how_to_get(chosen.audit)}")
    warnings.simplefilter("ignore")  # other people's
    try:
        found: Audit = import_module(f"audits.{chosen.audit}").audit(chosen.checkout)
    except Absent as error:
        options.error(str(error))
    show(found, console)
    RESULTS.write_text(
        json.dumps(saved() | {chosen.audit: asdict(found)}, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
