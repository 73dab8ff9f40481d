"""The page of all commands, from the command line itself."""

from __future__ import annotations

import inspect
import re

import click
import typer

from fedsoft.cli import app
from website.cells import cell, code, table

INTRODUCTION = """\
# Commands

`fedsoft --help` and `--help` behind every command print the same. Errors end with exit code 2 and one sentence
([all of them](errors.md)); Ctrl-C saves, and ends with 130. `--json` prints one JSON value on standard output and
nothing else.
`fedsoft --install-completion` lets the shell complete names of presets and runs.
"""


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION + "\n" + "\n".join(_entries(typer.main.get_command(app), "fedsoft"))


def _entries(command: click.Command, name: str) -> list[str]:
    found: list[str] = []
    for key, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            found += [_entry(one, f"{name} {key}"), *_entries(one, f"{name} {key}")]
    return found


def _entry(command: click.Command, name: str) -> str:
    level = "#" * name.count(" ")
    parts = [f"#{level} {name}", _plain(inspect.cleandoc(command.help or ""))]
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    usage = " ".join([name, "[OPTIONS]", *(one.make_metavar(click.Context(command)) for one in arguments)])
    group = hasattr(command, "commands")
    parts += [] if group else [f"```text\n{usage}\n```"]
    rows = [_row(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    parts += [table(("option", "default", "what it does"), rows)] if rows else []
    if example := re.sub(r"\s+", " ", (command.epilog or "").partition("Example:")[2]).strip():
        lines = re.sub(r" (?=fedsoft )", "\n", example)
        parts.append(f"```sh\n{lines}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(one: click.Parameter) -> tuple[str, str, str]:
    names = (
        one.make_metavar(click.Context(click.Command("x"))) if isinstance(one, click.Argument) else ", ".join(one.opts)
    )
    value = one.default() if callable(one.default) else one.default
    shown = "" if value is None or value is False or value == () or value == [] else code(value)
    variable = f" Environment: `{one.envvar}`." if one.envvar else ""
    return code(names), shown, cell(_plain(getattr(one, "help", None) or "")) + variable


def _plain(text: str) -> str:
    """Return help without the marks of rich."""
    return re.sub(r"\\\[", "[", re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)[^\]]*\]", "", text))
