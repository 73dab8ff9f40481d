"""Noise in place of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsoft.checks import settings
from fedsoft.contract import Reply
from fedsoft.trust.attack import Honest, models, reference

__all__ = ["Gaussian"]


@settings
class Gaussian(Honest):
    """A liar sends c + noise, normal in every coordinate, some times as long as its true update.

    Arguments:
        share: the share of clients that lie.
        factor: how many times.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    factor: Annotated[float, Field(gt=0)] = 10.0

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """Noise around the center."""
        false = {}
        for name in models(reply, size):
            w = reply[name]
            center = reference(w, sent)
            noise = np.stack([draw.standard_normal(w.shape[1:]) for draw in draws])
            length = (w - center).square().mean(-1, keepdim=True).sqrt()
            false[name] = center + self.factor * length * torch.from_numpy(noise).to(w)
        return reply | false
