"""Low-rank adapters of a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from fedsoft.core.heads import Patterns
from fedsoft.core.model import Builder
from fedsoft.networks.adapters import adapted, trained_too
from fedsoft.networks.module import Loss, from_module, maker
from fedsoft.plugins import CodeName
from fedsoft.settings import checked

__all__ = ["lora"]


@checked
def lora(
    factory: CodeName | nn.Module | Callable[[], Any],
    rank: Annotated[int, Field(ge=1)] = 8,
    alpha: Annotated[float, Field(gt=0)] | None = None,
    targets: Patterns = None,
    trainable: Patterns = None,
    loss: Literal["auto"] | Loss = "auto",
) -> Builder:
    """Your own network, frozen, with adapters of low rank (LoRA): only these are trained, kept, averaged and sent.

    Arguments:
        factory: the pretrained network, as in `module`.
        rank: of the change of each weight; at most the smaller side of the weight.
        alpha: scales the change by alpha / rank, default: by 1.
        targets: patterns of names of layers that get an adapter, such as `["layers.*", "head"]`: Linear, Embedding,
            Conv1d to Conv3d (without groups) and MultiheadAttention. Default: all of them.
        trainable: patterns of names of parameters that are trained in full beside the adapters, such as
            `["head.*"]`.
        loss: as in `module`.
    """
    make = maker(factory)

    def with_adapters() -> Any:
        net = make()
        if not isinstance(net, nn.Module):
            return net  # `from_module` says what is wrong with it
        return trained_too(adapted(net, rank, alpha, targets or ["*"]), trainable or [])

    return from_module(with_adapters, loss)
