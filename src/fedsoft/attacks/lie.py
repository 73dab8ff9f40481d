"""Lies about the mixture, to enter one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsoft.checks import settings
from fedsoft.contract import Reply
from fedsoft.trust.attack import MIXTURES, Honest, stretched

__all__ = ["Lie"]


@settings
class Lie(Honest):
    """A liar says that all its points belong to one center, and sends that center updates that point the other way.

    Arguments:
        share: the share of clients that lie.
        target: the center to enter.
        scale: how far the other way; -1 for honest models.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    target: Annotated[int, Field(ge=0)] = 0
    scale: Annotated[float, Field(ge=-1)] = 1.0

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """The false mixture or choice, and the mirrored model."""
        told = stretched(reply, sent, size, -self.scale)
        for name in MIXTURES:
            if name in told:
                count = told[name].shape[1]
                told[name] = torch.eye(count).to(told[name])[[min(self.target, count - 1)] * len(told[name])]
        if "s" in told and not told["s"].is_floating_point():
            count = len(sent["centers"]) if "centers" in sent else self.target + 1
            told["s"] = torch.full_like(told["s"], min(self.target, count - 1))
        return told
