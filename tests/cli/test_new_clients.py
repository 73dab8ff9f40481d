"""adopt, predict and export as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedsoft as fs
from fedsoft.cli.saved import client_of
from tests.cli.test_cli import FAST
from tests.cli.test_cli import run as run

NAME = "synthetic-10-90-s0"


@pytest.fixture
def saved(run: Any, tmp_path: Path) -> fs.Run:
    """A small run, and the points of somebody else beside it."""
    run("run", "synthetic-10-90", *FAST)
    made = fs.load(next((tmp_path / "runs").iterdir()), data=True)
    x, y = made.federation.train.client(0)
    rows = [",".join(map(str, [*p, t])) for p, t in zip(x.tolist(), y.tolist(), strict=True)]
    names = [f"x{j}" for j in range(x.shape[1])]
    (tmp_path / "new.csv").write_text("\n".join([",".join([*names, "y"]), *rows]) + "\n")
    (tmp_path / "bare.csv").write_text("\n".join([",".join(names), *(row.rpartition(",")[0] for row in rows)]) + "\n")
    return made


def test_adopt_hands_over_a_model_and_a_curve(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    arguments = ["adopt", NAME, "--data", "new.csv", "--how", "personal", "--curve", "--repeats", "2", "--out", "given"]
    code, out, err = run(*arguments)
    assert code == 0, err
    for words in ("new", "c0", "c1", "90 % intervals", "fits", "alone", "best center", "Saved: given"):
        assert words in out, words
    files = {path.name for path in (tmp_path / "given").iterdir()}
    assert files == {"adopted.json", "new.safetensors", "curve.csv", "curve.png"}
    found = saved.adopt(saved.federation.train.client(0), how="personal", name="new")
    weights = load_file(tmp_path / "given" / "new.safetensors")
    assert torch.allclose(weights["weight"].flatten(), found.ensemble.w[0], atol=1e-5)
    code, out, _ = run(*arguments, "--json")
    plain = json.loads(out)
    assert plain["new_clients"][0]["shares"] == pytest.approx(found.shares.tolist(), abs=1e-5)
    assert set(plain["curve"]["errors"]) == {"center", "mixture", "personal", "alone", "best center"}


def test_adopt_takes_a_folder_and_hands_over_mixtures(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    for k in range(2):
        x, y = saved.federation.train.client(k)
        np.savez(tmp_path / "people" / f"p{k}.npz", x=x.numpy(), y=y.numpy())
    code, out, _ = run("adopt", NAME, "--data", "people", "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out)["new_clients"]] == ["p0", "p1"]
    weights = load_file(tmp_path / "adopted" / "people" / "p0.safetensors")
    assert set(weights) == {"c0.weight", "c1.weight", "shares"}


def test_files_of_new_clients_have_harmless_names(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    for name in ("a b", "a?b"):
        (tmp_path / "odd" / f"{name}.csv").write_text((tmp_path / "new.csv").read_text())
    code, _, err = run("adopt", NAME, "--data", "odd")
    assert code == 0, err
    names = {path.name for path in (tmp_path / "adopted" / "odd").iterdir()}
    assert names == {"adopted.json", "a-b.safetensors", "a-b-1.safetensors"}


def test_predict_writes_what_the_run_predicts(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    x, _ = saved.federation.train.client(0)
    code, out, err = run("predict", NAME, "--client", "3", "--data", "new.csv")
    assert code == 0, err
    head, *rows = out.split()
    assert head == "prediction"
    assert [float(row) for row in rows] == pytest.approx(saved.predict(x, client=3).tolist(), rel=1e-4)
    assert f"{len(x)} points, mse" in err
    code, out, err = run("predict", NAME, "--center", "1", "--data", "bare.csv", "--out", "p.csv")
    assert (code, out) == (0, "")
    assert "mse" not in err
    values = [float(row) for row in (tmp_path / "p.csv").read_text().split()[1:]]
    assert values == pytest.approx(saved.predict(x, center=1).tolist(), rel=1e-4)
    code, out, _ = run("predict", NAME, "--center", "1", "--data", "new.csv", "--json")
    assert json.loads(out)["predictions"]["prediction"] == pytest.approx(values, rel=1e-4)


def test_predict_names_the_classes_of_the_run(run: Any, tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    for name in "ab":
        rows = [f"{i},{i % 3},{'yes' if i % 2 else 'no'},{'red' if i % 4 else 'blue'}" for i in range(12)]
        (tmp_path / "people" / f"{name}.csv").write_text("\n".join(["u,v,outcome,w", *rows]) + "\n")
    (tmp_path / "own.toml").write_text(
        'rounds = 2\nalgorithm = "ifca"\nmodel = "linear"\nsolver = { name = "sgd", lr = 0.01, epochs = 1 }\n'
        'dataset = { name = "folder", path = "people", label = "outcome" }\n'
    )
    assert run("run", "own.toml")[0] == 0
    code, out, err = run("predict", "own", "--client", "b", "--data", "people/a.csv")
    assert code == 0, err
    lines = [line.split(",") for line in out.split()]
    assert lines[0] == ["class", "p_no", "p_yes"]
    assert all(line[0] == ("no" if float(line[1]) >= float(line[2]) else "yes") for line in lines[1:])
    assert "12 points, accuracy" in err
    assert "note:" not in err
    (tmp_path / "new.csv").write_text("u,v,w\n1,2,red\n1,2,purple\n")
    code, out, err = run("predict", "own", "--client", "b", "--data", "new.csv")
    assert (code, len(out.split())) == (0, 3)
    assert "note: new.csv: 1 of 2 points have a value of column 'w' that no client had in training" in err
    assert run("adopt", "own", "--data", "people/a.csv")[0] == 0
    assert run("export", "own", "--out", "cards")[0] == 0
    card = (tmp_path / "cards" / "model-card.md").read_text("utf-8")
    assert "data set: folder (path = people, " in card
    assert str(tmp_path) not in card  # where it was on this machine


def test_export_writes_a_folder_for_every_client(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    code, out, err = run("export", NAME, "--what", "clients", "--out", "all")
    assert code == 0, err
    names = [f"client-{name}" for name in saved.federation.names]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(names)
    assert f"{len(names)} folders: client-0, client-1, ..., {names[-1]}" in " ".join(out.split())
    for k, name in enumerate(names):
        (weight,) = load_file(tmp_path / "all" / name / f"{name}.safetensors").values()
        assert torch.equal(weight.flatten(), saved.personal(k)["weight"].flatten())
        assert (tmp_path / "all" / name / "model-card.md").read_text("utf-8").startswith(f"# {name} of ")
    found = json.loads(run("export", NAME, "--what", "clients", "--out", "all", "--json")[1])
    assert found["models"] == names
    assert all((tmp_path / "all" / file).exists() for file in found["files"])


def test_export_writes_centers_and_clients(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    code, out, err = run("export", NAME)
    assert code == 0, err
    (saved_name,) = (path.name for path in (tmp_path / "exported").iterdir())
    assert saved_name.startswith(NAME)
    assert {path.name for path in (tmp_path / "exported" / saved_name / "centers").iterdir()} == {
        "center-0.safetensors", "center-1.safetensors", "model-card.md",
    }  # fmt: skip
    card = (tmp_path / "exported" / saved_name / "centers" / "model-card.md").read_text("utf-8")
    assert NAME in card
    assert "data set: synthetic" in card
    code, out, _ = run("export", NAME, "--what", "client", "3", "--format", "torch", "--out", "c3", "--json")
    assert json.loads(out)["models"] == ["client-3"]
    names: dict[str, Any] = {"__file__": str(tmp_path / "c3" / "model.py")}
    exec(compile((tmp_path / "c3" / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    x, _ = saved.federation.train.client(0)
    assert torch.allclose(names["predict"](x, "client-3"), saved.predict(x, client=3), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["adopt", NAME, "--data", "gone.csv"], "does not exist"),
        (["adopt", NAME, "--data", "new.csv", "--how", "magic"], "how = 'magic' is not allowed"),
        (["adopt", "nope", "--data", "new.csv"], "there is no run 'nope'"),
        (["predict", NAME, "--data", "new.csv"], "one of --client K, --center S"),
        (["predict", NAME, "--data", ".", "--center", "0"], "is a folder"),
        (["predict", NAME, "--data", "new.csv", "--center", "7"], "center = 7 is not allowed: should be 0 to 1"),
        (["predict", NAME, "--data", "new.csv", "--client", "zed"], "client 'zed' does not exist"),
        (["export", NAME, "--what", "all"], "--what 'all' is not allowed"),
        (["export", NAME, "--what", "client"], "needs the number or name"),
        (["export", NAME, "--what", "clients", "3"], "--what clients '3' is not allowed: should be --what client '3'"),
        (["export", NAME, "--format", "pickle"], "format = 'pickle' is not allowed"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, saved: fs.Run, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err


def test_a_number_is_a_name_where_names_are_numbers() -> None:
    """The fourth of five clients is not client 4."""
    pairs = [(np.ones((3, 2)), np.arange(3.0))] * 3
    named = fs.fit(fs.FedAvg(), fs.Federation.from_clients(pairs, names=["1", "2", "10"]), fs.models.linear(), rounds=0)
    assert client_of(named, "10") == "10"
    with pytest.raises(fs.InputError, match="client '4' does not exist"):
        named.predict(np.ones((1, 2)), client=client_of(named, "4"))
    plain = fs.fit(fs.FedAvg(), fs.Federation.from_clients(pairs, names=["a", "b", "c"]), fs.models.linear(), rounds=0)
    assert client_of(plain, "2") == 2


@pytest.mark.parametrize("how", ["personal", "mixture"])
def test_predict_uses_the_model_of_a_new_client(run: Any, saved: fs.Run, tmp_path: Path, how: str) -> None:
    assert run("adopt", NAME, "--data", "new.csv", "--how", how, "--out", "given")[0] == 0
    file = str(tmp_path / "given" / "new.safetensors")
    code, out, err = run("predict", NAME, "--adopted", file, "--data", "new.csv", "--json")
    assert code == 0, err
    found = saved.adopt(saved.federation.train.client(0), how=how, name="new")  # pyright: ignore[reportArgumentType]
    expected = found.predict(saved.federation.train.client(0)[0].float())
    assert json.loads(out)["predictions"]["prediction"] == pytest.approx(expected.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda weights: {"weight": weights["weight"][:, :2]}, "holds no model of this run"),
        (lambda weights: {"other": weights["weight"]}, "holds no model of this run"),
        (lambda weights: weights | {"more": torch.ones(1)}, "holds no model of this run"),
        (lambda weights: weights | {"scale.mean": torch.ones(1)}, "holds no model of this run"),
        (lambda weights: weights | {"weight": weights["weight"] * torch.nan}, "not finite"),
    ],
)
def test_a_file_that_is_no_model_of_the_run_is_refused(
    run: Any, saved: fs.Run, tmp_path: Path, make: Any, words: str
) -> None:
    assert run("adopt", NAME, "--data", "new.csv", "--how", "personal", "--out", "given")[0] == 0
    save_file(make(load_file(tmp_path / "given" / "new.safetensors")), tmp_path / "bad.safetensors")
    code, _, err = run("predict", NAME, "--adopted", "bad.safetensors", "--data", "new.csv")
    assert code == 2
    assert re.search(words, err), err


def test_predict_reads_tensors_only(run: Any, saved: fs.Run, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors")
    code, _, err = run("predict", NAME, "--adopted", "bad.safetensors", "--data", "new.csv")
    assert code == 2
    assert "'bad.safetensors' cannot be read" in err
    assert "one of --client K, --center S and --adopted" in run("predict", NAME, "--data", "new.csv")[2]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_adopt_writes_models_for_other_programs(
    run: Any, saved: fs.Run, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    code, _, err = run("adopt", NAME, "--data", "new.csv", "--how", "mixture", "--format", form, "--out", "given")
    assert code == 0, err
    x, y = saved.federation.train.client(0)
    expected = saved.adopt(x, y, how="mixture", name="new").predict(x.float())
    if form == "onnx":
        session = onnxruntime.InferenceSession(str(tmp_path / "given" / "new.onnx"))
        found = torch.from_numpy(session.run(None, {"x": x.float().numpy()})[0])
    else:
        names: dict[str, Any] = {"__file__": str(tmp_path / "given" / "model.py")}
        exec(compile((tmp_path / "given" / "model.py").read_text("utf-8"), "model.py", "exec"), names)
        found = names["predict"](x, "model-new")
    assert torch.allclose(found, expected, atol=1e-4)
    assert (tmp_path / "given" / "new.safetensors").exists()  # what predict reads
