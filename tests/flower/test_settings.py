"""What a server may choose of local training: within the owner's bounds, and to the same bits as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsoft as fs
from fedsoft.flower.node.policy import Policy
from fedsoft.flower.node.refusals import Refused
from fedsoft.runs.spec import RunSpec

from .places import Direct, alone, describe, equal, key_of, node_at, run, shard, shards, spec

SCHEDULE = {"name": "cosine", "length": 4, "warmup": 2}
SOLVERS = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "clip": 1.0, "schedule": SCHEDULE},
    "adam": {"weight_decay": 0.1, "clip": 1.0, "schedule": SCHEDULE | {"over": "steps"}},
    "adamw": {"schedule": {"name": "linear", "over": "task"}},
}


@pytest.mark.parametrize("name", SOLVERS)
def test_nodes_train_with_every_setting_to_the_same_bits(name: str, tmp_path: Path) -> None:
    what = spec(rounds=4, solver={"name": name, "lr": 0.02, "epochs": 2, **SOLVERS[name]})
    assert equal(alone(what, tmp_path / "local"), run(what, tmp_path / "far", Direct(shards(tmp_path))))


def own_classes(folder: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True, parents=True)
    x = rng.standard_normal((40, 3)).astype(np.float32)
    np.savez(folder / f"{name}.npz", x=x, y=(x[:, 0] > 0.8).astype(np.int64))


def of_nodes(weights: Any, **settings: Any) -> RunSpec:
    nodes = {
        "name": "nodes",
        "task": "classification",
        "input": [3],
        "outputs": 2,
        "clients": {"a": key_of(1), "b": key_of(2)},
    }
    raw = {"rounds": 3, "algorithm": "fedavg", "model": "linear", "dataset": nodes, "class_weights": weights}
    return RunSpec.from_dict(raw | {"solver": {"name": "adam", "epochs": 2}} | settings)


@pytest.mark.parametrize("weights", ["local", [0.5, 2.0]])
def test_class_weights_at_nodes_are_those_of_one_process(weights: Any, tmp_path: Path) -> None:
    nodes = {}
    for k, name in enumerate("ab"):
        own_classes(tmp_path / name, name, k)
        own_classes(tmp_path / "together", name, k)
        nodes[k + 1] = node_at(tmp_path / f"node-{name}", f'name = "{name}"\n[data]\npath = "../{name}"\n')
    far = run(of_nodes(weights), tmp_path / "far", Direct(nodes))
    local = of_nodes(weights, dataset={"name": "folder", "path": str(tmp_path / "together")})
    assert equal(alone(local, tmp_path / "local"), far)


def test_label_counts_do_not_leave_nodes_for_weights(tmp_path: Path) -> None:
    own_classes(tmp_path / "a", "a", 0)
    nodes = {1: node_at(tmp_path / "node", 'name = "a"\n[data]\npath = "../a"\n')}
    with pytest.raises(fs.InputError, match="label counts do not leave the nodes of a federation, should be 'local'"):
        run(of_nodes("balanced"), tmp_path / "far", Direct(nodes))


@pytest.mark.parametrize(
    ("bounds", "changes", "reason"),
    [
        ({}, {"class_weights": [0.0, 1.0]}, "class_weights = 0.0 is outside of policy.bounds: 0.1 to 10"),
        ({}, {"class_weights": [1.0, 11.0]}, "class_weights = 11.0 is outside"),
        ({}, {"class_weights": "balanced"}, "needs label counts, which stay here"),
        ({"weight_decay": [0, 0.1]}, {"solver": {"name": "adam", "weight_decay": 0.2}}, "solver.weight_decay = 0.2 is"),
        ({"clip": [0.1, 5]}, {"solver": {"name": "sgd", "clip": 9.0}}, "solver.clip = 9.0 is outside"),
        ({"warmup": [0, 3]}, {"solver": {"name": "sgd", "schedule": {"warmup": 4}}}, "solver.schedule.warmup = 4 is"),
        (
            {"lr": [0, 0.1]},
            {"solver": {"name": "torchoptimizer", "optimizer": "torch.optim:SGD", "options": {"lr": 1.0}}},
            "solver.options.lr = 1.0 is outside",
        ),
        (
            {"lr": [0, 0.1]},
            {"solver": {"name": "torchoptimizer", "optimizer": "torch.optim:SGD", "options": {"lr": True}}},
            "solver.options.lr = True is outside",
        ),
        ({"lr": [0, 0.1]}, {"solver": {"name": "sgd", "lr": 1.0}}, "solver.lr = 1.0 is outside"),
    ],
)
def test_numbers_are_held_within_the_owner_s_bounds(bounds: Any, changes: dict[str, Any], reason: str) -> None:
    policy = Policy.of({"bounds": bounds}, synthetic=False)
    with pytest.raises(Refused, match=reason):
        policy.check(spec(**changes).to_dict())


def test_weights_within_the_bounds_are_taken() -> None:
    policy = Policy.of({"bounds": {"class_weights": [0.5, 3]}}, synthetic=False)
    for weights in ("local", [0.5, 3.0], None):
        policy.check(spec(class_weights=weights).to_dict())


def test_an_optimizer_is_imported_only_where_the_owner_names_it(tmp_path: Path) -> None:
    solver = {"name": "torchoptimizer", "optimizer": "torch.optim:RMSprop", "options": {"lr": 0.01}, "epochs": 2}
    what = spec(solver=solver)
    for allow, refused in (("", True), ('allow = ["torch.optim:RMSprop"]\n', False)):
        node = node_at(tmp_path / f"node{refused}", allow + shard(0))
        describe(what, node)
        if refused:
            with pytest.raises(Refused, match=r"names the code 'torch.optim:RMSprop', which is not in 'allow'"):
                node.config.read(what.to_dict())
        else:
            assert node.config.read(what.to_dict()).solver.settings["optimizer"] == "torch.optim:RMSprop"
