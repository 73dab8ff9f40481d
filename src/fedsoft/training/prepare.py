"""From an algorithm, a federation and a model to an engine that is ready for the first round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.clusters.initial import age_of
from fedsoft.core.batches import Problem
from fedsoft.core.class_weight_choice import ClassWeights
from fedsoft.core.class_weights import fixed_weights
from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.client_draws import Draws
from fedsoft.core.client_metrics import NAMED, ClientMetric, MetricChoice, read_metrics
from fedsoft.core.contract import Algorithm, Training
from fedsoft.core.federation import Federation
from fedsoft.core.inputs import extremes, made_up
from fedsoft.core.local_solve import FirstOrder, Solver
from fedsoft.core.metrics import cross_entropy
from fedsoft.core.model import Builder, Model, check_outputs
from fedsoft.engine.base import Engine
from fedsoft.engine.registry import find as find_engine
from fedsoft.errors import InputError, SettingError
from fedsoft.machine.resources import check_memory, lacking
from fedsoft.machine.threads import one_thread
from fedsoft.models.module import module
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.malicious import malicious_clients, spoiled
from fedsoft.seeds import generator
from fedsoft.solvers.adam import Adam
from fedsoft.training.options import Execution

POINTS = 4  # that a model is tried on
STEP_BYTES = 500  # of memory for a batch besides its points
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def as_model(model: Any, federation: Federation) -> Model:
    """Make the model for the data and try it on a few points."""
    if isinstance(model, nn.Module) or (isinstance(model, type) and issubclass(model, nn.Module)):
        model = module(factory=model)
    elif callable(model) and not inspect.signature(model).parameters:
        model = module(factory=model)  # a function that makes a network
    elif not callable(model) and not isinstance(model, Model):
        raise InputError(f"model = {model!r} is not allowed: should be one of fedsoft.models, or a torch.nn.Module")
    x, y = few_points(federation)
    built: Any = model if isinstance(model, Model) else _built(model, federation.shape, x)
    if isinstance(built, nn.Module):
        raise InputError("model: give the network as fedsoft.models.module(factory), or the network itself")
    check_memory(f"a model of {built.size} parameters", 16 * built.size)
    check_outputs(built, federation.shape, x, y)
    return built


def _built(builder: Callable[..., Any], shape: DataShape, points: Tensor) -> Any:
    """Make a model for the data, and let it try itself on a client's points where it does."""
    if not shape.fields and "points" not in inspect.signature(builder).parameters:
        return builder(shape)
    if "points" not in inspect.signature(builder).parameters:
        raise InputError("model: it takes one input, the data has several: give a torch.nn.Module")
    return builder(shape, points=points)


@dataclass(frozen=True)
class Recipe:
    """What is to be trained, as a user names it."""

    algorithm: Algorithm
    model: Builder | Model | nn.Module | Callable[[], nn.Module]
    solver: Solver | None = None
    seed: int = 0
    dtype: str = "float32"
    backend: str = "auto"
    metrics: MetricChoice | None = None
    class_weights: ClassWeights | Sequence[float] | None = None


def prepare(
    recipe: Recipe, federation: Federation, conditions: Conditions | None = None, options: Execution | None = None
) -> Engine:
    """Return an engine with everything in place for the first round."""
    conditions, options = conditions or Conditions(), options or Execution()
    make = find_engine(options.engine, options.address)
    if recipe.dtype not in DTYPES:
        raise InputError(f"dtype = '{recipe.dtype}' is not allowed: should be 'float32' or 'float64'")
    check_device(options.device)
    model = as_model(recipe.model, federation).by(_backend(recipe.backend, options.device))
    weights = fixed_weights(recipe.class_weights, federation.shape, federation.train, model.loss)
    training = Training(recipe.algorithm, model, recipe.solver or Adam(), recipe.seed, DTYPES[recipe.dtype], weights)
    metrics = read_metrics(recipe.metrics, federation.shape)
    _check_predictions(model, federation, metrics)
    _check_counts(training, federation)
    _try_out(training, federation)
    conditions.check_secure(recipe.algorithm)
    if (privacy := conditions.privacy) is not None:
        plain_mean = conditions.aggregator is None and not conditions.guard
        privacy.check(
            recipe.algorithm, model, len(federation), plain_mean=plain_mean, secure=bool(conditions.protection)
        )
    if (attack := conditions.attack) is not None:
        conditions = replace(conditions, malicious=malicious_clients(federation.names, attack.share, recipe.seed))
        if len(federation.train.x):  # else points are elsewhere
            rows = np.flatnonzero([name in conditions.malicious for name in federation.names])
            federation = replace(federation, train=spoiled(federation.train, rows, attack, federation.shape))
    engine = make(training, federation, conditions, options.resources)
    try:
        engine.use_metrics(metrics)
    except BaseException:
        engine.close()
        raise
    return engine


def remarks(engine: Engine, federation: Federation) -> list[str]:
    """Return remarks to make before the first round: too few clients for the centers, centers without a
    difference, or probabilities where the loss takes logits."""
    clients, S, found = len(engine.names), engine.algorithm.center_count, []
    if S > clients:
        plural = "s" * (clients != 1)
        found.append(f"S = {S} centers for {clients} client{plural}: some will have hardly any data to learn from")
    if S > 1 and _draws_are_equal(engine.model):
        with torch.no_grad(), one_thread():
            state = engine.initial_state()
        if age_of(state, 0) >= 0 and len(state.centers.unique(dim=0)) < len(state.centers):
            found.append(f"the {S} centers start as copies of each other, since all draws of this model are the same")
    if engine.model.loss is cross_entropy and _gives_probabilities(engine.model, federation):
        found.append(
            "the network's outputs are probabilities (none is below 0, and they add up to 1), but the loss takes them "
            "before the softmax: leave out the network's own"
        )
    return found


def _gives_probabilities(model: Model, federation: Federation) -> bool:
    x, _ = few_points(federation)
    with torch.no_grad(), one_thread():
        outputs = model.outputs(model.draw(generator(0, "try"))[None], x[None]).double()
    return bool((outputs >= 0).all()) and torch.allclose(outputs.sum(-1), outputs.new_tensor(1.0), atol=1e-4)


def _draws_are_equal(model: Model) -> bool:
    return model.apart is None and torch.equal(*(model.draw(generator(seed, "try")) for seed in range(2)))


def _check_predictions(model: Model, federation: Federation, metrics: Sequence[ClientMetric]) -> None:
    """Raise where named metrics cannot be computed of what this model predicts."""
    x, y = few_points(federation)
    with torch.no_grad():
        found = model.predict(model.outputs(model.draw(generator(0, "try"))[None], x[None]))[0]
    wanted = [len(y), federation.shape.outputs] if federation.shape.task == "classification" else list(y.shape)
    if list(found.shape) != wanted and (named := [one.name for one in metrics if NAMED.get(one.name) is one]):
        raise InputError(f"metrics: {', '.join(named)} need predictions {wanted}, this model's are {list(found.shape)}")


def _check_counts(training: Training, federation: Federation) -> None:
    """Raise for centers and batches that would not fit into memory."""
    algorithm, solver, S = training.algorithm, training.solver, training.algorithm.center_count
    if (reason := lacking(8 * S * (training.model.size + len(federation)))) is not None:
        raise SettingError(type(algorithm).__name__, "S", S, reason)
    if isinstance(solver, FirstOrder):
        most = int(federation.train.sizes.max()) if len(federation.train) else 0
        needed = 16 * max(most, solver.batch) + STEP_BYTES * (most // solver.batch + 1)
        if (reason := lacking(solver.epochs * needed)) is not None:
            raise SettingError(type(solver).__name__, "epochs", solver.epochs, reason, f"with batch = {solver.batch}")


def _backend(backend: str, device: str) -> str:
    """Return the backend: the ones written by hand are for the CPU, elsewhere large stacks are fast."""
    return "stacked" if backend == "auto" and device != "cpu" else backend


def few_points(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return points to try a model on.

    Of the client that has most: one point does not tell a mean over points from a value for each. Beside them those
    with the smallest and largest integer of all, so that a vocabulary that is too small is found before a run begins.
    """
    shape, train = federation.shape, federation.train
    if len(train.x):
        x, y = train.client(int(train.sizes.argmax()))
        pairs = [(x[:POINTS], y[:POINTS])]
        for data in (train, federation.held_out):
            rows = extremes(data.x, shape.fields)
            pairs.append((data.x[rows], data.y[rows]))
    else:  # they are elsewhere
        x = made_up(shape.input, shape.fields, train.x.dtype, POINTS)
        pairs = [(x, train.y.new_zeros(POINTS, *train.y.shape[1:]))]
    few = ClientData.concat(pairs).to("cpu", torch.float32)
    return few.x, few.y


def check_device(device: str) -> None:
    """Raise for a device that is not there."""
    cuda = torch.cuda.is_available()
    if device != "cpu" and not (device.startswith("cuda") and cuda):
        allowed = "'cpu' or 'cuda'" if cuda else "'cpu'"
        raise InputError(f"device = '{device}' is not available here: should be {allowed}")


def _try_out(training: Training, federation: Federation) -> None:
    """Solve one tiny problem, so that what cannot work raises before a run begins."""
    data, solver = ClientData.concat([few_points(federation)]), training.solver
    w = training.model.draw(generator(0, "try"))[None]
    problem = Problem(training.model, data, None, None, lambda: Draws(0, "try", names=("0",)))
    with torch.no_grad():
        solver.solve(problem, w, solver.init_state(w, training.model.layout))
