"""What a round costs: gradients, evaluations and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Cost:
    """What a round cost, summed over clients."""

    gradients: int = 0  # points x epochs
    evaluations: int = 0  # points x models
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def size_of(values: Mapping[str, Tensor]) -> int:
    """Return the bytes that tensors take."""
    return sum(value.numel() * value.element_size() for value in values.values())
