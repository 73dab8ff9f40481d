"""run, resume, show, ls: one run or several seeds of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsoft.cli.common import (
    AddressOption,
    DeviceOption,
    EngineOption,
    FastOption,
    JsonOption,
    KeepOption,
    MemoryOption,
    OutOption,
    RoundsOption,
    RunArgument,
    SetOption,
    SourceArgument,
    WorkersOption,
    app,
    changes,
    err,
    files_told_by,
    out,
    page,
    parse_seeds,
    print_json,
)
from fedsoft.errors import DivergedError, InputError, StoreError

if TYPE_CHECKING:
    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.spec import RunSpec


@app.command(epilog="Example:  fedsoft run synthetic-10-90 --set lam=0.1 --seeds 0..4")
def run(
    source: SourceArgument,
    fast: FastOption = False,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of all draws.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="A..B", help="Several seeds: 0..4 or 0,1,7.")] = None,
    rounds: RoundsOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
    device: DeviceOption = "cpu",
    engine: EngineOption = "local",
    address: AddressOption = None,
    out_dir: OutOption = Path("runs"),
    keep: KeepOption = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew even if this very run is saved already.")] = False,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Run a preset or a TOML file. A run that was saved before is shown, one that was stopped is taken up."""
    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds cannot be given together")
    from fedsoft.runs import spec as specs
    from fedsoft.runs.execution import place

    base = specs.read(source, changes(set_, rounds), fast=fast)
    chosen = parse_seeds(seeds) if seeds is not None else [base.seed if seed is None else seed]
    wanted = [base.with_seed(number) for number in chosen]
    share = {
        "device": device, "workers": workers, "memory": memory, "engine": engine, "address": address, "keep": keep
    }  # fmt: skip
    folders = []
    for path, spec in ((place(spec, out_dir, again=again), spec) for spec in wanted):
        with files_told_by(f"fedsoft resume {path} --data PATH"):
            folders.append(carry_out(spec, path, share))
    show_runs(folders, json_)


@app.command(epilog="Example:  fedsoft resume synthetic-10-90-s0")
def resume(
    name: RunArgument, workers: WorkersOption = None, memory: MemoryOption = None, device: DeviceOption = "cpu",
    engine: EngineOption = "local", address: AddressOption = None, keep: KeepOption = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="Where the run's files are now, if they were moved.")
    ] = None,
    out_dir: OutOption = Path("runs"), json_: JsonOption = False,
) -> None:  # fmt: skip
    """Take up a run that was stopped. It ends in the same bits as if it had not been.

    A finished run whose saved state is damaged is played again from the last state that is not.
    """
    from fedsoft.runs.finding import find_run

    folder = find_run(out_dir, name)
    share = {
        "device": device, "workers": workers, "memory": memory, "engine": engine, "address": address, "keep": keep,
        "data": data,
    }  # fmt: skip
    with files_told_by("--data PATH"):
        show_runs([carry_out(folder.spec(), folder.path, share, check=True)], json_)


@app.command(epilog="Example:  fedsoft show synthetic-10-90-s0 --json")
def show(name: RunArgument, out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """Show a saved run."""
    from fedsoft.runs.finding import find_run

    show_runs([find_run(out_dir, name)], json_)


@app.command(epilog="Example:  fedsoft ls --out runs")
def ls(out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """List the saved runs."""
    from fedsoft.reports.tables import runs_list, runs_table
    from fedsoft.runs.finding import list_runs

    runs = list_runs(out_dir)
    if json_:
        print_json(runs_list(runs))
    elif runs:
        page().print(runs_table(runs))
    else:
        out.print(f"no runs in '{out_dir}': start one with  fedsoft run synthetic-10-90", markup=False)


def carry_out(spec: RunSpec, path: Path, share: dict[str, Any], *, check: bool = False) -> RunFolder:
    """Run or resume one run under a progress bar, with a share of the machine, then draw its figure.

    `check`: also look at the saved state of a finished run.
    """
    from fedsoft.engines import NEEDS, whole_runs
    from fedsoft.errors import unknown
    from fedsoft.machine import check_workers, memory_size
    from fedsoft.progress import Progress
    from fedsoft.runs.execution import carry_on, execute
    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.stage import Stage
    from fedsoft.training import check_device

    check_device(share["device"])
    check_workers(share["workers"])
    memory_size(share["memory"])
    if share["engine"] not in NEEDS:
        raise unknown("engine", share["engine"], NEEDS)

    def say(text: str) -> None:
        err.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    done, damaged = 0, None
    if path.exists():
        known = RunFolder.open(path)
        done = known.saved_rounds()
        if check:
            damaged = known if _is_damaged(known, say) else None
        if damaged is None and known.scores() is not None:
            carry_on(known, Stage(**share))  # complains when the data is not that of the run
            told = f"{path.name} was finished before: shown as saved ('fedsoft run ... --again' plays it anew)"
            err.print(told, markup=False)
            with contextlib.suppress(StoreError):  # who may only read need not draw
                _draw(known)
            return known
        if whole_runs(share["engine"]) is None and (problem := known.diverged) is not None:
            raise DivergedError(
                f"{path.name} diverged after round {len(known.records())}, and would again with the same settings: "
                f"{problem} ('fedsoft run ... --again' plays it anew)"
            )
        err.print(f"taking up {path.name} after round {done}", markup=False)
    with Progress(err, spec, done) as progress:
        stage = Stage(**share, on_round=progress.update, say=say)
        folder, finished = carry_on(damaged, stage, again=True) if damaged else execute(spec, path, stage)
    if not finished:
        count = len(folder.records())
        err.print(f"stopped and saved after round {count} of {spec.rounds}: go on with", markup=False)
        err.print(f"  fedsoft resume {folder.path}", markup=False)
        raise typer.Exit(130)
    _draw(folder, anew=True)
    return folder


def _is_damaged(folder: RunFolder, say: Callable[[str], object]) -> bool:
    """Whether a finished run has to be finished again, from what is left of it."""
    try:
        return folder.scores() is not None and not folder.intact
    except StoreError as error:
        say(f"{error}: made anew from the saved state")
        return True


def _draw(folder: RunFolder, *, anew: bool = False) -> None:
    """The figure of a finished run; one that is there is left alone unless told."""
    from fedsoft.reports.figures import convergence

    if (anew or not (folder.path / "figure.png").exists()) and (picture := convergence(folder)) is not None:
        with folder.lock():
            folder.write("figure.png", picture)


def show_runs(folders: list[RunFolder], json_: bool) -> None:
    """Print runs, as tables or as one JSON object."""
    from fedsoft.reports.tables import run_view, seeds_table

    if json_:
        print_json({"runs": [_as_json(folder) for folder in folders]})
        return
    for folder in folders:
        out.print(run_view(folder, starred=not out.is_terminal))
        out.print()
    scores = [found for folder in folders if (found := folder.scores()) is not None]
    if len(scores) > 1:
        out.print(seeds_table(scores))


def _as_json(folder: RunFolder) -> dict[str, Any]:
    from fedsoft.centers.collapse import standing
    from fedsoft.reports.tables import state_of
    from fedsoft.trust.guards import silence

    records = folder.records()
    return {
        "run": folder.name,
        "path": str(folder.path),
        "spec": folder.spec().to_dict(),
        "hash": folder.info["hash"],
        "rounds": len(records),
        "seconds": sum(record.get("seconds", 0.0) for record in records),
        "gradients": sum(record.get("gradients", 0) for record in records),
        "bytes_down": sum(record.get("bytes_down", 0) for record in records),
        "bytes_up": sum(record.get("bytes_up", 0) for record in records),
        "kept": folder.kept,
        "state": state_of(folder),
        "diverged": folder.diverged,
        "warnings": [*silence(records), *standing(records)],
        "scores": folder.scores(),
    }
