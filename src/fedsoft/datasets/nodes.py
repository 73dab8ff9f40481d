"""Data at nodes: every client's points are at a node of its own, and stay there."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.federation import Federation
from fedsoft.settings import checked

__all__ = ["nodes"]

Fingerprint = Annotated[str, Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")]


@checked
def nodes(
    clients: Annotated[dict[str, Fingerprint], Field(min_length=1)],
    input: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)],
    outputs: Annotated[int, Field(ge=1)] = 1,
    task: Literal["regression", "classification"] = "regression",
    most_points: Annotated[int, Field(ge=1)] = 1_000_000,
) -> Federation:
    """The clients of a true federation, by name, and the shape that their data has; see docs/flower.md.

    Arguments:
        clients: all clients, by the names that their nodes give them, each with the fingerprint of its
            node's key, as `ssh-keygen -lf KEY.pub` prints it: no other node speaks for that client.
        input: the shape of one input, for instance `[10]` or `[1, 28, 28]`.
        outputs: numbers to predict, or classes.
        task: what the targets are.
        most_points: a client that claims more is refused.
    """
    x = torch.zeros(0, *input)
    several = task == "regression" and outputs > 1
    y = torch.zeros((0, outputs) if several else (0,), dtype=torch.float32 if task == "regression" else torch.int64)
    none = torch.zeros(len(clients), dtype=torch.int64)
    data = ClientData(x, y, none, none)
    return Federation(data, replace(data), tuple(clients), DataShape(task, tuple(input), outputs))
