"""How much of the difference between clients lies between sources, within them, and in noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedsoft.clusters.variation import EACH, Evidence
from fedsoft.core.columns import Columns
from fedsoft.core.metrics import binary_cross_entropy, cross_entropy, squared_loss
from fedsoft.core.model import Layout, Model


@dataclass(frozen=True)
class VarianceRow:
    """What differences between clients cost in loss per point, at the clients' own inputs.

    Arguments:
        name: of the parameter or tensor in which they differ.
        between: by the centers alone.
        within: around their centers.
        noise: the part of `within` that clients' own points do not tell.
    """

    name: str
    between: float
    within: float
    noise: float

    @property
    def total(self) -> float:
        return self.between + self.within

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the total: between sources, within them as far as points tell it, and noise. They add up to 1."""
        if self.total <= 0:
            return 0.0, 0.0, 0.0
        noise = min(self.noise, self.within)
        return self.between / self.total, (self.within - noise) / self.total, noise / self.total


@dataclass(frozen=True)
class PriorSummary:
    """What a learned prior says of the clients; see docs/prior.md.

    Arguments:
        evidence: how well it explains their points.
        unit: of the variances: `mse`, `log loss` or `loss`, per point.
        total: of all parameters together.
        variance: a row for each parameter, or for each tensor of a larger model, as if only that one differed. Where
            parameters vary together these do not add up to the total.
    """

    evidence: Evidence
    unit: str
    total: VarianceRow
    variance: list[VarianceRow]

    @property
    def sentences(self) -> list[str]:
        """What there is to say of it, without a full stop; nothing reads them."""
        between, within, noise = self.total.shares
        evidence = self.evidence
        less = f"{evidence.charged:.4f} less 1 for each of the {evidence.numbers} numbers of the prior"
        use = f"{less}: compare it with that of other S"
        if not evidence.tells_centers:
            use = f"of a prior with {evidence.numbers} numbers: compare other S by held-out points"
        return [
            f"clients differ by {self.total.total:.3g} in {self.unit} per point: {between:.0%} of it between sources, "
            f"{within:.0%} within them, {noise:.0%} in noise",
            f"log evidence {evidence.per_point:.4f} per point, {use}",
        ]


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
