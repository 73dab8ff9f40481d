"""Engines by name: who carries the questions of an algorithm to its clients.

`local` has all clients in this process. Any other is a module or package `fedsoft.engines.<name>` with a function
`engine(address)` that gives a `Factory`; it is imported when it is asked for, because what it stands on is an extra.
One with a function `carry_out(spec, path, stage)` has whole runs carried out by another process, see `runs.execute`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Set
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from fedsoft.errors import InputError, unknown

if TYPE_CHECKING:  # what stands below here may have no time to wait for torch
    import torch

    from fedsoft.contract import Algorithm
    from fedsoft.federation import Federation
    from fedsoft.local import Solver
    from fedsoft.model import Model
    from fedsoft.simulate import Engine
    from fedsoft.trust.absence import Absent
    from fedsoft.trust.attack import Attack
    from fedsoft.trust.guards import Care
    from fedsoft.trust.robust import Rule

NEEDS = {"local": None, "ray": "ray", "flower": "flwr"}
"""Every engine with the package that it stands on."""


class Factory(Protocol):
    """Makes an engine. For arguments see `simulate.Engine` and `host.Room`."""

    def __call__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None, device: str, dtype: torch.dtype, absent: Absent | None,
        workers: int | None, memory: int | str | None, rule: Rule | None, attack: Attack | None, liars: Set[str],
        care: Care,
    ) -> Engine:  # fmt: skip
        """The engine, with everything in place for the first round."""
        ...


def find(engine: str | Factory = "local", address: str | None = None) -> Factory:
    """The engine of that name, at that address where it has one; a factory is one already."""
    if engine == "local" or not isinstance(engine, str):
        if address is not None:
            told = "engine 'local'" if engine == "local" else "an engine of your own"
            raise InputError(f"address = '{address}' is not allowed: {told} takes none")
        if not isinstance(engine, str):
            return engine
        from fedsoft.simulate import Simulation

        return Simulation
    if engine not in NEEDS:
        raise unknown("engine", engine, NEEDS)
    try:
        return importlib.import_module(f"fedsoft.engines.{engine}").engine(address)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != NEEDS[engine]:
            raise
        raise _not_installed(engine) from None


def whole_runs(engine: str | Factory) -> Callable[..., Any] | None:
    """What carries whole runs out for this engine, if it is one of that kind."""
    if engine != "flower":
        return None
    if find_spec("flwr") is None:
        raise _not_installed("flower")
    return importlib.import_module("fedsoft.engines.flower").carry_out


def _not_installed(engine: str) -> InputError:
    return InputError(f"engine '{engine}' needs a package that is not installed: pip install \"fedsoft[{engine}]\"")
