"""A torch.nn.Module with the parameters of one client put in: for `vmap`, or one client after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Layout, OuterProduct, Params, Step
from fedsoft.errors import InputError
from fedsoft.machine.threads import PerThread
from fedsoft.networks.channels_last import images_last, prepare
from fedsoft.networks.inputs import Inputs, Reader, arguments, token_errors
from fedsoft.networks.passes import Pass
from fedsoft.networks.stacking import Stackable
from fedsoft.networks.statistics import Statistics


@dataclass(frozen=True)
class Network:
    """A network, and what its parameters are.

    Arguments:
        net: the network, never computed with itself: every thread has a copy.
        layout: what is trained, statistics last.
        statistics: the names of the statistics.
        shape: of the data.
        reader: from inputs as they are kept to those that the network is called with.
        watched: whether its calls are to be watched for draws and statistics (see `passes`).
        local: whether clients keep their statistics to themselves.
        last: whether images lie with their channels last where one client is computed after the other.
    """

    net: nn.Module
    layout: Layout
    statistics: tuple[str, ...]
    shape: DataShape
    reader: Reader = field(default_factory=Reader)
    watched: bool = False
    local: bool = False
    last: bool = False

    def watch(self, passing: Pass) -> AbstractContextManager[Any]:
        return passing if self.watched else nullcontext()

    def column(self, out: Any) -> Any:
        """A regression head usually ends in one unit: [B, 1] for targets [B]."""
        one = isinstance(out, Tensor) and self.shape.task == "regression" and out.ndim == 2 and out.shape[1] == 1
        return out.squeeze(1) if one else out


class OneClient:
    """One client's network as functions of its parameters, to be stacked by `vmap`."""

    def __init__(self, network: Network) -> None:
        self.network, self.here = network, PerThread()
        net, layout = network.net, network.layout
        still = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.still = {name: t.detach().clone() for name, t in still.items() if name not in layout.shapes}

    def predict(self, params: Params, inputs: Inputs) -> Tensor:
        with self.network.watch(Pass(statistics=Statistics({}, local=self.network.local))):
            return self._call(params, inputs, training=False)

    def train(self, params: Params, inputs: Inputs, key: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs in a step of training, and the statistics after it."""
        statistics = Statistics(params, self.network.statistics, local=self.network.local)
        with self.network.watch(Pass(key, real, statistics)):
            out = self._call(params, inputs, training=True)
        return out, statistics.vector(next(iter(params.values())))

    def _call(self, params: Params, inputs: Inputs, *, training: bool) -> Tensor:
        net, still = self._own(next(iter(params.values())))
        if net.training != training:
            net.train(training)
        args, named = arguments(inputs)
        return self.network.column(functional_call(net, {**params, **still}, args, named))

    def _own(self, like: Tensor) -> tuple[nn.Module, Params]:
        """Return the network of this thread, and what is not trained of it in the precision of a tensor."""
        kind = (like.device, like.dtype)
        if getattr(self.here, "kind", None) != kind:
            self.here.net, self.here.kind = copy.deepcopy(self.network.net), kind
            self.here.still = {
                name: t.to(like.device, like.dtype if t.is_floating_point() else None, copy=True)
                for name, t in self.still.items()
            }
        return self.here.net, self.here.still


class StackOfClients:
    """The networks of all clients at once, on inputs `x[m, B, ...]` as they are kept.

    `Stackable` is around `vmap` and the `Pass` of a client inside of it: a call is first seen by the pass, which draws,
    and what it calls in turn is put into a form that can be stacked.
    """

    def __init__(self, network: Network) -> None:
        self.reader, one = network.reader, OneClient(network)
        self._predict, self._train = vmap(one.predict), vmap(one.train)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        with Stackable(), token_errors(x):
            some = next(iter(params.values()))
            inputs = self.reader.read(self.reader.some_points(x, some), some.dtype)
            return self._predict(params, inputs)[:, : x.shape[1]]

    def train(self, params: Params, x: Tensor, keys: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs in a step of training of the `real[m, B]` points, and the statistics after it."""
        with Stackable(), token_errors(x):
            return self._train(params, self.reader.read(x, next(iter(params.values())).dtype), keys, real)

    def training(self, params: Params, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """See `backends.Stacked`."""
        return self.train(params, x, step.keys, torch.arange(x.shape[1], device=x.device) < step.points[:, None])


class LoopedModule:
    """A `backends.Network` that takes the parameters of one client after the other.

    Its own parameters become views of the client's, so that a step costs no more than in a plain loop.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.layout = network, network.layout
        self.here = PerThread()

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        rows = []
        with torch.no_grad():
            for k, inputs in enumerate(self.network.reader.some_points(x, next(iter(params.values())))):
                net, _, _ = self._with({name: part[k] for name, part in params.items()}, training=False)
                with self.network.watch(Pass(statistics=Statistics({}, local=self.network.local))):
                    rows.append(self._call(net, inputs))
        return torch.stack(rows)[:, : x.shape[1]]

    def gradient(
        self, w: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor], out: Tensor, key: Tensor | None = None
    ) -> list[OuterProduct]:
        net, leaves, buffers = self._with(self.layout.unflatten(w), training=key is not None)
        statistics = Statistics(buffers, self.network.statistics, local=self.network.local)
        with torch.enable_grad(), self.network.watch(Pass(key, None, statistics)):
            output = self._call(net, x)
        parts = torch.autograd.grad(
            output, leaves, loss_gradient(output.detach()), allow_unused=True, materialize_grads=True
        )  # fmt: skip
        new = [statistics.vector(w)] if key is not None else [torch.zeros_like(b) for b in buffers.values()]
        torch.cat([part.reshape(-1) for part in (*parts, *new)], out=out)
        return []

    def _call(self, net: nn.Module, x: Tensor) -> Tensor:
        args, named = arguments(self.network.reader.read(x, self.here.kind[1]))
        if self.network.last:
            args = tuple(map(images_last, args))
        with token_errors(x):
            return self.network.column(net(*args, **named))

    def _with(self, params: Params, *, training: bool) -> tuple[nn.Module, list[Tensor], Params]:
        """Return the network of this thread with these parameters, the parameters to train, and its statistics."""
        like = next(iter(params.values()))
        kind = (like.device, like.dtype)
        if getattr(self.here, "kind", None) != kind:
            net = copy.deepcopy(self.network.net).to(*kind)
            if self.network.last:
                prepare(net)
            found: Params = {**dict(net.named_parameters()), **dict(net.named_buffers())}
            self.here.net, self.here.kind = net, kind
            self.here.tensors = {name: found[name] for name in self.layout.shapes}
            self.here.buffers = {name: found[name] for name in self.network.statistics}
            self.here.leaves = [t for name, t in self.here.tensors.items() if name not in self.here.buffers]
        for name, tensor in self.here.tensors.items():
            tensor.data = params[name]
        if self.here.net.training != training:
            self.here.net.train(training)
        return self.here.net, self.here.leaves, self.here.buffers


class UpToHead(LoopedModule):
    """The same up to its last module that has parameters: its outputs are what that module is given, flattened."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        trained = [name for name in network.layout.shapes if name not in network.statistics]
        self.head = trained[-1].rpartition(".")[0]

    def _call(self, net: nn.Module, x: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def see(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append((*given, *named.values())[0])

        hook = net.get_submodule(self.head).register_forward_pre_hook(see, with_kwargs=True)
        try:
            super()._call(net, x)
        finally:
            hook.remove()
        if not seen or not isinstance(seen[-1], Tensor):
            raise InputError(f"the network's last module '{self.head}' is not called with a tensor: it has no head")
        return seen[-1].flatten(1)
