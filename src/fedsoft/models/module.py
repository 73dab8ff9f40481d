"""Any torch.nn.Module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from fedsoft.core.heads import Patterns
from fedsoft.core.model import Builder
from fedsoft.networks.module import Keep, Loss, from_module, maker
from fedsoft.networks.starts import Init
from fedsoft.plugins import CodeName
from fedsoft.settings import checked

__all__ = ["module"]


@checked
def module(
    factory: CodeName | nn.Module | Callable[[], Any],
    loss: Literal["auto"] | Loss = "auto",
    init: Init = "auto",
    trainable: Patterns = None,
    statistics: Keep = "averaged",
) -> Builder:
    """Your own network.

    Arguments:
        factory: a `torch.nn.Module`, a function without arguments that makes one, or `"package.module:name"` of either.
        loss: `auto` (squared loss or cross-entropy from logits), or a function of (outputs, targets) that gives one
            number per point.
        init: where training starts. `auto` keeps what the network brings: what is the same every time it is made, as in
            a finished network or in a function that loads pretrained weights; what its constructor draws is drawn
            Xavier-normal instead, as in the paper. `own` keeps it too, and lets the constructor draw. `xavier` draws
            everything. Where nothing is drawn, the first center and all clients start exactly at the weights, further
            centers a tenth of their size beside them.
        trainable: patterns of names of parameters, such as `["head.*", "*.bias"]`. Only these are trained, kept for
            each client, averaged and sent; all others stay as the network brings them. Default: all whose
            `requires_grad` is true.
        statistics: what becomes of the running statistics of BatchNorm. `averaged`: they are averaged and sent with
            the weights, so that every center is a complete model. `local`: every client keeps its own and uses them
            with any model; they are never sent, and centers have none.
    """
    made = maker(factory)
    return from_module(made, loss, init, trainable or (), statistics)
