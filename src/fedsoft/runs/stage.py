"""From a spec to everything in place for its first round."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fedsoft import plugins
from fedsoft.checks import renamed
from fedsoft.engines import Factory
from fedsoft.engines import find as find_engine
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.simulate import Engine
from fedsoft.training import Record, prepare
from fedsoft.trust.guards import Care, Diverged
from fedsoft.trust.privacy import Privacy


@dataclass(frozen=True)
class Stage:
    """How a run is carried out: nothing here changes its draws, and of it only the chunk touches its last bits."""

    device: str = "cpu"
    chunk: int | None = None
    workers: int | None = None  # threads; one for each core unless told
    memory: int | str | None = None  # for client memory and replies, such as 4G; half of what is available unless told
    engine: str | Factory = "local"  # where clients are, see `fedsoft.engines`
    address: str | None = None  # of the engine's cluster, for those that have one
    data: Path | None = None  # where the files of the run are now, if not where they were when it began
    keep: int | None = None  # keep the state of every so many rounds; what the run began with unless told
    say: Callable[[str], object] = logging.getLogger("fedsoft").warning  # what went wrong and was put right
    on_round: Callable[[Record], object] | None = None
    told_to_stop: Callable[[], bool] = bool  # asked after every round, besides Ctrl-C and SIGTERM
    signals: bool = True  # whether Ctrl-C and SIGTERM are ours to handle


def federation_of(spec: RunSpec) -> Federation:
    """The federation that a spec describes."""
    extra: dict[str, Any] = {}
    dataset = plugins.find("datasets", spec.dataset.name)
    if "seed" in plugins.parameters(dataset):
        extra["seed"] = spec.seed if spec.data_seed is None else spec.data_seed
    if spec.partition is not None:
        extra["partition"] = plugins.build("partitions", spec.partition.name, spec.partition.settings)
    with renamed(owners(spec)):
        federation: Federation = dataset(**spec.dataset.settings, **extra)
    return federation if spec.source is None else federation.only(spec.source)


def build(spec: RunSpec, stage: Stage) -> tuple[Federation, Engine]:
    """The federation and the engine that a spec describes."""
    federation = federation_of(spec if stage.data is None else _moved(spec, stage.data))
    if isinstance(stage.engine, str) and not len(federation.train.x):
        raise InputError("these clients have their points at nodes of their own: use --engine flower")
    if federation.scale is not None and spec.privacy is not None and (spec.privacy["counts"] or spec.privacy["clip"]):
        raise InputError(
            "dataset.standardize = true is not allowed with [privacy]: means and deviations of columns are not hidden; "
            "scale the files by what is known without looking at them"
        )
    with renamed(owners(spec)):
        return federation, _prepared(spec, stage, federation)


def owners(spec: RunSpec) -> dict[str, str]:
    """What Python calls the parts of a run, and what the run calls them."""
    named = {key: part.name for key in plugins.PARTS if (part := getattr(spec, key)) is not None}
    return {plugins.find(plugins.PARTS[key], name).__name__: key for key, name in named.items()}


def _prepared(spec: RunSpec, stage: Stage, federation: Federation) -> Engine:
    return prepare(
        plugins.build("algorithms", spec.algorithm.name, spec.algorithm.settings),
        federation,
        plugins.build("models", spec.model.name, spec.model.settings),
        local=plugins.build("solvers", spec.local.name, spec.local.settings),
        seed=spec.seed, device=stage.device, dtype=spec.dtype, chunk=stage.chunk, drop=spec.dropout,
        workers=stage.workers, memory=stage.memory, engine=find_engine(stage.engine, stage.address),
        rule=None if spec.robust is None else plugins.build("rules", spec.robust.name, spec.robust.settings),
        attack=None if spec.attack is None else plugins.build("attacks", spec.attack.name, spec.attack.settings),
        care=Care(
            spec.guard, cast(Diverged, spec.diverged), None if spec.privacy is None else Privacy(**spec.privacy)
        ),
    )  # fmt: skip


def _moved(spec: RunSpec, data: Path) -> RunSpec:
    """The run with its files elsewhere. Its data is still that which it began with, see `check_data`."""
    known = [key for key in PATHS if key in plugins.parameters(plugins.find("datasets", spec.dataset.name))]
    if not known:
        raise InputError(f"data = '{data}' is not allowed: data set '{spec.dataset.name}' reads no files")
    settings = spec.dataset.settings | {known[0]: str(data.absolute())}
    return replace(spec, dataset=replace(spec.dataset, settings=settings))


def reads_files(spec: RunSpec) -> bool:
    """Whether the data is read from files, which may change under the same name."""
    return bool(set(PATHS) & plugins.parameters(plugins.find("datasets", spec.dataset.name)).keys())
