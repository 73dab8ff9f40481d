"""From any torch.nn.Module to a model over a stack of clients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsoft.core.backends import OneByOne, Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.inputs import made_up
from fedsoft.core.metrics import Goal, Metric, goal
from fedsoft.core.model import Backend, Builder, Layout, Model, OuterProduct, Params
from fedsoft.errors import InputError
from fedsoft.machine.threads import PerThread
from fedsoft.networks.chain import as_chain
from fedsoft.networks.inputs import Inputs, Reader, arguments, token_errors
from fedsoft.networks.stacking import Stackable
from fedsoft.networks.starts import Init, start_of

Loss = Callable[[Tensor, Tensor], Tensor]
TRIED = 4  # made-up points that a network is tried on where there are no others


def from_module(
    make: Callable[[], Any], loss: Literal["auto"] | Loss = "auto", init: Init = "auto"
) -> Builder:  # fmt: skip
    """Make a model from a function that makes a `torch.nn.Module`; see `fedsoft.models.module` for the arguments."""

    def build(shape: DataShape, points: Tensor | None = None) -> Model:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                net = make()
            except Exception as error:  # whatever a user's function may raise
                raise InputError(f"module: factory failed: {type(error).__name__}: {error}") from None
        if not isinstance(net, nn.Module):
            raise InputError(f"module: factory made a {type(net).__name__}, should be a torch.nn.Module")
        net = copy.deepcopy(net)
        _refuse_hidden_state(net)
        layout = Layout({name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad})
        if not layout.size:
            raise InputError("module: the network has no parameters to train")
        kept = layout.flatten({name: p.detach().float() for name, p in net.named_parameters()})
        fixed_parts = {name: p.detach() for name, p in net.named_parameters() if not p.requires_grad}
        fixed_parts |= dict(net.named_buffers())

        here = PerThread()  # a call puts parameters into the network, so every thread has one of its own

        def one(params: Params, inputs: Inputs) -> Tensor:
            if not hasattr(here, "net"):
                here.net = copy.deepcopy(net)
            some, (args, named) = next(iter(params.values())), arguments(inputs)
            still = {
                name: b.to(some.device, some.dtype if b.is_floating_point() else None)
                for name, b in fixed_parts.items()
            }
            return _column(functional_call(here.net, {**params, **still}, args, named), shape)

        def stacked(params: Params, x: Tensor) -> Tensor:
            some = next(iter(params.values()))
            with Stackable(), token_errors(x):
                return vmap(one)(params, reader.read(reader.some_points(x, some), some.dtype))[:, : x.shape[1]]

        def module(params: Params) -> nn.Module:
            made = copy.deepcopy(net).to(next(iter(params.values())).dtype).eval()
            for name, parameter in made.named_parameters():  # not by its state: shared tensors have several names there
                if name in params:
                    parameter.data = params[name].clone()
            return made

        aim = goal(shape.task) if loss == "auto" else _own_goal(loss, shape)
        start = start_of(make, net, layout, init)
        tried = made_up(shape.input, shape.fields, torch.float32, TRIED) if points is None else points
        reader = Reader.of(net, shape, _takes_integers(one, layout, kept, tried))
        looped = LoopedModule(net, layout, shape, reader)
        backends: dict[str, Backend] = {"loop": OneByOne(layout, looped, aim.loss, "loop")}
        if _can_vmap(one, stacked, layout, kept, reader, reader(tried, kept.dtype)):
            backends["stacked"] = Stacked(layout, stacked, aim.loss)
        chain = as_chain(net, layout, shape.input) if shape.task == "classification" and reader.plain else None
        if chain is not None:
            backends["chain"] = OneByOne(layout, chain, aim.loss, "chain")
        best = backends[_best(net, backends)]
        return Model(
            layout, start.draw, best, aim.loss, aim.predict, aim.metric, module=module, backends=backends,
            apart=start.apart, inputs=reader,
        )  # fmt: skip

    return build


class LoopedModule:
    """A `backends.Network` that takes the parameters of one client after the other.

    Its own parameters become views of the client's, so that a step costs no more than in a plain loop.
    """

    def __init__(self, net: nn.Module, layout: Layout, shape: DataShape, reader: Reader) -> None:
        self.net, self.layout, self.shape, self.reader = net, layout, shape, reader
        self.here = PerThread()

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        rows = []
        with torch.no_grad():
            for k, inputs in enumerate(self.reader.some_points(x, next(iter(params.values())))):
                net, _ = self._with({name: part[k] for name, part in params.items()})
                rows.append(self._call(net, inputs))
        return torch.stack(rows)[:, : x.shape[1]]

    def gradient(
        self, w: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor], out: Tensor
    ) -> list[OuterProduct]:
        net, leaves = self._with(self.layout.unflatten(w))
        with torch.enable_grad():
            output = self._call(net, x)
        parts = torch.autograd.grad(
            output, leaves, loss_gradient(output.detach()), allow_unused=True, materialize_grads=True
        )  # fmt: skip
        torch.cat([part.reshape(-1) for part in parts], out=out)
        return []

    def _call(self, net: nn.Module, x: Tensor) -> Tensor:
        args, named = arguments(self.reader.read(x, self.here.leaves[0].dtype))
        with token_errors(x):
            return _column(net(*args, **named), self.shape)

    def _with(self, params: Params) -> tuple[nn.Module, list[nn.Parameter]]:
        """Return the network of this thread with these parameters, and the parameters to train."""
        some = next(iter(params.values()))
        kind = (some.device, some.dtype)
        if getattr(self.here, "kind", None) != kind:
            net = copy.deepcopy(self.net).to(*kind)
            found = dict(net.named_parameters())
            self.here.net, self.here.leaves = net, [found[name] for name in self.layout.shapes]
            self.here.kind = kind
        for leaf, name in zip(self.here.leaves, self.layout.shapes, strict=True):
            leaf.data = params[name]
        return self.here.net, self.here.leaves


def _column(out: Any, shape: DataShape) -> Any:
    """A regression head usually ends in one unit: [B, 1] for targets [B]."""
    column = isinstance(out, Tensor) and shape.task == "regression" and out.ndim == 2 and out.shape[1] == 1
    return out.squeeze(1) if column else out


def _best(net: nn.Module, backends: Container[str]) -> str:
    """Return the fastest on a CPU, as measured: stacked convolutions are grouped ones, which are slow."""
    if "chain" in backends:
        return "chain"
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in net.modules())
    return "stacked" if "stacked" in backends and not convolves else "loop"


def _refuse_hidden_state(net: nn.Module) -> None:
    """Averaging parameters must be all there is to averaging a model, and draws must come from `seeds`."""
    for name, part in net.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise InputError(
                f"module: '{name}' ({type(part).__name__}) keeps running statistics, which do not survive averaging: "
                "use GroupNorm"
            )
        chance = part.p if isinstance(part, nn.modules.dropout._DropoutNd) else getattr(part, "dropout", 0)
        if isinstance(chance, int | float) and chance > 0:
            raise InputError(
                f"module: '{name}' ({type(part).__name__}, p={chance}) draws random numbers that no seed of ours "
                "controls: set p=0; the proximal term already regularizes"
            )


def _takes_integers(one: Callable[[Params, Inputs], Any], layout: Layout, kept: Tensor, points: Tensor) -> bool:
    """Return whether integers should stay integers: where the network fails on them, they may be floats to it."""
    if points.dtype not in (torch.int32, torch.int64):
        return False
    params = layout.unflatten(kept)
    with torch.no_grad():
        try:
            one(params, points.long())
        except Exception:  # a user's network may raise anything
            try:
                one(params, points.float())
            except Exception:
                return True  # it is tried once more, where its error is reported
            return False
    return True


def _can_vmap(
    one: Callable[[Params, Inputs], Any], stacked: Callable[[Params, Tensor], Tensor], layout: Layout, kept: Tensor,
    reader: Reader, points: Tensor,
) -> bool:  # fmt: skip
    """Return whether clients can be stacked: recurrent layers and data-dependent control flow cannot be.

    Raise InputError for a network that fails on these points, or whose output cannot be used.
    """
    params = layout.unflatten(kept)
    x = points[torch.arange(max(6, len(points))) % len(points)]
    x = x[: len(x) // 2 * 2].unflatten(0, (2, -1))
    try:
        with torch.no_grad():
            expected, alone = (one(params, reader.read(part, kept.dtype)) for part in (x[0], x[0, :1]))
            one(params, reader.read(x[1], kept.dtype))
    except InputError:
        raise
    except Exception as error:  # a user's network may raise anything
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"module: the network fails on {len(x[0])} points of {reader.about(points)}: {first}"
        ) from None
    if not isinstance(expected, Tensor):
        raise InputError(f"module: the network's output is a {type(expected).__name__}, should be one tensor")
    if not torch.allclose(alone, expected[:1], atol=1e-4, equal_nan=True):
        raise InputError(
            "module: the output for a point depends on the other points of its batch (batch statistics?): "
            "batches are padded here, so every point must be treated on its own, for instance with GroupNorm"
        )
    try:
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one(params, reader.read(x[0], kept.dtype))
            before = len(said)
            found = stacked(layout.unflatten(kept.expand(2, -1)), x)[0]
    except Exception:
        return False
    # It warns where it would call an operation for one client after the other.
    return len(said) == before and bool(torch.allclose(found, expected, atol=1e-4, equal_nan=True))


def _own_goal(loss: Loss, shape: DataShape) -> Goal:
    """Make a goal of the user's loss, which is given the outputs and targets of one flat batch."""

    def stacked(output: Tensor, y: Tensor) -> Tensor:
        values = loss(output.flatten(0, 1), y.flatten(0, 1))
        return values.view(y.shape[:2]) if values.numel() == y.shape[0] * y.shape[1] else values.unsqueeze(0)

    if shape.task in ("classification", "multilabel"):  # of logits: predictions are probabilities
        return replace(goal(shape.task), loss=stacked)
    return Goal(stacked, lambda output: output, Metric("loss", higher_is_better=False, per_point=stacked))
