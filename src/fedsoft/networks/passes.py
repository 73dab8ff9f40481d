"""A pass of a torch.nn.Module through layers that train otherwise than they predict.

Dropout draws, and BatchNorm uses the statistics of its batch. torch draws from one global stream and keeps statistics
in buffers; here draws have names (`core.draws`) and statistics are parameters of the client. So the few functions of
torch that do either are replaced while a network computes, wherever it calls them: in a layer, inside of attention or a
recurrent layer, or by `torch.nn.functional` in the user's own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsoft.core.draws import Mask
from fedsoft.errors import InputError
from fedsoft.networks.attention import NAMES
from fedsoft.networks.stacking import ATTENTION, ATTENTION_INSIDE, attention, dropout_of
from fedsoft.networks.statistics import Statistics

SELU_FLOOR = -1.7580993408473766  # where AlphaDropout puts what it drops: the limit of SELU
# Functions to refuse: none of them is ever called here.
OTHER_DRAWS: frozenset[Any] = frozenset({
    torch.bernoulli, torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.randint, torch.randint_like,
    torch.randperm, torch.normal, torch.poisson, torch.multinomial, Tensor.bernoulli, Tensor.bernoulli_,
    Tensor.exponential_, Tensor.multinomial, Tensor.normal_, Tensor.random_, Tensor.uniform_, F.gumbel_softmax,
    F.fractional_max_pool2d, F.fractional_max_pool3d,
})  # fmt: skip


class Pass(TorchFunctionMode):
    """One pass of a network.

    Arguments:
        key: names the draws of a step of training; None in prediction, where nothing is drawn.
        real: which points of the batch are the client's, `[B]`; None where all of them are.
        statistics: the running statistics of the network's layers.
    """

    def __init__(
        self, key: Tensor | None = None, real: Tensor | None = None, statistics: Statistics | None = None
    ) -> None:
        super().__init__()
        self.key, self.real, self.statistics = key, real, statistics or Statistics({})
        self.draws = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, *args, **(kwargs or {}))
        if func in OTHER_DRAWS:
            raise InputError(
                f"module: the network calls {func.__name__}(), a draw that no seed of ours controls: use dropout, or "
                "draw before training"
            )
        return func(*args, **(kwargs or {}))

    def mask(self, like: Tensor, shape: Sequence[int], p: float) -> Tensor:
        """Draw a mask of 0 and 1 / (1 - p)."""
        if self.key is None:
            raise InputError(
                "module: the network draws when it predicts: give dropout training=self.training, to turn it off then"
            )
        self.draws += 1
        return cast(Tensor, Mask.apply(self.key, self.draws, tuple(shape), float(p), like.dtype))


def _dropout(
    at: Pass, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return input * at.mask(input, input.shape, p) if training and p > 0 else input


def _plain_dropout(at: Pass, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(at, func, input, p, train)


def _channel_dropout(
    at: Pass, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drop whole channels, as dropout1d to dropout3d do."""
    if not training or p <= 0:
        return input
    one_point = (func, input.ndim) in ((F.dropout1d, 2), (F.dropout3d, 4))  # as torch reads them: without their axis
    return input * at.mask(input, _channels(input, 1 if one_point else 2), p)


def _channels(x: Tensor, axes: int = 2) -> list[int]:
    """Return the shape of one number for each channel, the last of the leading `axes`."""
    return [*x.shape[:axes], *[1] * (x.ndim - axes)]


def _alpha_dropout(
    at: Pass, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Keep mean and variance of what SELU gives (Klambauer et al., 2017)."""
    if not training or p <= 0:
        return input
    if p >= 1:
        return input * 0
    whole = func is F.alpha_dropout
    kept = at.mask(input, input.shape if whole else _channels(input), p) * (1 - p)
    a = 1 / math.sqrt((1 - p) * (1 + p * SELU_FLOOR**2))
    return a * (input * kept + SELU_FLOOR * (1 - kept)) - a * SELU_FLOOR * p


def _attention(at: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    given = {"training": True, **dict(zip(NAMES, args, strict=False)), **kwargs}
    if not (given["training"] and given["dropout_p"]):  # nothing is drawn
        return func(*args, **kwargs)
    with at:
        return ATTENTION_INSIDE(*args, **kwargs)


def _scaled_dot_product(at: Pass, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    p = dropout_of(args, kwargs)
    if p <= 0:
        return func(*args, **kwargs)
    return attention(*args, **kwargs, drop=lambda shares: shares * at.mask(shares, shares.shape, p))


def _recurrent(at: Pass, func: Any, *args: Any) -> Any:
    """Run a recurrent layer; with dropout one layer after the other, as torch would in one piece."""
    packed = isinstance(
        args[3], list | tuple
    )  # (data, batch_sizes, hx, params, ...) in place of (input, hx, params, ...)
    given, hx, params, (biases, count, p, train, both, *batch_first) = (
        args[:2], args[2], args[3], args[4:]) if packed else (args[:1], args[1], args[2], args[3:])  # fmt: skip
    if not train or p <= 0 or count == 1:
        return func(*args)
    directions, size = 1 + both, len(params) // count
    states = [tuple(h.split(directions) for h in hx)] if isinstance(hx, list | tuple) else hx.split(directions)
    out, last = given[0], []
    for layer in range(count):
        own = tuple(parts[layer] for parts in states[0]) if isinstance(hx, list | tuple) else states[layer]
        weights = params[layer * size : (layer + 1) * size]
        out, *end = func(out, *given[1:], own, weights, biases, 1, 0.0, train, both, *batch_first)
        last.append(end)
        if layer < count - 1:
            out = out * at.mask(out, out.shape, p)
    return (out, *(torch.cat(parts) for parts in zip(*last, strict=True)))


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _batch_norm(at: Pass, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    usual = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
    given = usual | dict(zip(BATCH_NORM, args, strict=False)) | kwargs
    input, running_mean, running_var, training = (
        given.pop(name) for name in ("input", "running_mean", "running_var", "training")
    )
    own, affine = at.statistics.find(running_mean), given
    if running_mean is None or running_var is None or (at.key is not None and training and own is not None):
        return at.statistics.normalised(func, input, own, at.real, affine)
    return at.statistics.predicted(func, input, running_mean, running_var, affine)


HANDLERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout, torch.dropout: _plain_dropout,
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _channel_dropout),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), _alpha_dropout),
    F.scaled_dot_product_attention: _scaled_dot_product, ATTENTION: _attention, F.batch_norm: _batch_norm,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}  # fmt: skip
