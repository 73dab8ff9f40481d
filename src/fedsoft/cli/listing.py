"""list: what a run can be made of."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedsoft.cli.common import app, out, print_json
from fedsoft.cli.options import JsonOption
from fedsoft.errors import unknown

LISTED = ("algorithms", "datasets", "partitions", "models", "solvers", "aggregators", "attacks", "presets")


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in LISTED if kind.startswith(incomplete)]


@app.command("list", epilog="Example:  fedsoft list algorithms")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="|".join(LISTED), help="What to list.", autocompletion=_kinds)
    ],
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """List what a run can be made of, with settings and defaults."""
    if kind not in LISTED:
        raise unknown("kind", kind, LISTED)
    from fedsoft import plugins

    if kind == "presets":
        from fedsoft.runs.presets import presets

        rows = [
            {"name": name, "about": preset.about, "settings": {}, "fast": preset.fast}
            for name, preset in presets().items()
        ]
    else:
        rows = [_described(kind, name) for name in plugins.names(kind)]
    if json_:
        print_json(rows)
        return
    table = Table("name", "what it is", "fast variant (--fast)" if kind == "presets" else "settings (default)")
    for row in rows:
        settings = ", ".join(f"{k} ({v})" if v != "" else k for k, v in row["settings"].items())
        table.add_row(*map(Text, [row["name"], row["about"], (row.get("fast") or "-") if "fast" in row else settings]))
    out.print(table)


def _described(kind: str, name: str) -> dict[str, Any]:
    from fedsoft import plugins

    thing = plugins.find(kind, name)
    about = (thing.__doc__ or "").strip().split("\n\n")[0]
    known = plugins.own_settings(kind, name)
    settings = {key: "" if p.default is p.empty else p.default for key, p in known.items()}
    return {"name": name, "about": " ".join(about.split()), "settings": settings}
