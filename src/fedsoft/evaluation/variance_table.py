"""How much of the difference between clients lies between sources, within them, and in noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fedsoft.clusters.evidence import Evidence
from fedsoft.clusters.variation import EACH
from fedsoft.core.columns import Columns
from fedsoft.core.metrics import binary_cross_entropy, cross_entropy, squared_loss
from fedsoft.core.model import Layout, Model
from fedsoft.evaluation.values import PriorSummary, VarianceRow


class Noted(Protocol):
    """A round's record, as far as the prior is concerned."""

    @property
    def evidence(self) -> Evidence | None: ...

    @property
    def variation(self) -> Sequence[Sequence[float]]: ...


def prior_summary(history: Sequence[Noted], model: Model, columns: Columns) -> PriorSummary | None:
    """Sum up the last round in which the prior was weighed; None where there is none."""
    found = next((record for record in reversed(history) if record.evidence is not None), None)
    if found is None or found.evidence is None:
        return None
    likelihood = model.loss in (cross_entropy, binary_cross_entropy)
    unit = "mse" if model.loss is squared_loss else "log loss" if likelihood else "loss"
    names = [*row_names(model.layout, columns), "all"]
    rows = [VarianceRow(name, *values) for name, values in zip(names, found.variation, strict=True)]
    return PriorSummary(found.evidence, unit, rows[-1], rows[:-1])


def row_names(layout: Layout, columns: Columns) -> list[str]:
    """Return a name for each parameter of a small model, or for each tensor of a larger one."""
    if layout.size > EACH:
        return [name for name, _, _ in layout.slices()]
    return parameter_names(layout, columns)


def parameter_names(layout: Layout, columns: Columns) -> list[str]:
    """Return a name for each parameter: in the first tensor that of the input that it weighs, where that is known.

    >>> parameter_names(Layout({"weight": (2, 2), "bias": (2,)}), Columns(features=("age", "dose")))
    ['age, 0', 'dose, 0', 'age, 1', 'dose, 1', 'bias, 0', 'bias, 1']
    """
    inputs, found = columns.attributes or columns.elements or (), list[str]()
    for i, (name, _, shape) in enumerate(layout.slices()):
        rows, width = math.prod(shape[:-1]), math.prod(shape[-1:])
        if i and len(shape) == 1:  # a bias has one number for each output
            rows, width = width, 1
        across = _each(() if i else inputs, width, name)
        outputs = _each(columns.outcomes or columns.classes or (), rows, "")
        found += [one if rows == 1 else f"{one}, {output}" for output in outputs for one in across]
    return found


def _each(names: Sequence[str], count: int, otherwise: str) -> list[str]:
    """Return one name each: those that are known, if their number is right, or numbers."""
    if len(names) == count:
        return list(names)
    return [otherwise] if count == 1 else [f"{otherwise} {i}".strip() for i in range(count)]
