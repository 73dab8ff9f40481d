"""Runs that were made in Python: parts by name where they have one, else as objects that are given beside the spec."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic_core import PydanticSerializationError
from torch import nn

from fedsoft import plugins
from fedsoft.core.client_metrics import MetricChoice, read_metrics
from fedsoft.core.federation import Federation
from fedsoft.errors import InputError
from fedsoft.plugins import OBJECT, PARTS
from fedsoft.runs.spec import Part, RunSpec
from fedsoft.safety.dropouts import Dropouts
from fedsoft.seeds import generator
from fedsoft.settings import MadeBy
from fedsoft.training import Plan, as_model
from fedsoft.training.callbacks import EarlyStopping
from fedsoft.training.prepare import few_points

DIGITS = 4  # of a number in a digest: machines round differently
EXAMPLES = {"algorithm": "FedSoft(S=2)", "solver": "Adam(lr=0.01)"}
Data = Federation | Callable[[int], Federation]


@dataclass(frozen=True)
class Given:
    """What a run has that no name stands for: in its spec it is `python:object`, and whoever has it gives it.

    Arguments:
        data: the federation, or a function that makes that of a seed; None where the spec names it.
        parts: by their keys in the spec.
        dropout, metrics: where they are functions.
    """

    data: Data | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    dropout: Dropouts | None = None
    metrics: MetricChoice | None = None

    def federation(self, seed: int) -> Federation:
        """Return the federation of a seed."""
        if isinstance(self.data, Federation):
            return self.data
        if not callable(self.data):
            raise InputError(f"data = {self.data!r} is not allowed: should be a Federation, or a function of a seed")
        made = self.data(seed)
        if not isinstance(made, Federation):
            raise InputError(f"data: the function made a {type(made).__name__}, should be a Federation")
        return made


def spec_of(plan: Plan, data: Data, label: str, *, of_study: bool = False) -> tuple[RunSpec, Given]:
    """Return the spec of a run, and what has to be given beside it.

    What has no name is in the spec as a digest of what it is, so that another one is another run. Runs of a study
    differ by their algorithms and solvers: these need names. A network of the user's own is an object there, since its
    code may change and keep its name, and what is saved is not run again.
    """
    recipe, conditions, options = plan.recipe, plan.conditions, plan.options
    federation = Given(data).federation(recipe.seed)
    read_metrics(options.metrics, federation.shape)
    things = {
        "algorithm": recipe.algorithm, "model": recipe.model, "solver": recipe.solver,
        "aggregator": conditions.aggregator, "attack": conditions.attack,
    }  # fmt: skip
    named = ("algorithm", "solver") if of_study else ()
    found = {
        key: named_part(key, thing) if key in named else part_of(key, thing)
        for key, thing in things.items() if thing is not None
    }  # fmt: skip
    model = found["model"]
    if model.name == OBJECT or (of_study and plugins.code_in("models", model.name, model.settings)):
        found["model"] = Part(OBJECT, {"content": content_of(recipe.model, federation)})
    given = Given(
        data, {key: things[key] for key, part in found.items() if part.name == OBJECT},
        conditions.dropout if callable(conditions.dropout) else None,
        options.metrics if isinstance(options.metrics, Mapping) else None,
    )  # fmt: skip
    names = [(PARTS[key], part.name, part.settings) for key, part in found.items() if part.name != OBJECT]
    weights, metrics = options.class_weights, options.metrics
    parts: dict[str, Any] = {**found, "dataset": _data_part(federation, given)}
    return RunSpec(
        **parts, rounds=plan.limit.rounds, work=plan.limit.work, bytes=plan.limit.bytes, seed=recipe.seed,
        dtype=options.dtype, dropout=0.0 if callable(conditions.dropout) else float(conditions.dropout),
        score_every=options.score_every, metrics=None if metrics is None or given.metrics else list(metrics),
        class_weights=weights if weights is None or isinstance(weights, str) else [float(one) for one in weights],
        guard=float(conditions.guard), diverged=conditions.diverged, privacy=conditions.privacy,
        secure=conditions.protection, label=label,
        early_stopping=next((one for one in options.callbacks if isinstance(one, EarlyStopping)), None),
        allow=frozenset(name for one in names for name in plugins.code_in(*one)),
    ), given  # fmt: skip


def _data_part(federation: Federation, given: Given) -> Part:
    functions = (given.dropout, given.metrics)
    more = {} if functions == (None, None) else {"functions": _digest(functions)}
    return Part(OBJECT, {"fingerprint": federation.fingerprint, **more})


def content_of(model: Any, federation: Federation) -> str:
    """Return a digest of what a model computes, for a few points and its first weights."""
    built = as_model(model, federation)
    x, y = few_points(federation)
    w = built.draw(generator(0, "content"))
    with torch.no_grad():
        out = built.outputs(w[None], x[None])
        loss = built.loss(out, y[None])
    values = [value for part in (w, out, loss) for value in part.double().flatten()[:1000].tolist()]
    return _digest((dict(built.layout.shapes), [f"{value:.{DIGITS}g}" for value in values]))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


# --- names ------------------------------------------------------------------------------------------------------------


def named_part(key: str, thing: Any) -> Part:
    """Return a part of a run by its name, without which runs cannot be told apart by it; raise where it has none."""
    if isinstance(thing, type) or not dataclasses.is_dataclass(thing):
        raise InputError(f"{key} = {thing!r} is not allowed: should be one with its settings, such as {EXAMPLES[key]}")
    part = part_of(key, thing, here=True)
    if part.name == OBJECT:
        raise InputError(f"{key} = {thing!r} is not allowed: should be a class of a module, not one a function makes")
    return part


def part_of(key: str, thing: Any, *, here: bool = False) -> Part:
    """Return a part of a run by its name and settings, or as an object without a name.

    `here`: what the script or the notebook that runs now defines has a name, too.
    """
    name, settings = _named(key, thing)
    code = [value for value in (name, *settings.values()) if isinstance(value, str) and plugins.is_code(value)]
    if name is not None and (here or not any(one.startswith("__main__:") for one in code)):
        try:
            return Part.read(key, {"name": name, **settings}, code)
        except (InputError, PydanticSerializationError):  # settings that no text can hold
            pass
    return Part(OBJECT, {"content": _digest(thing)})


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
    values = {one.name: getattr(thing, one.name) for one in dataclasses.fields(thing) if one.init}
    return _plugin(kind, type(thing)), {name: value for name, value in values.items() if value is not None}


def _plugin(kind: str, thing: Any) -> str | None:
    """Return the name of a plugin, or of code that can be imported."""
    package, _, name = thing.__module__.rpartition(".")
    if package == f"fedsoft.{kind}" and plugins.find(kind, name) is thing:
        return name
    return _importable(thing)


def _importable(thing: Any) -> str | None:
    """Return `package.module:name` of a class or function; None where that is not it, or Python's own."""
    module, name = str(getattr(thing, "__module__", None)), getattr(thing, "__qualname__", "")
    if not plugins.is_code(f"{module}:{name}") or module.split(".")[0] in sys.stdlib_module_names:
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is thing else None
