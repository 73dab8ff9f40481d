"""From a spec to a federation and an engine that are ready for the first round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedsoft import plugins
from fedsoft.core.federation import Federation
from fedsoft.core.scaling import Scale
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError, SettingError
from fedsoft.machine.threads import one_thread
from fedsoft.runs.given import DATA, MODEL, Given
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.safety.conditions import Conditions
from fedsoft.settings import renamed
from fedsoft.training import Execution, FitOptions, Limit, Plan, Recipe, prepare


@dataclass(frozen=True, kw_only=True)
class RunOptions(Execution):
    """How a run is carried out, beyond `Execution`: nothing here changes its draws.

    Arguments:
        data: where the files of the run are now, if not where they were when it began.
        keep: rounds between two states that are kept; default: as when the run began.
        say: called with what went wrong and was put right.
        should_stop: asked after every round, besides Ctrl-C and SIGTERM.
        signals: whether Ctrl-C and SIGTERM are ours to handle.
        given: data and model of a run that was made in Python.
    """

    data: Path | None = None
    keep: int | None = None
    say: Callable[[str], object] = logging.getLogger("fedsoft").warning
    should_stop: Callable[[], bool] = bool
    signals: bool = True
    given: Given | None = None


def federation_of(spec: RunSpec, given: Given | None = None, scale: Scale | None = None) -> Federation:
    """Return the federation that a spec describes, or that it was given.

    `scale` is that of its inputs, in place of one of its own.
    """
    if given is not None:
        return given.federation(spec.seed if spec.data_seed is None else spec.data_seed)
    extra: dict[str, Any] = {}
    dataset = _dataset(spec)
    if "seed" in plugins.parameters(dataset):
        extra["seed"] = spec.seed if spec.data_seed is None else spec.data_seed
    if spec.partition is not None:
        extra["partition"] = _built(spec, "partition")
    if scale is not None and "standardize" in spec.dataset.settings:
        extra["standardize"] = False
    with renamed(owners(spec)):
        federation: Federation = dataset(**spec.dataset.settings | extra)
    if scale is not None:
        federation = federation.scaled(scale)
    return federation if spec.source is None else federation.only(spec.source)


Objects = Mapping[str, Any]
"""Parts of a run that were passed as objects in Python, by their keys."""


def build(
    spec: RunSpec, options: RunOptions, objects: Objects | None = None, scale: Scale | None = None
) -> tuple[Federation, Engine]:
    """Return the federation and the engine that a spec describes."""
    federation = federation_of(spec if options.data is None else moved(spec, options.data), options.given, scale)
    if isinstance(options.engine, str) and not len(federation.train.x):
        raise InputError("these clients have their points at nodes of their own: use --engine flower")
    return federation, build_engine(spec, options, federation, objects)


def check(specs: Mapping[str, RunSpec], given: Given | None = None) -> None:
    """Raise what one of these runs, by name, would raise before its first round. Runs on the same data share it."""
    made: dict[str, Federation] = {}
    for name, spec in specs.items():
        data = repr((spec.dataset, spec.partition, spec.source, spec.seed, spec.data_seed))
        try:
            made = made if data in made else {data: federation_of(spec, given)}  # one at a time
            if len(made[data].train.x):  # else the points are at nodes
                check_start(spec, build_engine(spec, RunOptions(given=given), made[data]))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None


def check_start(spec: RunSpec, engine: Engine) -> None:
    """Raise what the algorithm does not accept of the model; it would in the first round."""
    with renamed(owners(spec)), torch.no_grad(), one_thread():
        engine.initial_state()


def owners(spec: RunSpec) -> dict[str, str]:
    """Return the parts of a run by their names in Python, for `renamed`."""
    parts = {key: part for key in plugins.PARTS if (part := getattr(spec, key)) is not None}
    named = {key: part.name for key, part in parts.items() if part.name not in (DATA, MODEL, plugins.PASSED)}
    return {plugins.find(plugins.PARTS[key], name, spec.allow).__name__: key for key, name in named.items()}


def _built(spec: RunSpec, key: str, objects: Objects | None = None) -> Any:
    """Build a part of a run, if it has it and if it was not passed as an object."""
    if objects is not None and key in objects:
        return objects[key]
    part = getattr(spec, key)
    return None if part is None else plugins.build(plugins.PARTS[key], part.name, part.settings, spec.allow)


def build_engine(spec: RunSpec, options: RunOptions, federation: Federation, objects: Objects | None = None) -> Engine:
    """Return the engine that a spec describes, for these clients."""
    if federation.scale is not None and spec.privacy is not None and spec.privacy.hides:
        raise SettingError(
            "dataset", "standardize", True,
            "means and standard deviations of columns are not hidden; scale the files by what is known without looking "
            "at them", "with [privacy]",
        )  # fmt: skip
    with renamed(owners(spec)):
        plan = plan_of(spec, options, objects)
        return prepare(plan.recipe, federation, plan.conditions, options)


def plan_of(spec: RunSpec, options: RunOptions, objects: Objects | None = None) -> Plan:
    """Return what a spec says as `fit` takes it."""
    given = options.given
    if given is not None:
        objects = {**(objects or {}), "model": given.model}
    found = {key: _built(spec, key, objects) for key in ("algorithm", "model", "solver", "attack", "aggregator")}
    recipe = Recipe(
        found["algorithm"], found["model"], found["solver"], spec.seed, spec.dtype, metrics=spec.metrics,
        class_weights=spec.class_weights,
    )  # fmt: skip
    conditions = Conditions(
        dropout=spec.dropout, attack=found["attack"], aggregator=found["aggregator"], guard=spec.guard,
        diverged=spec.diverged, privacy=spec.privacy, secure=spec.secure,
    )  # fmt: skip
    if given is not None:
        recipe = replace(recipe, backend=given.backend, metrics=given.metrics)
        conditions = given.conditions or Conditions()
    how = FitOptions(
        device=options.device, chunk=options.chunk, workers=options.workers, memory=options.memory,
        engine=options.engine, address=options.address, dtype=spec.dtype, backend=recipe.backend,
        metrics=recipe.metrics, class_weights=spec.class_weights, score_every=spec.score_every,
    )  # fmt: skip
    return Plan(recipe, conditions, how, Limit(spec.rounds, spec.work, spec.bytes))


def moved(spec: RunSpec, data: Path) -> RunSpec:
    """Return the run with its files elsewhere. They must still be those that it began with, see `check_data`."""
    known = [key for key in PATHS if key in plugins.parameters(_dataset(spec))]
    if not known:
        raise InputError(f"data = '{data}' is not allowed: data set '{spec.dataset.name}' reads no files")
    settings = spec.dataset.settings | {known[0]: str(data.absolute())}
    return replace(spec, dataset=replace(spec.dataset, settings=settings))


def reads_files(spec: RunSpec) -> bool:
    """Whether the data is read from files, which may change and keep their names."""
    return spec.dataset.name != DATA and bool(set(PATHS) & plugins.parameters(_dataset(spec)).keys())


def _dataset(spec: RunSpec) -> Callable[..., Any]:
    return plugins.find("datasets", spec.dataset.name, spec.allow)
