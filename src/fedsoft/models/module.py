"""Any torch.nn.Module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from fedsoft.checks import checked
from fedsoft.errors import InputError
from fedsoft.model import Builder
from fedsoft.networks.module import Loss, from_module

__all__ = ["module"]


@checked
def module(
    factory: str | nn.Module | Callable[[], Any],
    loss: Literal["auto"] | Loss = "auto",
    init: Literal["xavier", "own"] = "xavier",
) -> Builder:
    """Your own network.

    Arguments:
        factory: a `torch.nn.Module`, a function without arguments that makes one, or `"package.module:name"` of either.
        loss: `auto` (squared loss or cross-entropy from logits), or a function of (outputs, targets) that gives one
            number per point.
        init: `xavier` draws weights Xavier-normal as in the paper; `own` keeps what the network's own constructor does
            (needs a function that makes one).
    """
    named: Any = _imported(factory) if isinstance(factory, str) else factory
    if isinstance(named, nn.Module) and init == "own":
        raise InputError("module: init = 'own' needs a function that makes the network, not a finished one")
    return from_module((lambda: named) if isinstance(named, nn.Module) else named, loss, init)


def _imported(path: str) -> Any:
    name, _, attribute = path.partition(":")
    if not attribute:
        raise InputError(f"module: factory = '{path}' is not allowed: should be 'package.module:name'")
    try:
        return getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"module: factory = '{path}' cannot be imported: {error}") from None
