from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.errors import InputError
from fedsoft.plugins import ConsentError, build
from fedsoft.runs.execute import execute
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from tests.helpers import class_clients, federation, problem, random_stack, shape_of, trained

BATCH = 5


class Averaged(torch.optim.Optimizer):
    """An optimizer of a user's own: keeps Python numbers, numbers of its group, and puts other memory in place."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        group["k"] += 1
        for p in group["params"]:
            state = self.state[p]
            state["mean"] = state.get("mean", torch.zeros_like(p)) * 0.5 + p.grad
            state["count"] = state.get("count", 0) + 1
            p.data = p.data - group["lr"] / (state["count"] + group["k"]) * state["mean"]


class Listing(torch.optim.SGD):
    """Keeps a list, which is no row of a table."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("all", []).append(p.clone())
        return super().step(closure)


def solved(solver: fs.TorchOptimizer, rounds: int, epochs: int) -> torch.Tensor:
    pairs = class_clients()
    model = fs.models.mlp(hidden=[8])(shape_of(pairs))
    w = random_stack(model, len(pairs))
    task = problem(model, ClientData.concat(pairs))
    state = solver.init_state(w, model.layout)
    for _ in range(rounds):
        w, state, _ = solver.solve(task, w, state)
    return w


def test_what_an_optimizer_of_one_s_own_keeps_goes_on_in_the_next_round() -> None:
    # Without shuffling two rounds of one epoch are one round of two.
    parts = {"optimizer": Averaged, "batch": BATCH, "shuffle": False}
    once = solved(fs.TorchOptimizer(**parts, epochs=2), 1, 2)
    twice = solved(fs.TorchOptimizer(**parts, epochs=1), 2, 1)
    assert torch.equal(once, twice)


def test_what_is_no_row_of_numbers_is_not_kept_over_rounds() -> None:
    solver = fs.TorchOptimizer(optimizer=Listing, options={"lr": 0.1}, batch=BATCH)
    assert solver.init_state(torch.zeros(2, 3)) == {}
    assert torch.isfinite(solved(solver, 2, 1)).all()


@pytest.mark.parametrize(
    ("optimizer", "options", "reason"),
    [
        (torch.optim.RMSprop, {"lr": -1.0}, "RMSprop: Invalid learning rate"),
        (torch.optim.RMSprop, {"learning_rate": 0.1}, "RMSprop: .*learning_rate"),
        (torch.optim.SparseAdam, {"lr": 0.1}, "the optimizer 'SparseAdam' failed: .*dense gradients"),
        (list, {}, "should make a torch.optim.Optimizer"),
    ],
)
def test_an_optimizer_that_cannot_work_is_told_before_the_first_round(
    optimizer: Any, options: dict[str, Any], reason: str
) -> None:
    solver = fs.TorchOptimizer(optimizer=optimizer, options=options, epochs=1)
    with pytest.raises(InputError, match=reason):
        trained(fs.FedAvg(), federation(class_clients()), fs.models.linear(), rounds=1, solver=solver)


@pytest.mark.parametrize("algorithm", [fs.FedSoft(S=2, K="all"), fs.MAPPER(), fs.APFL(), fs.Local(), fs.FedEM(S=2)])
def test_algorithms_of_all_kinds_take_it_and_torch_s_adam_is_ours(algorithm: Any) -> None:
    fed = federation(class_clients())
    solvers = (
        fs.TorchOptimizer(optimizer=torch.optim.Adam, options={"lr": 0.01}, epochs=2, batch=BATCH),
        fs.Adam(lr=0.01, epochs=2, batch=BATCH),
    )
    one, two = (
        trained(algorithm, fed, fs.models.mlp(hidden=[6]), rounds=3, solver=solver, dtype="float64").state
        for solver in solvers
    )
    for name, value in one.tensors().items():
        torch.testing.assert_close(value, two.tensors()[name], rtol=0, atol=1e-8)


def test_a_name_is_imported_only_with_consent() -> None:
    settings = {"optimizer": "torch.optim:RMSprop", "options": {"lr": 0.1}}
    with pytest.raises(ConsentError):
        build("solvers", "torchoptimizer", settings)
    made = build("solvers", "torchoptimizer", settings, allow=["torch.optim:RMSprop"])
    assert made.optimizer is torch.optim.RMSprop


def spec(optimizer: str, **options: Any) -> RunSpec:
    synthetic = {"name": "synthetic", "clients": 6, "points": [5, 16], "dimension": 3, "test_points": 20}
    schedule = {"name": "cosine", "length": 6, "warmup": 2}
    return RunSpec.from_dict(
        {
            "rounds": 5, "algorithm": {"name": "fedsoft", "S": 2}, "model": "linear", "dataset": synthetic,
            "partition": "10:90",
            "solver": {"name": "torchoptimizer", "optimizer": optimizer, "options": options, "schedule": schedule,
                       "epochs": 2, "batch": BATCH},
        },
        allow=[optimizer],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("torch.optim:RMSprop", {"lr": 0.01, "momentum": 0.9}), ("torch.optim:NAdam", {"lr": 0.01}),
     ("torch.optim:LBFGS", {"lr": 0.1, "max_iter": 3})],
)  # fmt: skip
def test_a_run_that_stops_goes_on_to_the_same_bits(optimizer: str, options: dict[str, Any], tmp_path: Path) -> None:
    what = spec(optimizer, **options)
    whole, _ = execute(what, tmp_path / "whole", RunOptions(workers=1))
    stops = iter([False, False, True])
    _, finished = execute(what, tmp_path / "run", RunOptions(workers=1, should_stop=lambda: next(stops)))
    assert not finished
    folder, finished = execute(what, tmp_path / "run", RunOptions(workers=2))
    assert finished
    for name, value in load(whole.path, allow=[optimizer]).state.tensors().items():
        assert torch.equal(value, load(folder.path, allow=[optimizer]).state.tensors()[name])
