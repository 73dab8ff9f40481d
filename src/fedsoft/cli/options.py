"""The options that several commands have, and groups of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedsoft.errors import unknown

if TYPE_CHECKING:
    from fedsoft.runs.run_options import RunOptions
    from fedsoft.runs.spec import RunSpec
    from fedsoft.studies.process_pool import ProcessPool, Progress

from fedsoft.cli.common import err


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
