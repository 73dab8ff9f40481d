"""Gaussian noise in place of models."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsoft.core.replies import Reply
from fedsoft.safety.malicious import Attack, Draws, Kinds, reference
from fedsoft.settings import settings

__all__ = ["Gaussian"]


@settings
class Gaussian(Attack):
    """A malicious client sends c + Gaussian noise, `factor` times as long as its true update.

    Arguments:
        share: the share of clients that are malicious.
        factor: length of the noise, as a multiple of the true update.
    """

    factor: Annotated[float, Field(gt=0)] = 10.0

    def reply(self, reply: Reply, sent: Reply, kinds: Kinds, draws: Draws) -> Reply:
        false = {}
        for name in (name for name in reply if kinds[name].has_parameters):
            w = reply[name]
            center = reference(w, sent)
            noise = np.stack([draw.standard_normal(w.shape[1:]) for draw in draws])
            length = (w - center).square().mean(-1, keepdim=True).sqrt()
            false[name] = center + self.factor * length * torch.from_numpy(noise).to(w)
        return reply | false
