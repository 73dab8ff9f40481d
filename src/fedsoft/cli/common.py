"""What all commands share: the application, consoles, options, and how things are printed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

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
    from fedsoft.runs.run_options import RunOptions
    from fedsoft.runs.spec import RunSpec
    from fedsoft.studies.process_pool import ProcessPool, Progress

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


def preset_names(incomplete: str) -> list[str]:
    from fedsoft.runs.presets import presets

    return [name for name in presets() if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    return sorted(p.parent.name for p in Path("runs").glob("*/run.json") if p.parent.name.startswith(incomplete))


OutOption = Annotated[Path, typer.Option("--out", "--runs", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, or cuda where there is one.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Cores for each run; default: all, divided among runs at the same time. Does not change results (with "
        "Ray: except for the last bits).",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="RAM for client state and replies, such as 4G; the rest goes to disk. Default: half of free RAM.",
    ),
]
EngineOption = Annotated[str, typer.Option("--engine", help="Where clients are: local (this process), ray or flower.")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="A running cluster; default: one is started here."),
]
KeepOption = Annotated[
    int | None,
    typer.Option("--keep", metavar="N", min=1, help="Keep the state of every N-th round; default: of the last one."),
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="tensorboard|mlflow",
        help="Log every round: to RUN/tensorboard, or to MLflow as MLFLOW_TRACKING_URI says; may be repeated.",
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", "-j", help="Processes, each with a run; 0: one per core.")]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="[FOLDER/]MODULE:NAME",
        help="Code outside of fedsoft that the run's folder names and that may be imported, from FOLDER or Python's "
        "path; may be repeated.",
    ),
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
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]
FastOption = Annotated[
    bool, typer.Option("--fast", help="The fast variant, where there is one; see 'fedsoft list presets'.")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Communication rounds; default: as in the preset.")]
PageOption = Annotated[
    Path, typer.Option("--out", metavar="FILE.html", help="Where to write; .md and -data are written beside it.")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


def changes(set_: list[str] | None, rounds: int | None) -> list[str]:
    """Return all changes to a preset, as `key=value`."""
    return [*(set_ or []), *([f"rounds={rounds}"] if rounds is not None else [])]


@dataclass(frozen=True)
class SpecOptions:
    """What to run."""

    source: SourceArgument
    set_: SetOption = None
    fast: FastOption = False
    rounds: RoundsOption = None

    def read(self) -> RunSpec:
        from fedsoft.runs import spec

        return spec.read(self.source, changes(self.set_, self.rounds), fast=self.fast)


@dataclass(frozen=True)
class MachineOptions:
    """What a run may use."""

    workers: WorkersOption = None
    memory: MemoryOption = None
    device: DeviceOption = "cpu"
    engine: EngineOption = "local"
    address: AddressOption = None

    def options(self, *, keep: int | None = None, data: Path | None = None) -> RunOptions:
        """Check everything before a folder is made."""
        from fedsoft.engine.registry import NEEDS
        from fedsoft.machine.resources import check_workers, memory_size
        from fedsoft.runs.run_options import RunOptions
        from fedsoft.training import check_device

        check_device(self.device)
        check_workers(self.workers)
        memory_size(self.memory)
        if self.engine not in NEEDS:
            raise unknown("engine", self.engine, NEEDS)
        return RunOptions(
            device=self.device, workers=self.workers, memory=self.memory, engine=self.engine, address=self.address,
            keep=keep, data=data,
        )  # fmt: skip


@dataclass(frozen=True)
class PoolOptions(MachineOptions):
    """What many runs may use, and where they are saved."""

    jobs: JobsOption = 0
    out_dir: OutOption = Path("runs")

    @contextlib.contextmanager
    def pool(self, title: str) -> Iterator[ProcessPool]:
        """Yield a process pool whose progress is shown."""
        from fedsoft.reports.bar import Bar
        from fedsoft.studies.process_pool import ProcessPool

        with Bar(err, "runs") as bar:

            def show(now: Progress) -> None:
                bar.show(title, now.finished, now.total, f"{now.rounds} rounds", now.left or 0.0)

            yield ProcessPool(self.out_dir, self.jobs, self.options(), show)


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


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: every field becomes an option of its own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, kind in get_type_hints(command, include_extras=True).items():
        if name == "return":
            continue
        made = {name: (kind, inspect.signature(command).parameters[name].default)}
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            hints = get_type_hints(kind, include_extras=True)
            made = {f.name: (hints[f.name], inspect.Parameter.empty if f.default is MISSING else f.default)
                    for f in fields(kind)}  # fmt: skip
        parameters += [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for key, (hint, default) in made.items()
        ]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    del call.__wrapped__
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return call


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
