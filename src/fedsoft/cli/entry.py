"""The entry point: what a user can put right ends in one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import click
import typer
from rich.text import Text

from fedsoft.cli.common import INTERRUPTED, STOPPED, app, err, out, print_json
from fedsoft.errors import FedsoftError, unknown
from fedsoft.escape import guard_terminal, shown
from fedsoft.machine.resources import is_out_of_memory


def _version(show_it: bool) -> None:
    if show_it:
        from fedsoft import __version__

        out.print(f"fedsoft {__version__}", highlight=False)
        raise typer.Exit


@app.callback(epilog="Example:  fedsoft run synthetic-10-90")
def _top(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    guard_terminal()
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that are started look for no modules in the current folder
    try:
        code = app(prog_name="fedsoft", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:  # its help is on the screen
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(shown(usage(error)))
    except click.Abort:
        sys.exit(1)
    except FedsoftError as error:
        _fail(str(error))
    except OSError as error:  # such as a name that is too long for a file
        about = f" '{shown(str(error.filename))[:200]}'" if error.filename else ""
        _fail(f"{error.strerror or error}{about}")
    except (MemoryError, RuntimeError, ValueError, OverflowError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(f"not enough memory: {(shown(str(error)) or 'no more is available')[:500]}")
    except KeyboardInterrupt:
        err.print(INTERRUPTED)
        sys.exit(STOPPED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str) -> NoReturn:
    if "--json" in sys.argv:  # for programs, which read the output only
        print_json({"error": text})
    err.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    sys.exit(2)


def usage(error: click.ClickException) -> str:
    """Return what is wrong with a command line, and where help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "fedsoft"
    return f"{_problem(error, context)} (see '{command} --help')"


def _problem(error: click.ClickException, context: click.Context | None) -> str:
    known = context.command if context is not None else None
    if isinstance(error, click.NoSuchOption):
        options = [name for each in known.params for name in each.opts] if known is not None else error.possibilities
        return str(unknown("option", error.option_name, [name for name in options or () if name.startswith("-")]))
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = (
            error.param.opts[0] if error.param.param_type_name == "option" else error.param.make_metavar(_any(context))
        )
        if isinstance(error, click.MissingParameter):
            return f"{name} is missing"
        return f"{name}: {error.message.rstrip('.')}"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _any(context: click.Context | None) -> click.Context:
    return context or click.Context(click.Command("fedsoft"))
