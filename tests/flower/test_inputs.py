"""Clients at nodes with tokens, several inputs and sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedsoft as fs
from fedsoft.core.inputs import InputField
from fedsoft.datasets.nodes import agreed_shape
from fedsoft.runs.spec import RunSpec
from tests.flower.places import Direct, alone, equal, key_of, node_at, run, spec
from tests.flower.test_engine import refusal
from tests.runs.test_inputs import FACTORY

MODEL = {"name": "module", "factory": FACTORY}
NAMES = {name: key_of(k) for k, name in enumerate("abc")}


def allowed(given: RunSpec) -> RunSpec:
    return replace(given, allow=frozenset([MODEL["factory"]]))


def write(folder: Path, name: str, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    if kind == "sequences":
        rows = [" ".join(map(str, rng.integers(0, 20, rng.integers(1, 6)))) for _ in range(40)]
        (folder / f"{name}.csv").write_text("text,y\n" + "".join(f"{row},{i % 2}\n" for i, row in enumerate(rows)))
    else:
        x, mask = rng.integers(0, 20, (40, 5)), rng.random((40, 5)) < 0.7
        np.savez(folder / f"{name}.npz", x=x, mask=mask, y=np.arange(40) % 2)


KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sequences": ('tokens = ["text"]\nlength = 7', {"tokens": ["text"], "length": 7},
                  {"0": {"kind": "int", "shape": [7], "sequences": True}}),
    "arrays": ('features = ["x", "mask"]', {"features": ["x", "mask"]},
               {"mask": {"kind": "bool", "shape": [5]}, "x": {"kind": "int", "shape": [5]}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_with_several_inputs_end_in_the_same_bits_as_one_process(kind: str, tmp_path: Path) -> None:
    at_node, settings, inputs = KINDS[kind]
    nodes, together = {}, tmp_path / "together"
    together.mkdir()
    for k, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, name, k, kind)
        write(together, name, k, kind)
        model = f'[model]\nname = "module"\nfactory = "{MODEL["factory"]}"\n'
        nodes[k] = node_at(tmp_path / name, f'name = "{name}"\nworkers = 1\n[data]\npath = "."\n{at_node}\n{model}')
    about = {"name": "nodes", "clients": NAMES, "inputs": inputs, "outputs": 2, "task": "classification"}
    far = run(allowed(spec(dataset=about, model=MODEL)), tmp_path / "far", Direct(nodes))
    local = spec(dataset={"name": "folder", "path": str(together), **settings}, model=MODEL)
    assert equal(alone(allowed(local), tmp_path / "local"), far)


@pytest.mark.parametrize(
    "inputs",
    [
        {"0": {"kind": "int", "shape": [1_000_000_000], "sequences": True}},  # a longer length than the owner's
        {"0": {"kind": "float", "shape": [7], "sequences": True}},
        {"0": {"kind": "int", "shape": [7]}},
        {"0": {"kind": "int", "shape": [7], "sequences": True}, "1": {"shape": [1]}},
        {"x y": {"kind": "int", "shape": [7]}},
    ],
)
def test_a_node_refuses_inputs_that_are_not_its_own(inputs: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    write(tmp_path / "node", "a", 0, "sequences")
    text = (
        'name = "a"\nworkers = 1\n[data]\npath = "a.csv"\ntokens = ["text"]\nlength = 7\n'
        f'[model]\nname = "module"\nfactory = "{MODEL["factory"]}"\n'
    )
    about = {"name": "nodes", "clients": NAMES, "inputs": inputs, "outputs": 2, "task": "classification"}
    said, logged = refusal(tmp_path, text, dataset=about, model=MODEL)
    assert "the data here has" in logged or "does not say what its inputs are" in logged
    assert "text" not in said


def test_the_shape_of_data_at_nodes() -> None:
    task = {"task": "classification", "outputs": 2}
    assert agreed_shape({**task, "input": [3]}).input == (3,)
    shape = agreed_shape({**task, "inputs": {"a": {"kind": "int", "shape": [3]}, "b": {}}})
    assert shape.fields == (InputField("a", "int32", (3,)), InputField("b", "float32", ()))
    for wrong in ({}, {"input": [1], "inputs": {"a": {}}}, {"inputs": {"a": {"sequences": True}}}):
        with pytest.raises(fs.InputError):
            agreed_shape({**task, **wrong})


def test_tokens_at_nodes_need_their_kind() -> None:
    about = {"clients": {"a": key_of(0)}, "input": [3], "outputs": 2, "task": "classification"}
    net = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))
    assert fs.fit(fs.FedAvg(), fs.datasets.nodes(**about, kind="int"), net, rounds=0).rounds == 0
    with pytest.raises(fs.InputError, match="module: the network fails"):
        fs.fit(fs.FedAvg(), fs.datasets.nodes(**about), net, rounds=0)


@pytest.mark.parametrize("label", [1, 2])
def test_a_node_without_the_first_classes_keeps_the_numbers_of_its_labels(label: int, tmp_path: Path) -> None:
    node = node_at(tmp_path, 'name = "a"\nworkers = 1\n[data]\npath = "a.csv"\nheld_out = 0.0\n')
    (tmp_path / "a.csv").write_text("u,y\n" + f"0.5,{label}\n" * 3)
    shape = agreed_shape({"task": "classification", "outputs": 3, "input": [1]})
    found = node.config.points.agreed(shape)
    assert (found.train.y.tolist(), found.shape) == ([label] * 3, shape)
