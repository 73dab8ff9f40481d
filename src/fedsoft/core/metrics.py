"""What a model is trained for and judged by: losses, metrics, and one goal for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsoft.core.client_data import Task


@dataclass(frozen=True)
class Metric:
    """How well a prediction fits: a number per point, its name, and which way is better."""

    name: str
    higher_is_better: bool
    per_point: Callable[[Tensor, Tensor], Tensor]


def squared_loss(output: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of each point, `|output - y|^2`, summed over outputs where there are several."""
    error = (output - y).square()
    return error if error.ndim == 2 else error.flatten(2).sum(2)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each point, from logits `[m, B, classes]`."""
    return F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def binary_cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each point, from logits `[m, B, labels]`: the mean over its labels.

    `y` is 0 where a label does not apply, else the weight of that: 1, or another one in training (`class_weights`).
    """
    y = y.to(output.dtype)
    applies = y > 0
    weight = torch.where(applies, y, 1.0)
    return F.binary_cross_entropy_with_logits(output, applies.to(y), weight, reduction="none").mean(-1)


def _hit(prediction: Tensor, y: Tensor) -> Tensor:
    return (prediction.argmax(-1) == y).double()


def _label_hits(prediction: Tensor, y: Tensor) -> Tensor:
    return ((prediction > 0.5) == (y > 0.5)).double().mean(-1)


MSE = Metric("mse", higher_is_better=False, per_point=squared_loss)
ACCURACY = Metric("accuracy", higher_is_better=True, per_point=_hit)
LABEL_ACCURACY = Metric("accuracy", higher_is_better=True, per_point=_label_hits)


@dataclass(frozen=True)
class Goal:
    """Loss, prediction and metric belong together: one goal for each task."""

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metric: Metric


def goal(task: Task) -> Goal:
    """Return the usual goal of a task: squared loss, or cross-entropy from logits of classes or of labels."""
    if task == "regression":
        return Goal(squared_loss, lambda output: output, MSE)
    if task == "multilabel":
        return Goal(binary_cross_entropy, lambda output: output.sigmoid(), LABEL_ACCURACY)
    return Goal(cross_entropy, lambda output: output.softmax(-1), ACCURACY)
