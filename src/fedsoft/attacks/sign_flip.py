"""Reversed updates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsoft.core.replies import Reply
from fedsoft.safety.malicious import Attack, Draws, Kinds, stretched
from fedsoft.settings import settings

__all__ = ["SignFlip"]


@settings
class SignFlip(Attack):
    """A malicious client sends c - scale (w - c) where it trained w from c.

    Arguments:
        share: the share of clients that are malicious.
        scale: length of the reversed update, as a multiple of the true one.
    """

    scale: Annotated[float, Field(gt=0)] = 1.0

    def reply(self, reply: Reply, sent: Reply, kinds: Kinds, draws: Draws) -> Reply:
        return stretched(reply, sent, kinds, -self.scale)
