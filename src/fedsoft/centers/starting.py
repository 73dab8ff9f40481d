"""How centers start: as first draws, or as corners of the simplex that the clients' own models lie in.

Where clients mix the same S sources, the model of a client alone is (about) the mean of the sources' models, weighted
by its shares. So the models of many clients lie in a simplex whose corners are the centers. They are found by principal
components (S - 1 of them: what lies beyond is noise) and successive projection: the client farthest from the mean is
the first corner, the one farthest from it the second, the one farthest from the line through both the third, and so on.
Single clients are noisy, and none may be pure. So from there a small simplex is fitted that holds all models.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fedsoft.centers.mixing import Participants, mean_by_size, participants
from fedsoft.contract import Ask, Memory, Reply, Site, State, job
from fedsoft.solvers.exact import Exact

First = Literal["xavier", "warm", "simplex"]
"""`xavier`: every center is a draw of its own. `simplex`: everybody trains one common draw alone for one task, and the
corners of these models are the centers. `warm`: the same, after some rounds of FedAvg on the common draw."""

FLAT = 1e-9  # a direction of less than this share of the spread is none
CLOSE = 1e-6  # outside by less than this share of the simplex is inside
TURNS, STEPS, RIDGE = 100, 10, 0.01  # of fitting a simplex; the ridge is a share of the clients of a corner


def first_state(site: Site, S: int, first: First, warm: int) -> State:
    """The centers before the first round, and how many rounds the start will take (as a negative `age`)."""
    if first == "xavier" or S == 1:
        return {"centers": torch.stack([site.draw("center", s) for s in range(S)])}
    common = site.draw("center", 0)
    return {"centers": common.repeat(S, 1), "age": torch.tensor(-1 - warm * (first == "warm"), device=common.device)}


def age_of(state: State, t: int) -> int:
    """How many rounds have been played since the start was over; negative before."""
    return int(state["age"]) if "age" in state else t


def older(state: State) -> State:
    """The entry of `state` that counts rounds, one round later."""
    return {"age": state["age"] + 1} if "age" in state else {}


def corners(gram: Tensor, S: int) -> Tensor:
    """From the inner products `gram[m, m]` of m centred models to weights `[S, m]`: corner s is their weighted sum.

    Weights may be negative, each row sums to 1: what lies beyond the first S - 1 principal components is left out. When
    there are fewer corners than S, they are used again in turn.
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
    """Successive projection: the rows of `places[m, d]` farthest from the mean, from the first, from their line, ..."""
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
    """The corners `[c, d]` of the simplex that holds the rows of `places[m, d]`, from `first[c, d]` on.

    In turns, the shares with which each row is nearest to a mixture of the corners (a few projected gradients), and the
    corners by least squares from all rows and their shares, with a little ridge towards their mean: of the simplices
    that hold the rows, a small one. Nothing is changed where `first` holds them all, as it does on a line.
    """
    c, count, m = first, len(first), len(places)
    if count == 1 or _inside(places, first):
        return c
    shares = places.new_full((m, count), 1 / count)
    ridge = RIDGE * m / count * torch.eye(count, dtype=c.dtype, device=c.device)
    for _ in range(TURNS):
        step = 1 / torch.linalg.matrix_norm(c @ c.T, 2)
        for _ in range(STEPS):
            shares = onto_simplex(shares - step * (shares @ c - places) @ c.T)
        c = torch.linalg.solve(shares.T @ shares + ridge, shares.T @ places + ridge @ c.mean(0).expand(count, -1))
    return c


def _inside(places: Tensor, c: Tensor) -> bool:
    """Whether the simplex of c = d + 1 corners holds all rows: no share of any is below 0."""
    shares = torch.linalg.solve(
        torch.cat([c.T, c.new_ones(1, len(c))]), torch.cat([places.T, c.new_ones(1, len(places))])
    )
    return bool(shares.min() > -CLOSE)


def onto_simplex(v: Tensor) -> Tensor:
    """The nearest rows that are at least 0 and sum to 1."""
    order = v.sort(dim=1, descending=True).values
    excess = (order.cumsum(1) - 1) / torch.arange(1, v.shape[1] + 1, dtype=v.dtype, device=v.device)
    last = (order > excess).sum(1, keepdim=True) - 1
    return (v - excess.gather(1, last)).clamp(min=0)


class Starts:
    """The jobs of a start, for algorithms whose `first` may be other than `xavier`."""

    @job
    def pool(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """FedAvg: from the common model, on the client's own points."""
        w, _ = site.solve(shared["center"].repeat(len(site), 1))
        return mine, {"w": w}

    @job
    def explore(self, site: Site, mine: Memory, shared: Reply) -> tuple[Memory, Reply]:
        """The client's own model: least squares where the model is linear, else one task from the common model."""
        alone = site if site.model.features is None else site.by(Exact())
        w, _ = alone.solve(shared["center"].repeat(len(site), 1), label="exploration")
        return mine | ({"w": w} if "w" in mine else {}), {"w": w}


def start(state: State, ask: Ask, K: Participants) -> tuple[State, dict[str, Any]]:
    """A round before age 0: FedAvg, and in the last one everybody's own model and the corners of them all."""
    c, last = state["centers"], int(state["age"]) == -1
    ids = ask.everyone if last else participants(ask, K if K == "all" else min(K, len(ask.sizes)))
    answer = ask("explore" if last else "pool", ids, center=c[:1])
    notes = {"selected": len(ids), "answered": len(answer.ids), "phase": "split" if last else "pooled"}
    if not last:
        return state | older(state) | {"centers": mean_by_size(ask, answer, c[:1]).repeat(len(c), 1)}, notes
    if not len(answer.ids):
        return state, notes  # once more
    w = answer.rows("w", like=c).double()
    w = w - w.mean(0)
    found = answer["w"].weighted(corners(w @ w.T, len(c)))
    return state | older(state) | {"centers": found.to(c.dtype)}, notes
