"""What optimizers of torch keep, as rows of tensors: one row for each client, as checkpoints and stores hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsoft.core.model import Layout
from fedsoft.errors import InputError
from fedsoft.seeds import generator

Make = Callable[[list[Tensor]], torch.optim.Optimizer]

TAKEN = "taken"  # how many steps a client has taken: an optimizer without any has nothing yet
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


@dataclass(frozen=True)
class Entry:
    """One value that an optimizer keeps: of the parameter `place`, or of all of them."""

    place: int | None
    key: str
    number: type | None  # what it is made of, where it is no tensor
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{'all' if self.place is None else self.place}.{self.key}"


@dataclass(frozen=True)
class Kept:
    """All that an optimizer keeps of a client, found by taking one step with it."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(make: Make, layout: Layout, dtype: torch.dtype) -> Kept | None:
        """Return what the optimizer keeps; None if that is not only tensors and numbers."""
        row = torch.from_numpy(generator(0, "try").standard_normal(layout.size)).to(dtype)
        client = ClientOptimizer(make, layout, row)
        client.set_gradient(torch.ones_like(row))
        client.step(row)
        found = []
        for place, key, value in client.values():
            if isinstance(value, Tensor):
                found.append(Entry(place, key, None, value.dtype, tuple(value.shape)))
            elif type(value) in NUMBERS:
                found.append(Entry(place, key, type(value), NUMBERS[type(value)], ()))
            elif place is not None:
                return None
        return Kept(tuple(found))

    def nothing(self, m: int, device: torch.device) -> dict[str, Tensor]:
        """Return the rows of m clients that have taken no step yet."""
        rows = {e.name: torch.zeros((m, *e.shape), dtype=e.dtype, device=device) for e in self.entries}
        return rows | {TAKEN: torch.zeros(m, dtype=torch.int64, device=device)}


class ClientOptimizer:
    """One client's optimizer, over the tensors of its row of models."""

    def __init__(self, make: Make, layout: Layout, row: Tensor) -> None:
        self.layout = layout
        self.parameters: list[Tensor] = [torch.nn.Parameter(view) for view in self._views(row)]
        self.optimizer = make(self.parameters)

    def _views(self, row: Tensor) -> list[Tensor]:
        return list(self.layout.unflatten(row).values())

    def set_rate(self, factor: float) -> None:
        """Multiply the learning rate that the optimizer was made with."""
        group = self.optimizer.param_groups[0]
        if not isinstance(group.get("lr"), int | float):
            raise InputError(f"schedule: the optimizer '{self.name}' has no number 'lr' that could change")
        group["lr"] = self.optimizer.defaults["lr"] * factor

    def set_gradient(self, gradient: Tensor) -> None:
        """Let the next step go along `gradient[P]`."""
        for parameter, view in zip(self.parameters, self._views(gradient), strict=True):
            parameter.grad = view

    def step(self, row: Tensor, closure: Callable[[], Tensor] | None = None) -> None:
        """Take a step of `row[P]`, in place; raise InputError where the optimizer cannot."""
        views = self._views(row)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        try:
            _take(self.optimizer, closure)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise InputError(f"the optimizer '{self.name}' failed: {error}") from None
        for parameter, view in zip(self.parameters, views, strict=True):
            if parameter.data_ptr() != view.data_ptr():  # it may put other memory in its place
                view.copy_(parameter.data)

    @property
    def name(self) -> str:
        return type(self.optimizer).__name__

    def values(self) -> list[tuple[int | None, str, Any]]:
        """Return all that the optimizer keeps, except its rate: that is given in each step."""
        group = self.optimizer.param_groups[0]
        of_all = [(None, key, value) for key, value in group.items() if type(value) in NUMBERS and key != "lr"]
        of_each = [
            (place, str(key), value)
            for place, parameter in enumerate(self.parameters)
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if value is not None
        ]
        return [*of_all, *of_each]

    def load(self, kept: Kept, rows: dict[str, Tensor], k: int) -> None:
        """Give the optimizer what it kept as row k."""
        if int(rows[TAKEN][k]) == 0:
            return
        for entry in kept.entries:
            value = rows[entry.name][k]
            of_all, of_each = self.optimizer.param_groups[0], self.optimizer.state
            owner = of_all if entry.place is None else of_each[self.parameters[entry.place]]
            owner[entry.key] = value.clone() if entry.number is None else entry.number(value.item())

    def save(self, kept: Kept, rows: dict[str, Tensor], k: int, steps: int) -> None:
        """Write what the optimizer keeps after `steps` more steps into row k."""
        found = {(place, key): value for place, key, value in self.values()}
        for entry in kept.entries:
            value = found.get((entry.place, entry.key))
            if not isinstance(value, Tensor | bool | int | float) or tuple(torch.as_tensor(value).shape) != entry.shape:
                raise InputError(
                    f"the optimizer '{self.name}' keeps '{entry.key}' in another shape than after its first step: "
                    "such a state cannot be kept over rounds"
                )
            rows[entry.name][k] = value
        rows[TAKEN][k] += steps


def _take(optimizer: torch.optim.Optimizer, closure: Callable[[], Tensor] | None) -> None:
    take: Callable[..., Any] = optimizer.step
    if closure is None:
        take()
        return
    with torch.enable_grad():
        take(closure)
