"""Initial centers: random draws, or corners of the simplex that the clients' own models lie in.

Where clients mix the same S sources, a model trained by one client alone is roughly the mean of the sources' models,
weighted by its shares. So the models of many clients lie in a simplex whose corners are the centers. They are found by
principal components (S - 1 of them: the rest is noise) and successive projection: the client farthest from the mean is
the first corner, the one farthest from it the second, the one farthest from the line through both the third, and so on.
Single clients are noisy, and perhaps none is pure. So a small simplex that holds all models is fitted from there.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fedsoft.clusters.averaging import mean_by_size
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Ask, Needs, State, job
from fedsoft.core.replies import MODEL, Answer, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.solvers.exact import Exact

First = Literal["xavier", "warm", "simplex"]
"""`xavier`: every center is an independent draw. `simplex`: every client trains one common draw alone for one task, and
the corners of these models are the centers. `warm`: the same, after some rounds of FedAvg on the common draw."""

FLAT = 1e-9  # directions with less than this share of the variance are ignored
CLOSE = 1e-6  # tolerance for points outside the simplex, as a share
ITERATIONS, STEPS, RIDGE = 100, 10, 0.01  # of fitting a simplex; the ridge is a share of the clients per corner


def first_state(site: Site, S: int, first: First, warm: int) -> State:
    """Return the centers before the first round, and how many rounds the start takes (as a negative `age`)."""
    if first == "xavier" or S == 1:
        return State(torch.stack([site.draw("center", s) for s in range(S)]))
    common = site.draw("center", 0)
    age = torch.tensor(-1 - warm * (first == "warm"), device=common.device)
    return State(common.repeat(S, 1), extra={"age": age})


def needs_of_start(first: First, S: int) -> Needs:
    """What a start has to see of replies: the corners of a simplex are found among single models."""
    return Needs.SUMS if first == "xavier" or S == 1 else Needs.MODELS


def age_of(state: State, t: int) -> int:
    """Return the rounds played since the end of the start; negative before."""
    return int(state.extra["age"]) if "age" in state.extra else t


def older(state: State) -> dict[str, Tensor]:
    """Return the entry of `state` that counts rounds, one round later."""
    return {"age": state.extra["age"] + 1} if "age" in state.extra else {}


def corners(gram: Tensor, S: int) -> Tensor:
    """Return weights `[S, m]` from inner products `gram[m, m]` of m centred models: corner s is their weighted sum.

    Weights may be negative, each row sums to 1: only the first S - 1 principal components are kept. When there are
    fewer corners than S, they are repeated.
    """
    m = len(gram)
    values, vectors = torch.linalg.eigh(gram.double())
    kept = [j for j in range(m - 1, max(-1, m - S), -1) if values[j] > FLAT * values[-1]]
    scale = values[kept].sqrt()
    places = vectors[:, kept] * scale
    found = fitted_simplex(places, places[_farthest(places, min(S, len(kept) + 1))])
    weights = 1 / m + (found / scale) @ vectors[:, kept].T
    return weights[[s % len(found) for s in range(S)]]


def _farthest(places: Tensor, count: int) -> list[int]:
    """Return the rows of `places[m, d]` farthest from the mean, from the first, from their line, ... (successive
    projection)."""
    found: list[int] = []
    rest = places
    for _ in range(count):
        found.append(int(rest.square().sum(1).argmax()))
        if len(found) == 1:
            rest = places - places[found[0]]
        else:
            along = rest[found[-1]] / rest[found[-1]].norm()
            rest = rest - (rest @ along)[:, None] * along
    return found


def fitted_simplex(places: Tensor, first: Tensor) -> Tensor:
    """Fit the corners `[c, d]` of a simplex that holds the rows of `places[m, d]`, starting from `first[c, d]`.

    Alternate between the shares that bring mixtures of the corners closest to each row (a few projected gradient steps)
    and the corners by least squares given the shares, with a small ridge towards their mean, which prefers small
    simplices. `first` is returned if it holds all rows already, as it does on a line.
    """
    c, count, m = first, len(first), len(places)
    if count == 1 or _inside(places, first):
        return c
    shares = places.new_full((m, count), 1 / count)
    ridge = RIDGE * m / count * torch.eye(count, dtype=c.dtype, device=c.device)
    for _ in range(ITERATIONS):
        step = 1 / torch.linalg.matrix_norm(c @ c.T, 2)
        for _ in range(STEPS):
            shares = onto_simplex(shares - step * (shares @ c - places) @ c.T)
        c = torch.linalg.solve(shares.T @ shares + ridge, shares.T @ places + ridge @ c.mean(0).expand(count, -1))
    return c


def _inside(places: Tensor, c: Tensor) -> bool:
    """Return whether the simplex of c = d + 1 corners holds all rows: no share is below 0."""
    shares = torch.linalg.solve(
        torch.cat([c.T, c.new_ones(1, len(c))]), torch.cat([places.T, c.new_ones(1, len(places))])
    )
    return bool(shares.min() > -CLOSE)


def onto_simplex(v: Tensor) -> Tensor:
    """Return the nearest rows that are at least 0 and sum to 1."""
    order = v.sort(dim=1, descending=True).values
    excess = (order.cumsum(1) - 1) / torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device)
    last = (order > excess).sum(1, keepdim=True) - 1
    return (v - excess.gather(1, last)).clamp(min=0)


class Starts:
    """The jobs of a start, for algorithms whose `first` may be other than `xavier`."""

    @job(w=MODEL)
    def pool(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Train from the common model on the client's own points, as in FedAvg."""
        w, _ = site.solve(shared["center"].repeat(len(site), 1))
        return mine, {"w": w}

    @job(w=MODEL)
    def explore(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Fit the client's own model: least squares if the model is linear, else one task from the common model."""
        alone = site if site.model.features is None else site.by(Exact())
        w, _ = alone.solve(shared["center"].repeat(len(site), 1), label="exploration")
        return mine | ({"w": w} if "w" in mine else {}), {"w": w}


def start(state: State, ask: Ask, K: Participants) -> tuple[State, dict[str, Any]]:
    """Play a round before age 0: FedAvg, and in the last one the clients' own models and their corners."""
    c, last = state.centers, int(state.extra["age"]) == -1
    ids = ask.everyone if last else participants(ask, K if K == "all" else min(K, len(ask.sizes)))
    answer = ask("explore" if last else "pool", ids, center=c[:1])
    notes = {"selected": len(ids), "answered": len(answer.ids), "phase": "split" if last else "pooled"}
    if not last:
        return state.update(centers=mean_by_size(ask, answer, c[:1]).repeat(len(c), 1), extra=older(state)), notes
    if not len(answer.ids):
        return state, notes  # try again in the next round
    return state.update(centers=corners_of(answer, c).to(c.dtype), extra=older(state)), notes


def corners_of(answer: Answer, c: Tensor) -> Tensor:
    """Return corners of the models `w` that clients sent, as many as there are centers `c[S, P]`, in float64."""
    w = answer.rows("w", like=c).double()
    w = w - w.mean(0)
    return answer["w"].weighted(corners(w @ w.T, len(c)))
