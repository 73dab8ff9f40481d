"""Low-rank adapters (LoRA; Hu et al., ICLR 2022): a frozen weight W becomes W + scale B A; only A and B are trained.

B starts at 0, so that the function is unchanged. A starts the same for everybody: the mean of models with one A has the
mean of their changes, that of models with different ones has not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fedsoft.core.heads import matching
from fedsoft.errors import InputError
from fedsoft.seeds import generator

NAMES = ("lora_a", "lora_b")


class LowRank(nn.Module):
    """What the adapters share: a layer whose weight has a low-rank change beside it.

    `lora_a` is `[rank, inputs...]`, `lora_b` `[outputs, rank]`.
    """

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float
    lora_key = "weight"
    weight: Tensor

    def change(self) -> Tensor:
        """Return what is to be added to the weight."""
        return self.lora_scale * self.lora_b @ self.lora_a.flatten(1)


class LowRankLinear(LowRank, nn.Linear):
    """`nn.Linear` with an adapter: two thin products in place of a second weight."""

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(F.linear(input, self.lora_a), self.lora_b)
        return F.linear(input, self.weight, self.bias) + self.lora_scale * low


class LowRankEmbedding(LowRank, nn.Embedding):
    """`nn.Embedding` with an adapter; `lora_a` is `[rank, embeddings]`."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.Embedding.forward(self, input) + self.lora_scale * F.linear(
            F.embedding(input, self.lora_a.t(), self.padding_idx), self.lora_b
        )

    def change(self) -> Tensor:
        return self.lora_scale * (self.lora_b @ self.lora_a).t()


class _LowRankConvolution(LowRank, nn.modules.conv._ConvNd):
    """A convolution with an adapter: one of `rank` channels, then one of a single point."""

    def forward(self, input: Tensor) -> Tensor:
        convolve = self._conv_forward  # pyright: ignore[reportAttributeAccessIssue]
        low = convolve(input, self.lora_a, None)
        low = torch.einsum("or,nr...->no...", self.lora_b, low)
        return convolve(input, self.weight, self.bias) + self.lora_scale * low


class LowRankConv1d(_LowRankConvolution, nn.Conv1d):
    """`nn.Conv1d` with an adapter."""


class LowRankConv2d(_LowRankConvolution, nn.Conv2d):
    """`nn.Conv2d` with an adapter."""


class LowRankConv3d(_LowRankConvolution, nn.Conv3d):
    """`nn.Conv3d` with an adapter."""


def _sum_of(key: str) -> Any:
    """Make a weight that is the frozen one with its change added."""

    def weight(self: Any) -> Tensor:
        return self._parameters[key] + self.lora_scale * self.lora_b @ self.lora_a

    return property(weight)


class LowRankAttention(LowRank, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with an adapter of its queries, keys and values; its function takes the weight itself."""

    lora_key = "in_proj_weight"
    in_proj_weight = _sum_of("in_proj_weight")


class LowRankOutput(LowRank, NonDynamicallyQuantizableLinear):
    """The last layer of attention with an adapter."""

    weight = _sum_of("weight")


LAYERS: dict[type[nn.Module], type[LowRank]] = {
    nn.Linear: LowRankLinear, nn.Embedding: LowRankEmbedding, nn.Conv1d: LowRankConv1d, nn.Conv2d: LowRankConv2d,
    nn.Conv3d: LowRankConv3d, nn.MultiheadAttention: LowRankAttention, NonDynamicallyQuantizableLinear: LowRankOutput,
}  # fmt: skip
PLAIN = {adapted: plain for plain, adapted in LAYERS.items()}


def adapted(net: nn.Module, rank: int, alpha: float | None, targets: Sequence[str]) -> nn.Module:
    """Return a copy of a network, frozen, with adapters at the layers whose names match `targets`."""
    net = copy.deepcopy(net).requires_grad_(False)
    possible = {name: part for name, part in net.named_modules() if _takes_adapter(part)}
    chosen = {name: part for name, part in possible.items() if any(fnmatchcase(name, target) for target in targets)}
    if not chosen:
        known = f"should match some of {', '.join(possible)}" if possible else "the network has none"
        raise InputError(f"lora: targets = {list(targets)} match no layer that takes an adapter: {known}")
    for name, part in chosen.items():
        _adapt(name, part, rank, alpha)
    return net


def _takes_adapter(part: nn.Module) -> bool:
    """Return whether a layer can have an adapter: not where channels are in groups, or a norm is kept by the layer."""
    if type(part) is nn.MultiheadAttention:
        return part.in_proj_weight is not None
    return type(part) in LAYERS and getattr(part, "groups", 1) == 1 and getattr(part, "max_norm", None) is None


def _adapt(name: str, part: nn.Module, rank: int, alpha: float | None) -> None:
    layer = LAYERS[type(part)]
    weight = part.get_parameter(layer.lora_key)
    outputs, inputs = weight.shape[0], weight.shape[1:]
    if isinstance(part, nn.Embedding):
        outputs, inputs = weight.shape[1], weight.shape[:1]
    a, b = _factors(name, outputs, inputs, rank, weight)
    if isinstance(part, nn.Embedding) and part.padding_idx is not None:
        a[:, part.padding_idx] = 0  # what is padded stays as it is
    _become(part, layer)
    part.register_parameter("lora_a", nn.Parameter(a))
    part.register_parameter("lora_b", nn.Parameter(b))
    part.lora_scale = _scale(a, alpha)  # pyright: ignore[reportArgumentType]


def _become(part: nn.Module, layer: type[nn.Module]) -> None:
    """Make it a layer of the same parameters under the same names that computes a little more, or less."""
    part.__class__ = layer  # pyright: ignore[reportAttributeAccessIssue]


def _scale(a: Tensor, alpha: float | None) -> float:
    return 1.0 if alpha is None else alpha / len(a)


def _factors(name: str, outputs: int, inputs: Sequence[int], rank: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and B = 0; no larger than the smaller side of the weight."""
    size = math.prod(inputs)
    rank = min(rank, outputs, size)
    a = torch.from_numpy(generator(0, "lora", name).standard_normal((rank, *inputs)) / math.sqrt(size))
    return a.to(like), like.new_zeros(outputs, rank)


@torch.no_grad()
def merged(net: nn.Module) -> nn.Module:
    """Add all adapters of a network to its weights, in place: what is left are plain layers."""
    for part in list(net.modules()):
        if isinstance(part, LowRank):
            weight = part._parameters[part.lora_key]  # as it is, without the change
            assert weight is not None
            weight += part.change().view_as(weight)
            _become(part, PLAIN[type(part)])
            for name in (*NAMES, "lora_scale"):
                delattr(part, name)
    return net


def trained_only(net: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze all parameters but those whose names match the patterns; without patterns, change nothing."""
    if patterns:
        chosen = _matching(net, patterns)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name in chosen)


def trained_too(net: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """Unfreeze the parameters whose names match the patterns."""
    chosen = _matching(net, patterns)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or name in chosen)
    return net


def _matching(net: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Return the names of the parameters that match; raise for a pattern that matches none."""
    return matching("trainable", patterns, [name for name, _ in net.named_parameters()])
