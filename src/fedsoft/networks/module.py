"""From any torch.nn.Module to a model over a stack of clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedsoft.core.backends import ByCount, OneByOne, Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.inputs import made_up
from fedsoft.core.metrics import Goal, Metric, goal
from fedsoft.core.model import Backend, Builder, Layout, Model, Params
from fedsoft.errors import InputError
from fedsoft.networks.adapters import merged, trained_only
from fedsoft.networks.chain import as_chain
from fedsoft.networks.forwards import LoopedModule, Network, StackOfClients, UpToHead
from fedsoft.networks.inputs import Reader
from fedsoft.networks.starts import Init, start_of
from fedsoft.networks.statistics import PARTS, statistics_of
from fedsoft.networks.trial import takes_integers, try_out
from fedsoft.plugins import imported

Keep = Literal["averaged", "local"]
"""Whether statistics of batches are averaged with the weights, or kept by each client."""

Loss = Callable[[Tensor, Tensor], Tensor]
FEWEST = 3  # clients in a stack that is worth while where torch has a kernel of its own for one
TRIED = 4  # made-up points that a network is tried on where there are no others


def from_module(
    make: Callable[[], Any], loss: Literal["auto"] | Loss = "auto", init: Init = "auto", trainable: Sequence[str] = (),
    statistics: Keep = "averaged",
) -> Builder:  # fmt: skip
    """Make a model from a function that makes a `torch.nn.Module`; see `fedsoft.models.module` for the arguments."""

    def build(shape: DataShape, points: Tensor | None = None) -> Model:
        net = _made(make, trainable)
        running = statistics_of(net)
        shapes = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
        if not shapes:
            raise InputError("module: the network has no parameters to train")
        layout = Layout({**shapes, **{name: tuple(b.shape) for name, b in running.items()}})
        network = Network(net, layout, tuple(running), shape, local=statistics == "local")
        tried = made_up(shape.input, shape.fields, torch.float32, TRIED) if points is None else points
        tokens = not shape.fields and takes_integers(network, tried)
        network = replace(network, reader=Reader.of(net, shape, tokens))
        trial = try_out(network, tried)
        network = replace(network, watched=trial.watched, last=trial.last)

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
            stack = StackOfClients(network)
            training = stack.training if trial.differs else None
            backends["stacked"] = Stacked(layout, stack.predict, aim.loss, training=training)
        chains = shape.task == "classification" and network.reader.plain
        chain = as_chain(net, layout, shape.input) if chains else None
        if chain is not None:
            backends["chain"] = OneByOne(layout, chain, aim.loss, "chain")
        best = _best(net, backends)
        return Model(
            layout, start.draw, best, aim.loss, aim.predict, aim.metric, module=module, backends=backends,
            apart=start.apart, needs_step=trial.differs, statistics=sum(b.numel() for b in running.values()),
            local_statistics=statistics == "local" and bool(running), inputs=network.reader,
            latent=UpToHead(network).outputs,
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


def _best(net: nn.Module, backends: Mapping[str, Backend]) -> Backend:
    """Return the fastest on a CPU, as measured: stacked convolutions are grouped ones, which are slow."""
    if "chain" in backends:
        return backends["chain"]
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in net.modules())
    if "stacked" not in backends or convolves:
        return backends["loop"]
    # For one client or two torch's own attention and LSTM are faster.
    own = any(isinstance(part, nn.MultiheadAttention | nn.LSTM) for part in net.modules())
    return ByCount(backends["stacked"], backends["loop"], FEWEST) if own else backends["stacked"]


def _own_goal(loss: Loss, shape: DataShape) -> Goal:
    """Make a goal of the user's loss, which is given the outputs and targets of one flat batch."""

    def stacked(output: Tensor, y: Tensor) -> Tensor:
        values = loss(output.flatten(0, 1), y.flatten(0, 1))
        return values.view(y.shape[:2]) if values.numel() == y.shape[0] * y.shape[1] else values.unsqueeze(0)

    if shape.task in ("classification", "multilabel"):  # of logits: predictions are probabilities
        return replace(goal(shape.task), loss=stacked)
    return Goal(stacked, lambda output: output, Metric("loss", higher_is_better=False, per_point=stacked))
