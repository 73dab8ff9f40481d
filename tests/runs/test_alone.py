"""A saved run is used without the data that it was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError, StoreError
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from tests.cli.test_cli import run as run

CLIENTS = "abcd"


def write(folder: Path, name: str, seed: int) -> None:
    """A client whose outcome follows one of two rules, in columns far from mean 0."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 2))
    y = ["yes" if value > 0 else "no" for value in x[:, 0] * (1 if seed % 2 else -1)]
    rows = [f"{100 + 20 * u},{v},{label}" for (u, v), label in zip(x.tolist(), y, strict=True)]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text("\n".join(["dose,age,outcome", *rows]) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("alone")
    for seed, name in enumerate(CLIENTS):
        write(place / "data", name, seed)
    write(place / "new", "e", 5)
    dataset = {"name": "folder", "path": str(place / "data"), "label": "outcome", "standardize": True}
    raw: dict[str, Any] = {
        "rounds": 4, "algorithm": {"name": "fedsoft", "S": 2}, "model": {"name": "mlp", "hidden": [3]},
        "dataset": dataset, "solver": {"name": "adam", "lr": 0.05, "epochs": 3},
    }  # fmt: skip
    execute(RunSpec.from_dict(raw, "own"), place / "runs" / "own", RunOptions(workers=1))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of the run and its data, at the place that the run's file names no more."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def x_of(place: Path) -> np.ndarray:
    return np.loadtxt(place / "new" / "e.csv", delimiter=",", skiprows=1, usecols=(0, 1))


def test_a_run_without_its_data_is_the_run_with_it(made: Path) -> None:
    alone, whole = fs.load(made / "runs" / "own"), fs.load(made / "runs" / "own", data=True)
    assert not len(alone.federation.train.x)
    assert alone.federation.names == whole.federation.names
    assert alone.federation.columns == whole.federation.columns
    assert alone.federation.train.sizes.tolist() == whole.federation.train.sizes.tolist()
    assert alone.scores() == whole.scores()
    x = x_of(made)
    assert torch.equal(alone.predict(x, center=1), whole.predict(x, center=1))
    assert torch.equal(alone.predict(x, client="c"), whole.predict(x, client="c"))
    y = np.arange(len(x)) % 2
    for how in ("center", "mixture", "personal"):
        one, other = (r.adopt(x, y, how=how) for r in (alone, whole))
        assert one.to_dict() == other.to_dict()
        assert torch.equal(one.predict(x), other.predict(x))


@pytest.mark.parametrize("change", ["gone", "more", "other"])
def test_no_command_needs_the_data(run: Any, place: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the data is deleted, has one file more, or other points in a file."""
    data = Path(RunFolder(place / "runs" / "own").spec().dataset.settings["path"])
    kept = place / "kept"
    shutil.copytree(data, kept)
    try:
        if change == "gone":
            shutil.rmtree(data)
        else:
            write(data, "z" if change == "more" else "a", 9)
        saved, new = str(place / "runs" / "own"), str(place / "new" / "e.csv")
        for command in (
            ("show", saved), ("resume", saved), ("report", saved, "--out", str(place / "page.html")),
            ("predict", saved, "--client", "b", "--data", new), ("adopt", saved, "--data", new),
            ("export", saved, "--format", "torch"), ("export", saved, "--what", "clients"),
        ):  # fmt: skip
            code, _, err = run(*command)
            assert code == 0, (command, err)
        assert "Nothing is shown for single clients" not in (place / "page.html").read_text("utf-8")
    finally:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(kept, data)


def test_going_on_needs_the_same_data(made: Path, place: Path) -> None:
    spec, stops = RunFolder(made / "runs" / "own").spec(), iter([True])
    execute(spec, place / "stopped", RunOptions(workers=1, should_stop=lambda: next(stops)))
    moved = place / "moved"
    shutil.copytree(made / "data", moved)
    write(moved, "z", 9)
    with pytest.raises(StoreError, match="the data has changed since run 'stopped' began"):
        execute(spec, place / "stopped", RunOptions(workers=1, data=moved))
    (moved / "z.csv").unlink()
    _, finished = execute(spec, place / "stopped", RunOptions(workers=1, data=moved))
    assert finished


def test_no_point_is_in_the_folder(made: Path) -> None:
    """No value of a file is found in any text, and no tensor has a row for each point."""
    folder = made / "runs" / "own"
    values = {cell for file in (made / "data").iterdir() for row in file.read_text().split()[1:]
              for cell in row.split(",")[:2]}  # fmt: skip
    for path in folder.glob("*.json*"):
        text = path.read_text("utf-8")
        assert not [value for value in values if value in text], path.name
    point = RunFolder(folder).checkpoint()
    assert point is not None
    rows = {len(value) for value in (*point.state.tensors().values(), *point.client_states.values()) if value.ndim}
    points = fs.load(folder).federation.train.sizes.sum()
    assert rows <= {2, len(CLIENTS)}
    assert int(points) not in rows


def test_what_only_points_can_tell_is_one_sentence(place: Path) -> None:
    folder = place / "runs" / "own"
    (folder / "outcome.json").unlink()
    alone = fs.load(folder)
    for ask in (alone.scores, alone.outcome, alone.new_clients):
        with pytest.raises(InputError, match="needs the points of the run's clients: load it with them"):
            ask()
    fs.export(alone, place / "card")  # which says that it knows no scores
    assert "The run was not finished" in (place / "card" / "model-card.md").read_text("utf-8")


@pytest.mark.parametrize(("file", "key", "value"), [
    ("data.json", "train", [1, 2]), ("data.json", "train", [-1] * 4), ("data.json", "mean", [0.0]),
    ("data.json", "shape", {"task": "regression", "input": [-3], "outputs": 1}), ("data.json", "inputs", "object"),
    ("outcome.json", "usual", {"s2": None, "mean": 1.0, "guess": None, "quantiles": [[1.0]]}),
    ("outcome.json", "train", "all"),
])  # fmt: skip
def test_what_is_damaged_is_said(place: Path, file: str, key: str, value: Any) -> None:
    from fedsoft.runs.sealed import sealed

    path = place / "runs" / "own" / file
    content = json.loads(path.read_text())
    del content["check"]
    path.write_text(json.dumps(sealed(content | {key: value})))
    with pytest.raises(StoreError, match=f"{file}' is damaged"):
        fs.load(place / "runs" / "own")


def test_images_and_several_targets_are_described_whole(tmp_path: Path) -> None:
    from fedsoft.core.client_data import Augment
    from fedsoft.core.federation import Federation
    from fedsoft.runs.data_summary import DataSummary

    rng = np.random.default_rng(0)
    images = [(rng.integers(0, 256, (5, 1, 4, 4), dtype=np.uint8), rng.integers(0, 3, 5)) for _ in range(2)]
    several = [(rng.standard_normal((5, 3)), rng.standard_normal((5, 2))) for _ in range(2)]
    for pairs in (images, several):
        fed = Federation.from_clients(pairs)
        summary = DataSummary.of(fed)
        back = DataSummary.from_dict(json.loads(json.dumps(summary.to_dict()))).federation()
        assert (back.shape, back.names, back.train.x.dtype, back.train.y.dtype) == (
            fed.shape, fed.names, fed.train.x.dtype, fed.train.y.dtype
        )  # fmt: skip
        assert back.train.y.shape[1:] == fed.train.y.shape[1:]
        assert back.about == fed.about
    varied = {**DataSummary.of(Federation.from_clients(images)).to_dict(), "augment": {"pad": 4, "flip": True}}
    assert DataSummary.from_dict(varied).federation().train.augment == Augment(4, True)
