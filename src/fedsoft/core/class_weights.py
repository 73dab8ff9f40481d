"""Weights of classes in the local loss, for classes that are rare; of labels, where several apply together.

A class weighs by the points that have it. A label weighs where it applies, as with `pos_weight` of torch's
`BCEWithLogitsLoss`: targets of training are then the weights themselves, see `metrics.binary_cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedsoft.core.class_weight_choice import ClassWeights
from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.metrics import binary_cross_entropy
from fedsoft.errors import InputError

CLIP = (0.1, 10.0)  # of weights by a client's own labels: no single point of it should decide
OWN_LOSS = (
    "class_weights is not allowed for several labels with a loss of your own, which alone knows its labels: weigh them "
    "in the loss, or leave class_weights out"
)

BALANCED = (
    "class_weights = 'balanced' is not allowed: label counts do not leave the nodes of a federation, should be 'local' "
    "(by each client's own labels) or a list of weights"
)

FixedWeights = Literal["local"] | tuple[float, ...]
"""What clients train with."""


def fixed_weights(
    given: ClassWeights | Sequence[float] | None, shape: DataShape, train: ClientData,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> FixedWeights | None:  # fmt: skip
    """Return what clients train with; raise InputError for weights that do not fit the data or the loss."""
    if given is None:
        return None
    if shape.task == "regression":
        raise InputError(f"class_weights = {given!r} is not allowed: {shape.task} has no classes, should be left out")
    labels = shape.task == "multilabel"
    if labels and loss is not binary_cross_entropy:
        raise InputError(OWN_LOSS)
    if given == "local":
        return "local"
    if given == "balanced":
        if not len(train.x):
            raise InputError(BALANCED)
        y = train.y[train.points]
        if labels:
            return tuple(_against_others(y.double().sum(0), len(y)).tolist())
        return tuple(balanced(torch.bincount(y, minlength=shape.outputs)[None])[0].tolist())
    weights = None if isinstance(given, str) else tuple(float(weight) for weight in given)
    if weights is None or len(weights) != shape.outputs:
        each = "label" if labels else "class"
        allowed = f"should be 'balanced', 'local' or a list of {shape.outputs} numbers, one for each {each}"
        raise InputError(f"class_weights = {given!r} is not allowed: {allowed}")
    if labels and not all(0 < weight < float("inf") for weight in weights):
        raise InputError(f"class_weights = {given!r} is not allowed: should be above 0, for labels")
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise InputError(f"class_weights = {given!r} is not allowed: should be 0 or more, not all of them 0")
    return weights


def trained_on(
    weights: FixedWeights | None, data: ClientData, dtype: torch.dtype
) -> tuple[ClientData, Tensor | None]:  # fmt: skip
    """Return the points that clients train on, and the weight of each of `data.points`; None where all weigh the same.

    Labels that apply have their weight as their target.
    """
    if weights is None or data.y.ndim == 1:
        return data, _weights_of_points(weights, data, dtype)
    y = data.y[data.points].to(dtype)
    if weights == "local":
        counts = y.new_zeros(len(data), y.shape[1]).index_add_(0, data.owners, y)
        each = _against_others(counts, data.sizes[:, None]).clamp(*CLIP)[data.owners]
    else:
        each = torch.tensor(weights, dtype=dtype, device=y.device)
    targets = torch.empty_like(data.y, dtype=dtype)  # of all clients of the pool: what others have is never read
    targets[data.points] = y * each
    return replace(data, y=targets), None


def _against_others(counts: Tensor, points: Tensor | int) -> Tensor:
    """Return how many points lack a label for each that has it; 1 where all or none have it."""
    return torch.where((counts > 0) & (counts < points), (points - counts) / counts.clamp(min=1), 1.0)


def balanced(counts: Tensor) -> Tensor:
    """Return n / (C n_c) for counts n_c `[m, classes]` of C classes that there are: points weigh 1 on average."""
    there = (counts > 0).sum(1, keepdim=True)
    weights = counts.sum(1, keepdim=True).double() / (there * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 1.0)


def _weights_of_points(weights: FixedWeights | None, data: ClientData, dtype: torch.dtype) -> Tensor | None:
    if weights is None:
        return None
    y = data.y[data.points]
    if weights != "local":
        return torch.tensor(weights, dtype=dtype, device=y.device)[y]
    classes = int(y.max()) + 1 if len(y) else 1
    counts = torch.bincount(data.owners * classes + y, minlength=len(data) * classes).view(len(data), classes)
    return balanced(counts).clamp(*CLIP)[data.owners, y].to(dtype)
