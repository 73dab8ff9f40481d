"""What all commands share: the application, consoles, and how things are printed."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup
from typing_extensions import override

from fedsoft.errors import FilesGone, InputError, unknown
from fedsoft.escape import shown

if TYPE_CHECKING:
    from fedsoft.reports.results import StudyResult

# Torch takes two seconds to import: everything that needs it is imported by the command that does.


class Commands(TyperGroup):
    """A group of commands that suggests the nearest name in place of an unknown one, and says that Ctrl-C was heard."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            say(INTERRUPTED, err)
            raise typer.Exit(STOPPED) from None

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            raise click.UsageError(str(unknown("command", name, self.commands)), ctx)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    name="fedsoft",
    help="Soft clustered federated learning: cluster models and personal models from mixed clients.",
    epilog="Example:  fedsoft run synthetic-10-90",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Terminal(Console):
    """A console that prints names and labels from data as plain text, whatever is in them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape characters that a terminal would act on."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(shown(part.text, lines=True), part.style)


out, err = Terminal(), Terminal(stderr=True)
MOST_SEEDS = 10_000
PAGE = 110  # characters in a line of a table that is written to a file
STOPPED = 130  # exit code
INTERRUPTED = "stopped; what was saved before is intact, and the same command goes on from there"
T = TypeVar("T")


def page() -> Terminal:
    """Return the console for wide tables: the terminal, or lines that are long but still readable in a file."""
    return out if out.is_terminal else Terminal(width=max(Terminal().width, PAGE))


def say(text: str, to: Terminal = out) -> None:
    """Print text as it is."""
    to.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, and nothing else."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    sys.stdout.write("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")


def unless_stopped(found: T | None) -> T:
    """Return a result; exit where there is none because the work was stopped."""
    if found is None:
        say("stopped and saved: the same command resumes it", err)
        raise typer.Exit(STOPPED)
    return found


def show_study(found: StudyResult, out_dir: Path, json_: bool) -> Path:
    """Save the result of a study and print it; return its folder."""
    folder = found.save(out_dir)
    if json_:
        print_json(found.to_dict() | {"path": str(folder)})
        return folder
    wide = page()
    for table in found.tables(wide.width):
        wide.print(table)
    for text in found.sentences:
        say(text)
    say(f"Saved: {folder} ({', '.join(path.name for path in sorted(folder.iterdir()))})")
    return folder


@contextlib.contextmanager
def advise_data_option(how: str) -> Iterator[None]:
    """Where the files of a run are gone, say what to type."""
    try:
        yield
    except FilesGone as error:
        raise FilesGone(error.what, how) from None


def parse_seeds(text: str, option: str = "--seeds") -> list[int]:
    """Return `0..4` or `0,1,7` as numbers."""
    if span := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", text.strip()):
        found = range(int(span[1]), int(span[2]) + 1)
    elif re.fullmatch(r"\d{1,18}(,\d{1,18})*", text.strip()):
        found = [int(part) for part in text.split(",")]
    else:
        raise InputError(f"{option} '{text}' is not allowed: should be a span 0..4 or a list 0,1,7")
    if not found:
        raise InputError(f"{option} '{text}' is empty: the first should not be above the last")
    if len(found) > MOST_SEEDS:
        raise InputError(f"{option} '{text}' is not allowed: should be at most {MOST_SEEDS} seeds")
    return list(dict.fromkeys(found))
