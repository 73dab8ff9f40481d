"""Small federations for the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batches import Problem, Prox
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.federation import DataShape, Federation
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Model
from fedsoft.engine.local import LocalEngine
from fedsoft.models.linear import linear
from fedsoft.runs.run import fit
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.dropouts import Dropouts
from fedsoft.solvers.exact import Exact
from fedsoft.training import FitOptions, Limit, Run, play
from fedsoft.training.prepare import Recipe, prepare
from fedsoft.training.records import RoundRecord

# Batches of 5 leave last batches of 5, 1, 4, 3 and 2 points; the number of batches runs from 1 to 5.
RAGGED = (5, 11, 23, 8, 19, 6, 14, 12)

# What makes a run of `synthetic-10-90` take milliseconds.
SMALL = ["clients=4", "points=[6, 9]", "K=2", "epochs=1", "test_points=10", "dimension=3", "solver.name=sgd"]

Pairs = list[tuple[Tensor, Tensor]]


def regression_clients(sizes: Sequence[int] = RAGGED, dimension: int = 3, seed: int = 0) -> Pairs:
    """Clients whose points come from two linear models, in shares that run from one to the other."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((2, dimension)) * 2
    pairs = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, dimension))
        source = (rng.random(n) < (k + 0.5) / len(sizes)).astype(int)
        y = (x * theta[source]).sum(1) + 0.3 * rng.standard_normal(n)
        pairs.append((torch.from_numpy(x), torch.from_numpy(y)))
    return pairs


def class_clients(sizes: Sequence[int] = RAGGED, dimension: int = 3, classes: int = 4, seed: int = 0) -> Pairs:
    """Clients with class labels that depend on x; half of the clients count the classes backwards."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((dimension, classes)) * 2
    pairs = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, dimension))
        y = (x @ theta).argmax(1)
        pairs.append((torch.from_numpy(x), torch.from_numpy(y if k % 2 else classes - 1 - y)))
    return pairs


def federation(clients: Pairs, names: Sequence[str] | None = None) -> Federation:
    """All points for training, so that a test knows where each is."""
    return Federation.from_clients(clients, names=names, held_out=0.0)


def shape_of(clients: Pairs) -> DataShape:
    return federation(clients).shape


def problem(model: Model, data: ClientData, prox: Prox | None = None, point_weights: Tensor | None = None) -> Problem:
    """A local problem whose batches are drawn under the names 0, 1, 2, ..."""
    names = [str(k) for k in range(len(data))]
    return Problem(model, data, prox, point_weights, lambda: Draws(0, "batches", names=names))


def random_stack(model: Model, m: int, seed: int = 0) -> Tensor:
    """m models in float64, each drawn on its own."""
    return torch.stack([model.draw(np.random.default_rng([seed, i])) for i in range(m)]).double()


class Held:
    """Replies in memory, as `contract.Rows`."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def gather(self) -> Tensor:
        return self.values

    def weighted(self, weights: Tensor) -> Tensor:
        return torch.tensordot(weights.double(), self.values.double(), 1)


CONDITIONS = {"dropout", "attack", "aggregator", "guard", "diverged", "privacy", "secure"}
OPTIONS = {"device", "chunk", "workers", "memory", "engine", "address", "callbacks", "dtype", "backend", "score_every"}


def trained(algorithm: Any, federation: Federation, model: Any, *, rounds: int, **settings: Any) -> Run:
    """`fs.fit`, with the fields of conditions and options among its own settings."""
    conditions, options, rest = _sorted(settings)
    return fit(algorithm, federation, model, rounds=rounds, conditions=conditions, options=options, **rest)


def engine_for(algorithm: Any, federation: Federation, model: Any, **settings: Any) -> LocalEngine:
    """An engine that is ready for the first round, see `trained`."""
    conditions, options, rest = _sorted(settings)
    recipe = Recipe(algorithm, model, dtype=options.dtype, backend=options.backend, **rest)
    return cast(LocalEngine, prepare(recipe, federation, conditions, options))


def _sorted(settings: dict[str, Any]) -> tuple[Conditions, FitOptions, dict[str, Any]]:
    conditions = {key: value for key, value in settings.items() if key in CONDITIONS}
    options = {key: value for key, value in settings.items() if key in OPTIONS}
    rest = {key: value for key, value in settings.items() if key not in CONDITIONS | OPTIONS}
    return Conditions(**conditions), FitOptions(**options), rest


def fitted(
    algorithm: Any, clients: Pairs | Federation, rounds: int, solver: Solver | None = None, *, model: Any = None,
    begun: dict[str, Any] | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """A run in float64 of a linear model, solved exactly where nothing else is said; settings as in `trained`.

    `begun` replaces parts of the first state, see `State.update`.
    """
    fed = clients if isinstance(clients, Federation) else federation(clients)
    settings = {"dtype": "float64", "solver": solver or Exact(), **settings}
    if begun is None:
        return trained(algorithm, fed, model or linear(), rounds=rounds, **settings)
    return played(engine_for(algorithm, fed, model or linear(), **settings), fed, rounds, **begun)


def played(engine: LocalEngine, federation: Federation, rounds: int, **begun: Any) -> Run:
    """A run by this engine; `begun` replaces parts of its first state."""
    with torch.no_grad():
        state = engine.start().update(**begun)
    run = Run(federation, engine, state, [])
    for run.state, record in play(engine, federation, state, [], Limit(rounds)):
        run.history.append(record)
    return run


def same_models(one: Run, other: Run) -> bool:
    """Whether server and clients know the same, to the bit."""
    pairs = (
        (one.state.tensors(), other.state.tensors()), (dict(one.engine.client_states), dict(other.engine.client_states))
    )  # fmt: skip
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def silent(who: Callable[[str, int, str], bool]) -> Dropouts:
    """Clients that do not answer a job in a round."""
    return lambda job, t, names: np.array([who(job, t, name) for name in names], dtype=bool)


def record(t: int = 0, **known: Any) -> RoundRecord:
    """The record of a round that cost hardly anything."""
    return RoundRecord.from_dict(
        {"round": t + 1, "last": False, "gradients": 1, "bytes_down": 1, "bytes_up": 1, "seconds": 0.1} | known
    )


def logged(records: Sequence[RoundRecord], *without: str) -> list[dict[str, Any]]:
    """Records as plain values, without times and these fields."""
    left_out = {"seconds", *without}
    return [{key: value for key, value in one.to_dict().items() if key not in left_out} for one in records]
