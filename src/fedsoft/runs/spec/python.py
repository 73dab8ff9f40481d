"""A run that was made in Python, as a spec: its parts by name where they have one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError
from torch import nn

from fedsoft import plugins
from fedsoft.core.class_weights import ClassWeights
from fedsoft.core.federation import Federation
from fedsoft.errors import InputError
from fedsoft.plugins import PARTS, PASSED
from fedsoft.runs.spec.run_spec import Part, RunSpec
from fedsoft.settings import MadeBy
from fedsoft.training import Plan
from fedsoft.training.callbacks import EarlyStopping


def spec_of(plan: Plan, federation: Federation, label: str) -> RunSpec:
    """Return the spec of a run. Data that was passed has no name: the spec has its fingerprint.

    A part that has no name either is called `python:object`; whoever loads the run gives it.
    """
    recipe, conditions, options = plan.recipe, plan.conditions, plan.options
    if callable(conditions.dropout):
        raise InputError("conditions.dropout is a schedule of your own: such a run cannot be saved")
    metrics = options.metrics
    named = list(metrics) if metrics is not None and not isinstance(metrics, Mapping) else None
    parts = {
        "algorithm": recipe.algorithm, "model": recipe.model, "solver": recipe.solver,
        "aggregator": conditions.aggregator, "attack": conditions.attack,
    }  # fmt: skip
    found: dict[str, Any] = {key: part_of(key, thing) for key, thing in parts.items() if thing is not None}
    allow = frozenset(part.name for part in found.values() if plugins.is_code(part.name))
    factory = found["model"].settings.get("factory")
    return RunSpec(
        **found, dataset=Part(PASSED, {"fingerprint": federation.fingerprint}), rounds=plan.limit.rounds,
        work=plan.limit.work, bytes=plan.limit.bytes, seed=recipe.seed, dtype=options.dtype,
        dropout=float(conditions.dropout), score_every=options.score_every, metrics=named,
        class_weights=_weights(options.class_weights),
        guard=float(conditions.guard), diverged=conditions.diverged, privacy=conditions.privacy,
        secure=conditions.protection, label=label,
        early_stopping=next((one for one in options.callbacks if isinstance(one, EarlyStopping)), None),
        allow=allow | ({factory} if isinstance(factory, str) else frozenset()),
    )  # fmt: skip


def _weights(chosen: ClassWeights | Sequence[float] | None) -> ClassWeights | None:
    return chosen if chosen is None or isinstance(chosen, str) else [float(one) for one in chosen]


def part_of(key: str, thing: Any) -> Part:
    """Return a part of a run by its name and settings, or as an object without a name."""
    name, given = _named(key, thing)
    if name is None:
        return Part(PASSED)
    allow = [value for value in (name, *given.values()) if isinstance(value, str) and plugins.is_code(value)]
    try:
        return Part.read(key, {"name": name, **given}, allow)
    except (InputError, PydanticSerializationError):  # settings that no text can hold
        return Part(PASSED)


def _named(key: str, thing: Any) -> tuple[str | None, dict[str, Any]]:
    kind = PARTS[key]
    if key == "model":
        made = MadeBy.of(thing)
        if made is None:  # a class or a function that makes a network
            factory = None if isinstance(thing, nn.Module) else _importable(thing)
            return (None, {}) if factory is None else ("module", {"factory": factory})
        given = dict(made.arguments)
        if "factory" in given and not isinstance(given["factory"], str):
            given["factory"] = _importable(given["factory"])
        return None if None in given.values() else _plugin(kind, made.function), given
    if not dataclasses.is_dataclass(thing):
        return None, {}
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing) if field.init}
    return _plugin(kind, type(thing)), {name: value for name, value in values.items() if value is not None}


def _plugin(kind: str, thing: Any) -> str | None:
    """Return the name of a plugin, or of code that can be imported."""
    package, _, name = thing.__module__.rpartition(".")
    if package == f"fedsoft.{kind}" and plugins.find(kind, name) is thing:
        return name
    return _importable(thing)


def _importable(thing: Any) -> str | None:
    """Return `package.module:name` of a class or function; None where nobody else could import it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    text = f"{module}:{name}"
    if (
        module in (None, "__main__")
        or not plugins.is_code(text)
        or str(module).split(".")[0] in sys.stdlib_module_names
    ):
        return None
    return text if getattr(sys.modules.get(str(module)), name, None) is thing else None
