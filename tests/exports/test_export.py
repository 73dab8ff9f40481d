"""Exported models predict what the run predicts, from files that hold no pickles."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedsoft as fs
from fedsoft.clusters.ensemble import Ensemble
from fedsoft.errors import FedsoftError, InputError
from fedsoft.exports.export import export_clients
from fedsoft.exports.torch_program import layers_of
from tests.helpers import class_clients, regression_clients
from tests.test_docs import blocks

HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra: pip install 'fedsoft[onnx]'")


class Own(nn.Module):
    """Not a sequence, with a constant of its own and a parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(self.first(x) * self.scale)))


def images() -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        (torch.randint(0, 256, (6, 1, 8, 8), generator=drawn).to(torch.uint8), torch.arange(6) % 3) for _ in range(3)
    ]


RUNS: dict[str, Any] = {
    "linear": lambda: (fs.FedSoft(S=2), regression_clients(), fs.models.linear(bias=True)),
    "softmax": lambda: (fs.IFCA(S=2), class_clients(), fs.models.linear()),
    "mlp": lambda: (fs.FedEM(S=2), regression_clients(), fs.models.mlp(hidden=[5, 4])),
    "images": lambda: (fs.FedEM(S=2), images(), fs.models.digits_cnn(channels=(2, 3), hidden=4)),
    "own": lambda: (fs.FedAvg(), class_clients(), fs.models.module(Own)),
    "labels": lambda: (fs.FedEM(S=2), [(x, torch.as_tensor(x) > 0) for x, _ in class_clients()], fs.models.mlp([4])),
}


def made(kind: str) -> fs.Run:
    algorithm, clients, model = RUNS[kind]()
    fed = fs.Federation.from_clients(clients, held_out=0.2, task="multilabel" if kind == "labels" else "auto")
    return fs.fit(algorithm, fed, model, rounds=1, solver=fs.SGD(lr=0.01, epochs=1))


def points(run: fs.Run) -> torch.Tensor:
    x = run.federation.train.client(1)[0]
    return x if x.dtype == torch.uint8 else x.float()


@pytest.mark.parametrize("kind", RUNS)
def test_an_ensemble_is_what_a_client_predicts_with(kind: str) -> None:
    run = made(kind)
    for client in (0, 2):
        assert torch.allclose(run.ensemble(client=client).predict(points(run)), run.predict(points(run), client=client))
    last = len(run.centers) - 1
    assert torch.allclose(run.ensemble(center=last).predict(points(run)), run.predict(points(run), center=last))


def test_the_shares_of_an_ensemble_are_the_mixture_of_the_client() -> None:
    run = made("mlp")
    assert run.weights is not None
    assert torch.allclose(run.ensemble(client=3).shares, run.weights[3])
    assert run.ensemble(client=3).w.shape == (2, run.model.size)


@pytest.mark.parametrize("kind", RUNS)
def test_weights_go_into_the_same_network(kind: str, tmp_path: Path) -> None:
    run = made(kind)
    done = fs.export(run, tmp_path, format="safetensors")
    assert run.model.module is not None
    net = run.model.module(run.model.layout.unflatten(torch.zeros(run.model.size)))
    net.load_state_dict(load_file(tmp_path / "center-0.safetensors"))
    wanted = run.model.module(run.centers[0])
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), wanted.state_dict().values(), strict=True))
    assert {path.name for path in tmp_path.iterdir()} == set(done.files)


@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind != "own"])
@pytest.mark.parametrize("client", [None, 2])
def test_the_program_predicts_the_same_without_fedsoft(kind: str, client: int | None, tmp_path: Path) -> None:
    run = made(kind)
    done = fs.export(run, tmp_path, client=client, format="torch")
    text = (tmp_path / "model.py").read_text("utf-8")
    assert "fedsoft." not in text
    names: dict[str, Any] = {"__file__": str(tmp_path / "model.py")}
    exec(compile(text, "model.py", "exec"), names)
    for s, name in enumerate(done.models):
        expected = run.predict(points(run), center=s) if client is None else run.predict(points(run), client=client)
        assert torch.allclose(names["predict"](points(run), name), expected, atol=1e-5)


def test_the_program_reads_rows_as_training_did(tmp_path: Path) -> None:
    """Names of columns with spaces, text, a decimal comma, true and false, empty cells, columns that are not used."""
    (tmp_path / "in").mkdir()
    head, rows = "id; dose;ward;on;state\n", ["1;1,5;x;true;ill", "2;;y;false;well", "3;2,5;;true;ill", "4;0,5;x;;well"]
    for name in "ab":
        (tmp_path / "in" / f"{name}.csv").write_text(head + "\n".join(rows) + "\n", "utf-8-sig")
    fed = fs.datasets.folder(
        tmp_path / "in", target="state", drop=["id"], missing="fill", delimiter=";", decimal=",", standardize=True
    )
    run = fs.fit(fs.FedSoft(S=2), fed, fs.models.mlp([3]), rounds=1)
    fs.export(run, tmp_path / "out", format="torch")
    names: dict[str, Any] = {"__file__": str(tmp_path / "out" / "model.py")}
    exec(compile((tmp_path / "out" / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    x = names["inputs"](names["read_rows"](tmp_path / "in" / "a.csv"))
    expected = run.predict(tmp_path / "in" / "a.csv", center=0)
    assert torch.allclose(names["predict"](x, "center-0"), expected, atol=1e-5)
    assert names["CLASSES"] == ["ill", "well"]
    card = (tmp_path / "out" / "model-card.md").read_text("utf-8")
    assert 'x = inputs(read_rows("new.csv"))' in card


def test_names_in_a_table_do_not_become_code(tmp_path: Path) -> None:
    evil = 'x"""\\n'
    fed = fs.datasets.table(
        {"who": list("aabb"), evil: [1.0, 2.0, 3.0, 4.0], "t": [evil, "u", evil, "u"], "y": list("cdcd")},
        client="who", target="y",
    )  # fmt: skip
    fs.export(fs.fit(fs.FedAvg(), fed, fs.models.mlp([3]), rounds=1), tmp_path, format="torch")
    names: dict[str, Any] = {"__file__": str(tmp_path / "model.py")}
    exec(compile((tmp_path / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    assert names["COLUMNS"] == {evil: None, "t": ["u", evil]}


def test_a_network_that_is_no_sequence_is_asked_for(tmp_path: Path) -> None:
    run = made("own")
    fs.export(run, tmp_path, format="torch")
    names: dict[str, Any] = {"__file__": str(tmp_path / "model.py")}
    exec(compile((tmp_path / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    assert torch.allclose(names["predict"](points(run), "center-0", Own), run.predict(points(run), center=0), atol=1e-5)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "client"), [("linear", None), ("mlp", 2), ("images", 1), ("own", None), ("labels", 0)]
)
def test_onnxruntime_predicts_the_same(kind: str, client: int | None, tmp_path: Path) -> None:
    """For one point, for many, and for more than it was exported with."""
    import onnxruntime

    run = made(kind)
    done = fs.export(run, tmp_path, client=client, format="onnx")
    for s, name in enumerate(done.models):
        session = onnxruntime.InferenceSession(str(tmp_path / f"{name}.onnx"))
        for x in (points(run)[:1], points(run), points(run).repeat(9, *[1] * (points(run).ndim - 1))):
            expected = run.predict(x, center=s) if client is None else run.predict(x, client=client)
            found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
            assert found.shape == expected.shape
            assert torch.allclose(found, expected, atol=1e-5)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "own"])
def test_many_models_are_traced_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    run, traced, real = made(kind), [], torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **more: traced.append(1) or real(*args, **more))
    done = export_clients(run, tmp_path, format="onnx")
    shares = {len(run.ensemble(client=k).shares.nonzero()) for k in range(len(run.federation))}
    assert len(traced) == len(shares) < len(done) == len(run.federation)
    for k, one in enumerate(done):
        session = onnxruntime.InferenceSession(str(one.folder / f"{one.models[0]}.onnx"))
        assert [each.name for each in session.get_inputs()] == ["x"]  # weights are constants of the file
        found = torch.from_numpy(session.run(None, {"x": points(run).numpy()})[0])
        assert torch.allclose(found, run.predict(points(run), client=k), atol=1e-5)


@pytest.mark.slow
@needs_onnx
def test_a_network_that_needs_its_weights_is_traced_with_them() -> None:
    from fedsoft.exports import onnx_program

    def checked(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.allclose(found, expected, atol=1e-5), name

    class Stubborn(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            if not isinstance(self.weight, nn.Parameter):
                raise TypeError("no weights of my own")
            return super().forward(input)

    with torch.no_grad():
        writer = onnx_program.OnnxWriter(checked)
        assert writer.content("stubborn", Stubborn(3, 2), {"x": torch.ones(4, 3)})
    assert [*writer.traced.values()] == [None]


def test_onnx_without_its_packages_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else real(name, *rest))
    with pytest.raises(InputError, match=r"needs the package 'onnx': pip install 'fedsoft\[onnx\]'"):
        fs.export(made("linear"), tmp_path / "x", format="onnx")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("format_", ["safetensors", "torch"])
def test_the_card_tells_the_story_and_its_code_runs(
    format_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = fs.datasets.synthetic(clients=6, points=(8, 12), test_points=9)
    run = fs.fit(fs.FedEM(S=2), fed, fs.models.linear(), rounds=2, solver=fs.SGD(epochs=1))
    fs.export(run, tmp_path, format=format_, name="a-run")
    card = (tmp_path / "model-card.md").read_text("utf-8")
    for words in ("a-run", "6 clients", "FedEM(S=2", "2 rounds", "share of all points", "true source", "θ1", "test mse",
                  "worst decile", "fedsoft adopt"):  # fmt: skip
        assert words in card, words
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    exec(compile(blocks(tmp_path / "model-card.md", "python")[0], "card", "exec"), {})
    monkeypatch.delitem(sys.modules, "model", raising=False)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path) -> None:
    run = made("linear")
    with pytest.raises(InputError, match="format = 'pickle' is not allowed"):
        fs.export(run, tmp_path, format="pickle")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="client 99 does not exist"):
        fs.export(run, tmp_path, client=99)
    alone = fs.fit(fs.Local(), run.federation, fs.models.linear(), rounds=1)
    with pytest.raises(InputError, match="no centers"):
        fs.export(alone, tmp_path)
    assert fs.export(alone, tmp_path, client=0).models == ("client-0",)


def test_an_export_that_predicts_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made("linear")
    monkeypatch.setattr(Ensemble, "predict", lambda self, x: torch.ones(len(x)) * 1e3)
    with pytest.raises(FedsoftError, match="predicts something else"):
        fs.export(run, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_layers_are_written_as_the_call_that_makes_them() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    source = layers_of(net)
    assert source is not None
    assert repr(eval(source, {"nn": nn})) == repr(net)
    assert layers_of(nn.Sequential(nn.Linear(1, 1), Own())) is None
