"""Data at nodes: every client's points are at a node of its own, and stay there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.federation import Federation
from fedsoft.core.inputs import InputField, Kind, words
from fedsoft.errors import InputError
from fedsoft.settings import checked, settings

__all__ = ["nodes"]

Fingerprint = Annotated[str, Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")]


@settings
class NodeInput:
    """One of several inputs of the clients at nodes.

    Arguments:
        kind: the type of its numbers; `int` for tokens, `bool` for masks, `uint8` for images.
        shape: of one point.
        sequences: of unequal length, up to the first side of `shape`.
    """

    kind: Literal["float", "int", "bool", "uint8"] = "float"
    shape: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    sequences: bool = False


KINDS: dict[str, Kind] = {"float": "float32", "int": "int32", "bool": "bool", "uint8": "uint8"}


def agreed_shape(settings: Mapping[str, Any]) -> DataShape:
    """Return the shape of data that the settings of `nodes` describe."""
    about = dict(settings)
    task, outputs, given = about["task"], about["outputs"], about.get("inputs") or {}
    if bool(given) == bool(about.get("input")):
        raise InputError("nodes: should have one of input, the shape of one input, and inputs, a table of several")
    if not given:
        return DataShape(task, tuple(about["input"]), outputs)
    fields = []
    for name, value in given.items():
        one = value if isinstance(value, NodeInput) else NodeInput(**value)
        if not (name.isidentifier() or name.isdigit()) or (one.sequences and not one.shape):
            raise InputError(f"nodes: inputs.{name} is not allowed: should be a name, with a shape for sequences")
        fields.append(InputField(name, KINDS[one.kind], tuple(one.shape), one.sequences))
    return DataShape(task, (words(fields),), outputs, tuple(fields))


@checked
def nodes(
    clients: Annotated[dict[str, Fingerprint], Field(min_length=1)],
    input: list[Annotated[int, Field(ge=1)]] | None = None,
    inputs: dict[str, dict[str, Any]] | None = None,
    kind: Literal["float", "int"] = "float",
    outputs: Annotated[int, Field(ge=1)] = 1,
    task: Literal["regression", "classification"] = "regression",
    most_points: Annotated[int, Field(ge=1)] = 1_000_000,
) -> Federation:
    """The clients of a true federation, by name, and the shape that their data has; see docs/flower.md.

    Arguments:
        clients: all clients, by the names that their nodes give them, each with the fingerprint of its
            node's key, as `ssh-keygen -lf KEY.pub` prints it: no other node speaks for that client.
        input: the shape of one input, for instance `[10]` or `[1, 28, 28]`.
        inputs: of several, each with `kind`, `shape` and `sequences`, by the names that the network gives them.
        kind: of the numbers in one input: `int` for tokens.
        outputs: numbers to predict, or classes.
        task: what the targets are.
        most_points: a client that claims more is refused.
    """
    shape = agreed_shape({"task": task, "outputs": outputs, "input": input, "inputs": inputs})
    dtype = torch.int32 if shape.fields or kind == "int" else torch.float32
    x = torch.zeros(0, *shape.input, dtype=dtype)
    several = task == "regression" and outputs > 1
    y = torch.zeros((0, outputs) if several else (0,), dtype=torch.float32 if task == "regression" else torch.int64)
    none = torch.zeros(len(clients), dtype=torch.int64)
    data = ClientData(x, y, none, none)
    return Federation(data, replace(data), tuple(clients), shape)
