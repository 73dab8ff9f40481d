"""Updates that are far too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft.checks import settings
from fedsoft.contract import Reply
from fedsoft.trust.attack import Honest, stretched

__all__ = ["Scaled"]


@settings
class Scaled(Honest):
    """A liar sends c + factor (w - c) where it learned w from c.

    Arguments:
        share: the share of clients that lie.
        factor: how many times too long.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    factor: Annotated[float, Field(gt=0)] = 10.0

    def reply(self, reply: Reply, sent: Reply, size: int, draws: Sequence[np.random.Generator]) -> Reply:
        """Stretched from the center."""
        return stretched(reply, sent, size, self.factor)
