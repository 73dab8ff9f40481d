"""Clothes: Fashion-MNIST, turned or with conflicting labels."""

from __future__ import annotations

from fedsoft.data.published import published

__all__ = ["fashion"]

fashion = published("fashion", "Clothes of Fashion-MNIST, 28x28, ten classes")
