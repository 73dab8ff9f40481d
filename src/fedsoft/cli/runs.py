"""run, resume, show, ls: one run or several seeds of it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsoft.cli.common import STOPPED, advise_data_option, app, err, out, page, parse_seeds, print_json, say
from fedsoft.cli.options import (
    AllowOption,
    JsonOption,
    KeepOption,
    LogOption,
    MachineOptions,
    OutOption,
    RunArgument,
    SpecOptions,
    grouped,
)
from fedsoft.errors import DivergedError, InputError, StoreError, unknown
from fedsoft.runs.names import match_run

if TYPE_CHECKING:
    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.origin import Origin
    from fedsoft.runs.run_options import RunOptions
    from fedsoft.runs.spec import RunSpec


@dataclass(frozen=True)
class ContinueOptions:
    """How a run goes on beyond its end."""

    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Rounds in all. The longer run gets a folder of its own."),
    ] = None
    join: Annotated[
        bool,
        typer.Option("--join", help="Go on with the clients that the data has now, in a folder of its own."),
    ] = False
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="Where the run's files are now, if they were moved; see --join."),
    ] = None


@dataclass(frozen=True)
class SaveOptions:
    """What is kept of a run beside its end."""

    keep: KeepOption = None
    log: LogOption = None

    def logged(self, options: RunOptions, path: Path) -> RunOptions:
        """Return options with what logs the rounds of the run in this folder."""
        if not self.log:
            return options
        from fedsoft.training.callbacks import MLflow, TensorBoard

        made = {"tensorboard": lambda: TensorBoard(path / "tensorboard"), "mlflow": lambda: MLflow(path.name)}
        if (other := next((name for name in self.log if name not in made), None)) is not None:
            raise unknown("log", other, made)
        return replace(options, callbacks=[*options.callbacks, *(made[name]() for name in dict.fromkeys(self.log))])


@app.command(
    epilog="Example:  fedsoft run synthetic-10-90 --set lam=0.1 --seeds 0..4\n\n"
    "fedsoft run synthetic-10-90 --set early_stopping.patience=5 --log tensorboard"
)
@grouped
def run(
    what: SpecOptions,
    *,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of all draws; default: that of the preset.")
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="A..B", help="Several seeds: 0..4 or 0,1,7.")] = None,
    out_dir: OutOption = Path("runs"),
    save: SaveOptions,
    again: Annotated[bool, typer.Option("--again", help="Run again even if this run is already saved.")] = False,
    machine: MachineOptions,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Run a preset or a TOML file. A run that is already saved is shown; one that was stopped is resumed."""
    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds cannot be given together")
    from fedsoft.runs.execute import place

    base, options = what.read(), machine.options(keep=save.keep)
    chosen = parse_seeds(seeds) if seeds is not None else [base.seed if seed is None else seed]
    folders = []
    for spec in [base.with_seed(number) for number in chosen]:
        path = place(spec, out_dir, again=again)
        with advise_data_option(f"fedsoft resume {path} --data PATH"):
            folders.append(start_or_resume(spec, path, save.logged(options, path)))
    show_runs(folders, json_)


@app.command(
    epilog="Example:  fedsoft resume synthetic-10-90-s0\n\nfedsoft resume synthetic-10-90-s0 --rounds 100\n\n"
    "fedsoft resume hospitals-s0 --join --data hospitals/ --rounds 100"
)
@grouped
def resume(
    name: RunArgument,
    further: ContinueOptions,
    machine: MachineOptions,
    save: SaveOptions,
    allow: AllowOption = None,
    out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:
    """Resume a run that was stopped, or play more rounds. It ends in the same bits as one that was not stopped.

    A finished run whose saved state is damaged is repeated from its last intact state. With --rounds or --join
    the run stays as it is, and another one goes on from its end: with more rounds, the very run that had them from the
    start; with --join, one in which clients of the same names keep what they know, new ones start, others are gone.
    """
    found = match_run(out_dir, name)
    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.origin import Origin

    folder = RunFolder.open(found)
    spec, path, origin = folder.spec(allow or ()), folder.path, None
    rounds, join, data = further.rounds, further.join, further.data
    if join or (rounds is not None and rounds != spec.rounds):
        origin = Origin(folder, joins=join)
        spec = origin.spec(rounds, data, allow or ())
        path = folder.path.parent / spec.id
    # Where clients join, the new run's own file says where its data is.
    options = save.logged(machine.options(keep=save.keep, data=None if join else data), path)
    with advise_data_option("--data PATH"):
        show_runs([start_or_resume(spec, path, options, check=True, origin=origin)], json_)


@app.command(epilog="Example:  fedsoft show synthetic-10-90-s0 --json")
def show(name: RunArgument, out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """Show a saved run."""
    path = match_run(out_dir, name)
    from fedsoft.runs.folder import RunFolder

    show_runs([RunFolder.open(path)], json_)


@app.command(epilog="Example:  fedsoft ls --out runs")
def ls(out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """List the saved runs."""
    from fedsoft.reports.run_list import runs_list, runs_table
    from fedsoft.runs.find import list_runs

    runs = list_runs(out_dir)
    if json_:
        print_json(runs_list(runs))
    elif runs:
        page().print(runs_table(runs))
    else:
        say(f"no runs in '{out_dir}': start one with  fedsoft run synthetic-10-90")


def start_or_resume(
    spec: RunSpec, path: Path, options: RunOptions, *, check: bool = False, origin: Origin | None = None
) -> RunFolder:
    """Start or resume one run under a progress bar, then draw its figure.

    `check`: also check the saved state of a finished run. `origin`: the run that it goes on from.
    """
    from fedsoft import plugins
    from fedsoft.cli.progress import Progress
    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.spec import code_in
    from fedsoft.studies import launch

    def note(text: str) -> None:
        say(f"note: {text}", err)

    done, damaged = 0, None
    if path.exists():
        known = RunFolder.open(path)
        done = known.states.saved_rounds()
        if check:
            damaged = known if _is_damaged(known, note) else None
        if damaged is None and known.scores() is not None:
            if not check:  # the same command means another run when the data has changed
                launch.resume(known, options, allow=spec.allow)
            return _as_saved(known)
        if options.engine != "flower" and (problem := known.diverged) is not None:
            raise DivergedError(
                f"{path.name} diverged after round {len(known.records())}, and would again with the same settings: "
                f"{problem} ('fedsoft run ... --again' runs it again)"
            )
        say(f"resuming {path.name} after round {done}", err)
    elif origin is not None:
        done = origin.folder.states.saved_rounds()
        say(f"{origin.folder.name} goes on after round {done} as {path.name}", err)
    if named := [name for name in code_in(spec.to_dict()) if plugins.allows(spec.allow, name)]:
        say(f"your own code that this run imports: {', '.join(named)}", err)
    with Progress(err, spec, done) as progress:
        options = replace(options, callbacks=[progress.update, *options.callbacks], say=note)
        folder, finished = (
            launch.resume(damaged, options, again=True, allow=spec.allow)
            if damaged
            else launch.launch(spec, path, options, origin)
        )
    if not finished:
        _say_how_to_resume(folder, spec)
        raise typer.Exit(STOPPED)
    _draw(folder, anew=True)
    return folder


def _as_saved(folder: RunFolder) -> RunFolder:
    """Return a finished run as it is, with its figure where that can be drawn."""
    say(f"{folder.name} was finished before: shown as saved ('fedsoft run ... --again' runs it again)", err)
    with contextlib.suppress(StoreError):  # without write access nothing is drawn
        _draw(folder)
    return folder


def _say_how_to_resume(folder: RunFolder, spec: RunSpec) -> None:
    way = "the same command" if folder.at_nodes else f"\n  fedsoft resume {folder.path}{_allowed(spec)}"
    say(f"stopped and saved after round {len(folder.records())} of {spec.rounds}: resume with {way}", err)


def _allowed(spec: RunSpec) -> str:
    """Return the options that allow a user's own code, as typed from the current folder; none where there is none."""
    from fedsoft.runs.spec import code_in

    named, here = code_in(spec.to_dict()), f"{Path.cwd().as_posix()}/"
    places = [one.replace(here, "./", 1) for one in sorted(spec.allow) if one.rpartition("/")[2] in named]
    return "".join(f" --allow {shlex.quote(place)}" for place in places)


def _is_damaged(folder: RunFolder, note: Callable[[str], object]) -> bool:
    """Return whether a finished run has to be repeated from what is left of it."""
    try:
        return folder.scores() is not None and not folder.intact
    except StoreError as error:
        note(f"{error}: computed again from the saved state")
        return True


def _draw(folder: RunFolder, *, anew: bool = False) -> None:
    """Draw the figure of a finished run; one that exists is replaced only with `anew`."""
    from fedsoft.reports.convergence import picture

    if (anew or not (folder.path / "figure.png").exists()) and (drawn := picture(folder)) is not None:
        with folder.lock():
            folder.write("figure.png", drawn)


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
    from fedsoft.reports.run_list import state_of
    from fedsoft.training.notices import of_scores, warnings
    from fedsoft.training.records import Totals

    records, scores = folder.records(), folder.scores()
    totals = Totals.of(records)
    evidence = None if scores is None or scores.prior is None else scores.prior.evidence
    return {
        "run": folder.name,
        "path": str(folder.path),
        "spec": folder.recorded.to_dict(),
        "hash": folder.info.hash,
        "rounds": totals.rounds,
        "seconds": totals.seconds,
        "gradients": totals.gradients,
        "bytes_down": totals.bytes_down,
        "bytes_up": totals.bytes_up,
        "kept": folder.states.kept,
        "state": state_of(folder),
        "parent": None if folder.info.parent is None else asdict(folder.info.parent),
        "diverged": folder.diverged,
        "warnings": [notice.to_dict() for notice in warnings(records)],
        "notes": [] if scores is None else [notice.to_dict() for notice in of_scores(scores)],
        "scores": None if scores is None else scores.to_dict(),
        "evidence": None if evidence is None else {"per_point": evidence.per_point, "charged": evidence.charged},
    }
