"""What `fit` is asked to do, as one value: a run that is played on needs it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedsoft.core.contract import Algorithm
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Builder, Model
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError
from fedsoft.safety.conditions import Conditions
from fedsoft.training.options import FitOptions
from fedsoft.training.prepare import Recipe, prepare
from fedsoft.training.rounds import Limit


@dataclass(frozen=True)
class Plan:
    """What is trained, under which conditions, how it is computed, and when it ends."""

    recipe: Recipe
    conditions: Conditions
    options: FitOptions
    limit: Limit

    @staticmethod
    def of(
        algorithm: Algorithm, model: Builder | Model | nn.Module | Callable[[], nn.Module], *, rounds: int | Limit,
        solver: Solver | None = None, seed: int = 0, conditions: Conditions | None = None,
        options: FitOptions | None = None,
    ) -> Plan:  # fmt: skip
        """Check what a user gives to `fit`."""
        options, limit = options or FitOptions(), rounds if isinstance(rounds, Limit) else Limit(rounds)
        _check_whole("rounds", limit.rounds, 0)
        _check_whole("score_every", options.score_every, 1)
        if isinstance(algorithm, type | str):
            raise InputError(
                f"algorithm = {algorithm!r} is not allowed: should be one with its settings, such as FedSoft(S=2)"
            )
        if isinstance(solver, type):
            raise InputError(
                f"solver = {solver!r} is not allowed: should be one with its settings, such as Adam(lr=0.01)"
            )
        recipe = Recipe(
            algorithm, model, solver, seed, options.dtype, options.backend, options.metrics, options.class_weights
        )
        return Plan(recipe, conditions or Conditions(), options, limit)

    def engine(self, federation: Federation) -> Engine:
        """Return an engine for these clients, ready for the first round."""
        return prepare(self.recipe, federation, self.conditions, self.options)

    def until(self, rounds: int | Limit, options: FitOptions | None = None) -> Plan:
        """Return the same with another end, and computed in another way where `options` say so."""
        limit = rounds if isinstance(rounds, Limit) else replace(self.limit, rounds=rounds)
        _check_whole("rounds", limit.rounds, 0)
        return replace(self, limit=limit, options=options or replace(self.options, callbacks=()))


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise InputError(f"{name} = {value!r} is not allowed: should be a whole number of at least {least}")
