"""Load a saved run."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError, StoreError
from fedsoft.runs.execute import check_data, check_there
from fedsoft.runs.find import find_run
from fedsoft.runs.folder import Checkpoint, RunFolder
from fedsoft.runs.given import Given
from fedsoft.runs.run import Run
from fedsoft.runs.run_options import RunOptions, build, build_engine, plan_of
from fedsoft.runs.saving import restored
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.user_code import changed as changed_code

GIVE_AGAIN = "its data was made in Python and has no name: load it without, then extend(rounds, federation=...)"


def load(
    path: str | Path, *, device: str = "cpu", round: int | None = None, data: str | Path | bool = False,
    allow: Collection[str] = (), model: Any = None, parts: Mapping[str, Any] | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """Load a saved run: its centers, personal models and history. The data that it was trained on is not needed.

    Arguments:
        path: of the run, or the beginning of its name.
        device: `cpu` or `cuda`.
        round: the round after which it is loaded, one of those that were kept; default: as it was at its end.
        data: whether to make or read the clients' points, too: True, or where their files are now if they were moved.
            They must be those that the run began with. Only scores of another round than the last, and more rounds,
            need them.
        allow: code outside of fedsoft that the folder names and that may be imported, as `package.module:name`.
        model: the network, of a run that was trained with an object that has no name to import it by.
        parts: the same for other parts, such as `{"algorithm": Mine()}`.
        settings: of the algorithm, to change those that matter for predictions only.
    """
    folder = find_run(Path(os.environ.get("FEDSOFT_RUNS", "runs")), str(path))
    spec = folder.spec(allow)
    given = {**(parts or {}), **({} if model is None else {"model": model})}
    if unknown := [key for key in given if key not in plugins.PARTS]:
        raise InputError(f"parts: '{unknown[0]}' is not allowed: should be one of {', '.join(plugins.PARTS)}")
    changed = replace(spec, algorithm=replace(spec.algorithm, settings=spec.algorithm.settings | settings))
    options = RunOptions(device=device, given=Given(parts=given))
    for name in changed_code(folder, spec):
        options.say(
            f"the code of '{name}' is not that which run '{folder.name}' was trained with: its models may compute "
            "something else now"
        )
    federation, engine = _served(folder, changed, options, data)
    outcome, records = folder.outcome(), folder.records()
    point = _point(folder, round, None if outcome is None else outcome.rounds)
    if point is None and len(records) > 1:
        raise StoreError(f"'{folder.path / 'state.safetensors'}' is missing: the run cannot be resumed without it")
    engine.at_hand = not folder.at_nodes
    state, done = restored(point, engine)
    run = Run(federation, engine, state, folder.log.until(done), plan=plan_of(changed, options), spec=spec)
    if outcome is not None and outcome.rounds == done:
        run.ended_by = outcome.ended_by
        if round is None and len(records) > done:  # the best round, not the last
            run.at, run.history = done, records
    if data is False:
        run.saved = outcome if outcome is not None and outcome.rounds == done and not settings else None
        again = GIVE_AGAIN if spec.dataset.name == plugins.OBJECT else f"load it with them, load('{path}', data=True)"
        run.lacking = f"this needs the points of the run's clients: {again}"
    return run


def _point(folder: RunFolder, round: int | None, measured: int | None) -> Checkpoint | None:
    """Return the state of a round; default: of that in which the run was measured at its end, else the last one."""
    if round is None and measured is not None and measured in folder.states.kept:
        return folder.checkpoint(measured)
    return folder.checkpoint(round)


def _served(
    folder: RunFolder, spec: RunSpec, options: RunOptions, data: str | Path | bool
) -> tuple[Federation, Engine]:  # fmt: skip
    """Return the federation and the engine of a saved run: without points, unless they are asked for."""
    if data is False:
        federation = folder.data.federation()
        return federation, build_engine(spec, options, federation)
    if spec.dataset.name == plugins.OBJECT:
        raise InputError(f"data = {data!r} is not allowed for run '{folder.name}': {GIVE_AGAIN}")
    moved = None if data is True else Path(data)
    check_there(folder, spec, moved)
    scale = folder.data.scale if spec.parent is not None else None
    federation, engine = build(spec, replace(options, data=moved), scale)
    check_data(folder, federation)
    return federation, engine
