"""A torch.nn.Module with the parameters of one client put in: for `vmap`, or one client after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Layout, OuterProduct, Params
from fedsoft.machine.threads import PerThread
from fedsoft.networks.passes import Pass
from fedsoft.networks.statistics import Statistics


@dataclass(frozen=True)
class Network:
    """A network, and what its parameters are.

    Arguments:
        net: the network, never computed with itself: every thread has a copy.
        layout: what is trained, statistics last.
        statistics: the names of the statistics.
        shape: of the data.
        watched: whether its calls are to be watched for draws and statistics (see `passes`).
        local: whether clients keep their statistics to themselves.
    """

    net: nn.Module
    layout: Layout
    statistics: tuple[str, ...]
    shape: DataShape
    watched: bool = False
    local: bool = False

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

    def predict(self, params: Params, x: Tensor) -> Tensor:
        with self.network.watch(Pass(statistics=Statistics({}, local=self.network.local), stacked=True)):
            return self._call(params, x, training=False)

    def train(self, params: Params, x: Tensor, key: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs in a step of training, and the statistics after it."""
        statistics = Statistics(params, self.network.statistics, local=self.network.local)
        with self.network.watch(Pass(key, real, statistics, stacked=True)):
            out = self._call(params, x, training=True)
        return out, statistics.vector(x)

    def _call(self, params: Params, x: Tensor, *, training: bool) -> Tensor:
        net, still = self._own(next(iter(params.values())))
        if net.training != training:
            net.train(training)
        return self.network.column(functional_call(net, {**params, **still}, (x,)))

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
            for k, inputs in enumerate(x):
                net, _, _ = self._with({name: part[k] for name, part in params.items()}, x, training=False)
                with self.network.watch(Pass(statistics=Statistics({}, local=self.network.local))):
                    rows.append(self.network.column(net(inputs)))
        return torch.stack(rows)

    def gradient(
        self, w: Tensor, x: Tensor, loss_gradient: Callable[[Tensor], Tensor], out: Tensor, key: Tensor | None = None
    ) -> list[OuterProduct]:
        net, leaves, buffers = self._with(self.layout.unflatten(w), x, training=key is not None)
        statistics = Statistics(buffers, self.network.statistics, local=self.network.local)
        with torch.enable_grad(), self.network.watch(Pass(key, None, statistics)):
            output = self.network.column(net(x))
        parts = torch.autograd.grad(
            output, leaves, loss_gradient(output.detach()), allow_unused=True, materialize_grads=True
        )  # fmt: skip
        new = [statistics.vector(w)] if key is not None else [torch.zeros_like(b) for b in buffers.values()]
        torch.cat([part.reshape(-1) for part in (*parts, *new)], out=out)
        return []

    def _with(self, params: Params, x: Tensor, *, training: bool) -> tuple[nn.Module, list[Tensor], Params]:
        """Return the network of this thread with these parameters, the parameters to train, and its statistics."""
        like = next(iter(params.values()))
        kind = (like.device, like.dtype)
        if getattr(self.here, "kind", None) != kind:
            net = copy.deepcopy(self.network.net).to(*kind)
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
