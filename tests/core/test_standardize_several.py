"""`standardized` with several inputs: floats are scaled, all else is left alone, for everybody who comes later, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.inputs import InputField, Part, pack, unpack
from fedsoft.core.scaling import Scale
from fedsoft.errors import InputError
from tests.exports.test_inputs import raw
from tests.networks.test_inputs import CASES, SIZES, labels

KINDS = ("by name", "by place", "signal")
PLACE, SPREAD = np.array([40.0, -3000.0]), np.array([7.0, 900.0])


def moved(x: Any, mean: np.ndarray, std: np.ndarray) -> Any:
    """The same points with their floats at another mean and standard deviation."""
    if isinstance(x, dict):
        return x | {"numbers": mean + std * x["numbers"]}
    if isinstance(x, tuple):
        return x[0], mean + std * x[1], x[2]
    return [(mean + std * row).astype(np.float32) for row in x]


def floats(x: Any) -> np.ndarray:
    if isinstance(x, list):
        return np.concatenate(x)  # all elements of all sequences
    return x["numbers"] if isinstance(x, dict) else x[1]


def points(kind: str, n: int, seed: int) -> Any:
    return moved(CASES[kind][1](n, seed), PLACE, SPREAD)


def federation(pairs: list[Any]) -> fs.Federation:
    return fs.Federation.from_clients(pairs, held_out=0.0)


def fitted(fed: fs.Federation, kind: str) -> fs.Run:
    options = fs.FitOptions(dtype="float64", workers=1)
    return fs.fit(fs.FedSoft(S=2), fed, CASES[kind][0], rounds=2, solver=fs.SGD(lr=0.1), options=options)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_run_on_points_that_were_scaled_before(kind: str, tmp_path: Path) -> None:
    pairs = [(points(kind, n, k), labels(n, k)) for k, n in enumerate(SIZES)]
    everyone = np.concatenate([floats(x) for x, _ in pairs]).astype(np.float64)
    mean, std = everyone.mean(0), everyone.std(0)

    def before(x: Any) -> Any:
        return moved(x, -mean / std, 1 / std)

    one = fitted(federation(pairs).standardized(), kind)
    two = fitted(federation([(before(x), y) for x, y in pairs]), kind)
    close = {"rtol": 0, "atol": 1e-4 if kind == "signal" else 1e-9}  # signals are float32
    assert torch.allclose(one.state.centers, two.state.centers, **close)
    x, y = points(kind, 6, 50), labels(6, 50)
    assert torch.allclose(one.predict(x, client=1), two.predict(before(x), client=1), **close)
    assert torch.allclose(one.adopt(x, y).predict(x), two.adopt(before(x), y).predict(before(x)), rtol=0, atol=1e-3)
    again = fs.load(one.save(tmp_path / "kept"), model=CASES[kind][0])
    assert torch.equal(again.predict(x, client=1), one.predict(x, client=1))
    fs.export(again, tmp_path / "out", format="torch")
    names: dict[str, Any] = {"__file__": str(tmp_path / "out" / "model.py")}
    exec(compile((tmp_path / "out" / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    found = names["predict"](raw(kind, one, x), "center-1", CASES[kind][0])
    assert torch.allclose(found.double(), one.predict(x, center=1), atol=1e-5)
    assert "padding stays 0" in (tmp_path / "out" / "model-card.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_carries_the_scale(kind: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    fed = federation([(points(kind, n, k), labels(n, k)) for k, n in enumerate(SIZES)]).standardized()
    run = fs.fit(fs.FedAvg(), fed, CASES[kind][0], rounds=1, solver=fs.SGD(lr=0.1))
    fs.export(run, tmp_path, format="onnx")
    x = points(kind, 9, 60)
    session = onnxruntime.InferenceSession(str(tmp_path / "center-0.onnx"))
    found = session.run(None, {name: part.numpy() for name, part in raw(kind, run, x).items()})[0]
    assert np.allclose(found, run.predict(x, center=0).numpy(), atol=1e-5)


def test_tokens_masks_and_padding_stay_as_they_are() -> None:
    for kind in ("by name", "signal"):
        fed = federation([(points(kind, n, k), labels(n, k)) for k, n in enumerate(SIZES)])
        plain, scaled = (unpack(fed.shape.fields, one.train.x) for one in (fed, fed.standardized()))
        for name, part in plain.items():
            if not part.values.is_floating_point():
                assert torch.equal(scaled[name].values, part.values)
            elif part.lengths is not None:
                found = scaled[name].lengths
                assert found is not None
                assert torch.equal(found, part.lengths)
                assert not scaled[name].values[~part.mask].any()
                assert torch.allclose(scaled[name].values[part.mask].mean(0), torch.zeros(2), atol=1e-4)


def test_a_table_of_tokens_and_numbers_is_scaled_by_name(tmp_path: Path) -> None:
    rows = [f"{who},{k % 5} {k % 3},{40 + k},{k % 2}" for who in "ab" for k in range(8)]
    (tmp_path / "all.csv").write_text("\n".join(["who,text,age,y", *rows]) + "\n")
    fed = fs.datasets.table(tmp_path / "all.csv", client="who", held_out=0, tokens=["text"], standardize=True)
    assert fed.scale is not None
    ((mean, std),) = fed.scale.parts.values()
    assert (mean.tolist(), std.tolist()) == ([43.5], pytest.approx([np.arange(8).std()]))


def test_nothing_to_scale_and_points_that_are_scaled_are_said() -> None:
    bag = federation([(CASES["bag"][1](5, 0), labels(5, 0))])
    with pytest.raises(InputError, match="no input is of floats"):
        bag.standardized()
    fed = federation([(points("by name", n, k), labels(n, k)) for k, n in enumerate(SIZES)]).standardized()
    assert "floats scaled to mean 0 and std 1" in fed.about
    with pytest.raises(InputError, match="would be scaled twice"):
        fed.as_seen(fed.train.x[:4])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(["float32", "float64"]), st.booleans())
def test_a_scale_of_several_inputs_leads_there_and_back(seed: int, kind: Any, ragged: bool) -> None:
    rng = np.random.default_rng(seed)
    fields = (
        InputField("a", "int32", (3,)), InputField("b", kind, (4, 2), ragged), InputField("c", "float32", ()),
        InputField("d", "bool", (3,)),
    )  # fmt: skip
    lengths = torch.from_numpy(rng.integers(1, 5, 6)) if ragged else None
    values = torch.from_numpy(rng.normal(50, 9, (6, 4, 2)))
    values = values if lengths is None else values * Part(values, lengths).mask[..., None]
    parts = {
        "a": Part(torch.from_numpy(rng.integers(-9, 9, (6, 3)))), "b": Part(values, lengths),
        "c": Part(torch.from_numpy(rng.normal(-7, 2, 6))), "d": Part(torch.from_numpy(rng.random((6, 3)) < 0.5)),
    }  # fmt: skip
    x = pack(fields, parts)
    scale = Scale.of(x, fields)
    assert scale.mean.shape == x.shape[1:]
    back = unpack(fields, scale.back(scale(x)))
    for name, part in unpack(fields, x).items():
        assert torch.allclose(back[name].values.double(), part.values.double(), rtol=0, atol=1e-4)
