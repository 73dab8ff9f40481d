"""adopt, predict: serve new clients with a finished run, and predict with it."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsoft.cli.common import app, err, out, print_json, say
from fedsoft.cli.options import JsonOption, grouped
from fedsoft.cli.saved import FormatOption, Loaded, SavedRun, client_of
from fedsoft.errors import InputError
from fedsoft.escape import csv_cell, file_name, shown

if TYPE_CHECKING:
    from fedsoft.exports.export import Format
    from fedsoft.onboarding.learning_curve import Curve
    from fedsoft.onboarding.new_clients import Adopted, NewClients
    from fedsoft.training import Run

LabelOption = Annotated[
    str | None, typer.Option("--label", help="Column or array with the targets; default: that of the run, or y.")
]


@dataclass(frozen=True)
class CurveOptions:
    """Whether to draw the learning curve of new clients, and how."""

    curve: Annotated[
        bool, typer.Option("--curve", help="Also the learning curve: held-out error by number of points.")
    ] = False
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Draws of points for each point of the curve.")] = 10


@dataclass(frozen=True)
class ServeOptions:
    """How to serve new clients."""

    how: Annotated[
        str, typer.Option("--how", metavar="center|mixture|personal", help="Which model a new client gets.")
    ] = "mixture"
    lam: Annotated[
        float | None, typer.Option("--lam", help="Pull of the personal solve; default: that of the run, or 1.")
    ] = None
    level: Annotated[float, typer.Option("--level", help="Level of the intervals.")] = 0.9


@app.command(epilog="Example:  fedsoft adopt synthetic-10-90-s0 --data new_client.csv --how personal --curve")
@grouped
def adopt(
    saved: SavedRun,
    data: Annotated[
        Path, typer.Option("--data", metavar="FOLDER|FILE", help="One .csv, .npz or .parquet file for each new client.")
    ],
    serve: ServeOptions,
    curve: CurveOptions,
    label: LabelOption = None,
    format_: FormatOption = "safetensors",
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="For models and the curve; default: adopted/DATA."),
    ] = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Serve clients that join after training: their mixture, a model, and whether any center fits them.

    Nothing is trained except, with --how personal, the new client's own model by one proximal solve. No other client is
    asked.
    """
    import json

    from fedsoft.exports.export import check_format
    from fedsoft.reports.new_clients import adopted_table, curve_picture, curve_table, verdicts
    from fedsoft.storage.atomic import write_folder

    format_ = check_format(format_)
    loaded = saved.load(measured=True)
    run = loaded.run
    points = loaded.read(data, label)
    with err.status("comparing with the clients of the run ..."):
        desk = run.new_clients(lam=serve.lam)
        found = [desk.adopt(x, y, how=serve.how, level=serve.level, name=who) for who, (x, y) in points.items()]  # pyright: ignore[reportArgumentType]
    file = file or Path("adopted") / file_name(data.stem or "data")
    plain = {"run": loaded.name, "new_clients": [one.to_dict() for one in found], "path": str(file)}
    files = {"adopted.json": (json.dumps(plain, indent=1) + "\n").encode()}
    with err.status("writing models ..."):
        files |= _model_files(loaded, found, format_)
    learned = _curve(run, desk, points, curve.repeats) if curve.curve else None
    if learned is not None:
        files |= {"curve.csv": learned.to_csv().encode(), "curve.png": curve_picture(learned, loaded.name)}
        plain["curve"] = learned.to_dict()
    write_folder(file, files)
    if json_:
        print_json(plain)
        return
    out.print(adopted_table(found))
    for text in verdicts(found):
        say(shown(text))
    if learned is not None:
        out.print(curve_table(learned))
    say(f"Saved: {file} ({', '.join(files)})")


@app.command(epilog="Example:  fedsoft predict synthetic-10-90-s0 --center 1 --data points.csv --out predictions.csv")
@grouped
def predict(
    saved: SavedRun,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="A .csv, .npz or .parquet file of points.")],
    client: Annotated[str | None, typer.Option("--client", metavar="K", help="Use this client's model.")] = None,
    center: Annotated[int | None, typer.Option("--center", metavar="S", help="Use this center.")] = None,
    adopted: Annotated[
        Path | None,
        typer.Option("--adopted", metavar="FILE.safetensors", help="Use the model of a new client that 'adopt' wrote."),
    ] = None,
    label: LabelOption = None,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Where to write; default: the terminal.")
    ] = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Predict with a center, or the model of a client or a new client. Where the file has targets, they are scored."""
    if sum(one is not None for one in (client, center, adopted)) != 1:
        raise InputError("predict needs one of --client K, --center S and --adopted FILE.safetensors")
    if data.is_dir():
        raise InputError(f"--data '{data}' is a folder, should be one .csv, .npz or .parquet file")
    from fedsoft.storage.atomic import write_folder

    loaded = saved.load()
    run, metric = loaded.run, loaded.run.model.metric
    ((x, y),) = loaded.read(data, label, labelled=False).values()
    if adopted is not None:
        found = _by_adopted(run, adopted, x)
    else:
        found = run.predict(x, center=center, client=None if client is None else client_of(run, client)).cpu()
    score = None
    if y is not None:
        _, target = run.federation.new_client(x, y, data.stem)
        target = target.to(found) if target.is_floating_point() else target
        score = float(metric.per_point(found[None], target[None]).double().mean())
    columns = _columns(run, found)
    if file is not None:
        write_folder(file.parent, {file.name: _csv(columns).encode()})
    if json_:
        print_json({"run": loaded.name, "points": len(found), metric.name: score, "path": file and str(file)}
                   | ({} if file else {"predictions": columns}))  # fmt: skip
        return
    if file is None:
        sys.stdout.write(shown(_csv(columns), lines=True))
    scored = "" if score is None else f", {metric.name} {score:.6g}"
    say(f"{len(found)} points{scored}{f', saved: {file}' if file else ''}", err)


def _model_files(loaded: Loaded, found: list[Adopted], format_: Format) -> dict[str, bytes]:
    """Return the models of new clients: always as safetensors, which `predict` reads, and as asked for."""
    from fedsoft.exports.export import model_files
    from fedsoft.onboarding.saved_model import model_bytes

    named: dict[str, Adopted] = {}
    for k, one in enumerate(found):
        safe = file_name(one.name)
        named[f"{safe}-{k}" if safe in named else safe] = one  # two names may become the same
    files = {f"{safe}.safetensors": model_bytes(one.ensemble, one.scale, one.how) for safe, one in named.items()}
    if format_ == "safetensors":
        return files
    ensembles = {safe: one.ensemble for safe, one in named.items()}
    if format_ == "torch":  # a model of several parts has files of the same names
        ensembles = {f"model-{safe}": ensemble for safe, ensemble in ensembles.items()}
    return files | model_files(loaded.run, ensembles, format_, loaded.spec, loaded.name)


def _by_adopted(run: Run, file: Path, x: Any) -> Any:
    """Return the predictions of a new client's model for unscaled inputs."""
    import torch

    from fedsoft.machine.threads import one_thread
    from fedsoft.onboarding.saved_model import read_model

    model = read_model(file, run.model, run.federation.scale, run.state.centers)
    with torch.no_grad(), one_thread():
        return model.predict(run.federation.as_seen(torch.as_tensor(x))).cpu()


def _curve(run: Run, desk: NewClients, points: dict[str, Any], repeats: int) -> Curve:
    from fedsoft.onboarding.learning_curve import learning_curve
    from fedsoft.reports.bar import Bar

    pairs = [run.federation.new_client(x, y, who) for who, (x, y) in points.items()]
    with Bar(err, "steps") as bar:
        return learning_curve(desk, pairs, rounds=run.rounds, repeats=repeats, on_step=partial(bar.show, "curve"))


def _columns(run: Run, found: Any) -> dict[str, list[Any]]:
    """Return predictions as columns: one for each output, or the class and the probability of each."""
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
        writer.writerow(map(csv_cell, columns))
        writer.writerows(map(csv_cell, row) for row in zip(*columns.values(), strict=True))
        return text.getvalue()
