"""Every reply from a node is looked at before it is used: right clients, right form, and what guards say of it.

What a client may send is not written down anywhere, so replies are held against each other: the form that most clients
sent is the right one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.trust.guards import Facts, Guards

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
    """What is believed: replies of the right form, as far as the guards of every engine let them pass."""

    guards: Guards

    def sift(
        self, replies: list[Rows], known: Forms | None, n: Mapping[str, int] | None = None,
        clusters: Mapping[str, int] | None = None, centers: int | None = None,
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:  # fmt: skip
        """The believed rows by client, and why the others are not believed.

        `known`: the form of an earlier answer. `n`, `clusters`: points and cluster of each client, where known.
        """
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
        fitting = [reply for reply in whole if reply.forms() == right]
        for reply in whole:
            if reply.forms() != right:
                bad |= dict.fromkeys(reply.clients, _difference(reply.forms(), right))
        names = [client for reply in fitting for client in reply.clients]

        def points(clients: list[str]) -> Tensor | None:
            return None if n is None else torch.tensor([n[client] for client in clients])

        looks = [(len(r.clients), self.guards.look(r.tensors, points(r.clients), centers)) for r in fitting]
        sizes, told = points(names), None if clusters is None else np.array([clusters[client] for client in names])
        found = self.guards.judge(Facts.join(looks), None if sizes is None else sizes.numpy(), told)
        bad |= {names[row]: why for row, why in found.items()}
        for reply in fitting:
            for row, client in enumerate(reply.clients):
                if client not in bad:
                    good[client] = {name: tensor[row] for name, tensor in reply.tensors.items()}
        return good, bad


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
