"""Any optimizer of torch, one object for each client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.batch_iterator import RowBatches
from fedsoft.core.batches import GradientParts, Plan, Problem
from fedsoft.core.local_solve import OptimizerState, descend
from fedsoft.core.model import Layout
from fedsoft.core.optimizer_rows import ClientOptimizer, Kept
from fedsoft.core.schedules import RateSchedule, by_step, rates
from fedsoft.errors import InputError, SettingError
from fedsoft.plugins import CodeName, imported
from fedsoft.settings import settings

__all__ = ["TorchOptimizer"]

Option = float | bool | str | list[float] | None


@settings
class TorchOptimizer:
    """A `torch.optim.Optimizer` for each client: those of torch, or one of yours.

    Gradients are those of the model's backend, for a whole stack of clients where it can; the optimizers then step one
    after the other, so SGD, Adam and AdamW are faster where they serve. What an optimizer keeps is kept between rounds
    where the algorithm keeps it (`optimizer_state`), in checkpoints too; one that needs a closure (LBFGS) keeps nothing
    over rounds.

    Arguments:
        optimizer: its class, or `"torch.optim:RMSprop"`.
        options: what it is made with, such as `lr`.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
        clip: largest norm of a client's gradient, the proximal term included; longer ones are shortened; default: any.
        schedule: of the learning rate; default: constant.

    Example:
        >>> TorchOptimizer(optimizer=torch.optim.RMSprop, options={"lr": 0.01}, epochs=2).epochs
        2
    """

    optimizer: CodeName | Callable[..., torch.optim.Optimizer]
    options: dict[str, Option] | None = None
    epochs: Annotated[int, Field(ge=1)] = 10
    batch: Annotated[int, Field(ge=1)] = 10
    shuffle: bool = True
    clip: Annotated[float, Field(gt=0)] | None = None
    schedule: RateSchedule | None = None

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        kept = self.kept(layout or _flat(w), w.dtype)
        return {} if kept is None else kept.nothing(len(w), w.device)

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        return self._by_closure(problem, w) if self._needs_closure else descend(self, problem, w, state)

    def stepper(self, state: OptimizerState, plan: Plan) -> TorchStepper:
        if self._needs_closure:
            raise InputError(f"the optimizer '{_name(self._made)}' takes no single steps: use another, SGD or Adam")
        return TorchStepper(self, state, plan)

    @property
    def _made(self) -> Callable[..., torch.optim.Optimizer]:
        if isinstance(self.optimizer, str):  # text that gets here was typed by the user: `plugins.build` imports others
            return imported(self.optimizer, allow=[self.optimizer])
        return self.optimizer

    @property
    def _needs_closure(self) -> bool:
        step = getattr(self._made, "step", None)
        closure = inspect.signature(step).parameters.get("closure") if step is not None else None
        return closure is not None and closure.default is closure.empty

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """Return an optimizer of these parameters; raise InputError where it cannot be made."""
        options = {
            key: tuple(value) if isinstance(value, list) else value for key, value in (self.options or {}).items()
        }
        made = self._made
        try:
            found = made(parameters, **options)
        except Exception as error:  # whatever a user's own class may raise
            raise SettingError("TorchOptimizer", "options", self.options, f"{_name(made)}: {error}") from None
        if not isinstance(found, torch.optim.Optimizer):
            raise SettingError("TorchOptimizer", "optimizer", _name(made), "should make a torch.optim.Optimizer")
        return found

    def kept(self, layout: Layout, dtype: torch.dtype) -> Kept | None:
        """Return what the optimizer keeps of a client over rounds; None for nothing."""
        return None if self._needs_closure else Kept.of(self.make, layout, dtype)

    def _by_closure(self, problem: Problem, w: Tensor) -> tuple[Tensor, OptimizerState, Tensor]:
        """Take steps that ask for the objective of a batch again and again."""
        if problem.model.needs_step:
            raise InputError(
                f"solver.optimizer = '{self.optimizer}' computes a batch several times, which is not for networks with "
                "dropout or BatchNorm: use another optimizer"
            )
        batches = RowBatches(problem, w.dtype, batch=self.batch, epochs=self.epochs, shuffle=self.shuffle)
        w, plan = batches.stack(w), batches.plan
        clients = [ClientOptimizer(self.make, problem.model.layout, row) for row in w]
        factors, computed = _Factors(self, plan), torch.zeros_like(plan.clients)
        points = (plan.weights > 0).sum(0).split(plan.active)

        def objective(k: int) -> Tensor:
            computed[k] += points[batches.now][k]
            value, parts = batches.objective(w, k)
            clients[k].set_gradient(parts.total(w[k : k + 1], self.clip)[0])
            return value

        for number, b in batches:
            for k, client in enumerate(clients[: plan.active[b]]):
                factors.give(number, k, client)
                client.step(w[k], partial(objective, k))
        return batches.unstack(w), {}, batches.unstack(computed)


class TorchStepper:
    """The steps of `TorchOptimizer` over a stack of clients."""

    def __init__(self, solver: TorchOptimizer, state: OptimizerState, plan: Plan) -> None:
        self.solver, self.state, self.plan = solver, state, plan
        self.factors = _Factors(solver, plan)
        self.steps = (plan.batches * len(plan.done)).tolist()  # of each client
        self.ends = ((len(plan.done) - 1) * len(plan.active) + plan.batches - 1).tolist()  # the last of them
        self.clients: list[ClientOptimizer] = []
        self.kept: Kept | None = None

    def step(self, number: int, w: Tensor, parts: GradientParts) -> None:
        gradient = parts.total(w, self.solver.clip)
        if not self.clients:  # everybody has a first batch
            self._begin(w)
        for k, client in enumerate(self.clients[: len(w)]):
            self.factors.give(number, k, client)
            client.set_gradient(gradient[k])
            client.step(w[k])
            if self.kept is not None and number == self.ends[k]:
                client.save(self.kept, self.state, k, self.steps[k])

    def _begin(self, w: Tensor) -> None:
        layout = self.plan.layout or _flat(w)
        self.clients = [ClientOptimizer(self.solver.make, layout, row) for row in w]
        self.kept = self.solver.kept(layout, w.dtype) if self.state else None
        for k, client in enumerate(self.clients):
            if self.kept is not None:
                client.load(self.kept, self.state, k)


class _Factors:
    """Gives every optimizer the learning rate of its step."""

    def __init__(self, solver: TorchOptimizer, plan: Plan) -> None:
        found = rates(1.0, solver.schedule, plan)
        self.each = by_step(found, plan, torch.float64) if isinstance(found, Tensor) else None
        self.all = None if isinstance(found, Tensor) else found
        self.given = solver.schedule is not None

    def give(self, number: int, k: int, client: ClientOptimizer) -> None:
        if self.all is not None and self.given:
            client.set_rate(self.all)
        elif self.each is not None:
            client.set_rate(float(self.each[number][k]))


def _flat(w: Tensor) -> Layout:
    """Return the layout of models whose tensors are not known."""
    return Layout({"w": (w.shape[1],)})


def _name(made: Any) -> str:
    return getattr(made, "__name__", repr(made))
