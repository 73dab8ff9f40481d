"""Every reply is looked at before it is used: right clients, right form, finite, and of a likely size.

What a client may send is not written down anywhere, so replies are held against each other: the form that most clients
sent is the right one, and a model far longer than the median of all is not believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Forms = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Names, types and shapes of one client's row."""


@dataclass(frozen=True)
class Rows:
    """What one node sent for some of its clients, one row each."""

    node: str
    clients: list[str]
    tensors: dict[str, Tensor]

    def forms(self) -> Forms:
        """Of one row."""
        return tuple(sorted((name, t.dtype, tuple(t.shape[1:])) for name, t in self.tensors.items()))


@dataclass(frozen=True)
class Screen:
    """What is believed.

    Arguments:
        model: parameters of the model; what is at least so long is a model, a gradient or a stack of them.
        norm: how many times the median norm a model may have; 0 for any.
    """

    model: int
    norm: float

    def sift(self, replies: list[Rows], known: Forms | None) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
        """The believed rows by client, and why the others are not believed. `known`: the form of an earlier answer."""
        good: dict[str, dict[str, Tensor]] = {}
        bad: dict[str, str] = {}
        counted = Counter[Forms]()
        whole = []
        for reply in replies:
            ragged = next((name for name, t in reply.tensors.items() if not t.ndim or len(t) != len(reply.clients)), "")
            if ragged:
                bad |= dict.fromkeys(reply.clients, f"'{ragged}' has not one row for each client")
            else:
                whole.append(reply)
                counted[reply.forms()] += len(reply.clients)
        if not counted:
            return good, bad
        right = known or max(counted, key=lambda forms: (counted[forms], str(forms)))
        for reply in whole:
            if reply.forms() != right:
                bad |= dict.fromkeys(reply.clients, _difference(reply.forms(), right))
                continue
            for row, client in enumerate(reply.clients):
                tensors = {name: tensor[row] for name, tensor in reply.tensors.items()}
                broken = next((name for name, t in tensors.items() if not bool(torch.isfinite(t).all())), "")
                if broken:
                    bad[client] = f"'{broken}' holds values that are not finite"
                else:
                    good[client] = tensors
        for client, told in self._too_long(good).items():
            bad[client] = told
            del good[client]
        return good, bad

    def _too_long(self, rows: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
        if not self.norm or len(rows) < 2:
            return {}
        told: dict[str, str] = {}
        first = next(iter(rows.values()))
        for name in (name for name, t in first.items() if t.is_floating_point() and t.numel() >= self.model):
            norms = {client: float(tensors[name].double().norm()) for client, tensors in rows.items()}
            middle = float(torch.tensor(list(norms.values()), dtype=torch.float64).median())  # the lower of two
            for client, norm in norms.items():
                if middle > 0 and norm > self.norm * middle:
                    told[client] = f"the norm of '{name}' is {norm / middle:.1f} times the median"
        return told


def _difference(found: Forms, right: Forms) -> str:
    """What is wrong first."""
    names, expected = {form[0]: form for form in found}, {form[0]: form for form in right}
    if names.keys() != expected.keys():
        return f"it holds {sorted(names)}, should hold {sorted(expected)}"
    name = next(name for name in names if names[name] != expected[name])
    (_, dtype, shape), (_, like, form) = names[name], expected[name]
    return f"'{name}' is {_of(dtype, shape)}, should be {_of(like, form)}"


def _of(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
