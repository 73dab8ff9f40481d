"""Runs of data and models that were made in Python: a spec says what they are, and the objects come with it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedsoft import plugins
from fedsoft.core.client_metrics import MetricChoice
from fedsoft.core.federation import Federation
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError
from fedsoft.plugins import PYTHON
from fedsoft.runs.spec import Part
from fedsoft.safety.conditions import Conditions
from fedsoft.seeds import generator
from fedsoft.training import as_model
from fedsoft.training.prepare import few_points

DATA, MODEL = f"{PYTHON}:data", f"{PYTHON}:model"
DIGITS = 4  # of a number in a fingerprint: machines round differently


@dataclass(frozen=True)
class Given:
    """What a run has that no name stands for.

    Arguments:
        data: the federation, or a function that makes that of a seed.
        model: as `fit` takes it.
        conditions, metrics, backend: as `fit` takes them.
    """

    data: Federation | Callable[[int], Federation]
    model: Builder | Model | nn.Module | Callable[[], nn.Module]
    conditions: Conditions | None = None
    metrics: MetricChoice | None = None
    backend: str = "auto"

    def federation(self, seed: int) -> Federation:
        """Return the federation of a seed."""
        if isinstance(self.data, Federation):
            return self.data
        made = self.data(seed)
        if not isinstance(made, Federation):
            raise InputError(f"data: the function made a {type(made).__name__}, should be a Federation")
        return made

    def tables(self, seed: int) -> dict[str, Any]:
        """Return the parts of a spec that name these objects: what they are, so that another one is another run."""
        first = self.federation(seed)
        data: dict[str, Any] = {"name": DATA, "clients": len(first), "content": first.fingerprint}
        if (further := (self.conditions, self.metrics, self.backend)) != (None, None, "auto"):
            data["conditions"] = _digest(repr(further).encode())
        return {"dataset": data, "model": {"name": MODEL, "content": self._model_content(first)}}

    def _model_content(self, federation: Federation) -> str:
        """Return a digest of what a model computes, for a few points and weights."""
        model = as_model(self.model, federation)
        x, y = few_points(federation)
        w = model.draw(generator(0, "content"))
        with torch.no_grad():
            out = model.outputs(w[None], x[None])
            loss = model.loss(out, y[None])
        values = [value for part in (w, out, loss) for value in part.double().flatten()[:1000].tolist()]
        rounded = [f"{value:.{DIGITS}g}" for value in values]
        return _digest(repr((dict(model.layout.shapes), rounded)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def named_part(kind: str, made: object) -> Part:
    """Return an algorithm or a solver by its name and its settings; a class of the user's own by where it stands."""
    if not dataclasses.is_dataclass(made) or isinstance(made, type):
        some = {"algorithms": "FedSoft(S=2)", "solvers": "Adam(lr=0.01)"}[kind]
        raise InputError(f"{made!r} is not allowed: should be one with its settings, such as {some}")
    cls = type(made)
    home, _, name = cls.__module__.rpartition(".")
    name = name if home == f"fedsoft.{kind}" else f"{cls.__module__}:{cls.__qualname__}"
    if home != f"fedsoft.{kind}" and not plugins.is_code(name):
        raise InputError(f"'{name}' is not allowed: should be a class of a module, not one that a function makes")
    values = {key: getattr(made, key) for key in plugins.parameters(cls)}
    return Part(name, plugins.resolve(kind, name, values, [name]))


def changed(part: Part, kind: str) -> dict[str, Any]:
    """Return the settings of a part that are not the defaults."""
    known = plugins.parameters(plugins.find(kind, part.name, [part.name]))
    needed = {key: part.settings[key] for key, one in known.items() if one.default is one.empty}
    plain = plugins.resolve(kind, part.name, needed, [part.name])
    return {key: value for key, value in part.settings.items() if key in needed or plain.get(key) != value}
