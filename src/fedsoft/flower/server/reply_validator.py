"""Check every reply from a node before it is used: its length, its clients, its form, and what the guards say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.replies import Kind
from fedsoft.errors import InputError
from fedsoft.flower.node.refusals import meaning
from fedsoft.flower.server.expected_replies import Forms, forms_of
from fedsoft.flower.wire import Packed, WireMessage
from fedsoft.safety.exclusions import Reason, Refusal
from fedsoft.safety.guards import Facts, Guards

HEAD, FOR_EACH = 4096, 2048  # characters that the head of a reply may have, and for each client besides


def open_reply(packed: Packed, clients: int, body: int) -> WireMessage | str:
    """Return the reply for this many clients, or why there is none. What is longer than it can be is not parsed."""
    if len(packed[0]) > HEAD + FOR_EACH * clients or len(packed[1]) > body:
        return f"its answer is far too long: {len(packed[0]) + len(packed[1])} bytes"
    try:
        reply = WireMessage.unpacked(*packed)
    except InputError as error:
        return str(error)
    return meaning(reply.head["refused"]) if "refused" in reply.head else reply


@dataclass(frozen=True)
class Rows:
    """What one node sent for some of its clients, one row each."""

    node: str
    clients: list[str]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class ReplyValidator:
    """What is accepted: replies of the right form, as far as the guards of every engine let them pass."""

    guards: Guards

    def sift(
        self, replies: list[Rows], right: Forms, kinds: Mapping[str, Kind], n: Mapping[str, int] | None = None,
        clusters: Mapping[str, int] | None = None, centers: int | None = None,
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Refusal]]:  # fmt: skip
        """Return the accepted rows by client, and why the others are not accepted.

        `right`: the form that a row must have; `kinds`: what its entries are. `n`, `clusters`: points and cluster of
        each client, where known.
        """
        good: dict[str, dict[str, Tensor]] = {}
        bad: dict[str, Refusal] = {}
        fitting = []
        for reply in replies:
            ragged = next((name for name, t in reply.tensors.items() if not t.ndim or len(t) != len(reply.clients)), "")
            if ragged:
                why = Refusal(Reason.SHAPE, f"'{ragged}' has not one row for each client")
                bad |= dict.fromkeys(reply.clients, why)
            elif (found := forms_of(reply.tensors)) != right:
                bad |= dict.fromkeys(reply.clients, Refusal(Reason.SHAPE, _difference(found, right)))
            else:
                fitting.append(reply)
        if not fitting:
            return good, bad
        names = [client for reply in fitting for client in reply.clients]

        def points(clients: list[str]) -> Tensor | None:
            return None if n is None else torch.tensor([n[client] for client in clients])

        looks = [(len(r.clients), self.guards.look(r.tensors, kinds, points(r.clients), centers)) for r in fitting]
        sizes = points(names)
        known = None if clusters is None else np.array([clusters[client] for client in names])
        found = self.guards.judge(Facts.join(looks), None if sizes is None else sizes.numpy(), known)
        bad |= {names[row]: why for row, why in found.items()}
        for reply in fitting:
            for row, client in enumerate(reply.clients):
                if client not in bad:
                    good[client] = {name: tensor[row] for name, tensor in reply.tensors.items()}
        return good, bad


def _difference(found: Forms, right: Forms) -> str:
    names, expected = {form[0]: form for form in found}, {form[0]: form for form in right}
    if names.keys() != expected.keys():
        return f"it holds {sorted(names)}, should hold {sorted(expected)}"
    name = next(name for name in names if names[name] != expected[name])
    (_, dtype, shape), (_, like, form) = names[name], expected[name]
    return f"'{name}' is {_of(dtype, shape)}, should be {_of(like, form)}"


def _of(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
