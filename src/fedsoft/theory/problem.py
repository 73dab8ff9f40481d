"""Strongly convex problems whose constants are known, for the paper's theorems.

Plain numpy in float64, written from the paper's formulas and not from the library: it is what the library is held
against. Every problem is also a real federation, made of points whose mean loss is exactly the risk written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from fedsoft.core.backends import Stacked
from fedsoft.core.federation import DataShape, Federation
from fedsoft.core.metrics import Metric
from fedsoft.core.model import Layout, Model
from fedsoft.models.linear import linear

Array = np.ndarray


class Source(Protocol):
    """A cluster risk F_s with everything that Assumption 3 speaks of."""

    @property
    def mu(self) -> float:
        """Strong convexity mu_F."""
        ...

    @property
    def L(self) -> float:
        """Smoothness L_F."""
        ...

    @property
    def minimiser(self) -> Array:
        """c*_s, eq. (2)."""
        ...

    def value(self, w: Array) -> float:
        """F_s(w)."""
        ...

    def gradient(self, w: Array) -> Array:
        """The gradient of F_s."""
        ...

    def hessian(self, w: Array) -> Array:
        """The matrix of second derivatives of F_s."""
        ...

    def points(self) -> tuple[Array, Array]:
        """Points (x, y) whose mean loss under the model is F_s."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """F(w) = 1/2 (w - c)' A (w - c), A positive definite: mu and L are its smallest and largest eigenvalue.

    >>> Quadratic(np.diag([1.0, 4.0]), np.zeros(2)).value(np.array([2.0, 1.0]))
    4.0
    """

    A: Array
    minimiser: Array

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        values, vectors = np.linalg.eigh(self.A)
        return values, vectors

    @property
    def mu(self) -> float:
        return float(self._eigen[0][0])

    @property
    def L(self) -> float:
        return float(self._eigen[0][-1])

    def value(self, w: Array) -> float:
        return float((w - self.minimiser) @ self.A @ (w - self.minimiser) / 2)

    def gradient(self, w: Array) -> Array:
        """A (w - c)."""
        return self.A @ (w - self.minimiser)

    def hessian(self, w: Array) -> Array:
        return self.A

    def points(self) -> tuple[Array, Array]:
        """d points x_i = sqrt(d a_i / 2) q_i along the eigenvectors, y_i = <x_i, c>: their mean (<x, w> - y)^2 is F."""
        values, vectors = self._eigen
        x = np.sqrt(len(values) * values / 2)[:, None] * vectors.T
        return x, x @ self.minimiser


@dataclass(frozen=True)
class RidgeLogistic:
    """F(w) = mean log(1 + exp(-y <x, w>)) + ridge/2 |w|^2 over its points, y = -1 or 1.

    mu = ridge, L = ridge + (largest eigenvalue of X'X/n) / 4, because the slope of the sigmoid is at most 1/4.
    """

    x: Array
    y: Array
    ridge: float

    @property
    def mu(self) -> float:
        return self.ridge

    @property
    def L(self) -> float:
        """The ridge and a quarter of the largest eigenvalue of X'X/n."""
        return self.ridge + float(np.linalg.eigvalsh(self.x.T @ self.x / len(self.y))[-1]) / 4

    @property
    def minimiser(self) -> Array:
        """By Newton's method, to rounding."""
        return self._minimiser

    @cached_property
    def _minimiser(self) -> Array:
        return minimise([self], np.ones(1), 0.0, np.zeros(self.x.shape[1]))

    def value(self, w: Array) -> float:
        return float(np.logaddexp(0, -self.y * (self.x @ w)).mean() + self.ridge / 2 * (w @ w))

    def gradient(self, w: Array) -> Array:
        return -(self.x * (self.y * _sigmoid(-self.y * (self.x @ w)))[:, None]).mean(0) + self.ridge * w

    def hessian(self, w: Array) -> Array:
        p = _sigmoid(self.x @ w)
        return (self.x * (p * (1 - p))[:, None]).T @ self.x / len(self.y) + self.ridge * np.eye(len(w))

    def points(self) -> tuple[Array, Array]:
        return self.x, self.y


def _sigmoid(z: Array) -> Array:
    return np.exp(-np.logaddexp(0, -z))


def minimise(sources: Sequence[Source], weights: Array, strength: float, target: Array) -> Array:
    """The minimiser of sum_s weights_s F_s(w) + strength/2 |w|^2 - <target, w>, by Newton's method with halving."""

    def slope(w: Array) -> Array:
        return sum((a * s.gradient(w) for a, s in zip(weights, sources, strict=True)), strength * w - target)

    w = np.zeros(len(target))
    for _ in range(100):
        g = slope(w)
        H = sum((a * s.hessian(w) for a, s in zip(weights, sources, strict=True)), strength * np.eye(len(w)))
        step = np.linalg.solve(H, g)
        while np.linalg.norm(slope(w - step)) > np.linalg.norm(g) and np.linalg.norm(step) > 1e-12:
            step = step / 2
        w = w - step
        if np.linalg.norm(step) <= 1e-13 * (1 + np.linalg.norm(w)):
            break
    return w


@dataclass(frozen=True)
class Problem:
    """S sources and N clients. Client k holds `copies[k, s]` copies of the points of source s.

    So its real risk is sum_s u_ks F_s with u_ks = copies_ks / sum_s copies_ks, eq. (3), to the last digit.
    """

    sources: tuple[Source, ...]
    copies: Array

    @property
    def S(self) -> int:
        return len(self.sources)

    @property
    def N(self) -> int:
        return len(self.copies)

    @cached_property
    def u(self) -> Array:
        """The true importance weights u_ks = n_ks / n_k, `[N, S]`."""
        return self.copies / self.copies.sum(1, keepdims=True)

    @cached_property
    def n(self) -> Array:
        """n_k, the number of points of each client."""
        return self.copies.sum(1) * len(self.sources[0].points()[1])

    @cached_property
    def c_star(self) -> Array:
        """The minimisers c*_s, eq. (2), `[S, d]`."""
        return np.stack([s.minimiser for s in self.sources])

    def federation(self) -> Federation:
        """The clients as a real federation, in float64, without held-out points."""
        made = [s.points() for s in self.sources]
        clients = []
        for row in self.copies:
            x = np.concatenate([np.tile(made[s][0], (m, 1)) for s, m in enumerate(row)])
            y = np.concatenate([np.tile(made[s][1], m) for s, m in enumerate(row)])
            clients.append((x, y))
        return Federation.from_clients(clients, held_out=0.0, task="regression")

    def model(self) -> Model:
        """The library's model whose loss makes these risks."""
        d = self.c_star.shape[1]
        if isinstance(self.sources[0], RidgeLogistic):
            return logistic_model(d, self.sources[0].ridge)
        return linear()(DataShape("regression", (d,), 1))


def logistic_model(d: int, ridge: float) -> Model:
    """Ridge logistic regression as a model of the library: the ridge is part of every point's loss."""

    def forward(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        w = params["weight"]  # [m, d]
        logit = torch.bmm(x, w.unsqueeze(2)).squeeze(2)
        return torch.stack([logit, (ridge / 2 * w.square().sum(1, keepdim=True)).expand_as(logit)], 2)

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-y * output[..., 0]) + output[..., 1]

    metric = Metric("loss", higher_is_better=False, per_point=loss)
    layout = Layout({"weight": (d,)})
    backend = Stacked(layout, forward, loss)
    return Model(layout, lambda rng: torch.zeros(d), backend, loss, lambda output: output, metric)


# --- draws ------------------------------------------------------------------------------------------------------------


def rotation(d: int, rng: np.random.Generator) -> Array:
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.sign(np.diag(r))


def quadratic(spectrum: Sequence[float], minimiser: Array, rng: np.random.Generator) -> Quadratic:
    """A quadratic with this spectrum, its axes drawn."""
    q = rotation(len(spectrum), rng)
    A = (q * np.asarray(spectrum, dtype=float)) @ q.T
    return Quadratic((A + A.T) / 2, minimiser)


def draw_quadratics(
    rng: np.random.Generator, *, S: int = 2, d: int = 3, mu: float = 1.0, L: float = 4.0, distance: float = 1.0
) -> tuple[Source, ...]:
    """S quadratics with spectra in [mu, L], both ends reached, and minimisers drawn at about this distance."""
    found = []
    for _ in range(S):
        inner = rng.uniform(mu, L, max(0, d - 2))
        spectrum = [mu, *inner, L][:d] if d > 1 else [rng.choice([mu, L])]
        found.append(quadratic(spectrum, rng.standard_normal(d) * distance / np.sqrt(2 * d), rng))
    return tuple(found)


def draw_logistic(
    rng: np.random.Generator, *, S: int = 2, d: int = 3, points: int = 40, ridge: float = 0.3
) -> tuple[Source, ...]:
    """S ridge logistic regressions on standard normal points, each with labels of a direction of its own."""
    found = []
    for _ in range(S):
        x = rng.standard_normal((points, d))
        y = np.where(x @ (2 * rng.standard_normal(d)) + rng.standard_normal(points) > 0, 1.0, -1.0)
        found.append(RidgeLogistic(x, y, ridge))
    return tuple(found)


def draw_copies(rng: np.random.Generator, N: int, S: int, *, most: int = 9, soft: bool = False) -> Array:
    """How many copies of each source every client holds: 0 to `most`, or 1 to `most` where all must be `soft`."""
    copies = rng.integers(1 if soft else 0, most + 1, (N, S))
    copies[copies.sum(1) == 0, 0] = 1
    return copies


def on_a_line(*minimisers: float, curvature: Sequence[float] | float = 1.0) -> tuple[Quadratic, ...]:
    """Sources F_s(w) = a_s/2 (w - c*_s)^2 of one parameter, for examples that are recomputed by hand."""
    a = np.broadcast_to(np.asarray(curvature, dtype=float), len(minimisers))
    return tuple(Quadratic(np.array([[a[s]]]), np.array([float(c)])) for s, c in enumerate(minimisers))


def within_assumption_4(sources: Sequence[Source], alpha_0: float, rng: np.random.Generator) -> Array:
    """Centers at exactly the largest distance from their optima that Assumption 4 allows, in drawn directions."""
    c_star = np.stack([s.minimiser for s in sources])
    mu, L = min(s.mu for s in sources), max(s.L for s in sources)
    delta = min(float(np.linalg.norm(a - b)) for i, a in enumerate(c_star) for b in c_star[:i])
    direction = rng.standard_normal(c_star.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return c_star + direction * (0.5 - alpha_0) * np.sqrt(mu / L) * delta
