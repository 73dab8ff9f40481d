"""What looks wrong with labels, though they can be used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedsoft.core.client_data import DataShape
from fedsoft.core.columns import Columns

FEW = 20  # different whole numbers, so few that they are likely classes
SPARSE = 0.5  # of the classes, fewer of which occur where a label is likely mistyped


def coding_notices(columns: Columns) -> list[str]:
    """Return a sentence where labels are whole numbers that do not begin at 0."""
    if not columns.whole or columns.classes is None:
        return []
    first, last = columns.classes[0], columns.classes[-1]
    return [
        f"Labels are {len(columns.classes)} whole numbers from {first} to {last}: output j of a model is the j-th of "
        "them, fed.columns.classes[j]"
    ]


def label_notices(shape: DataShape, targets: Sequence[Tensor], *, task_given: bool, classes_given: bool) -> list[str]:
    """Return a sentence where a task or a number of classes was guessed, and labels suggest another one."""
    if any(y.ndim != 1 for y in targets):
        return []
    values, counts = np.unique(np.concatenate([y.numpy() for y in targets]), return_counts=True)
    if shape.task == "classification" and not classes_given and len(values) < SPARSE * shape.outputs:
        rarest = int(values[counts == counts.min()][-1])
        return [
            f"Labels go up to {shape.outputs - 1}, but only {len(values)} different ones occur (the rarest is {rarest}"
            "): models have an output for each of them; correct them, or number the classes from 0"
        ]
    if shape.task != "regression" or task_given:
        return []
    whole = values == np.round(values)
    total, odd = int(counts.sum()), int(counts[~whole].sum())
    if not 2 <= len(values[whole]) <= min(FEW, total // 10) or odd > 0.05 * total or values[whole].min(initial=0) < 0:
        return []
    but = f", but for {odd} points (the first is {float(values[~whole][0]):g})" if odd else ""
    return [
        f"Targets are floating-point numbers and taken for a regression, but they have {int(whole.sum())} different "
        f"values, all whole{but}: give task = 'classification' if they are classes, task = 'regression' if not"
    ]
