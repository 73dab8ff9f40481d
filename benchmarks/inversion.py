"""What a malicious server reads from one client: its points, from the model that it trained or from sums over them.

Trap weights (Fowl et al. 2022, "Robbing the Fed"): the rows of the first layer are one direction a, its biases cut the
inputs into slices along a, and all hidden units count alike. The gradient of unit i is a sum over the points beyond cut
i, weighted by how much their loss pulls; the difference of two neighbours is that sum over one slice, and divided by
the same difference of the biases' gradients it is the mean of the slice: where there is one point in it, that point.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.victim import SaysNo, Victim, points_of
from fedsoft.core.model import Model
from fedsoft.safety.privacy import noise_for
from fedsoft.seeds import generator

POINTS, HIDDEN, PUBLIC = 40, 64, 1000
CLOSE = 1e-2  # a relative error below this is a point that was read
DELTA = 1e-5
CLASSES = {"normal": 2, "digits": 10}
LR = 1e-7  # nothing moves: gradients of all steps are those of the trap


@dataclass(frozen=True)
class Protection:
    """What stands between a server and a client's points.

    Arguments:
        policy: of the node's owner.
        algorithm, solver, privacy: what the server then asks for, so that it is not refused.
        scale: of the first layer of the trap. The smaller, the more of the update is about points; the larger, the less
            steps change what the next ones see.
        pulled: whether a trap has to be asked for twice, the first time to pull the client's own model there.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)
    algorithm: Mapping[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    solver: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] | None = None
    scale: float = 1e-4
    pulled: bool = False

    @property
    def run(self) -> dict[str, Any]:
        """For `Victim.ask`."""
        solver = {"name": "sgd", "lr": LR, "epochs": 1, "batch": POINTS, **self.solver}
        return {"algorithm": dict(self.algorithm), "solver": solver} | (
            {"privacy": dict(self.privacy)} if self.privacy else {}
        )


def noisy(epsilon: float) -> Protection:
    """Noise of the client on its model, and a learning rate with which its update is as long as clipping allows."""
    noise = noise_for(epsilon, DELTA, 1)
    return Protection(
        {"privacy": {"update_noise": noise}}, solver={"lr": 1e3}, privacy={"update_clip": 1.0, "update_noise": noise}
    )


def soft(**settings: Any) -> dict[str, Any]:
    return {"name": "fedsoft", "S": 1, "start": "mixture", **settings}


SMALL = {"epochs": (5, 200), "batch": (1, 8)}
PROTECTIONS: dict[str, Callable[[], Protection]] = {
    "none": Protection,
    "FedSoft, λ = 1, from the mixture": lambda: Protection(algorithm=soft(lam=1.0)),
    "FedSoft, λ = 1, from its own model": lambda: Protection(algorithm=soft(start="own", lam=1.0)),
    "FedSoft, λ = 1/lr, from its own model, each trap twice": lambda: Protection(
        algorithm=soft(start="own", lam=1 / LR), pulled=True
    ),
    "bounds: epochs ≥ 5, batch ≤ 8": lambda: Protection({"bounds": SMALL}, solver={"epochs": 5, "batch": 8}),
    "bounds: epochs ≥ 5, batch ≤ 8, lr ≥ 0.01": lambda: Protection(
        {"bounds": SMALL | {"lr": (0.01, 1.0)}}, solver={"epochs": 5, "batch": 8, "lr": 0.01}, scale=0.03
    ),
    "noise on counts, ε = 1": lambda: Protection(
        {"privacy": {"counts": noise_for(1.0, DELTA, 1)}}, soft(), privacy={"counts": noise_for(1.0, DELTA, 1)}
    ),
    "noise on models, ε = 1000": lambda: noisy(1000.0),
    "noise on models, ε = 100": lambda: noisy(100.0),
    "noise on models, ε = 10": lambda: noisy(10.0),
}
"""By name; epsilons are those of one message."""


def trap(model: Model, direction: Tensor, cuts: Tensor, scale: float = 1e-4, pull: float = 1.0) -> Tensor:
    """A center `[1, P]` whose hidden units see the same direction, beyond cuts that rise.

    The smaller `scale` is, the less does a unit say, and the larger `pull`, the more do points pull at it.
    """
    shapes = model.layout.shapes
    (hidden, _), (outputs, _) = shapes["0.weight"], shapes["1.weight"]
    classes = pull * torch.arange(1, outputs + 1, dtype=torch.float64).sqrt()  # none pulls as much as their mean
    return model.layout.flatten({
        "0.weight": scale * direction.expand(hidden, -1), "0.bias": -scale * cuts,
        "1.weight": classes[:, None].expand(-1, hidden), "1.bias": torch.zeros(outputs, dtype=torch.float64),
    })[None]  # fmt: skip


def read(model: Model, update: Tensor) -> Tensor:
    """The means of all slices that hold a point, `[slices, inputs]`, from what a client's model differs by."""
    parts = model.layout.unflatten(update)
    weight, bias = parts["0.weight"], parts["0.bias"]
    weight = weight - torch.cat([weight[1:], torch.zeros_like(weight[:1])])
    bias = bias - torch.cat([bias[1:], torch.zeros_like(bias[:1])])
    full = bias.abs() > 1e-6 * bias.abs().max()
    return weight[full] / bias[full, None]


def errors(found: Tensor, x: Tensor) -> Tensor:
    """The relative error of each point `[n]` in the nearest of those that were found."""
    if not len(found):
        return torch.full((len(x),), torch.inf, dtype=x.dtype)
    return torch.cdist(x, found, compute_mode="donot_use_mm_for_euclid_dist").amin(1) / x.norm(dim=1)


def invert(
    protection: Protection, data: str, seed: int, questions: int = 1, hidden: int = HIDDEN, points: int = POINTS
) -> Tensor:
    """The relative error of each point of a client `[n]`, after so many traps in directions of their own.

    The server knows how inputs are distributed: it has other points like those.
    """
    x, y = points_of(data, points + PUBLIC, seed)
    known, x, y = torch.from_numpy(x[points:]), x[:points], y[:points]
    best = torch.full((points,), torch.inf, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder), x, y, CLASSES[data], {"name": "mlp", "hidden": [hidden]}, protection.policy)
        model = victim.model
        before = model.draw(generator(0, "client")).double()  # of FedSoft's clients: the server knows the seed
        levels = torch.arange(hidden, dtype=torch.float64) / hidden
        for number in range(questions):
            direction = torch.from_numpy(np.random.default_rng([seed, number]).standard_normal(x.shape[1]))
            center = trap(model, direction, (known @ direction).quantile(levels), protection.scale)
            if protection.pulled:
                victim.ask("train", {"centers": center}, **protection.run)
            w = victim.ask("train", {"centers": center}, **protection.run)["w"][0]
            start = center[0]
            if protection.algorithm.get("start") == "own":
                pull = protection.algorithm["lam"] * LR
                start, before = before - pull * (before - center[0]), w
            best = torch.minimum(best, errors(read(model, start - w), torch.from_numpy(x)))
    return best


def recovered(found: Tensor) -> int:
    """How many points were read."""
    return int((found < CLOSE).sum())


# --- one point through noise ------------------------------------------------------------------------------------------


def aim(epsilon: float | None, seed: int, questions: int = 1, budget: float = 0.0, inputs: int = 20) -> Tensor:
    """How far off the one point is that a trap was aimed at, after 1, 2, ... questions; fewer where it is refused.

    The best a server can do against noise on models: it knows where to cut, so that the whole update is about one
    point, all hidden units tell the same, and answers are averaged. 0 is that point, 1 nothing: the sine of the angle
    between what was found and the point, since the length is easily guessed.
    """
    x, y = points_of("normal", POINTS, seed, inputs)
    protection = Protection() if epsilon is None else noisy(epsilon)
    policy = {**protection.policy}
    if budget:
        policy["privacy"] = {**policy.get("privacy", {}), "epsilon": budget}
    direction = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal(inputs))
    along = torch.from_numpy(x) @ direction
    target, (first, second) = torch.from_numpy(x)[along.argmax()], along.topk(2).values
    total, found = torch.zeros(inputs, dtype=torch.float64), []
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder), x, y, 2, {"name": "mlp", "hidden": [HIDDEN]}, policy)
        model = victim.model
        center = trap(model, direction, ((first + second) / 2).expand(HIDDEN))
        for _ in range(questions):
            try:
                w = victim.ask("train", {"centers": center}, **protection.run)["w"]
            except SaysNo:
                break
            total += model.layout.unflatten((center - w)[0])["0.weight"].mean(0)
            cosine = torch.dot(total, target) / (total.norm() * target.norm())
            found.append((1 - cosine.square()).clamp(min=0).sqrt())
    return torch.stack(found)
