"""Held-out error against the number of points that a new client has, for every way to serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.errors import InputError
from fedsoft.machine.threads import one_thread
from fedsoft.onboarding.new_clients import NewClients
from fedsoft.seeds import generator

FEWEST = 5  # points
TEST_SHARE = 1 / 3  # of a new client's points
WAYS = ("center", "mixture", "personal", "alone", "best center")
AT_ONCE = 2**26  # numbers in the models that are solved together


@dataclass(frozen=True)
class Curve:
    """Held-out errors, means over new clients and repeats.

    Arguments:
        points: how many points the new client has.
        errors: for each way to serve it one value for each of `points`. `alone` trains from initial weights for as many
            rounds as the run had; `best center` is the best one on the held-out points themselves.
        new_clients, repeats: what the means are over.
    """

    metric: str
    higher_is_better: bool
    points: list[int]
    errors: dict[str, list[float]]
    new_clients: int
    repeats: int

    def to_csv(self) -> str:
        lines = [",".join(["points", *self.errors])]
        lines += [",".join([str(n), *(f"{row[i]:.6g}" for row in self.errors.values())])
                  for i, n in enumerate(self.points)]  # fmt: skip
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def counts(most: int) -> list[int]:
    """Return 5, 10, 20, 50, 100, ... and `most`.

    >>> counts(60)
    [5, 10, 20, 50, 60]
    """
    steps = (FEWEST * f * 10**e for e in range(12) for f in (1, 2, 4))
    return [*(n for n in steps if n < most), most]


def learning_curve(
    desk: NewClients, new_clients: Sequence[tuple[Tensor, Tensor]], *, rounds: int, repeats: int = 10,
    on_step: Callable[[int, int], object] = max,
) -> Curve:  # fmt: skip
    """Hold out a third of the points of every new client, and serve it with 5, 10, 20, ... of the others.

    Calls `on_step(done, total)`.
    """
    least = min(len(y) for _, y in new_clients)
    if (pool := least - int(np.ceil(least * TEST_SHARE))) < FEWEST:
        raise InputError(f"a curve needs new clients with at least 8 points each, one has {least}")
    wanted = counts(pool)
    sums = {way: np.zeros(len(wanted)) for way in WAYS}
    total = len(wanted) * len(new_clients) * repeats
    with torch.no_grad(), one_thread():
        for k, (x, y) in enumerate(new_clients):
            cut = int(np.ceil(len(y) * TEST_SHARE))
            order = torch.from_numpy(generator(desk.seed, "curve", k).permutation(len(y)))
            test, rest = (x[order[:cut]], y[order[:cut]]), order[cut:]
            best = _best(desk, [_score(desk, Ensemble.single(desk.model, c), *test) for c in desk.centers])
            for i, n in enumerate(wanted):
                drawn = [rest[torch.from_numpy(generator(desk.seed, "subset", k, n, r).permutation(len(rest))[:n])]
                         for r in range(repeats)]  # fmt: skip
                for part in _groups(drawn, desk.model.size):
                    for way, value in _serve(desk, [(x[rows], y[rows]) for rows in part], test, rounds):
                        sums[way][i] += value
                sums["best center"][i] += best * repeats
                on_step((k * len(wanted) + i + 1) * repeats, total)
    mean = {way: (row / len(new_clients) / repeats).tolist() for way, row in sums.items()}
    metric = desk.model.metric
    return Curve(metric.name, metric.higher_is_better, wanted, mean, len(new_clients), repeats)


def _groups(rows: list[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield groups whose models fit into memory together."""
    count = max(1, AT_ONCE // size // 8)
    yield from (rows[i : i + count] for i in range(0, len(rows), count))


def _best(desk: NewClients, values: list[float]) -> float:
    return max(values) if desk.model.metric.higher_is_better else min(values)


def _score(desk: NewClients, ensemble: Ensemble, x: Tensor, y: Tensor) -> float:
    data = desk.points([(x, y)])
    return float(desk.model.metric.per_point(ensemble.predict(data.x)[None], data.y[None]).double().mean())


def _serve(
    desk: NewClients, pairs: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor], rounds: int
) -> Iterator[tuple[str, float]]:
    """Yield held-out errors of every new client for every way to serve it."""
    data, model = desk.points(pairs), desk.model
    losses, _, u = desk.explain(data)
    best = desk.centers[data.mean_by_client(losses).argmin(1)]
    names = [str(k) for k in range(len(data))]
    personal = desk.personal(data, u, best, names)
    w, kept = model.draw(generator(desk.seed, "alone")).to(best).repeat(len(data), 1), None
    for t in range(max(1, rounds)):
        w, kept = desk.solve(data, w, None, names, "alone", t, optimizer_state=kept, t=t)
    for k in range(len(data)):
        yield "center", _score(desk, Ensemble.single(model, best[k]), *test)
        yield "mixture", _score(desk, Ensemble(model, desk.centers, u[k].to(best)), *test)
        yield "personal", _score(desk, Ensemble.of(model, personal, k), *test)
        yield "alone", _score(desk, Ensemble.single(model, w[k]), *test)
