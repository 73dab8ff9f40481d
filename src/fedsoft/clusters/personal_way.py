"""From a center to a client's own network, along a way that points held back by clients have decided.

The personal model of a network is meant to be the mode of its posterior under w_k ~ N(c, I / strength):

    argmin n_k f_k(w) + strength / 2 |w - c|^2

A few epochs of a first-order solver end near it, not at it: iterates wander about the minimum as far as the learning
rate lets them, and their mean is closer to it than any of them. So a way is a task for each of a few strengths, each
from where the one before has ended, with a learning rate divided by its number (Robbins and Monro's steps), and the
mean of where they ended, taken times a scale:

    w_k = c + scale (mean of the w after each task - c)

Which strengths and which scale is decided by the summed loss of points that clients hold back, at several scales at
once (these are evaluations, no tasks). A scale below 1 is best where models have gone too far: the pull was too weak,
and grows. Where it is 1 the strength is right; one of 0 would leave all clients with the center.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batches import Prox
from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import Way
from fedsoft.core.local_solve import Solver, slowed
from fedsoft.core.site import Site

HELD_BACK = 0.2  # share of its points that a client does not train on where models are compared
TASKS = 8  # the most that a way has: the trial ends before, where the loss of points held back rises
SCALES = tuple(i / 8 for i in range(13))  # 0 to 1.5: where on the line through center and model losses are compared
LARGEST_FACTOR = 4.0  # by which the strength changes after one task
SLOWER, RATES = 3.0, 4  # by which the learning rate is divided while that is better, and how many are tried at most

Solve = Callable[[Tensor, Prox, int], Tensor]
"""Does a task: from models `[m, P]` under a pull, with batches that are named by the number of the task."""


def pull_to(c: Tensor, strength: float, sizes: Tensor) -> Prox:
    """Return the pull `strength / n_k` of m clients to their centers `c[m, P]`."""
    each = (strength / sizes.to(c.dtype))[:, None]
    return Prox(each, each * c)


def task_solver(solver: Solver, task: int, rate: float = 1.0) -> Solver:
    """Return the local solver for a task of a way: its steps are `rate` of the run's, and smaller as 1 / (task + 1)."""
    return slowed(solver, rate / (task + 1))


def taken(way: Way, c: Tensor, sizes: Tensor, solve: Solve) -> Tensor:
    """Return the models `[m, P]` of clients that have taken a way from `c[m, P]`."""
    w, mean = c, c
    for task, strength in enumerate(way.strengths):
        w = solve(w, pull_to(c, strength, sizes), task)
        mean = mean + (w - mean) / (task + 1)
    return c + way.scale * (mean - c)


@dataclass(frozen=True)
class Trial:
    """A way while it is looked for.

    Arguments:
        strength: of the next task.
        way: the best so far; without tasks it leaves a client with the center.
        loss: of the points held back, at its end.
    """

    strength: float
    way: Way
    loss: float
    tried: tuple[float, ...] = ()

    @staticmethod
    def begin(strength: float, rate: float = 1.0) -> Trial:
        return Trial(strength, Way((), 0.0, rate), float("inf"))

    def after(self, losses: Tensor) -> Trial:
        """Return it after one more task, with the summed losses at `SCALES` of the models that it led to."""
        scale, loss = lowest(losses)
        tried = (*self.tried, self.strength)
        factor = min(max(scale**-2 if scale > 0 else LARGEST_FACTOR, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
        way = Way(tried, scale, self.way.rate) if loss < self.loss else self.way
        return Trial(self.strength * factor, way, min(loss, self.loss), tried)

    @property
    def over(self) -> bool:
        """Whether the last task made it worse, or there were enough of them."""
        return len(self.tried) > len(self.way.strengths) or len(self.tried) >= TASKS


def lowest(losses: Tensor) -> tuple[float, float]:
    """Return the scale with the lowest loss, and that loss, from losses at `SCALES`: a parabola through three of them.

    >>> lowest((torch.tensor(SCALES) - 0.7) ** 2 + 3)[0]
    0.7
    """
    values = losses.double().tolist()
    i = min(range(len(values)), key=values.__getitem__)
    if 0 < i < len(values) - 1:
        left, here, right = values[i - 1 : i + 2]
        bend = left - 2 * here + right
        shift = (left - right) / (2 * bend) if bend > 0 else 0.0
        return round(SCALES[i] + shift * SCALES[1], 6), here - (left - right) * shift / 4
    return SCALES[i], values[i]


def hold_back(site: Site, label: str) -> tuple[Site, Site]:
    """Return the clients with the points that they train on, and with those that they hold back in this round.

    A client with one point holds back none.
    """
    data = site.data
    sizes = data.sizes.cpu().numpy()
    order = site.generators(label).permutations(sizes)[0]
    counts = np.minimum(np.maximum(1, np.round(HELD_BACK * sizes)), sizes - 1)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    back = np.zeros(len(order), dtype=bool)
    back[order[place < np.repeat(counts, sizes)]] = True
    return _with(site, data, ~back), _with(site, data, back)


def _with(site: Site, data: ClientData, chosen: np.ndarray) -> Site:
    used = torch.as_tensor(chosen, device=data.points.device)
    places, sizes = data.points[used], torch.bincount(data.owners[used], minlength=len(data))
    own = None if site.statistics is None else site.statistics.clone()  # trials leave no trace
    return replace(site, data=data.reordered(places, sizes), statistics=own)
