"""FedSoft as one would write it by hand: a module, a DataLoader and an Adam for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tests.helpers import engine_for
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

import fedsoft as fs
from fedsoft.core.contract import State
from fedsoft.core.model import Builder
from fedsoft.engine.local import LocalEngine

LAM, SIGMA, TAU = 1.0, 1e-4, 2

Loss = Callable[..., Tensor]


def squared_error(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.mse_loss(output.squeeze(1), y, reduction=reduction)


@dataclass(frozen=True)
class Work:
    """What both sides have to do: `module` and `loss` are for the loop, `model` is the same for fedsoft."""

    federation: fs.Federation
    module: Callable[[], nn.Module]
    model: Builder
    loss: Loss = nn.functional.cross_entropy
    lr: float = 1e-3
    epochs: int = 10
    batch: int = 10
    S: int = 2

    def engine(
        self, *, shuffle: bool = True, epochs: int | None = None, workers: int = 1, backend: str = "auto"
    ) -> Engine:
        """fedsoft, ready for its first round."""
        algorithm = fs.FedSoft(S=self.S, lam=LAM, tau=TAU, sigma=SIGMA)
        solver = fs.Adam(lr=self.lr, epochs=epochs or self.epochs, batch=self.batch, shuffle=shuffle)
        engine = engine_for(
            algorithm, self.federation, self.model, seed=0, solver=solver, workers=workers, backend=backend
        )
        return Engine(engine, engine.start())


@dataclass
class Engine:
    """fedsoft at work."""

    engine: LocalEngine
    state: State
    t: int = 0

    def round(self) -> None:
        self.state, _ = self.engine.round(self.state, self.t)
        self.t += 1

    def train(self, clients: list[int]) -> None:
        """The train job alone."""
        self.engine("train", self.engine.everyone[clients], centers=self.state.centers)

    def estimate(self) -> Tensor:
        """The estimate job alone, of everybody."""
        answer = self.engine("estimate", self.engine.everyone, centers=self.state.centers)
        return answer.update("u", self.state.u)

    @property
    def steps(self) -> int:
        """Client steps taken so far."""
        return int(self.engine.client_states["optimizer.steps"].sum())

    def loop(self, work: Work, *, shuffle: bool = True, tuned: bool = False) -> Loop:
        """A loop that starts from the same models."""
        return Loop(work, self.state.centers, self.engine.client_states["w"][0], shuffle=shuffle, tuned=tuned)


class Loop:
    """One client after the other. `tuned`: index batches, fused Adam, the proximal term pre-summed and added to the
    gradient; else a DataLoader, the default Adam, and the proximal term summed over centers and parameters in the loss.
    """

    def __init__(self, work: Work, centers: Tensor, start: Tensor, *, shuffle: bool, tuned: bool) -> None:
        self.work, self.shuffle, self.tuned, self.steps = work, shuffle, tuned, 0
        train = work.federation.train
        self.data = [train.client(k) for k in range(len(train))]
        self.data = [(x.float() / 255 if x.dtype == torch.uint8 else x, y) for x, y in self.data]
        self.centers = [self._module(center).eval() for center in centers]
        self.clients = [self._module(start) for _ in self.data]
        self.optimizers = [torch.optim.Adam(c.parameters(), lr=work.lr, fused=tuned) for c in self.clients]
        self.loaders = [self.loader(x, y) for x, y in self.data]
        self.u = torch.full((len(self.data), len(centers)), 1 / len(centers))

    def _module(self, vector: Tensor) -> nn.Module:
        module = self.work.module()
        put(vector, module)
        return module

    def loader(self, x: Tensor, y: Tensor) -> DataLoader:
        return DataLoader(TensorDataset(x, y), batch_size=self.work.batch, shuffle=self.shuffle)

    def rounds(self, at_once: int) -> Iterator[None]:
        """Round after round, in pieces of some clients."""
        t = 0
        while True:
            if t % TAU == 0:
                self.u = torch.stack([self.importance(k) for k in range(len(self.data))])
            for k in range(len(self.clients)):
                self.train(k, self.work.epochs)
                if (k + 1) % at_once == 0 and k + 1 < len(self.clients):
                    yield
            self.average()
            t += 1
            yield

    @torch.no_grad()
    def importance(self, k: int, in_batches: bool = False) -> Tensor:
        """The share of the client's points that each center explains best."""
        votes = torch.zeros(len(self.centers))
        for x, y in self.loaders[k] if in_batches else [self.data[k]]:
            losses = torch.stack([self.work.loss(center(x), y, reduction="none") for center in self.centers])
            votes += torch.bincount(losses.argmin(0), minlength=len(self.centers))
        return (votes / len(self.data[k][1])).clamp(min=SIGMA)

    @torch.enable_grad()
    def train(self, k: int, epochs: int) -> None:
        if not self.tuned:
            for _ in range(epochs):
                for x, y in self.loaders[k]:
                    self.step(k, x, y)
            return
        x, y = self.data[k]
        strength = LAM * float(self.u[k].sum())
        with torch.no_grad():
            mine = [LAM * self.u[k, s] * parameters_to_vector(c.parameters()) for s, c in enumerate(self.centers)]
            target = [torch.empty_like(p) for p in self.clients[k].parameters()]
            vector_to_parameters(torch.stack(mine).sum(0), target)
        for _ in range(epochs):
            order = torch.randperm(len(y)) if self.shuffle else torch.arange(len(y))
            for places in order.split(self.work.batch):
                self.tuned_step(k, x[places], y[places], strength, target)

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        client, optimizer = self.clients[k], self.optimizers[k]
        optimizer.zero_grad()
        loss = self.work.loss(client(x), y)
        for s, center in enumerate(self.centers):
            for parameter, target in zip(client.parameters(), center.parameters(), strict=True):
                loss = loss + LAM / 2 * self.u[k, s] * (parameter - target.detach()).square().sum()
        loss.backward()
        optimizer.step()
        self.steps += 1

    def tuned_step(self, k: int, x: Tensor, y: Tensor, strength: float, target: list[Tensor]) -> None:
        client, optimizer = self.clients[k], self.optimizers[k]
        optimizer.zero_grad()
        self.work.loss(client(x), y).backward()
        for parameter, pull in zip(client.parameters(), target, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=strength).sub_(pull)
        optimizer.step()
        self.steps += 1

    @torch.no_grad()
    def average(self) -> None:
        """Every center becomes the mean of the clients, weighted by v."""
        share = self.u * self.work.federation.train.sizes[:, None]
        v = share / share.sum(0)
        for s, center in enumerate(self.centers):
            mean = sum(v[k, s] * vector_of(c) for k, c in enumerate(self.clients))
            assert isinstance(mean, Tensor)
            put(mean, center)

    @torch.no_grad()
    def vectors(self, modules: list[nn.Module]) -> Tensor:
        return torch.stack([vector_of(module) for module in modules])


def vector_of(module: nn.Module) -> Tensor:
    """Parameters, and after them running statistics."""
    return torch.cat([tensor.detach().flatten() for tensor in _averaged(module)])


def put(vector: Tensor, module: nn.Module) -> None:
    parts = vector.split([tensor.numel() for tensor in _averaged(module)])
    for tensor, part in zip(_averaged(module), parts, strict=True):
        tensor.data.copy_(part.view_as(tensor))


def _averaged(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
