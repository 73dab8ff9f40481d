"""Weights of classes in the local loss, for classes that are rare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.errors import InputError

CLIP = (0.1, 10.0)  # of weights by a client's own labels: no single point of it should decide

BALANCED = (
    "class_weights = 'balanced' is not allowed: label counts do not leave the nodes of a federation, should be 'local' "
    "(by each client's own labels) or a list of weights"
)

ClassWeights = Literal["balanced", "local"] | list[Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]]
"""What users give: `balanced` over all clients, `local` by each client's own labels, or a weight for each class."""

FixedWeights = Literal["local"] | tuple[float, ...]
"""What clients train with."""


def fixed_weights(
    given: ClassWeights | Sequence[float] | None, shape: DataShape, train: ClientData
) -> FixedWeights | None:
    """Return what clients train with; raise InputError for weights that do not fit the data."""
    if given is None:
        return None
    if shape.task != "classification":
        raise InputError(f"class_weights = {given!r} is not allowed: {shape.task} has no classes, should be left out")
    if given == "local":
        return "local"
    if given == "balanced":
        if not len(train.x):
            raise InputError(BALANCED)
        return tuple(balanced(torch.bincount(train.y[train.points], minlength=shape.outputs)[None])[0].tolist())
    weights = None if isinstance(given, str) else tuple(float(weight) for weight in given)
    if weights is None or len(weights) != shape.outputs:
        allowed = f"should be 'balanced', 'local' or a list of {shape.outputs} numbers, one for each class"
        raise InputError(f"class_weights = {given!r} is not allowed: {allowed}")
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise InputError(f"class_weights = {given!r} is not allowed: should be 0 or more, not all of them 0")
    return weights


def balanced(counts: Tensor) -> Tensor:
    """Return n / (C n_c) for counts n_c `[m, classes]` of C classes that there are: points weigh 1 on average."""
    there = (counts > 0).sum(1, keepdim=True)
    weights = counts.sum(1, keepdim=True).double() / (there * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 1.0)


def weights_of_points(weights: FixedWeights | None, data: ClientData, dtype: torch.dtype) -> Tensor | None:
    """Return the weight of each of `data.points` by its class; None where all weigh the same."""
    if weights is None:
        return None
    y = data.y[data.points]
    if weights != "local":
        return torch.tensor(weights, dtype=dtype, device=y.device)[y]
    classes = int(y.max()) + 1 if len(y) else 1
    counts = torch.bincount(data.owners * classes + y, minlength=len(data) * classes).view(len(data), classes)
    return balanced(counts).clamp(*CLIP)[data.owners, y].to(dtype)
