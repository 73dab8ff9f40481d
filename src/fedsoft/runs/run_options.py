"""From a spec to a federation and an engine that are ready for the first round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedsoft import plugins
from fedsoft.core.federation import Federation
from fedsoft.core.scaling import Scale
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError, SettingError
from fedsoft.machine.threads import one_thread
from fedsoft.runs.given import Given
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.safety.conditions import Conditions
from fedsoft.settings import renamed
from fedsoft.training import Execution, FitOptions, Limit, Plan
from fedsoft.training.prepare import Recipe, prepare


@dataclass(frozen=True, kw_only=True)
class RunOptions(Execution):
    """How a run is carried out, beyond `Execution`: nothing here changes its draws.

    Arguments:
        data: where the files of the run are now, if not where they were when it began.
        keep: rounds between two states that are kept; default: as when the run began.
        say: called with what went wrong and was put right.
        should_stop: asked after every round, besides Ctrl-C and SIGTERM.
        signals: whether Ctrl-C and SIGTERM are ours to handle.
        given: what the spec has no name for.
    """

    data: Path | None = None
    keep: int | None = None
    say: Callable[[str], object] = logging.getLogger("fedsoft").warning
    should_stop: Callable[[], bool] = bool
    signals: bool = True
    given: Given = field(default_factory=Given)


def federation_of(spec: RunSpec, given: Given | None = None, scale: Scale | None = None) -> Federation:
    """Return the federation that a spec describes, or that it was given.

    `scale` is that of its inputs, in place of one of its own.
    """
    if given is not None and given.data is not None:
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


def build(spec: RunSpec, options: RunOptions, scale: Scale | None = None) -> tuple[Federation, Engine]:
    """Return the federation and the engine that a spec describes."""
    federation = federation_of(spec if options.data is None else moved(spec, options.data), options.given, scale)
    if isinstance(options.engine, str) and not len(federation.train.x):
        raise InputError("these clients have their points at nodes of their own: use --engine flower")
    return federation, build_engine(spec, options, federation)


def check(specs: Mapping[str, RunSpec], given: Given) -> None:
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
    named = {key: part.name for key, part in parts.items() if part.name != plugins.OBJECT}
    return {plugins.find(plugins.PARTS[key], name, spec.allow).__name__: key for key, name in named.items()}


def _built(spec: RunSpec, key: str, given: Mapping[str, Any] | None = None) -> Any:
    """Build a part of a run, if it has it and if it was not given."""
    if given is not None and key in given:
        return given[key]
    part = getattr(spec, key)
    return None if part is None else plugins.build(plugins.PARTS[key], part.name, part.settings, spec.allow)


def build_engine(spec: RunSpec, options: RunOptions, federation: Federation) -> Engine:
    """Return the engine that a spec describes, for these clients."""
    if federation.scale is not None and spec.privacy is not None and spec.privacy.hides:
        raise SettingError(
            "dataset", "standardize", True,
            "means and standard deviations of columns are not hidden; scale the files by what is known without looking "
            "at them", "with [privacy]",
        )  # fmt: skip
    with renamed(owners(spec)):
        plan = plan_of(spec, options)
        return prepare(plan.recipe, federation, plan.conditions, options)


def plan_of(spec: RunSpec, options: RunOptions) -> Plan:
    """Return what a spec says, and what was given, as `fit` takes it."""
    given = options.given
    found = {key: _built(spec, key, given.parts) for key in ("algorithm", "model", "solver", "attack", "aggregator")}
    metrics = spec.metrics if given.metrics is None else given.metrics
    recipe = Recipe(
        found["algorithm"], found["model"], found["solver"], spec.seed, spec.dtype, options.backend, metrics,
        spec.class_weights,
    )  # fmt: skip
    conditions = Conditions(
        dropout=given.dropout or spec.dropout, attack=found["attack"], aggregator=found["aggregator"],
        guard=spec.guard, diverged=spec.diverged, privacy=spec.privacy, secure=spec.secure,
    )  # fmt: skip
    how = FitOptions(
        device=options.device, chunk=options.chunk, workers=options.workers, memory=options.memory,
        engine=options.engine, address=options.address, backend=options.backend, dtype=spec.dtype, metrics=metrics,
        class_weights=spec.class_weights, score_every=spec.score_every,
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
    return spec.dataset.name != plugins.OBJECT and bool(set(PATHS) & plugins.parameters(_dataset(spec)).keys())


def _dataset(spec: RunSpec) -> Callable[..., Any]:
    return plugins.find("datasets", spec.dataset.name, spec.allow)
