"""False mixtures, to enter one cluster."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from fedsoft.core.replies import Kind, Reply
from fedsoft.safety.malicious import Attack, Draws, Kinds, stretched
from fedsoft.settings import settings

__all__ = ["Lie"]


@settings
class Lie(Attack):
    """A malicious client claims that all its points belong to one center, and sends it reversed updates.

    Arguments:
        share: the share of clients that are malicious.
        target: the center to enter.
        scale: length of the reversed update, as a multiple of the true one; -1 for honest models.
    """

    target: Annotated[int, Field(ge=0)] = 0
    scale: Annotated[float, Field(ge=-1)] = 1.0

    def reply(self, reply: Reply, sent: Reply, kinds: Kinds, draws: Draws) -> Reply:
        false = stretched(reply, sent, kinds, -self.scale)
        for name, value in reply.items():
            if kinds[name] is Kind.MIXTURE:
                count = value.shape[1]
                false[name] = torch.eye(count).to(value)[[min(self.target, count - 1)] * len(value)]
            elif kinds[name] is Kind.CHOICE:
                count = len(sent["centers"]) if "centers" in sent else self.target + 1
                false[name] = torch.full_like(value, min(self.target, count - 1))
        return false
