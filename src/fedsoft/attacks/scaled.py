"""Scaled updates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.core.replies import Reply
from fedsoft.safety.malicious import Attack, Draws, Kinds, stretched
from fedsoft.settings import settings

__all__ = ["Scaled"]


@settings
class Scaled(Attack):
    """A malicious client sends c + factor (w - c) where it trained w from c.

    Arguments:
        share: the share of clients that are malicious.
        factor: length of the update sent, as a multiple of the true one.
    """

    factor: Annotated[float, Field(gt=0)] = 10.0

    def reply(self, reply: Reply, sent: Reply, kinds: Kinds, draws: Draws) -> Reply:
        return stretched(reply, sent, kinds, self.factor)
