"""Learning rates that change: over rounds, over steps, or within each local task.

A rate is a function of the round and of a client's step in it, of nothing else. So it is the same for any chunk of
clients, worker and engine, and after a stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from fedsoft.core.batches import Plan
from fedsoft.errors import MissingSetting, SettingError
from fedsoft.settings import renamed, settings

TINY = 1e-9  # of the rate: with 0 Adam would divide by it

Count = Annotated[int, Field(ge=1, lt=2**31)]


@settings
class Schedule:
    """By what the learning rate is multiplied; never more than 1.

    Arguments:
        name: `constant`; `step`: times `factor` every so often; `cosine` and `linear`: down to `least` in `length`.
        over: what is counted from 0. `rounds` of the run; `steps` of a client since the first round, as one counts them
            that takes part in every round; or steps of the `task`, anew in each round.
        warmup: how many of them rise linearly to 1 first: 1/warmup, 2/warmup, ...; then the schedule begins.
        length: for `cosine` and `linear`; in a `task` by default what it has left of a client's steps.
        every, factor: for `step`; factor is 0.1 by default.
        least: what `cosine` and `linear` end in and stay at; default: 0.
    """

    name: Literal["constant", "step", "cosine", "linear"] = "constant"
    over: Literal["rounds", "steps", "task"] = "rounds"
    warmup: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    length: Count | None = None
    every: Count | None = None
    factor: Annotated[float, Field(gt=0, le=1)] | None = None
    least: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        needs = {"step": ("every",), "cosine": ("length",), "linear": ("length",)}.get(self.name, ())
        takes = {"step": ("every", "factor"), "cosine": ("length", "least"), "linear": ("length", "least")}
        for key in needs:
            if getattr(self, key) is None and not (key == "length" and self.over == "task"):
                raise MissingSetting("schedule", key, f"'{self.name}' needs a number of {self.over}")
        for key in ("length", "every", "factor", "least"):
            if (value := getattr(self, key)) is not None and key not in takes.get(self.name, ()):
                raise SettingError("schedule", key, value, f"'{self.name}' has no such setting")
        return self

    def factors(self, number: Tensor, most: Tensor) -> Tensor:
        """Return the factors at the places `number` of the schedule; a task has `most` of them."""
        warmup = self.warmup or 0
        number = number.double()
        after = (number - warmup).clamp(min=0)
        if self.name == "step":
            assert self.every is not None
            found = (self.factor or 0.1) ** torch.floor(after / self.every)
        elif self.name == "constant":
            found = torch.ones_like(after)
        else:
            length = (most.double() - warmup).clamp(min=1) if self.length is None else self.length
            along, least = (after / length).clamp(max=1), self.least or 0.0
            fall = 1 - along if self.name == "linear" else (1 + torch.cos(math.pi * along)) / 2
            found = least + (1 - least) * fall
        if warmup:
            found = torch.where(number < warmup, (number + 1) / warmup, found)
        return found.clamp(min=TINY)


def _read(given: Any) -> Any:
    """Make a schedule of a name or of a table, with errors that name the setting."""
    with renamed({"Schedule": "schedule"}):
        if isinstance(given, str):
            return Schedule(name=cast(Any, given))
        return Schedule(**given) if isinstance(given, Mapping) else given


RateSchedule = Annotated[Schedule, BeforeValidator(_read)]
"""A schedule as a setting: as such, as a table, or by name."""


def rates(lr: float, schedule: Schedule | None, plan: Plan) -> float | Tensor:
    """Return the learning rate of a local task: a number, or one for each step of each client as in `Plan.done`."""
    if schedule is None:
        return lr
    if schedule.over == "rounds":
        now = torch.tensor(plan.t)
        return lr * float(schedule.factors(now, now))
    most = plan.batches[plan.owners] * len(plan.done)  # steps of a client in a task
    return lr * schedule.factors(plan.done + (plan.t * most if schedule.over == "steps" else 0), most)


def by_step(rate: Tensor, plan: Plan, dtype: torch.dtype | None = None) -> Sequence[Tensor]:
    """Return the rates of each step of the plan, `[active, 1]`; by default in the type that its models have."""
    return rate.to(dtype or plan.weights.dtype).view(-1, 1).split(plan.active * len(plan.done))
