"""Clients that train a plain `torch.nn.Module` each, with an optimizer and a scheduler of torch: nothing of fedsoft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsoft.core.client_draws import Draws
from tests.helpers import Pairs

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Rate = Callable[[int, int, int], float]
"""(round, step of the client in it, its steps per round) to a factor of the learning rate."""


@dataclass
class NaiveClient:
    """One client: its network, its points, its optimizer, which is kept over rounds."""

    net: nn.Module
    pair: tuple[Tensor, Tensor]
    number: int
    make: Make

    def __post_init__(self) -> None:
        self.parameters = list(self.net.parameters())
        self.optimizer = self.make(self.parameters)
        self.lr = self.optimizer.param_groups[0]["lr"]

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def round(
        self, t: int, u: Tensor, centers: Tensor, *, batch: int, epochs: int, clip: float | None = None,
        rate: Rate = lambda t, step, steps: 1.0, weights: Tensor | None = None,
    ) -> None:  # fmt: skip
        x, y = self.pair
        steps, step = epochs * -(-len(y) // batch), 0
        for order in Draws(0, "batches", names=[str(self.number)]).permutations([len(y)], epochs):
            for part in torch.from_numpy(order).split(batch):

                def closure(part: Tensor = part) -> Tensor:
                    self.optimizer.zero_grad()
                    w = torch.cat([p.flatten() for p in self.parameters])
                    losses = F.cross_entropy(self.net(x[part]), y[part], reduction="none")
                    loss = (losses if weights is None else losses * weights[y[part]]).mean()
                    for s in range(len(centers)):
                        loss = loss + u[s] / 2 * ((w - centers[s]) ** 2).sum()
                    loss.backward()
                    if clip is not None:
                        nn.utils.clip_grad_norm_(self.parameters, clip)
                    return loss

                self.optimizer.param_groups[0]["lr"] = self.lr * rate(t, step, steps)
                with torch.enable_grad():
                    self.optimizer.step(closure)  # pyright: ignore[reportCallIssue, reportArgumentType]
                step += 1


def naive_clients(make_net: Callable[[], nn.Module], pairs: Pairs, w: Tensor, make: Make) -> list[NaiveClient]:
    """Clients that start at the rows of `w[m, P]`."""
    found = []
    for k, pair in enumerate(pairs):
        net = make_net().double()
        nn.utils.vector_to_parameters(w[k], net.parameters())
        found.append(NaiveClient(net, pair, k, make))
    return found
