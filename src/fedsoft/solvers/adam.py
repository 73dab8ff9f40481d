"""Adam."""

from __future__ import annotations

from fedsoft.core.adam_steps import AdamSettings
from fedsoft.settings import settings

__all__ = ["Adam"]


@settings
class Adam(AdamSettings):
    """Adam (Kingma & Ba, 2015), the paper's local solver. Every client counts its own steps.

    Arguments:
        lr: learning rate.
        beta1, beta2: decay of the first and the second moment.
        eps: added to the root of the second moment.
        epochs: passes over the client's points per round.
        batch: points in a batch; the last one of an epoch may be smaller.
        shuffle: draw the order of points anew for every epoch.
        weight_decay: times w is added to the gradient (L2, coupled), after clipping; default: none. For decay that is
            decoupled from the gradient see `AdamW`.
        clip: largest norm of a client's gradient, the proximal term included; longer ones are shortened; default: any.
        schedule: of the learning rate; default: constant.
    """
