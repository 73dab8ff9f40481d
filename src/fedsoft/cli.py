"""The command line. Thin: it reads arguments, calls the library, and prints."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsoft import plugins
from fedsoft.errors import FedsoftError, InputError, unknown

if TYPE_CHECKING:
    from fedsoft.spec import RunSpec
    from fedsoft.store import RunFolder

# Torch takes two seconds to import: everything that needs it is imported by the command that does.

app = typer.Typer(
    name="fedsoft",
    help="Soft clustered federated learning: cluster models and personal models from mixed clients.",
    epilog="Example:  fedsoft run synthetic-10-90",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out, err = Console(), Console(stderr=True)

LISTED = ("algorithms", "datasets", "partitions", "models", "solvers", "presets")


def _presets(incomplete: str) -> list[str]:
    from fedsoft.spec import presets

    return [name for name in presets() if name.startswith(incomplete)]


def _runs(incomplete: str) -> list[str]:
    return sorted(p.parent.name for p in Path("runs").glob("*/run.json") if p.parent.name.startswith(incomplete))


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in LISTED if kind.startswith(incomplete)]


OutOption = Annotated[Path, typer.Option("--out", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, or cuda where there is one.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Name, beginning of the name, or path.", autocompletion=_runs)
]


@app.command(epilog="Example:  fedsoft run synthetic-10-90 --set lam=0.1 --seeds 0..4")
def run(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="What to run; see 'fedsoft list presets'.",
                            autocompletion=_presets)
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given often.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of all draws.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", metavar="A..B", help="Several seeds: 0..4 or 0,1,7.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Communication rounds.")] = None,
    device: DeviceOption = "cpu",
    out_dir: OutOption = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Run anew even if this very run is saved already.")] = False,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Run a preset or a TOML file. A run that was saved before is shown, one that was stopped is taken up."""
    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds cannot be given together")
    from fedsoft import spec as specs
    from fedsoft.runs import place

    changes = [*(set_ or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    base = specs.read(source, changes)
    chosen = _seeds(seeds) if seeds is not None else [base.seed if seed is None else seed]
    wanted = [base.with_seed(number) for number in chosen]
    folders = [_carry_out(spec, place(spec, out_dir, again=again), device) for spec in wanted]
    _show(folders, json_)


@app.command(epilog="Example:  fedsoft compare synthetic-10-90 -a fedsoft,ifca,fedem --seeds 0..4 --budget work")
def compare(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="What to run; see 'fedsoft list presets'.",
                            autocompletion=_presets)
    ],
    algorithms: Annotated[
        str, typer.Option("--algorithms", "-a", metavar="A,B,...", help="Names; settings in brackets: ifca(S=3).")
    ],
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Seeds: 0..4 or 0,1,7.")] = "0..2",
    budget: Annotated[
        str, typer.Option("--budget", help="What is the same for all: rounds, or the first one's client work or bytes.")
    ] = "rounds",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given often.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Communication rounds.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 for one per core.")] = 0,
    device: DeviceOption = "cpu",
    out_dir: OutOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Compare algorithms on the same federations with the same first values. What is saved already is not run again."""
    from fedsoft import compare as comparing
    from fedsoft import spec as specs
    from fedsoft.progress import ComparisonProgress
    from fedsoft.reports import comparison as report
    from fedsoft.store import write_folder

    if budget not in comparing.BUDGETS:
        raise unknown("budget", budget, comparing.BUDGETS)
    if jobs < 0:
        raise InputError(f"--jobs {jobs} is not allowed: should be 0 or more")
    changes = [*(set_ or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    base = specs.read(source, changes)
    with ComparisonProgress(err) as progress:
        found = comparing.compare(
            base,
            algorithms,
            _seeds(seeds),
            out_dir,
            budget=budget,
            jobs=jobs or os.cpu_count() or 1,
            device=device,
            on_progress=progress.update,
        )
    if found is None:
        err.print("stopped and saved: the same command goes on from here")
        raise typer.Exit(130)
    folder = out_dir / found.name
    write_folder(folder, {"comparison.csv": report.to_csv(found).encode(), "figure.png": report.figure(found)})
    if json_:
        _print_json({"budget": budget, "path": str(folder), "algorithms": report.rows(found)})
        return
    wide = out if out.is_terminal else Console(width=1000)  # a file has no edge
    for table in report.tables(found, wide.width):
        wide.print(table)
    out.print(f"Saved: {folder} (comparison.csv, figure.png)", markup=False, highlight=False, soft_wrap=True)


@app.command(epilog="Example:  fedsoft resume synthetic-10-90-s0")
def resume(
    name: RunArgument, device: DeviceOption = "cpu", out_dir: OutOption = Path("runs"), json_: JsonOption = False
) -> None:
    """Take up a run that was stopped. It ends in the same bits as if it had not been."""
    from fedsoft.store import find_run

    folder = find_run(out_dir, name)
    _show([_carry_out(folder.spec(), folder.path, device)], json_)


@app.command(epilog="Example:  fedsoft show synthetic-10-90-s0 --json")
def show(name: RunArgument, out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """Show a saved run."""
    from fedsoft.store import find_run

    _show([find_run(out_dir, name)], json_)


@app.command(epilog="Example:  fedsoft ls --out runs")
def ls(out_dir: OutOption = Path("runs"), json_: JsonOption = False) -> None:
    """List the saved runs."""
    from fedsoft.reports.tables import runs_list, runs_table
    from fedsoft.store import list_runs

    runs = list_runs(out_dir)
    if json_:
        _print_json(runs_list(runs))
    elif runs:
        out.print(runs_table(runs))
    else:
        out.print(f"no runs in '{out_dir}': start one with  fedsoft run synthetic-10-90", markup=False)


@app.command("list", epilog="Example:  fedsoft list algorithms")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="|".join(LISTED), help="What to list.", autocompletion=_kinds)
    ],
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """List what can be used in a run, with settings and defaults."""
    if kind not in LISTED:
        raise unknown("kind", kind, LISTED)
    if kind == "presets":
        from fedsoft.spec import presets

        rows = [{"name": name, "about": about, "settings": {}} for name, about in presets().items()]
    else:
        rows = [_described(kind, name) for name in plugins.names(kind)]
    if json_:
        _print_json(rows)
        return
    table = Table("name", "what it is", *([] if kind == "presets" else ["settings (default)"]))
    for row in rows:
        settings = ", ".join(f"{k} ({v})" if v != "" else k for k, v in row["settings"].items())
        table.add_row(*map(Text, [row["name"], row["about"], *([] if kind == "presets" else [settings])]))
    out.print(table)


def _described(kind: str, name: str) -> dict[str, Any]:
    thing = plugins.find(kind, name)
    about = (thing.__doc__ or "").strip().split("\n\n")[0]
    settings = {key: "" if p.default is p.empty else p.default for key, p in plugins.parameters(thing).items()}
    return {"name": name, "about": " ".join(about.split()), "settings": settings}


def _seeds(text: str) -> list[int]:
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", text.strip()):
        found = list(range(int(span[1]), int(span[2]) + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text.strip()):
        found = [int(part) for part in text.split(",")]
    else:
        raise InputError(f"--seeds '{text}' is not allowed: should be a span 0..4 or a list 0,1,7")
    if not found:
        raise InputError(f"--seeds '{text}' is empty: the first should not be above the last")
    return list(dict.fromkeys(found))


def _carry_out(spec: RunSpec, path: Path, device: str) -> RunFolder:
    """Run or resume one run under a progress bar, then draw its figure."""
    from fedsoft.progress import Progress
    from fedsoft.reports.figures import convergence
    from fedsoft.runs import Stage, execute
    from fedsoft.store import RunFolder
    from fedsoft.training import check_device

    check_device(device)
    done = 0
    if path.exists():
        known = RunFolder.open(path)
        done = len(known.records())
        if known.scores() is not None:
            err.print(f"{path.name} was finished before: shown as saved (--again runs it anew)", markup=False)
            return known
        err.print(f"taking up {path.name} after round {done}", markup=False)
    with Progress(err, spec, done) as progress:
        folder, finished = execute(spec, path, Stage(device=device, on_round=progress.update))
    if not finished:
        count = len(folder.records())
        err.print(f"stopped and saved after round {count} of {spec.rounds}: go on with", markup=False)
        err.print(f"  fedsoft resume {folder.path}", markup=False)
        raise typer.Exit(130)
    if (picture := convergence(folder)) is not None:
        folder.write("figure.png", picture)
    return folder


def _show(folders: list[RunFolder], json_: bool) -> None:
    from fedsoft.reports.tables import run_view, seeds_table

    if json_:
        _print_json({"runs": [_as_json(folder) for folder in folders]})
        return
    for folder in folders:
        out.print(run_view(folder, starred=not out.is_terminal))
        out.print()
    scores = [found for folder in folders if (found := folder.scores()) is not None]
    if len(scores) > 1:
        out.print(seeds_table(scores))


def _as_json(folder: RunFolder) -> dict[str, Any]:
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
        "scores": folder.scores(),
    }


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


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
        app()
    except FedsoftError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("stopped; what was saved before is unharmed")
        sys.exit(130)
    sys.exit(0)
