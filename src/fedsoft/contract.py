"""What an algorithm is: a straight-line program that asks clients to do jobs.

An algorithm never holds clients. It calls `ask(job, ids, ...)`; where the clients live is the business of the transport
behind it (rows of a stack in this process, other processes, other machines). A job runs at the clients' side on a
`Site`, which holds their own training points and nothing else: no sources, no mixtures, no test data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedsoft.batches import Problem, Prox, Walk
from fedsoft.clientdata import ClientData
from fedsoft.errors import InputError
from fedsoft.local import FirstOrder, Moments, Solver, Work, losses_of_all, own_gradients, own_outputs
from fedsoft.model import Model
from fedsoft.seeds import generator

State = dict[str, Tensor]
"""What the server knows between rounds. `centers[S, P]` always, `u[N, S]` where the algorithm estimates mixtures. Names
that end in `_k` hold one row for each client; a client that predicts is shown its own row of them."""

Memory = dict[str, Tensor]
"""What clients keep for themselves between rounds, one row each. Never leaves them except in a reply."""

Reply = dict[str, Tensor]
"""What clients send back from a job, one row each."""

Ids = np.ndarray
"""Row numbers of clients, ascending."""


class Rows(Protocol):
    """One row for each client that answered. They stay where they are, in memory, on disk or elsewhere, until asked
    for."""

    def gather(self) -> Tensor:
        """All rows, `[m, ...]`."""
        ...

    def weighted(self, weights: Tensor) -> Tensor:
        """`weights[S, m] @ rows` in float64, `[S, ...]`: never all rows at one place, however many there are."""
        ...


@runtime_checkable
class Averages(Rows, Protocol):
    """Rows that take means in a way of their own."""

    def average(self, weights: Tensor, old: Tensor) -> Tensor:
        """Centers `[S, P]` in place of the `old` ones, see `mixing.average`."""
        ...


@dataclass(frozen=True)
class Means:
    """How centers are means: over so many clients, whatever these have, drawn uniformly or not."""

    members: int
    uniform: bool


class _Nobody:
    """No rows, in a form that fits any other."""

    def gather(self) -> Tensor:
        return torch.empty(0)

    def weighted(self, weights: Tensor) -> Tensor:
        return weights.new_zeros((len(weights), 1), dtype=torch.float64)


@dataclass(frozen=True)
class Answer:
    """The replies of those clients that answered, one row for each of `ids`. When nobody did, they have no names."""

    ids: Ids
    values: Mapping[str, Rows]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Rows:
        return self.values[name] if len(self.ids) else _Nobody()

    def rows(self, name: str, like: Tensor) -> Tensor:
        """All replies under `name`; when nobody answered, no rows in the form of those of `like`."""
        return self[name].gather() if len(self.ids) else like[:0]

    def update(self, name: str, old: Tensor) -> Tensor:
        """A copy of `old[N, ...]` with the rows of those who answered replaced."""
        return old.index_copy(0, torch.as_tensor(self.ids, device=old.device), self.rows(name, like=old))


class Ask(Protocol):
    """The algorithm's only way to its clients."""

    sizes: Tensor  # [N]: n_k, which clients tell when they enrol
    last: bool  # whether this is the last round of the run

    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        """Have the clients `ids` do a job; the replies of those that answered.

        `shared` is sent to all of them, `each` holds one row for each of them.
        """
        ...

    @property
    def everyone(self) -> Ids:
        """All clients."""
        ...

    def generator(self, *labels: str | int) -> np.random.Generator:
        """A generator of this run and round, for draws of the server."""
        ...

    def generators(self, *labels: str | int) -> list[np.random.Generator]:
        """One generator of this run and round for each client, for draws of the server about clients."""
        ...


Hide = Callable[[Tensor, int], Tensor]
"""Shares `[m, S]` of m clients, found for the so-manyth time in a job, to shares that hide single points."""


@dataclass(frozen=True)
class Site:
    """What a job sees: m clients with their own points, and the tools to work on them."""

    model: Model
    data: ClientData
    solver: Solver
    names: Sequence[str]
    seed: int
    t: int
    dtype: torch.dtype
    work: Work = field(kw_only=True)
    hide: Hide | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.data)

    def generators(self, *labels: str | int) -> list[np.random.Generator]:
        """One generator for each client, of this round and these labels."""
        return [generator(self.seed, *labels, self.t, name) for name in self.names]

    def hidden(self, shares: Tensor, sweep: int = 0) -> Tensor:
        """Shares as they may leave the clients: with noise on their counts, where the run asks for it."""
        return shares if self.hide is None else self.hide(shares, sweep)

    def solve(
        self,
        w: Tensor,
        moments: Moments | None = None,
        *,
        prox: Prox | None = None,
        point_weights: Tensor | None = None,
        label: str = "batches",
    ) -> tuple[Tensor, Moments]:
        """Minimise each client's own loss (plus the proximal term) from `w[m, P]` with the local solver."""
        problem = Problem(self.model, self.data, prox, point_weights, lambda: self.generators(label))
        moments = self.solver.moments(w) if moments is None else moments
        solved, moments, gradients = self.solver.solve(problem, w, moments)
        self.work.gradients.add_(gradients.cpu())
        return solved, moments

    def walk(self, label: str = "batches") -> tuple[Walk, FirstOrder]:
        """The clients' way through their batches, for algorithms that take single steps; see `Walk`.

        Call `spend(walk)` when it is done.
        """
        if not isinstance(self.solver, FirstOrder):
            raise InputError(f"the local solver '{type(self.solver).__name__}' takes no single steps: use SGD or Adam")
        problem = Problem(self.model, self.data, None, None, lambda: self.generators(label))
        s = self.solver
        return Walk(problem, self.dtype, batch=s.batch, epochs=s.epochs, shuffle=s.shuffle), s

    def spend(self, walk: Walk) -> None:
        """Count the gradients of a walk as work."""
        self.work.gradients.add_(walk.gradients.cpu())

    def solve_each(self, w: Tensor, point_weights: Tensor | None = None, label: str = "batches") -> Tensor:
        """Solve S problems for each client, from `w[m, S, P]` with `point_weights[points, S]`: S times the work."""
        m, count, size = w.shape
        data = self.data.take(np.repeat(np.arange(m), count))
        weights = None
        if point_weights is not None:  # as the points of the repeated clients come: S runs of each client's points
            client, s = data.owners // count, data.owners % count
            along = torch.arange(len(data.owners), device=w.device) - data.offsets[data.owners]
            weights = point_weights[self.data.offsets[client] + along, s]
        names = [name for name in self.names for _ in range(count)]
        wide = replace(self, data=data, names=names, work=Work.none(m * count))
        solved, _ = wide.solve(w.reshape(m * count, size), point_weights=weights, label=label)
        self.work.gradients.add_(wide.work.gradients.view(m, count).sum(1))
        return solved.view(m, count, size)

    def solve_parts(self, w: Tensor, part: Tensor, label: str = "batches") -> Tensor:
        """Solve S problems for each client, from `w[m, S, P]`, each on its part of the points: `part[points]` is 0 to
        S - 1. So every point is used by one of them, at the work of one. Without points a model stays as it was."""
        m, count, size = w.shape
        place = self.data.owners * count + part
        order = torch.argsort(place, stable=True)
        sizes = torch.bincount(place, minlength=m * count)
        points = self.data.points[order]
        data = replace(
            self.data, x=self.data.x[points], y=self.data.y[points], starts=torch.cumsum(sizes, 0) - sizes, sizes=sizes
        )
        names = [name for name in self.names for _ in range(count)]
        wide = replace(self, data=data, names=names, work=Work.none(m * count))
        solved, _ = wide.solve(w.reshape(m * count, size), label=label)
        self.work.gradients.add_(wide.work.gradients.view(m, count).sum(1))
        return solved.view(m, count, size)

    def by(self, solver: Solver) -> Site:
        """The same site with another local solver; work is counted together."""
        return replace(self, solver=solver)

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of each client's mean loss at `w[m, P]`, over all its points."""
        self.work.gradients.add_(self.data.sizes.cpu())
        return own_gradients(self.model, self.data, w)

    def losses(self, centers: Tensor) -> Tensor:
        """The loss of every point under every center, `[points, S]`."""
        self.work.evaluations.add_(self.data.sizes.cpu() * len(centers))
        return losses_of_all(self.model, self.data, centers)

    def predictions(self, w: Tensor) -> Tensor:
        """What each client's own model `w[m, P]` predicts for each of its points."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        return self.model.predict(own_outputs(self.model, self.data, w))

    def draw(self, *labels: str | int) -> Tensor:
        """First values for a model, the same at every site of the run, `[P]`."""
        return self.model.draw(generator(self.seed, *labels)).to(self.data.x.device, self.dtype)


Job = Callable[[Any, Site, Memory, Reply], tuple[Memory, Reply]]
J = TypeVar("J", bound=Callable[..., tuple[Memory, Reply]])


def job(function: J) -> J:
    """Mark a method as a job: `(self, site, mine, shared) -> (mine, reply)`, over a stack of m >= 1 clients."""
    function.__dict__["is_job"] = True
    return function


def is_job(algorithm: Algorithm, name: str) -> bool:
    """Only methods that were marked can be asked for."""
    return getattr(getattr(type(algorithm), name, None), "is_job", False)


@runtime_checkable
class Algorithm(Protocol):
    """The contract: settings (a frozen dataclass) and five functions. Jobs are further methods marked with `@job`."""

    def check(self, clients: int) -> None:
        """Complain about settings that do not fit this many clients."""
        ...

    def init(self, site: Site, clients: int) -> State:
        """The server's first state. The site has no clients; it is there for the model and the draws."""
        ...

    def enrol(self, site: Site) -> Memory:
        """The clients' first memory."""
        ...

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """One communication round; also what is worth logging about it."""
        ...

    def predict(self, site: Site, mine: Memory, shared: State) -> Tensor:
        """The clients' personal predictions for the points of the site (values or probabilities).

        `shared` is the server's state, with only the clients' own rows of entries named `..._k`.
        """
        ...


def rows_of(state: State, rows: Tensor) -> State:
    """The server's state as some clients see it: their own rows of what is kept for each client."""
    return {name: value[rows] if name.endswith("_k") else value for name, value in state.items()}


def prefixed(prefix: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Entries under a common prefix, to keep an optimiser's memory beside other things."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def under(prefix: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries that `prefixed` put under the prefix."""
    return {name.removeprefix(f"{prefix}."): v for name, v in values.items() if name.startswith(f"{prefix}.")}
