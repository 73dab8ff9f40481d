"""Data that is not here: every client's points are at a node of its own, and stay there."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsoft.checks import checked
from fedsoft.clientdata import ClientData
from fedsoft.errors import InputError
from fedsoft.federation import DataShape, Federation

__all__ = ["nodes"]


@checked
def nodes(
    clients: Annotated[list[str], Field(min_length=1)],
    input: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)],
    outputs: Annotated[int, Field(ge=1)] = 1,
    task: Literal["regression", "classification"] = "regression",
) -> Federation:
    """The clients of a true federation, by name, and the shape that their data has; see docs/flower.md.

    Arguments:
        clients: everybody who takes part, by the names that their nodes give them.
        input: the shape of one input, for instance `[10]` or `[1, 28, 28]`.
        outputs: numbers to predict, or classes.
        task: what the targets are.
    """
    if len(set(clients)) != len(clients):
        raise InputError(f"nodes: clients = {clients} is not allowed: names should differ")
    x = torch.zeros(0, *input)
    several = task == "regression" and outputs > 1
    y = torch.zeros((0, outputs) if several else (0,), dtype=torch.float32 if task == "regression" else torch.int64)
    none = torch.zeros(len(clients), dtype=torch.int64)
    data = ClientData(x, y, none, none)
    return Federation(data, replace(data), tuple(clients), DataShape(task, tuple(input), outputs))
