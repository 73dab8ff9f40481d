"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedsoft.core.adam_steps import AdamSettings
from fedsoft.settings import settings

__all__ = ["AdamW"]


@settings
class AdamW(AdamSettings):
    """Adam with weight decay apart from the gradient (Loshchilov & Hutter, 2019): `w = (1 - lr weight_decay) w` before
    each step, with the scheduled rate. Settings mean what they do in `torch.optim.AdamW`.

    Arguments:
        lr: learning rate.
        beta1, beta2: decay of the first and the second moment.
        eps: added to the root of the second moment.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
        weight_decay: what decays in each step, times the learning rate.
        clip: largest norm of a client's gradient, the proximal term included; longer ones are shortened; default: any.
        schedule: of the learning rate; default: constant.
    """

    decoupled: ClassVar[bool] = True

    weight_decay: Annotated[float, Field(ge=0)] | None = 0.01
