"""What a malicious server reads from sums over a client's points: those of FedRoute's least squares.

A sum of x x' over one point tells that point, up to its sign. The server decides with its centers which points are
summed up: with centers 0 and θ a, the second one explains a point better if 0 < θ a.x / y < 2. So the larger θ, the
fewer points are there, and halving steps in θ finds where one of them leaves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.victim import SaysNo, Victim

POINTS, INPUTS, LEAST = 40, 20, 10
HALVINGS = 60
FEDROUTE = {"algorithms": ["fedroute"]}


class Sums:
    """A client of FedRoute with a linear model, and a server that decides which points are summed up."""

    def __init__(self, folder: Path, points: int, seed: int, policy: Mapping[str, Any]) -> None:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((points, INPUTS))
        y = x @ rng.standard_normal(INPUTS) + 0.1 * rng.standard_normal(points)
        self.x, self.questions = torch.from_numpy(x), 0
        self.direction = torch.from_numpy(rng.standard_normal(INPUTS))
        self.victim = Victim(folder, x, y, 0, {"name": "linear"}, {"bounds": {"S": (1, 2)}, **policy})

    def ask(self, theta: float | None) -> tuple[int, Tensor]:
        """How many points are told of, and the sum of their x x'; over all points without `theta`.

        Nothing (0, or not a number) is told of fewer points than the owner wants.
        """
        self.questions += 1
        c = torch.zeros(1 if theta is None else 2, INPUTS, dtype=torch.float64)
        c[-1] += (theta or 0.0) * self.direction
        shared = {"centers": c, "s2": torch.tensor(1e-12, dtype=torch.float64)}  # so little that no point is shared
        told = self.victim.ask(
            "gather", shared, experiment=f"run-{len(c)}", algorithm={"name": "fedroute", "S": len(c)}, solver="exact"
        )
        return round(float(told["n"][0, -1].nan_to_num())), told["gram"][0, -1].nan_to_num()

    def step(self, least: int) -> tuple[Tensor, Tensor] | None:
        """Sums over m + 1 and over m of the same points, m at least `least`; None where the server finds none."""
        low, high = 1e-4, 1e4
        most, at_low = self.ask(low)
        fewest, at_high = self.ask(high)
        for _ in range(HALVINGS):
            if most - fewest == 1 and fewest >= least:
                return at_low, at_high
            middle = (low * high) ** 0.5
            count, found = self.ask(middle)
            if count > least:
                low, most, at_low = middle, count, found
            else:
                high, fewest, at_high = middle, count, found
        return None


def point_in(gram: Tensor, x: Tensor) -> float:
    """The relative error of the nearest point (or its negative) in what x x' tells."""
    values, vectors = torch.linalg.eigh(gram)
    found = values[-1].clamp(min=0).sqrt() * vectors[:, -1]
    away = torch.stack([(x - found).norm(dim=1), (x + found).norm(dim=1)]) / x.norm(dim=1)
    return float(away.min())


def attack(kind: str, seed: int, policy: Mapping[str, Any]) -> tuple[float | str, int]:
    """The relative error with which a point is read, or why not; and the number of questions.

    `one`: the client has one point only. `alone`: a center is found that a single point goes to. `difference`: two sums
    are found that differ by one point.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Sums(Path(folder), 1 if kind == "one" else POINTS, seed, policy)
        try:
            if kind == "one":
                found: Tensor | None = here.ask(None)[1]
            else:
                sums = here.step(LEAST if kind == "difference" else 0)
                found = None if sums is None else sums[0] - sums[1]
        except SaysNo as no:
            return str(no), here.questions
        return "nothing sent" if found is None else point_in(found, here.x), here.questions


ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a client of 1 point; points = 1": ("one", {**FEDROUTE, "points": 1}),
    "a client of 1 point; points = 10": ("one", {**FEDROUTE, "points": LEAST}),
    "1 of 40 points alone at a center; points = 1": ("alone", {**FEDROUTE, "points": 1}),
    "1 of 40 points alone at a center; points = 10": ("alone", {**FEDROUTE, "points": LEAST}),
    "two sums that differ by 1 of 40 points; points = 10": ("difference", {**FEDROUTE, "points": LEAST}),
    "the same; algorithms as they are by default": ("difference", {}),
}
"""Attack and policy, by name."""
