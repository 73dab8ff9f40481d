"""Handwritten digits: MNIST, turned or with conflicting labels."""

from __future__ import annotations

from fedsoft.data.published import published

__all__ = ["mnist"]

mnist = published("mnist", "Handwritten digits of MNIST, 28x28, ten classes")
