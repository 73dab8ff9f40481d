"""What moves where under an algorithm, seen by listening to what it asks of its clients in a tiny run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.contract import Algorithm, Ask
from fedsoft.core.replies import Answer, Ids, Reply
from fedsoft.engine.base import Engine
from fedsoft.training.prepare import Recipe, prepare

ROUNDS, CLIENTS, DIMENSION = 6, 8, 5
SMALL = {"K": 4, "S": 2, "warm": 2, "after": 2}  # phases of these algorithms end within the rounds


@dataclass
class Step:
    """One kind of request: a job, what is sent for it, and what comes back.

    Arguments:
        job: what clients are asked to do.
        down: the shapes of what is sent to each of them, by name.
        up: the shapes of what a client answers, by name, and the kind that the algorithm declares.
        rounds: in which this happened, from 1.
        clients: how many were asked, each time.
    """

    job: str
    down: dict[str, tuple[int, ...]]
    up: dict[str, tuple[tuple[int, ...], str]]
    rounds: list[int] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Watched:
    """A tiny run that was watched."""

    steps: list[Step]
    kept: list[str]  # what a client keeps between rounds
    size: int  # parameters of the model
    needs: str  # of the server: sums, or more


class Watcher:
    """Stands before an engine as `ask`, and writes down what passes."""

    def __init__(self, engine: Engine, steps: dict[tuple[Any, ...], Step]) -> None:
        self.engine, self.steps = engine, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        answer = self.engine(job, ids, each=each, **shared)
        kinds = self.engine.algorithm.jobs[job].replies
        down = {name: tuple(value.shape) for name, value in shared.items()}
        down |= {name: tuple(value.shape[1:]) for name, value in (each or {}).items()}
        up = {name: (_row(answer, name), kinds[name].name.lower()) for name in answer.values}
        step = self.steps.setdefault((job, tuple(down), tuple(up)), Step(job, down, up))
        step.rounds.append(self.engine.t + 1)
        step.clients.append(len(ids))
        return answer


def _row(answer: Answer, name: str) -> tuple[int, ...]:
    """Return the shape of one client's reply."""
    return tuple(answer[name].gather().shape[1:])


def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a few clients of two classes, whose points come from two sources."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((2, DIMENSION)) * 2
    made = []
    for k in range(CLIENTS):
        x = rng.standard_normal((30, DIMENSION))
        source = (rng.random(30) < (0.2 if k % 2 else 0.8)).astype(int)
        made.append((x, np.einsum("nd,nd->n", x, theta[source]) + 0.1 * rng.standard_normal(30)))
    return made


def watch(name: str) -> Watched:
    """Play a few rounds of an algorithm and return what moved."""
    made = plugins.find("algorithms", name)
    settings = {key: value for key, value in SMALL.items() if key in plugins.parameters(made)}
    algorithm: Algorithm = plugins.build("algorithms", name, settings)
    federation = fs.Federation.from_clients(clients())
    solver = fs.SGD(lr=0.02, epochs=1, batch=10)
    engine = prepare(Recipe(algorithm, fs.models.linear(), solver), federation)
    steps: dict[tuple[Any, ...], Step] = {}
    with torch.no_grad():
        state = engine.start()
        for t in range(ROUNDS):
            engine.begin_round(state, t, last=t == ROUNDS - 1)
            state, _ = algorithm.round(state, t, cast(Ask, Watcher(engine, steps)))
        kept = [key for key in engine.client_states if not key.startswith("statistics")]
    size = engine.model.size
    engine.close()
    return Watched([*steps.values()], kept, size, algorithm.needs.value)


def when(rounds: Mapping[int, int] | list[int]) -> str:
    """Say in which rounds something happens.

    >>> when([1, 2, 3, 4, 5, 6]), when([1, 3, 5]), when([6]), when([1, 1]), when([3, 4, 5, 6])
    ('every round', 'every second round', 'last round', 'first round', 'from round 3 on')
    """
    found = sorted(set(rounds))
    if found == [*range(1, ROUNDS + 1)]:
        return "every round"
    if found == [*range(1, ROUNDS + 1, 2)]:
        return "every second round"
    if len(found) == 1:
        return {1: "first round", ROUNDS: "last round"}.get(found[0], f"round {found[0]}")
    if found == [*range(1, found[-1] + 1)]:
        return f"first {found[-1]} rounds"
    if found[-1] == ROUNDS and found == [*range(found[0], ROUNDS + 1)]:
        return f"from round {found[0]} on"
    return "rounds " + ", ".join(map(str, found))


KINDS_OF_NEEDS = """\
What the server sees of replies, with the settings that come first: *sums only* runs with `secure = true`
([sums only](../secure.md)); *single mixtures* or *single models* are refused there. Other settings of an algorithm
may need less.\
"""
