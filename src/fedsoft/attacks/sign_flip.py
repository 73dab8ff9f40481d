"""Updates that point the other way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.checks import settings
from fedsoft.contract import Reply
from fedsoft.trust.attack import Honest, stretched

__all__ = ["SignFlip"]


@settings
class SignFlip(Honest):
    """A liar sends c - scale (w - c) where it learned w from c.

    Arguments:
        share: the share of clients that lie.
        scale: how far the other way.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    scale: Annotated[float, Field(gt=0)] = 1.0

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """Mirrored at the center."""
        return stretched(reply, sent, size, -self.scale)
