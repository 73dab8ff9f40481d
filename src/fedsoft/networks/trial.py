"""A network is tried on a few points before it is used, to know how it can be computed and to tell what is wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsoft.core.model import Params
from fedsoft.errors import InputError
from fedsoft.networks.forwards import LoopedModule, Network, OneClient, StackOfClients
from fedsoft.networks.starts import weights_of

LEAST = 6  # points, in two batches


@dataclass(frozen=True)
class Trial:
    """What a network does with a few points: whether clients can be stacked, whether it trains otherwise than it
    predicts, whether its calls have to be watched for that (see `passes`), and whether images may lie with their
    channels last (see `channels_last`)."""

    stacks: bool
    differs: bool
    watched: bool
    last: bool


def takes_integers(network: Network, points: Tensor) -> bool:
    """Return whether integers should stay integers: where the network fails on them, they may be floats to it."""
    if points.dtype not in (torch.int32, torch.int64):
        return False
    one, params = OneClient(replace(network, watched=True)), _params(network)
    with torch.no_grad():
        try:
            one.predict(params, points.long())
        except Exception:  # a user's network may raise anything
            try:
                one.predict(params, points.float())
            except Exception:
                return True  # it is tried once more, where its error is reported
            return False
    return True


def try_out(network: Network, points: Tensor) -> Trial:
    """Try a network on points as they are kept. Packed sequences and data-dependent control flow cannot be stacked.

    Raise InputError for a network that fails on these points, or whose output cannot be used.
    """
    x = network.reader(points, torch.float32)
    x = x[torch.arange(max(LEAST, len(x))) % len(x)]
    x = x[: len(x) // 2 * 2].unflatten(0, (2, -1))
    predicted, trained = _alone(network, x, points)
    drops = any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in network.net.modules())
    differs = drops or bool(network.statistics) or not _close(trained, predicted, 1e-6)
    # In prediction layers of attention take shortcuts of their own, unless their calls are watched.
    watched = differs or any(isinstance(part, nn.MultiheadAttention) for part in network.net.modules())
    network = replace(network, watched=watched)
    stacks = _stacks(network, x, predicted, trained if differs else None)
    return Trial(stacks, differs, watched, _lies_last(network, x[0], differs))


def _params(network: Network) -> Params:
    return network.layout.unflatten(weights_of(network.net, network.layout))


def _alone(network: Network, x: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of one client for its points `x[0]`, in prediction and in a step of training."""
    one, params = OneClient(replace(network, watched=True)), _params(network)
    read = network.reader.read
    expected: Any
    try:
        with torch.no_grad():
            expected, alone, _ = (one.predict(params, read(part, torch.float32)) for part in (x[0], x[0, :1], x[1]))
            trained, _ = one.train(params, read(x[0], torch.float32), torch.tensor(0))
    except InputError:
        raise
    except Exception as error:  # a user's network may raise anything
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"module: the network fails on {len(x[0])} points of {network.reader.about(points)}: {first}"
        ) from None
    if not isinstance(expected, Tensor):
        raise InputError(f"module: the network's output is a {type(expected).__name__}, should be one tensor")
    if not _close(alone, expected[:1]):
        raise InputError(
            "module: the output for a point depends on the other points of its batch (batch statistics?): "
            "batches are padded here, so every point must be treated on its own, for instance with GroupNorm"
        )
    return expected, trained


def _stacks(network: Network, x: Tensor, predicted: Tensor, trained: Tensor | None) -> bool:
    """Return whether a stack of two clients gives the same as one alone; `trained` is None where it is as predicted."""
    stack, one = StackOfClients(network), OneClient(network)
    params = _params(network)
    both = {name: part.expand(2, *part.shape) for name, part in params.items()}
    keys, real = torch.arange(2), torch.ones(x.shape[:2], dtype=torch.bool)
    try:
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one.predict(params, network.reader.read(x[0], torch.float32))
            before = len(said)
            same = _close(stack.predict(both, x)[0], predicted)
            if trained is not None:
                same = same and _close(stack.train(both, x, keys, real)[0][0], trained)
    except Exception:
        return False
    # It warns where it would call an operation for one client after the other.
    return len(said) == before and same


def _lies_last(network: Network, x: Tensor, differs: bool) -> bool:
    """Return whether gradients are the same with channels last; a network that views images as rows fails then."""
    if not network.reader.plain or x.ndim != 4 or not any(type(part) is nn.Conv2d for part in network.net.modules()):
        return False
    w, key = weights_of(network.net, network.layout), torch.tensor(0) if differs else None
    found = []
    try:
        for last in (False, True):
            out = torch.empty_like(w)
            module = LoopedModule(replace(network, last=last))
            module.gradient(w.clone(), x, lambda output: (output + 1).sign() / output.numel(), out, key)
            found.append(out)
    except Exception:  # a user's network may raise anything
        return False
    plain, other = found
    return bool((other - plain).norm() <= 1e-4 * plain.norm())


def _close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    return bool(torch.allclose(a, b, atol=tolerance, equal_nan=True))
