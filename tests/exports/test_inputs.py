"""Exported models of several inputs, tokens and sequences predict what the run predicts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import fedsoft as fs
from fedsoft.runs.data_summary import DataSummary
from tests.networks.test_inputs import CASES, federation, labels
from tests.test_docs import blocks

HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra: pip install 'fedsoft[onnx]'")

NAMES = {
    "tokens": ["x"], "bag": ["x", "lengths"], "transformer": ["x", "lengths"], "gru": ["x", "lengths"],
    "signal": ["x", "lengths"], "by name": ["tokens", "numbers", "mask"], "by place": ["tokens", "numbers", "mask"],
}  # fmt: skip


def made(kind: str) -> fs.Run:
    return fs.fit(fs.FedEM(S=2), federation(kind), CASES[kind][0], rounds=1, solver=fs.SGD(lr=0.1, epochs=1))


def raw(kind: str, run: fs.Run, x: Any) -> dict[str, torch.Tensor]:
    """Return points as an exported model is given them."""
    if kind in ("tokens", "by name", "by place"):
        parts = [x] if kind == "tokens" else x.values() if isinstance(x, dict) else x
        tensors = [torch.from_numpy(part) for part in parts]
        return {n: t.float() if t.is_floating_point() else t for n, t in zip(NAMES[kind], tensors, strict=True)}
    longest = run.federation.shape.fields[0].shape[0]
    rows = [torch.as_tensor(row) for row in x]
    padded = pad_sequence([*rows, rows[0].new_zeros(longest, *rows[0].shape[1:])], batch_first=True)[:-1]
    return {"x": padded, "lengths": torch.tensor([len(row) for row in rows])}


@pytest.mark.parametrize("kind", CASES)
def test_the_program_calls_the_network_as_the_run_did(kind: str, tmp_path: Path) -> None:
    make, given, _ = CASES[kind]
    run = made(kind)
    fs.export(run, tmp_path, format="torch")
    names: dict[str, Any] = {"__file__": str(tmp_path / "model.py")}
    exec(compile((tmp_path / "model.py").read_text("utf-8"), "model.py", "exec"), names)
    x = given(5, 50)
    inputs = raw(kind, run, x)
    found = names["predict"](inputs["x"] if kind == "tokens" else inputs, "center-1", make)
    assert torch.allclose(found, run.predict(x, center=1), atol=1e-5)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "gru"])
def test_onnxruntime_takes_every_input_by_name(kind: str, tmp_path: Path) -> None:
    import onnxruntime

    run = made(kind)
    fs.export(run, tmp_path, client=1, format="onnx")
    (file,) = tmp_path.glob("*.onnx")
    session = onnxruntime.InferenceSession(str(file))
    assert [one.name for one in session.get_inputs()] == NAMES[kind]
    for n in (1, 4, 30):
        x = CASES[kind][1](n, 60)
        given = {name: part.numpy() for name, part in raw(kind, run, x).items()}
        found: Any = session.run(None, given)[0]
        assert np.allclose(found, run.predict(x, client=1).numpy(), atol=1e-4)


@needs_onnx
@pytest.mark.slow
def test_a_network_that_onnx_cannot_hold_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match="cannot be written as onnx"):
        fs.export(made("gru"), tmp_path, format="onnx")


@pytest.mark.parametrize(("kind", "lines"), [
    ("tokens", ["- input: `[points, 5]`, integers"]),
    ("bag", ["- input: `x` `[points, 6]`, integers", "- input: `lengths` `[points]`, integers"]),
    ("by name", ["- input: `tokens` `[points, 4]`, integers", "- input: `numbers` `[points, 2]`, floats",
                 "- input: `mask` `[points, 4]`, true or false"]),
])  # fmt: skip
def test_a_card_tells_every_input_and_its_code_runs(
    kind: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(kind)
    fs.export(run, tmp_path, format="torch")
    text = (tmp_path / "model-card.md").read_text("utf-8")
    assert [line for line in text.splitlines() if line.startswith("- input")] == lines
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"make": CASES[kind][0]}
    (code,) = blocks(tmp_path / "model-card.md", "python")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    exec(code, names)
    assert names["prediction"].shape == (3, 3)


def test_a_saved_run_without_its_data_still_knows_its_inputs() -> None:
    for kind in CASES:
        fed = federation(kind)
        summary = DataSummary.from_dict(DataSummary.of(fed).to_dict())
        again = summary.federation()
        assert again.shape == fed.shape
        assert again.train.x.dtype == fed.train.x.dtype
        x, y = CASES[kind][1](4, 8), labels(4, 8)
        assert torch.equal(again.new_client(x, y)[0], fed.new_client(x, y)[0])
