"""From any torch.nn.Module to a model over a stack of clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedsoft.core.backends import OneByOne, Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.metrics import Goal, Metric, goal
from fedsoft.core.model import Backend, Builder, Layout, Model, Params, Step
from fedsoft.errors import InputError
from fedsoft.networks.adapters import merged, trained_only
from fedsoft.networks.chain import as_chain
from fedsoft.networks.forwards import LoopedModule, Network, OneClient
from fedsoft.networks.starts import Init, start_of, weights_of
from fedsoft.networks.statistics import PARTS, statistics_of
from fedsoft.plugins import imported
from fedsoft.seeds import generator

Keep = Literal["averaged", "local"]
"""Whether statistics of batches are averaged with the weights, or kept by each client."""

Loss = Callable[[Tensor, Tensor], Tensor]


def from_module(
    make: Callable[[], Any], loss: Literal["auto"] | Loss = "auto", init: Init = "auto", trainable: Sequence[str] = (),
    statistics: Keep = "averaged",
) -> Builder:  # fmt: skip
    """Make a model from a function that makes a `torch.nn.Module`; see `fedsoft.models.module` for the arguments."""

    def build(shape: DataShape) -> Model:
        net = _made(make, trainable)
        running = statistics_of(net)
        shapes = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
        if not shapes:
            raise InputError("module: the network has no parameters to train")
        layout = Layout({**shapes, **{name: tuple(b.shape) for name, b in running.items()}})
        network = Network(net, layout, tuple(running), shape, local=statistics == "local")
        trial = _try(network, shape)
        network = replace(network, watched=trial.watched)

        def module(params: Params) -> nn.Module:
            made = copy.deepcopy(net).to(next(iter(params.values())).dtype).eval()
            # Not by its state: shared tensors have several names there.
            for name, tensor in (*made.named_parameters(), *made.named_buffers()):
                if name in params:
                    variance = name in running and name.endswith(PARTS[1])
                    tensor.data = params[name].clamp(min=0) if variance else params[name].clone()
            return merged(made)

        aim = goal(shape.task) if loss == "auto" else _own_goal(loss, shape)
        start = start_of(make, net, layout, init, len(shapes))
        backends: dict[str, Backend] = {"loop": OneByOne(layout, LoopedModule(network), aim.loss, "loop")}
        if trial.stacks:
            backends["stacked"] = _stacked(network, aim.loss, trial.differs)
        chain = as_chain(net, layout, shape.input) if shape.task == "classification" else None
        if chain is not None:
            backends["chain"] = OneByOne(layout, chain, aim.loss, "chain")
        best = backends[_best(net, backends)]
        return Model(
            layout, start.draw, best, aim.loss, aim.predict, aim.metric, module=module, backends=backends,
            apart=start.apart, needs_step=trial.differs, statistics=sum(b.numel() for b in running.values()),
            local_statistics=statistics == "local" and bool(running),
        )  # fmt: skip

    return build


def maker(factory: str | nn.Module | Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes a network, given as a setting: a network, a function that makes one, or the name of either."""
    # A name that comes with a run is imported by `plugins.build`: text that gets here was typed by the user.
    named: Any = imported(factory, allow=[factory]) if isinstance(factory, str) else factory
    if not isinstance(named, nn.Module):
        return named
    finished = copy.deepcopy(named)  # what is done to it later is not ours
    return lambda: finished


def _made(make: Callable[[], Any], trainable: Sequence[str]) -> nn.Module:
    """Return a network of our own, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            net = make()
        except InputError:
            raise
        except Exception as error:  # whatever a user's function may raise
            raise InputError(f"module: factory failed: {type(error).__name__}: {error}") from None
    if not isinstance(net, nn.Module):
        raise InputError(f"module: factory made a {type(net).__name__}, should be a torch.nn.Module")
    net = copy.deepcopy(net)
    trained_only(net, trainable)
    return net


def _stacked(network: Network, loss: Loss, differs: bool) -> Stacked:
    one = OneClient(network)

    def training(params: Params, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        real = torch.arange(x.shape[1], device=x.device) < step.points[:, None]
        return vmap(one.train)(params, x, step.keys, real)

    return Stacked(network.layout, vmap(one.predict), loss, training=training if differs else None)


def _best(net: nn.Module, backends: Container[str]) -> str:
    """Return the fastest on a CPU, as measured: stacked convolutions are grouped ones, which are slow."""
    if "chain" in backends:
        return "chain"
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in net.modules())
    return "stacked" if "stacked" in backends and not convolves else "loop"


@dataclass(frozen=True)
class Trial:
    """What a network does with a few points: whether clients can be stacked, whether it trains otherwise than it
    predicts, and whether its calls have to be watched for that (see `passes`)."""

    stacks: bool
    differs: bool
    watched: bool


def _try(network: Network, shape: DataShape) -> Trial:
    """Try the network on a few points. Recurrent layers and data-dependent control flow cannot be stacked."""
    one, layout = OneClient(replace(network, watched=True)), network.layout
    kept = weights_of(network.net, layout)
    x = torch.from_numpy(generator(0, "try").standard_normal((2, 3, *shape.input))).float()
    params, keys, real = layout.unflatten(kept), torch.arange(2), torch.ones(2, 3, dtype=torch.bool)
    try:
        with torch.no_grad():
            expected, alone = one.predict(params, x[0]), one.predict(params, x[0, :1])
            trained, _ = one.train(params, x[0], keys[0])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        first = str(error).strip().splitlines()[0]
        raise InputError(f"module: the network fails on 3 points of shape {list(shape.input)}: {first}") from None
    if not isinstance(expected, Tensor):
        raise InputError(f"module: the network's output is a {type(expected).__name__}, should be one tensor")
    if not torch.allclose(alone, expected[:1], atol=1e-4):
        raise InputError(
            "module: the output for a point depends on the other points of its batch (batch statistics?): "
            "batches are padded here, so every point must be treated on its own, for instance with GroupNorm"
        )
    drops = any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in network.net.modules())
    differs = drops or bool(network.statistics) or not torch.allclose(trained, expected, atol=1e-6)
    # In prediction attention takes shortcuts that cannot be stacked, unless its calls are watched.
    watched = differs or any(isinstance(part, nn.MultiheadAttention) for part in network.net.modules())
    one = OneClient(replace(network, watched=watched))
    w = layout.unflatten(kept.expand(2, -1))
    try:
        with torch.no_grad():
            found = vmap(one.predict)(w, x)[0]
            if differs:
                stepped = vmap(one.train)(w, x, keys, real)[0][0]
                if not torch.allclose(stepped, trained, atol=1e-4):
                    return Trial(False, differs, watched)
        return Trial(bool(torch.allclose(found, expected, atol=1e-4)), differs, watched)
    except (RuntimeError, ValueError, TypeError):
        return Trial(False, differs, watched)


def _own_goal(loss: Loss, shape: DataShape) -> Goal:
    """Make a goal of the user's loss, which is given the outputs and targets of one flat batch."""

    def stacked(output: Tensor, y: Tensor) -> Tensor:
        values = loss(output.flatten(0, 1), y.flatten(0, 1))
        return values.view(y.shape[:2]) if values.numel() == y.shape[0] * y.shape[1] else values.unsqueeze(0)

    if shape.task == "classification":
        return replace(goal(shape.task), loss=stacked)
    return Goal(stacked, lambda output: output, Metric("loss", higher_is_better=False, per_point=stacked))
