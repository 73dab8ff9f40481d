"""theory: the paper's theorems, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedsoft.cli.common import app, err, out, print_json
from fedsoft.cli.options import JsonOption

if TYPE_CHECKING:
    from fedsoft.theory.check import Holds

# Label and colour. "not met": the assumptions cannot be met, or were not in any case that was found.
VERDICTS: dict[Holds, tuple[str, str]] = {
    "yes": ("yes", "green"),
    "no": ("no", "red"),
    "assumptions not met": ("not met", "yellow"),
}


def _names(incomplete: str) -> list[str]:
    from fedsoft.theory.run import STATEMENTS

    return [name for name in STATEMENTS if name.startswith(incomplete)]


@app.command(epilog="Example:  fedsoft theory --only theorem-3 --only theorem-5 --seed 1")
def theory(
    seed: Annotated[int, typer.Option("--seed", help="Seed of all draws.")] = 0,
    draws: Annotated[int, typer.Option("--draws", help="Problems or selections that the larger checks draw.")] = 200,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="A check, or the beginning of its name; may be repeated.",
                     autocompletion=_names),
    ] = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Check the paper's lemmas and theorems on problems whose constants are known. One that fails is a finding."""
    from fedsoft.reports.bar import Bar
    from fedsoft.theory import run_checks
    from fedsoft.theory.check import KINDS, tally

    with Bar(err, "checks") as bar:
        checks = run_checks(
            seed=seed,
            draws=draws,
            only=only,
            on_check=lambda name, done, total: bar.show("checking", done, total, name),
        )
        bar.show("checking", len(checks), len(checks))
    if json_:
        print_json({"seed": seed, "draws": draws, "checks": [check.to_dict() for check in checks]})
        return
    table = Table(title=f"The paper's statements, seed {seed}, {draws} draws")
    table.add_column("check", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    table.add_column("measured", overflow="fold")
    table.add_column("stated", overflow="fold", max_width=16)
    for check in checks:
        table.add_row(Text(check.name), _verdict(check.holds), Text(check.measured), Text(check.bound))
    out.print(table)
    for check in checks:
        out.print()
        out.print(Text.assemble((check.name, "bold"), f" ({check.reference}): ", _verdict(check.holds)))
        out.print(Padding(Text(f"{check.statement}."), (0, 0, 0, 2), expand=False))
        out.print(Padding(Text(f"{check.finding}.", "dim"), (0, 0, 0, 2), expand=False))
    counts = ", ".join(f"{label} {sum(c.holds == kind for c in checks)}" for kind, (label, _) in VERDICTS.items())
    out.print(Text(f"\n{len(checks)} checks: {counts}"))
    for kind in KINDS:
        found = tally(checks, kind)
        if any(found.values()):
            counts = ", ".join(f"{label} {found[holds]}" for holds, (label, _) in VERDICTS.items())
            out.print(Text(f"{kind}, each statement once: {counts}"))


def _verdict(holds: Holds) -> Text:
    return Text(*VERDICTS[holds])
