"""Any torch.nn.Module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from fedsoft.core.model import Builder
from fedsoft.networks.module import Loss, from_module
from fedsoft.networks.starts import Init
from fedsoft.plugins import CodeName, imported
from fedsoft.settings import checked

__all__ = ["module"]


@checked
def module(
    factory: CodeName | nn.Module | Callable[[], Any],
    loss: Literal["auto"] | Loss = "auto",
    init: Init = "auto",
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
    """
    # A name that comes with a run is imported by `plugins.build`: text that gets here was typed by the user.
    named: Any = imported(factory, allow=[factory]) if isinstance(factory, str) else factory
    if isinstance(named, nn.Module):
        finished = copy.deepcopy(named)  # what is done to it later is not ours
        return from_module(lambda: finished, loss, init)
    return from_module(named, loss, init)
