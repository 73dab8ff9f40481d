"""Whether somebody who sees a model can tell the points that it was trained on from others like them.

Clients with 40 digits each, a fifth of the labels wrong: a model can only know those by heart. Whoever looks at a model
takes a point for a member if its loss is low (`center`), or lower than under the center that training began from
(`passive`). A server that cheats sends a center of its own choice, in which hidden units see nothing but the one point
that is asked about (`active`, see `benchmarks.inversion`): the client's model moves if that point is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import fedsoft as fs
from benchmarks.inversion import DELTA, trap
from benchmarks.victim import points_of
from fedsoft.core.contract import Algorithm, Training
from fedsoft.core.model import Model
from fedsoft.engine.client_host import ClientHost, Ticket
from fedsoft.engine.resources import Resources
from fedsoft.safety.privacy import Privacy, noise_for
from fedsoft.training import Run

CLIENTS, POINTS, OTHERS, WRONG, CLASSES = 20, 40, 700, 0.2, 10
FEW = 5  # clients, for a center that hides less
HIDDEN = 32
UPDATE_CLIP, CLIP = 2.0, 2.0
RATE = 0.01  # of points that are none, taken for members


class Told(NamedTuple):
    """How well members are told from others: the area under the curve, and how many of them are found at `RATE`."""

    auc: float
    found: float


def told(members: np.ndarray, others: np.ndarray) -> Told:
    """From scores, those of members being larger."""
    ranks = np.searchsorted(np.sort(others), members, "left") + np.searchsorted(np.sort(others), members, "right")
    return Told(float(ranks.mean() / (2 * len(others))), float((members > np.quantile(others, 1 - RATE)).mean()))


@dataclass(frozen=True)
class People:
    """Clients, other points like theirs, and clean ones to score centers on."""

    clients: fs.Federation
    others: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @staticmethod
    @functools.lru_cache(2)
    def of(seed: int, clients: int = CLIENTS) -> People:
        """All digits there are, dealt out anew for every seed."""
        x, y = points_of("digits", 1797, seed)
        rng = np.random.default_rng([seed, 1])
        cut = clients * POINTS
        clean = y[cut + OTHERS :]
        wrong = (y + rng.integers(1, CLASSES, len(y))) % CLASSES
        y = np.where(rng.random(len(y)) < WRONG, wrong, y)
        parts = [(x[k : k + POINTS], y[k : k + POINTS]) for k in range(0, cut, POINTS)]
        found = [torch.from_numpy(part) for part in (x[cut:], y[cut:], clean)]
        return People(
            fs.Federation.from_clients(parts, held_out=0.0, classes=CLASSES),
            (found[0][:OTHERS].float(), found[1][:OTHERS]),
            (found[0][OTHERS:].float(), found[2]),
        )


def train(algorithm: Algorithm, people: People, privacy: Privacy | None, seed: int, rounds: int) -> Run:
    """A run in which clients train for so long that they know their points by heart."""
    return fs.fit(
        algorithm, people.clients, fs.models.mlp(hidden=[HIDDEN]), rounds=rounds, seed=seed,
        solver=fs.Adam(lr=5e-3, epochs=50), conditions=fs.Conditions(privacy=privacy),
        options=fs.FitOptions(score_every=rounds, workers=1),
    )  # fmt: skip


def accuracy(run: Run, people: People) -> float:
    """Of the best center on clean points."""
    x, y = people.test
    return max(float((run.predict(x, center=s).argmax(1) == y).double().mean()) for s in range(len(run.centers)))


def losses(model: Model, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of points `[n]` under each of the models `w[m, P]`: `[m, n]`."""
    with torch.no_grad():
        return model.loss(model.outputs(w, x.float().expand(len(w), *x.shape)), y.expand(len(w), -1))


# --- those who only look ----------------------------------------------------------------------------------------------


def passive(algorithm: Algorithm, privacy: Privacy | None, seed: int, rounds: int = 10) -> tuple[Told, float]:
    """What the server tells from the models of all clients, after so many rounds; and the accuracy of the center."""
    people = People.of(seed)
    run = train(algorithm, people, privacy, seed, rounds)
    c = run.state.centers
    with torch.no_grad():
        w = run.engine("train", run.engine.everyone, centers=c)["w"].gather()

    def scores(x: Tensor, y: Tensor) -> Tensor:
        return losses(run.model, c, x, y).mean(0) - losses(run.model, w, x, y)

    own = people.clients.train
    mine = scores(own.x[own.points], own.y[own.points])[own.owners, torch.arange(len(own.points))]
    return told(mine.numpy(), scores(*people.others).flatten().numpy()), accuracy(run, people)


def center(privacy: Privacy | None, seed: int, clients: int = CLIENTS, rounds: int = 10) -> tuple[Told, float]:
    """What others tell from the center of so many clients; and its accuracy."""
    people = People.of(seed, clients)
    run = train(fs.FedAvg(), people, privacy, seed, rounds)
    own = people.clients.train
    mine, others = (-losses(run.model, run.state.centers, *points)[0].numpy()
                    for points in ((own.x[own.points], own.y[own.points]), people.others))  # fmt: skip
    return told(mine, others), accuracy(run, people)


# --- a server that cheats ---------------------------------------------------------------------------------------------


def active(privacy: Privacy | None, seed: int, targets: int = 200) -> Told:
    """What a server tells that asks about one point at a time, with a question of its own for each.

    It knows how inputs are distributed: it has points that are neither at clients nor asked about.
    """
    people = People.of(seed)
    model = fs.models.mlp(hidden=[HIDDEN])(people.clients.shape)
    training = Training(fs.FedAvg(), model, fs.SGD(lr=1e-3, epochs=1, batch=POINTS), seed, torch.float64)
    host = ClientHost(
        training, people.clients.train, people.clients.names, conditions=fs.Conditions(privacy=privacy),
        resources=Resources(workers=1), secret="not told",
    )  # fmt: skip
    host.init_clients()
    x, y = people.others
    known = x[OTHERS // 2 :].double()
    away = torch.linalg.pinv(torch.cov(known.T) + 1e-3 * torch.eye(known.shape[1], dtype=torch.float64))

    def score(row: int, z: Tensor, label: Tensor, question: int) -> float:
        """How much the client of that row moves to where the point would have moved it: a cosine."""
        direction = away @ (z - known.mean(0))
        direction = direction / torch.dot(direction, z - known.mean(0))
        c = trap(model, direction, (torch.dot(direction, known.mean(0)) + 0.95).expand(HIDDEN), 1e-9, pull=1e5)
        expected = -model.gradient(c, z[None, None], label[None, None], torch.ones(1, 1, dtype=torch.float64))[0]
        with torch.no_grad():
            done = host.run_job("train", np.array([row]), {}, {"centers": c}, Ticket(0, question))
        return float(torch.cosine_similarity(done.replies["w"][0] - c[0], expected, dim=0))

    own = people.clients.train
    step = max(1, len(own.points) // targets)
    members = [(int(own.owners[i]), own.x[own.points[i]].double(), own.y[own.points[i]], i)
               for i in range(0, len(own.points), step)]  # fmt: skip
    others = [(i % CLIENTS, x[i].double(), y[i], -1 - i) for i in range(min(targets, OTHERS // 2))]
    return told(*(np.array([score(*question) for question in group]) for group in (members, others)))


# --- protections ------------------------------------------------------------------------------------------------------


def on_models(epsilon: float) -> Privacy:
    """Noise of clients on their models; epsilon of one model."""
    return Privacy(update_clip=UPDATE_CLIP, update_noise=noise_for(epsilon, DELTA, 1), delta=DELTA)


def on_centers(epsilon: float, rounds: int = 10) -> Privacy:
    """Noise on centers; epsilon of the run."""
    return Privacy(clip=CLIP, noise=noise_for(epsilon, DELTA, rounds), delta=DELTA)


Made = Callable[[], Privacy | None]

SENT: dict[str, tuple[Algorithm, Made]] = {
    "FedSoft: none": (fs.FedSoft(S=2, K=10), lambda: None),
    "FedSoft: noise on counts, ε = 1": (fs.FedSoft(S=2, K=10), lambda: Privacy(counts=noise_for(1.0, DELTA, 1))),
    "FedAvg: none": (fs.FedAvg(), lambda: None),
    "FedAvg: noise on models, ε = 1000": (fs.FedAvg(), lambda: on_models(1000.0)),
    "FedAvg: noise on models, ε = 100": (fs.FedAvg(), lambda: on_models(100.0)),
    "FedAvg: noise on models, ε = 10": (fs.FedAvg(), lambda: on_models(10.0)),
}
"""What clients send to the server; epsilons are those of one message."""

PUBLISHED: dict[str, Made] = {
    "none": lambda: None,
    "clip, noise of almost 0": lambda: on_centers(1e6),
    "clip and noise, ε = 1000": lambda: on_centers(1000.0),
    "clip and noise, ε = 100": lambda: on_centers(100.0),
    "clip and noise, ε = 10": lambda: on_centers(10.0),
}
"""What the server does to centers; epsilons are those of the run."""
