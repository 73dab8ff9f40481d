"""Parts of algorithms as one would write them by hand: one client, one batch, one point at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.selection import select
from fedsoft.core.client_draws import Draws
from fedsoft.training import Run
from tests.helpers import Pairs, engine_for, federation, fitted, regression_clients

# Two clients with one feature. Client 0: y = 3x at x = 1, 2 and y = -x at x = 1; client 1: y = -x at x = 2.
TWO = [
    (torch.tensor([[1.0], [2.0], [1.0]]).double(), torch.tensor([3.0, 6.0, -1.0]).double()),
    (torch.tensor([[2.0]]).double(), torch.tensor([-2.0]).double()),
]

# Near the two sources of `regression_clients`: both centers have members.
APART = torch.tensor([[0.5, 0.0, 1.0], [0.0, -0.5, 0.5]]).double()


def of_one_source(theta: Tensor, sources: Sequence[int], sizes: Sequence[int], noise: float) -> Pairs:
    """Clients with points of one source each: y = <x, theta_s> + noise."""
    rng, pairs = np.random.default_rng(0), []
    for n, s in zip(sizes, sources, strict=True):
        x = torch.from_numpy(rng.standard_normal((n, theta.shape[1])))
        pairs.append((x, x @ theta[s] + noise * torch.from_numpy(rng.standard_normal(n))))
    return pairs


def chosen(seed: int, t: int, chances: Sequence[float], K: int, label: str = "select") -> list[int]:
    """K clients drawn in round t, each with its chance."""
    draws = Draws(seed, label, t, names=[str(k) for k in range(len(chances))])
    counts = select(torch.tensor([chances], dtype=torch.float64), K, draws, replacement=False)[0]
    return counts.nonzero().flatten().tolist()


def drawn(t: int, K: int, clients: int, seed: int = 0) -> list[int]:
    """Who is drawn in round t, all with the same chance."""
    return chosen(seed, t, [1 / clients] * clients, K)


def batches(k: int, t: int, n: int, solver: fs.SGD, seed: int = 0) -> Iterator[Tensor]:
    """The places of the n points of client k in each of its batches of round t."""
    for order in Draws(seed, "batches", t, names=[str(k)]).permutations([n], solver.epochs):
        yield from torch.from_numpy(order).split(solver.batch)


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of the mean squared error of a linear model."""
    w = w.detach().requires_grad_()
    return torch.autograd.grad(((x @ w - y) ** 2).mean(), w)[0]


def local_sgd(w: np.ndarray, pair: tuple[Tensor, Tensor], k: int, t: int, solver: fs.SGD, seed: int = 0) -> np.ndarray:
    """What client k makes of a linear model in round t."""
    x, y = (part.numpy() for part in pair)
    return sgd(w, x, y, Draws(seed, "batches", t, names=[str(k)]), solver)


def sgd(
    w: np.ndarray, x: np.ndarray, y: np.ndarray, draws: Draws, solver: fs.SGD, q: np.ndarray | None = None
) -> np.ndarray:
    """A linear model after steps down the mean over each batch of q_i times the squared error of point i."""
    q = np.ones(len(y)) if q is None else q
    for order in draws.permutations([len(y)], solver.epochs):
        for begin in range(0, len(y), solver.batch):
            i = order[begin : begin + solver.batch]
            w = w - solver.lr * 2 * (x[i].T * q[i]) @ (x[i] @ w - y[i]) / len(i)
    return w


def least_squares(pairs: Pairs) -> np.ndarray:
    """Everybody's own, `[N, P]`."""
    return np.array([np.linalg.lstsq(x.numpy(), y.numpy())[0] for x, y in pairs])


def local_training(rounds: int, K: int, solver: fs.SGD) -> Tensor:
    """Models of local training from the first center, by the clients that are drawn, through the same batches."""
    pairs = regression_clients()
    engine = engine_for(
        fs.Local(K=K, optimizer_state="fresh"), federation(pairs), fs.models.linear(), solver=solver, dtype="float64"
    )
    with torch.no_grad():
        state = engine.start()
        engine.client_states["w"] = fitted(fs.FedAvg(), pairs, 0).state.centers.repeat(len(pairs), 1)
        for t in range(rounds):
            state, _ = engine.round(state, t)
    return engine.client_states["w"]


def of_source(sources: Sequence[int]) -> set[frozenset[int]]:
    """The clients of each source."""
    return {frozenset(k for k, own in enumerate(sources) if own == j) for j in set(sources)}


def groups(run: Run) -> set[frozenset[int]]:
    """The clusters as sets of clients, whatever their numbers, of those that are in one."""
    s = run.state.per_client["s"].tolist()
    return {members for members in of_source(s) if s[min(members)] >= 0}
