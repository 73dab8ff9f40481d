"""adopt, predict, export: what a finished run is for."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsoft.cli.common import JsonOption, RunArgument, app, err, out, print_json
from fedsoft.errors import FilesGone, InputError
from fedsoft.escape import file_name, shown

if TYPE_CHECKING:
    from fedsoft.runs.spec import RunSpec
    from fedsoft.training import Run

RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", envvar="FEDSOFT_RUNS")]
LabelOption = Annotated[
    str | None, typer.Option("--label", help="Column or array with the targets; that of the run, or y.")
]


@app.command(epilog="Example:  fedsoft adopt synthetic-10-90-s0 --data newcomer.csv --how personal --curve")
def adopt(
    name: RunArgument,
    data: Annotated[
        Path, typer.Option("--data", metavar="FOLDER|FILE", help="One .csv, .npz or .parquet file for each newcomer.")
    ],
    how: Annotated[
        str, typer.Option("--how", metavar="center|mixture|personal", help="What it is handed.")
    ] = "mixture",
    curve: Annotated[bool, typer.Option("--curve", help="Also held-out error by the number of points.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Draws of points for each place of the curve.")] = 10,
    lam: Annotated[
        float | None, typer.Option("--lam", help="Pull of the personal solve; that of the run, or 1.")
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Of the intervals.")] = 0.9,
    label: LabelOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="For models and the curve; adopted/DATA unless told."),
    ] = None,
    runs_dir: RunsOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Serve people who come after training: their mixture, a model, and whether any center fits them.

    Nothing is trained but, with --how personal, the newcomer's own model by one proximal solve. No other client is
    asked.
    """
    import json

    from fedsoft.datasets.folder import read_newcomers
    from fedsoft.reports.newcomers import adopted_table, curve_picture, curve_table, verdicts
    from fedsoft.runs.disk import write_folder

    run, spec, title = _load(runs_dir, name)
    people = read_newcomers(data, run.federation, label or _label(spec))
    with err.status("comparing with the clients of the run ..."):
        desk = run.newcomers(lam=lam)
        found = [desk.adopt(x, y, how=how, level=level, name=who) for who, (x, y) in people.items()]  # pyright: ignore[reportArgumentType]
    file = file or Path("adopted") / file_name(data.stem or "data")
    plain = {"run": title, "newcomers": [one.to_dict() for one in found], "path": str(file)}
    files = {"adopted.json": (json.dumps(plain, indent=1) + "\n").encode()}
    for k, one in enumerate(found):
        label = file_name(one.name)
        label += f"-{k}" if f"{label}.safetensors" in files else ""  # two names may become the same
        files[f"{label}.safetensors"] = _tensors(run, one)
    learnt = None
    if curve:
        learnt = _curve(run, desk, people, repeats)
        files |= {"curve.csv": learnt.to_csv().encode(), "curve.png": curve_picture(learnt, title)}
        plain["curve"] = learnt.to_dict()
    write_folder(file, files)
    if json_:
        print_json(plain)
        return
    out.print(adopted_table(found))
    for text in verdicts(found):
        out.print(shown(text), markup=False, highlight=False)
    if learnt is not None:
        out.print(curve_table(learnt))
    out.print(f"Saved: {file} ({', '.join(files)})", markup=False, highlight=False, soft_wrap=True)


@app.command(epilog="Example:  fedsoft predict synthetic-10-90-s0 --center 1 --data points.csv --out predictions.csv")
def predict(
    name: RunArgument,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="A .csv, .npz or .parquet file of points.")],
    client: Annotated[str | None, typer.Option("--client", metavar="K", help="With this client's model.")] = None,
    center: Annotated[int | None, typer.Option("--center", metavar="S", help="With this center.")] = None,
    label: LabelOption = None,
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE.csv", help="Instead of the terminal.")] = None,
    runs_dir: RunsOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Predict with a center or a client's personal model. Where the file has the targets too, they are scored."""
    if (client is None) == (center is None):
        raise InputError("predict needs either --client K or --center S")
    if data.is_dir():
        raise InputError(f"--data '{data}' is a folder, should be one .csv, .npz or .parquet file")
    from fedsoft.datasets.folder import read_newcomers
    from fedsoft.runs.disk import write_folder

    run, spec, title = _load(runs_dir, name)
    ((x, y),) = read_newcomers(data, run.federation, label or _label(spec), labelled=False).values()
    found = run.predict(x, center=center, client=None if client is None else client_of(run, client)).cpu()
    score = None
    if y is not None:
        _, target = run.federation.newcomer(x, y, data.stem)
        target = target.to(found) if target.is_floating_point() else target
        score = float(run.model.metric.per_point(found[None], target[None]).double().mean())
    columns = _columns(run, found)
    if file is not None:
        write_folder(file.parent, {file.name: _csv(columns).encode()})
    if json_:
        print_json({"run": title, "points": len(found), run.model.metric.name: score, "path": file and str(file)}
                   | ({} if file else {"predictions": columns}))  # fmt: skip
        return
    if file is None:
        sys.stdout.write(shown(_csv(columns), lines=True))
    said = f"{len(found)} points" + (f", {run.model.metric.name} {score:.6g}" if score is not None else "")
    err.print(f"{said}{f', saved: {file}' if file else ''}", markup=False, highlight=False, soft_wrap=True)


@app.command(epilog="Example:  fedsoft export synthetic-10-90-s0 --what client 3 --format onnx --out client-3")
def export(
    name: RunArgument,
    client: Annotated[str | None, typer.Argument(metavar="[K]", help="Which client, for --what client.")] = None,
    what: Annotated[str, typer.Option("--what", metavar="centers|clients|client K", help="What to write.")] = "centers",
    format_: Annotated[
        str, typer.Option("--format", metavar="safetensors|onnx|torch", help="Weights; everything; weights and code.")
    ] = "safetensors",
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to; exported/RUN/WHAT unless told.")
    ] = None,
    runs_dir: RunsOption = Path("runs"),
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Write centers, or models of clients, as files that other programs read, with a model card. No pickles."""
    if what not in ("centers", "client", "clients"):
        raise InputError(f"--what '{what}' is not allowed: should be centers, clients, or client K")
    if what == "client" and client is None:
        raise InputError("--what client needs the number or name of a client after it")
    if what != "client" and client is not None:
        raise InputError(f"--what {what} '{client}' is not allowed: should be --what client '{client}'")
    from fedsoft.exporting import export as write
    from fedsoft.exporting import export_clients
    from fedsoft.progress import Steps

    run, spec, title = _load(runs_dir, name)
    file = Path("exported") / title / what if out_dir is None else out_dir  # each run beside its own scale and card
    if what == "clients":
        with Steps(err, "exporting") as steps:
            each = export_clients(run, file, format=format_, spec=spec, name=title, on_step=steps.update)  # pyright: ignore[reportArgumentType]
        models = [model for one in each for model in one.models]
        if json_:
            files = [f"{one.folder.name}/{part}" for one in each for part in one.files]
            print_json({"run": title, "path": str(file), "format": format_, "models": models, "files": files})
            return
        some = ", ".join(models if len(models) <= 4 else [*models[:2], "...", models[-1]])
        told = f"Saved: {file} ({len(models)} folder{'s' * (len(models) != 1)}: {some})"
        out.print(told, markup=False, highlight=False, soft_wrap=True)
        return
    with err.status("exporting ..."):
        who = None if client is None else client_of(run, client)
        written = write(run, file, client=who, format=format_, spec=spec, name=title)  # pyright: ignore[reportArgumentType]
    if json_:
        print_json(
            {"run": title, "path": str(file), "format": format_, "models": written.models, "files": written.files}
        )
        return
    out.print(f"Saved: {file} ({', '.join(written.files)})", markup=False, highlight=False, soft_wrap=True)


def client_of(run: Run, text: str) -> str | int:
    """A client by name, or by number where no name is like that."""
    names = run.federation.names
    # Where names are numbers themselves, a number is a name: the fourth client is not client 4.
    return int(text) if text.isdecimal() and not any(name.isdecimal() for name in names) else text


def _load(root: Path, name: str) -> tuple[Run, RunSpec, str]:
    from fedsoft.runs.execution import load
    from fedsoft.runs.finding import find_run

    folder = find_run(root, name)
    with err.status(f"loading {folder.name} ..."):
        try:
            run = load(folder.path.absolute())
        except FilesGone as error:
            raise InputError(
                f"{error.what}: put it back, it is needed to check what the run has learned from"
            ) from None
    if not run.rounds:
        raise InputError(f"run '{folder.name}' has not played a round: finish it with 'fedsoft resume {folder.path}'")
    if not run.is_over:
        err.print(f"note: {folder.name} is not finished: as it was after round {run.rounds}", markup=False)
    return run, folder.spec(), folder.name


def _label(spec: RunSpec) -> str:
    return str(spec.dataset.settings.get("label", "y")) if spec.dataset.name == "folder" else "y"


def _tensors(run: Run, one: Any) -> bytes:
    """The newcomer's model: named tensors, with those of several models under `c0.`, `c1.`, ... and their shares.

    Where inputs are scaled, with the scale.
    """
    from safetensors.torch import save

    layout, blend = run.model.layout, one.blend
    if len(blend.w) == 1:
        named = dict(layout.unflatten(blend.w[0].cpu()))
    else:
        named = {f"c{j}.{key}": t for j, w in enumerate(blend.w.cpu()) for key, t in layout.unflatten(w).items()}
        named["shares"] = blend.shares.cpu()
    if one.scale is not None:
        named |= {"scale.mean": one.scale.mean, "scale.deviation": one.scale.deviation}
    return save({key: value.contiguous().clone() for key, value in named.items()}, {"format": "pt", "how": one.how})


def _curve(run: Run, desk: Any, people: dict[str, Any], repeats: int) -> Any:
    from fedsoft.newcomers.curve import learning_curve
    from fedsoft.progress import Steps

    pairs = [run.federation.newcomer(x, y, who) for who, (x, y) in people.items()]
    with Steps(err, "curve") as steps:
        return learning_curve(desk, pairs, rounds=run.rounds, repeats=repeats, on_step=steps.update)


def _columns(run: Run, found: Any) -> dict[str, list[Any]]:
    """Predictions as columns: one for each output, or the class and the probability of each."""
    if run.federation.shape.task == "regression":
        flat = found.reshape(len(found), -1)
        names = ["prediction"] if flat.shape[1] == 1 else [f"prediction_{j}" for j in range(flat.shape[1])]
        return {name: flat[:, j].tolist() for j, name in enumerate(names)}
    classes = run.federation.columns.classes or [str(j) for j in range(found.shape[1])]
    columns: dict[str, list[Any]] = {"class": [classes[j] for j in found.argmax(1).tolist()]}
    return columns | {f"p_{name}": found[:, j].tolist() for j, name in enumerate(classes)}


def _csv(columns: dict[str, list[Any]]) -> str:
    with io.StringIO() as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()
