"""The paper's photographs: CIFAR-10, upright and turned."""

from __future__ import annotations

from fedsoft.data.published import published

__all__ = ["cifar10"]

# As in the paper: 20 large clients, and training images that are shifted by up to 4 pixels and mirrored (as a source
# shows them, that is after they were turned).
cifar10 = published(
    "cifar10",
    "Color photographs of CIFAR-10, 32x32, ten classes",
    clients=20,
    points=(3000, 3500),
    augment=True,
)
