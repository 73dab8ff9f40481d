"""Start or resume one run on the engine that its options name: in this process, on Ray, or on a Flower federation."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from fedsoft.engine.registry import not_installed
from fedsoft.errors import InputError
from fedsoft.runs import execute as runs
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.origin import Origin
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec


def launch(spec: RunSpec, path: Path, options: RunOptions, origin: Origin | None = None) -> tuple[RunFolder, bool]:
    """Start a run, or resume it where its folder exists. True when it is finished, False when it was stopped.

    A new run with an `origin` begins where that one ends.
    """
    if path.exists():
        return resume(RunFolder.open(path), options, allow=spec.allow)
    if origin is not None:
        if options.engine == "flower":
            raise InputError(f"run '{origin.folder.name}' can go on with --engine local or ray only")
        return runs.execute(spec, path, options, origin=origin)
    return runs.execute(spec, path, options) if options.engine != "flower" else _submit(spec, path, options)


def resume(
    folder: RunFolder, options: RunOptions, *, again: bool = False, allow: Collection[str] = ()
) -> tuple[RunFolder, bool]:
    """Resume a run; see `runs.execute.resume`."""
    over = not again and folder.scores() is not None
    if options.engine != "flower" or over:
        return runs.resume(folder, options, again=again, allow=allow)
    return _submit(folder.spec(allow), folder.path, options)


def _submit(spec: RunSpec, path: Path, options: RunOptions) -> tuple[RunFolder, bool]:
    if find_spec("flwr") is None:
        raise not_installed("flower")
    from fedsoft.flower.submit import submit

    return submit(spec, path, options)
