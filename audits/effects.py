"""What a defect does: ours with and without it, on scikit-learn's digits, upright and rotated, 10:90 (preset digits-2).

Three seeds that nothing was chosen on. The defects are written here on top of ours; nothing of other code is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import fedsoft as fs
from fedsoft.clusters.importance_weights import importance_weights
from fedsoft.core.contract import Algorithm, job
from fedsoft.core.replies import MIXTURE

SEEDS = (9001, 9002, 9003)
ROUNDS = 20
ABOUT = f"{ROUNDS} rounds, seeds {SEEDS[0]} to {SEEDS[-1]}"


def softmax_head() -> nn.Module:
    """A network whose outputs are probabilities already, as the authors' networks for digits and letters are."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10), nn.ReLU(), nn.Softmax(1))


def plain_head() -> nn.Module:
    """The same network with logits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Reversed(fs.FedSoft):
    """FedSoft that gives every point to the center with the largest loss."""

    @job(u=MIXTURE)
    def estimate(self, site: Any, mine: Any, shared: Any) -> Any:
        """Count the worst."""
        u = importance_weights(-site.losses(shared["centers"]), site.data, self.sigma, site.hidden)
        return mine | {"u": u}, {"u": u}


def centers(algorithm: Algorithm, head: Callable[[], nn.Module] = plain_head) -> str:
    """Return the accuracy of the best center, mean over both sources: mean ± standard deviation over seeds, in %."""
    return _spread([_scores(algorithm, head, seed)[0] for seed in SEEDS])


def centers_and_mixtures(algorithm: Algorithm) -> tuple[str, str]:
    """Return the same, and the mean error of the estimated mixtures in percentage points."""
    found = [_scores(algorithm, plain_head, seed) for seed in SEEDS]
    return _spread([one[0] for one in found]), _spread([one[1] for one in found])


def _scores(algorithm: Algorithm, head: Callable[[], nn.Module], seed: int) -> tuple[float, float]:
    federation = fs.datasets.digits(
        partition="10:90", rotations=[0, 90], clients=100, points=(100, 200), seed=seed
    )  # fmt: skip
    run = fs.fit(
        algorithm, federation, fs.models.module(head), rounds=ROUNDS, solver=fs.Adam(lr=2e-3, batch=10, epochs=5),
        seed=seed, options=fs.FitOptions(progress=False, score_every=ROUNDS),
    )  # fmt: skip
    scores = run.scores()
    assert scores.of_best is not None
    assert scores.recovery is not None
    return float(np.mean(scores.of_best)), scores.recovery


def _spread(values: list[float]) -> str:
    found = torch.tensor(values, dtype=torch.float64)
    return f"{100 * found.mean():.1f} ± {100 * found.std():.1f}"
