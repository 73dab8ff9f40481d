"""FedSoft, Algorithm 1 of the paper, written to be read and not to be fast.

One torch.nn.Module and one torch.optim optimiser for each client, Python loops over clients, centers and points, and
the proximal term as the loss that the paper writes. The package has to give the same numbers. All that is taken from
the package are its named draws: first values, the order of points, and which clients are selected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedsoft.clusters.selection import select
from fedsoft.core.client_draws import Draws
from fedsoft.seeds import generator

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output, target) of one point to its loss."""


@dataclass(frozen=True)
class Options:
    """The letters of Algorithm 1, and the local solver."""

    S: int = 2
    K: int | Literal["all"] = "all"
    tau: int = 2
    lam: float = 1.0
    sigma: float = 1e-4
    replacement: bool = False
    start: Literal["own", "mixture"] = "own"
    optimizer_state: Literal["kept", "fresh"] = "kept"
    solver: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01
    momentum: float = 0.0
    epochs: int = 2
    batch: int = 5
    shuffle: bool = True


@dataclass(frozen=True)
class Client:
    """A client and its points."""

    name: str
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Outcome:
    """The centers c_s, the importance weights u_ks, the personal models w_k, and how many clients worked each round."""

    centers: Tensor
    u: Tensor
    personal: Tensor
    selected: list[int]


def run(
    clients: Sequence[Client],
    make: Callable[[], nn.Module],
    draw: Callable[[np.random.Generator], Tensor],
    loss: Loss,
    options: Options,
    *,
    rounds: int,
    seed: int,
) -> Outcome:
    """Algorithm 1. `make` builds the network, `draw` gives first values for its parameter vector."""
    dtype = clients[0].x.dtype
    centers = [_network(make, draw(generator(seed, "center", s)).to(dtype)) for s in range(options.S)]
    networks = [_network(make, draw(generator(seed, "client")).to(dtype)) for _ in clients]
    optimisers = [_optimiser(network, options) for network in networks]
    u = [[1 / options.S] * options.S for _ in clients]
    selected = []

    for t in range(rounds):
        if t % options.tau == 0:
            u = [estimate(client, centers, loss, options.sigma) for client in clients]
        v = aggregation_weights(u, clients)

        # share[s][k]: what the model of client k counts in the new center s
        if options.K == "all":
            share = v
        else:
            draws = Draws(seed, "select", t, names=[client.name for client in clients])
            drawn = select(torch.tensor(v, dtype=torch.float64), options.K, draws, replacement=options.replacement)
            share = [[times / options.K for times in row] for row in drawn.tolist()]
        working = [k for k in range(len(clients)) if any(share[s][k] > 0 for s in range(options.S))]
        selected.append(len(working))

        for k in working:
            if options.start == "mixture":
                mixture = torch.zeros_like(_get(networks[k]))
                for s in range(options.S):
                    mixture = mixture + u[k][s] * _get(centers[s])
                _set(networks[k], mixture)
            if options.optimizer_state == "fresh":
                optimisers[k] = _optimiser(networks[k], options)
            own = Draws(seed, "batches", t, names=[clients[k].name])
            train(clients[k], networks[k], optimisers[k], centers, u[k], loss, options, own)

        for s in range(options.S):
            new = torch.zeros_like(_get(centers[s]))
            for k in working:
                new = new + share[s][k] * _get(networks[k])
            _set(centers[s], new)

    return Outcome(
        centers=torch.stack([_get(center) for center in centers]),
        u=torch.tensor(u, dtype=dtype),
        personal=torch.stack([_get(network) for network in networks]),
        selected=selected,
    )


def estimate(client: Client, centers: Sequence[nn.Module], loss: Loss, sigma: float) -> list[float]:
    """u_ks = max(n_ks / n_k, sigma): every point is matched to the center of the smallest loss."""
    counts = [0] * len(centers)
    for i in range(len(client)):
        losses = []
        for center in centers:
            with torch.no_grad():
                losses.append(float(loss(center(client.x[i : i + 1])[0], client.y[i])))
        counts[losses.index(min(losses))] += 1
    return [max(n_ks / len(client), sigma) for n_ks in counts]


def aggregation_weights(u: Sequence[Sequence[float]], clients: Sequence[Client]) -> list[list[float]]:
    """v_sk = u_ks n_k / sum_k' u_k's n_k', eq. (5)."""
    v = []
    for s in range(len(u[0])):
        total = 0.0
        for k, client in enumerate(clients):
            total += u[k][s] * len(client)
        v.append([u[k][s] * len(client) / total for k, client in enumerate(clients)])
    return v


def train(
    client: Client,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    centers: Sequence[nn.Module],
    u: Sequence[float],
    loss: Loss,
    options: Options,
    draws: Draws,
) -> None:
    """Descend on h_k(w) = f_k(w) + lambda/2 sum_s u_ks |w - c_s|^2, batch by batch."""
    orders = np.tile(np.arange(len(client)), (options.epochs, 1))
    if options.shuffle:
        orders = draws.permutations([len(client)], options.epochs)
    for order in orders:
        for begin in range(0, len(client), options.batch):
            batch = [int(i) for i in order[begin : begin + options.batch]]
            objective = torch.zeros((), dtype=client.x.dtype)
            for i in batch:
                objective = objective + loss(network(client.x[i : i + 1])[0], client.y[i]) / len(batch)
            for s, center in enumerate(centers):
                for w, c in zip(network.parameters(), center.parameters(), strict=True):
                    objective = objective + options.lam / 2 * u[s] * ((w - c.detach()) ** 2).sum()
            optimiser.zero_grad()
            objective.backward()
            optimiser.step()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared loss of one point, from one output."""
    return ((output.flatten() - target) ** 2).sum()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of one point, from logits."""
    return nn.functional.cross_entropy(output, target)


def _optimiser(network: nn.Module, options: Options) -> torch.optim.Optimizer:
    if options.solver == "adam":
        return torch.optim.Adam(network.parameters(), lr=options.lr)
    return torch.optim.SGD(network.parameters(), lr=options.lr, momentum=options.momentum)


def _network(make: Callable[[], nn.Module], values: Tensor) -> nn.Module:
    network = make().to(values.dtype)
    _set(network, values)
    return network


def _get(network: nn.Module) -> Tensor:
    return parameters_to_vector(network.parameters()).detach().clone()


def _set(network: nn.Module, values: Tensor) -> None:
    vector_to_parameters(values.clone(), network.parameters())
