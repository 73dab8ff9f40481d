"""Engines by name: what carries the jobs of an algorithm to its clients.

`local` has all clients in this process. `ray` is imported on demand, because the package is an extra. `flower` carries
out whole runs on separate nodes, see `studies.launch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsoft.errors import InputError, unknown

if TYPE_CHECKING:  # commands that list engines should not wait for torch
    from fedsoft.engine.base import Factory

NEEDS = {"local": None, "ray": "ray", "flower": "flwr"}
"""Every engine with the package that it needs."""


def find(engine: str | Factory = "local", address: str | None = None) -> Factory:
    """Return the factory of an engine by name, at an address if it takes one; return a factory as it is."""
    if engine == "local" or not isinstance(engine, str):
        if address is not None:
            named = "engine 'local'" if engine == "local" else "an engine of your own"
            raise InputError(f"address = '{address}' is not allowed: {named} takes none")
        if not isinstance(engine, str):
            return engine
        from fedsoft.engine.local import LocalEngine

        return LocalEngine
    if engine not in NEEDS:
        raise unknown("engine", engine, NEEDS)
    if engine == "flower":
        raise InputError(
            "engine 'flower' runs what a preset or a file describes, on the data of its nodes: use 'fedsoft run' with "
            "--engine flower, or 'fedsoft flower run'"
        )
    try:
        from fedsoft.engine import ray

        return ray.engine(address)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != NEEDS[engine]:
            raise
        raise not_installed(engine) from None


def not_installed(engine: str) -> InputError:
    """Return an error for an engine whose package is missing."""
    return InputError(f"engine '{engine}' needs a package that is not installed: pip install \"fedsoft[{engine}]\"")
