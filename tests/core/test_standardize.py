"""A run on files with `standardize` is the run on files that were scaled before, for everybody who comes later, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.exports.export import export
from fedsoft.runs.execute import execute
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from tests.cli.test_cli import run as run

NAMES = ("age", "income")
PLACE, SPREAD = np.array([45.0, 30000.0]), np.array([12.0, 9000.0])


def clients(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    made = []
    for k in range(4):
        z = rng.standard_normal((25, 2))
        made.append((PLACE + SPREAD * z, z @ ([1.0, 2.0] if k % 2 else [-1.0, 1.0]) + 0.1 * rng.standard_normal(25)))
    return made


def write(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [",".join(map(repr, [*map(float, p), float(t)])) for p, t in zip(x, y, strict=True)]
    path.write_text("\n".join([",".join([*NAMES, "y"]), *rows]) + "\n")


def chosen(path: Path, **settings: Any) -> RunSpec:
    dataset = {"name": "folder", "path": str(path), "held_out": 0.0, **settings}
    solver = {"name": "sgd", "lr": 0.05, "epochs": 2}
    return RunSpec.from_dict({"rounds": 3, "algorithm": {"name": "fedsoft", "S": 2}, "model": "linear",
                              "dataset": dataset, "solver": solver, "dtype": "float64"}, "own")  # fmt: skip


@pytest.fixture
def both(tmp_path: Path) -> tuple[fs.Run, fs.Run, np.ndarray, np.ndarray]:
    """The run with `standardize`, the one on files that were scaled before, and that scale."""
    pairs = clients()
    everyone = np.concatenate([x for x, _ in pairs])
    mean, deviation = everyone.mean(0), everyone.std(0)
    for k, (x, y) in enumerate(pairs):
        write(tmp_path / "raw" / f"{k}.csv", x, y)
        write(tmp_path / "scaled" / f"{k}.csv", (x - mean) / deviation, y)
    one, _ = execute(chosen(tmp_path / "raw", standardize=True), tmp_path / "runs" / "one", RunOptions(workers=1))
    two, _ = execute(chosen(tmp_path / "scaled"), tmp_path / "runs" / "two", RunOptions(workers=1))
    return load(one.path), load(two.path), mean, deviation


def test_it_is_the_same_run(both: tuple[fs.Run, fs.Run, np.ndarray, np.ndarray]) -> None:
    one, two, mean, deviation = both
    assert torch.allclose(one.state.centers, two.state.centers, atol=1e-9)
    x, y = clients(1)[1]
    z = (x - mean) / deviation
    assert torch.allclose(one.predict(x, client=1), two.predict(z, client=1), atol=1e-9)
    assert torch.allclose(one.predict(x, center=0), two.predict(z, center=0), atol=1e-9)
    for how in ("center", "mixture", "personal"):
        found, expected = one.adopt((x, y), how=how), two.adopt((z, y), how=how)  # pyright: ignore[reportArgumentType]
        assert torch.allclose(found.shares, expected.shares, atol=1e-6)
        assert torch.allclose(found.predict(x), expected.predict(z), atol=1e-6)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_exports_carry_the_scale(
    both: tuple[fs.Run, fs.Run, np.ndarray, np.ndarray], form: Any, tmp_path: Path
) -> None:
    one, _, mean, deviation = both
    export(one, tmp_path / "out", client=2, format=form)
    x = torch.from_numpy(clients(1)[0][0])
    if form == "torch":
        names: dict[str, Any] = {"__file__": str(tmp_path / "out" / "model.py")}
        exec(compile((tmp_path / "out" / "model.py").read_text("utf-8"), "model.py", "exec"), names)
        found = names["predict"](x, "client-2")
    else:
        scale, weights = (load_file(tmp_path / "out" / f"{file}.safetensors") for file in ("scale", "client-2"))
        found = ((x - scale["mean"]) / scale["std"]) @ next(iter(weights.values())).flatten().double()
    assert torch.allclose(found.double(), one.predict(x, client=2), atol=1e-4)
    card = (tmp_path / "out" / "model-card.md").read_text("utf-8")
    assert f"age: {mean[0]:.6g}, {deviation[0]:.6g}" in card


@pytest.mark.slow
def test_onnx_carries_the_scale(both: tuple[fs.Run, fs.Run, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    one, *_ = both
    export(one, tmp_path / "out", client=2, format="onnx")
    x = clients(1)[0][0]
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "client-2.onnx"))
    found = session.run(None, {"x": x})[0]
    assert np.allclose(found, one.predict(x, client=2), atol=1e-4)


def test_the_commands_take_files_as_they_are(
    run: Any, both: tuple[fs.Run, fs.Run, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = clients(1)[1]
    write(tmp_path / "new" / "new.csv", x, y)
    code, out, err = run("predict", "one", "--center", "1", "--data", "new/new.csv")
    assert code == 0, err
    found = [float(row) for row in out.split()[1:]]
    assert found == pytest.approx(both[0].predict(x, center=1).tolist(), rel=1e-6)
    code, out, err = run(
        "adopt", "one", "--data", "new/new.csv", "--how", "center", "--out", "adopted", "--curve", "--repeats", "1"
    )
    assert code == 0, err
    tensors = load_file(tmp_path / "adopted" / "new.safetensors")
    assert np.allclose(tensors["scale.mean"], both[2])
    assert "scaled to mean 0 and std 1" in " ".join(run("show", "one")[1].split())


def test_what_is_hidden_is_not_told_by_a_scale(tmp_path: Path) -> None:
    for k, (x, y) in enumerate(clients()):
        write(tmp_path / "raw" / f"{k}.csv", x, y)
    raw = chosen(tmp_path / "raw", standardize=True).to_dict() | {"privacy": {"counts": 2.0}}
    with pytest.raises(InputError, match=r"dataset\.standardize = true is not allowed with \[privacy\]"):
        execute(RunSpec.from_dict(raw), tmp_path / "run", RunOptions())
