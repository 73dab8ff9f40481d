"""What all commands share: the application, consoles, options, and how errors end."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from fedsoft.cli.usage import usage
from fedsoft.errors import FedsoftError, FilesGone, InputError
from fedsoft.escape import shown

# Torch takes two seconds to import: everything that needs it is imported by the command that does.

app = typer.Typer(
    name="fedsoft",
    help="Soft clustered federated learning: cluster models and personal models from mixed clients.",
    epilog="Example:  fedsoft run synthetic-10-90",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Terminal(Console):
    """A console on which names and labels from data are text, whatever is in them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As it is, but for signs that a terminal would act on."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(shown(part.text, lines=True), part.style)


out, err = Terminal(), Terminal(stderr=True)
PAGE = 110  # signs in a line of a table that goes into a file


def page() -> Terminal:
    """Where wide tables are printed: the terminal, or lines that are long but still read well in a file."""
    return out if out.is_terminal else Terminal(width=max(Terminal().width, PAGE))


def preset_names(incomplete: str) -> list[str]:
    """Presets that begin so, for completion."""
    from fedsoft.runs.spec import presets

    return [name for name in presets() if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """Runs that begin so, for completion."""
    return sorted(p.parent.name for p in Path("runs").glob("*/run.json") if p.parent.name.startswith(incomplete))


OutOption = Annotated[Path, typer.Option("--out", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, or cuda where there is one.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="How many cores to use; all unless told. Results do not depend on it (with Ray: but for the last bits).",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="RAM for what clients keep and answer, such as 4G; the rest goes to disk. Half of free RAM unless told.",
    ),
]
EngineOption = Annotated[str, typer.Option("--engine", help="Where clients are: local (this process), ray or flower.")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="A cluster that is there; one is started here unless told."),
]
KeepOption = Annotated[
    int | None,
    typer.Option("--keep", metavar="N", min=1, help="Keep the state of every N-th round; of the last one unless told."),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Name, beginning of the name, or path.", autocompletion=run_names)
]


SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE.toml", help="What to run; see 'fedsoft list presets'.", autocompletion=preset_names
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given often.")
]
FastOption = Annotated[
    bool, typer.Option("--fast", help="The fast variant, where there is one; see 'fedsoft list presets'.")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Communication rounds.")]


def changes(set_: list[str] | None, rounds: int | None) -> list[str]:
    """All changes that were asked for, as `key=value`."""
    return [*(set_ or []), *([f"rounds={rounds}"] if rounds is not None else [])]


@contextlib.contextmanager
def files_told_by(how: str) -> Iterator[None]:
    """Where the files of a run are gone, tell what to type."""
    try:
        yield
    except FilesGone as error:
        raise FilesGone(error.what, how) from None


def parse_seeds(text: str, option: str = "--seeds") -> list[int]:
    """`0..4` or `0,1,7` as numbers."""
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text.strip()):
        found = list(range(int(span[1]), int(span[2]) + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text.strip()):
        found = [int(part) for part in text.split(",")]
    else:
        raise InputError(f"{option} '{text}' is not allowed: should be a span 0..4 or a list 0,1,7")
    if not found:
        raise InputError(f"{option} '{text}' is empty: the first should not be above the last")
    return list(dict.fromkeys(found))


def print_json(value: Any) -> None:
    """One JSON value on standard output, and nothing else."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    sys.stdout.write("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")


def version(show_it: bool) -> None:
    """Print the version and stop."""
    if show_it:
        from fedsoft import __version__

        out.print(f"fedsoft {__version__}", highlight=False)
        raise typer.Exit


@app.callback(epilog="Example:  fedsoft run synthetic-10-90")
def _top(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Entry point: errors of the user are one sentence and exit code 2."""
    try:
        code = app(prog_name="fedsoft", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:  # its help is on the screen
        sys.exit(error.exit_code)
    except click.ClickException as error:
        err.print(Text.assemble(("error: ", "bold red"), shown(usage(error))), soft_wrap=True)
        sys.exit(2)
    except click.Abort:
        sys.exit(1)
    except FedsoftError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)
    except OSError as error:  # such as a name that is too long for a file
        about = f" '{shown(str(error.filename))[:200]}'" if error.filename else ""
        err.print(Text.assemble(("error: ", "bold red"), f"{error.strerror or error}{about}"), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped; what was saved before is unharmed")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
