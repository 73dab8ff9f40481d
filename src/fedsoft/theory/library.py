"""The library's own FedSoft on these problems: what the checks put to the test."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import torch

from fedsoft.algorithms.fedsoft import FedSoft
from fedsoft.clusters.importance_weights import importance_weights
from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import State, Training
from fedsoft.core.local_solve import Solver, losses_of_all
from fedsoft.engine.local import LocalEngine
from fedsoft.machine.threads import one_thread
from fedsoft.solvers.exact import Exact
from fedsoft.solvers.sgd import SGD
from fedsoft.theory.problem import Array, Problem, RidgeLogistic
from fedsoft.theory.quantities import L_F, mu_F

NEVER = 10**9  # a tau that no run reaches: u stays as it was given


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread and no gradients, as in a run."""
    with torch.no_grad(), one_thread():
        yield


def solver_for(problem: Problem, ut: Array, lam: float) -> Solver:
    """The exact solver for quadratics; for the others as many full steps as end within 1e-12 of the minimum."""
    if not isinstance(problem.sources[0], RidgeLogistic):
        return Exact()
    rate = 1 / (L_F(problem) + lam * float(ut.sum(1).max()))
    shrink = 1 - rate * (mu_F(problem) + lam * float(ut.sum(1).min()))  # of the distance, by a step of this length
    steps = math.ceil(math.log(1e-12) / math.log(shrink)) if shrink > 0 else 1
    return SGD(lr=rate, epochs=steps, batch=int(problem.n.max()), shuffle=False)


class FixedWeights:
    """FedSoft of the library, on a problem, with importance weights that are given and not estimated."""

    def __init__(
        self, problem: Problem, ut: Array, lam: float, *, K: int | None = None, replacement: bool = True,
        seed: int = 0, solver: Solver | None = None,
    ) -> None:  # fmt: skip
        algorithm = FedSoft(
            S=problem.S, K="all" if K is None else K, lam=lam, tau=NEVER, replacement=replacement, sigma=0.0
        )
        training = Training(algorithm, problem.model(), solver or solver_for(problem, ut, lam), seed, torch.float64)
        self.engine = LocalEngine(training, problem.federation())
        self.u = torch.from_numpy(np.array(ut, dtype=np.float64))
        with quiet():
            self.engine.start()
        self.engine.client_states["u"] = self.u.clone()

    def round(self, c: Array, t: int = 1) -> Array:
        """One round from centers `c[S, d]`; t > 0 names its draws."""
        with quiet():
            state, _ = self.engine.round(State(torch.from_numpy(np.array(c)), self.u), t)
        return state.centers.numpy()

    @property
    def w(self) -> Array:
        """The clients' models, `[N, d]`."""
        return self.engine.client_states["w"].numpy()


def estimate(problem: Problem, c: Array, sigma: float) -> Array:
    """The importance weights that the library's clients report at centers c, `[N, S]`."""
    data = problem.federation().train
    with quiet():
        losses = losses_of_all(problem.model(), data, torch.from_numpy(np.array(c)))
        return importance_weights(losses, data, sigma).numpy()


def wrong_matches(problem: Problem, c: Array) -> tuple[float, float]:
    """p_epsilon of the library at centers c, and the largest variance of a point's loss there.

    The largest share, over pairs j and j', of the points of source j that are matched to center j'.
    """
    pure = Problem(problem.sources, np.eye(problem.S, dtype=np.int64))
    shares = estimate(pure, c, 0.0)
    data = pure.federation().train
    with quiet():
        losses = losses_of_all(pure.model(), data, torch.from_numpy(np.array(c)))
    mean = data.mean_by_client(losses)
    variance = data.mean_by_client(losses.square()) - mean.square()
    return float((shares - np.diag(np.diag(shares))).max()), float(variance.max())


def gaussian_clients(theta: Array, counts: Array, noise: float, rng: np.random.Generator) -> tuple[ClientData, Array]:
    """Clients with `counts[N, S]` fresh points y = <x, theta_s> + noise e each, and the source of every point."""
    origin = np.concatenate([np.repeat(np.arange(len(theta)), row) for row in counts])
    x = rng.standard_normal((len(origin), theta.shape[1]))
    y = np.einsum("nd,nd->n", x, theta[origin]) + noise * rng.standard_normal(len(origin))
    sizes = torch.from_numpy(counts.sum(1).astype(np.int64))
    return ClientData(torch.from_numpy(x), torch.from_numpy(y), torch.cumsum(sizes, 0) - sizes, sizes), origin
