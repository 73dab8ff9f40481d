"""What is known of a run's clients without any of their points, `data.json`: all that serving needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedsoft.core.client_data import Augment, ClientData, DataShape
from fedsoft.core.columns import Columns
from fedsoft.core.federation import Federation
from fedsoft.core.inputs import words
from fedsoft.core.scaling import Scale

Dtype = Literal["uint8", "int32", "int64", "float32", "float64"]
Count = Annotated[int, Field(ge=0, lt=2**48)]
LARGEST = 2**40  # numbers in one input


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """A federation without its points.

    Arguments:
        names: of the clients.
        train, held_out: how many points each of them has.
        shape: the task, the shape of an input, the number of outputs or classes, and what several inputs are.
        columns: names of features, and of classes where they are text.
        inputs, targets: types of numbers; target: the shape of one target.
        mean, std: of inputs, where they are scaled.
        augment: how images are varied in training.
    """

    names: list[str]
    train: list[Count]
    held_out: list[Count]
    shape: DataShape
    columns: Columns
    inputs: Dtype
    targets: Dtype
    target: list[Count]
    mean: list[Any] | None = None
    std: list[Any] | None = None
    augment: Augment | None = None

    @staticmethod
    def of(federation: Federation) -> DataSummary:
        train, scale = federation.train, federation.scale
        return DataSummary(
            names=list(federation.names), train=train.sizes.tolist(), held_out=federation.held_out.sizes.tolist(),
            shape=federation.shape, columns=federation.columns, inputs=_name(train.x), targets=_name(train.y),
            target=list(train.y.shape[1:]), augment=train.augment,
            mean=None if scale is None else scale.mean.tolist(), std=None if scale is None else scale.std.tolist(),
        )  # fmt: skip

    @property
    def scale(self) -> Scale | None:
        """How inputs are scaled."""
        if self.mean is None or self.std is None:
            return None
        mean, std = (torch.tensor(value, dtype=torch.float64) for value in (self.mean, self.std))
        return Scale(mean, std, self.shape.fields)

    def federation(self) -> Federation:
        """Return the federation that this describes; its pools hold no points."""
        train, held_out = (self._pool(sizes) for sizes in (self.train, self.held_out))
        return Federation(train, held_out, tuple(self.names), self.shape, columns=self.columns, scale=self.scale)

    def _pool(self, sizes: list[int]) -> ClientData:
        x = torch.empty((0, *self.shape.input), dtype=getattr(torch, self.inputs))
        y = torch.empty((0, *self.target), dtype=getattr(torch, self.targets))
        counts = torch.tensor(sizes, dtype=torch.int64)
        return ClientData(x, y, torch.zeros_like(counts), counts, self.augment)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> DataSummary:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another form."""
        found = _adapter().validate_python(values)
        if not len(found.names) == len(found.train) == len(found.held_out):
            raise ValueError("names and sizes of clients should be as many")
        if any(side < 1 for side in found.shape.input) or math.prod(found.shape.input) > LARGEST:
            raise ValueError("the shape of an input is not possible")
        _check_fields(found)
        sides = [] if found.mean is None else [torch.tensor(value).shape for value in (found.mean, found.std or [])]
        if any(tuple(side) != found.shape.input for side in sides):
            raise ValueError("the scale should have the shape of an input")
        return found


def _check_fields(found: DataSummary) -> None:
    """Raise ValueError unless several inputs are packed as they say."""
    fields = found.shape.fields
    if fields and (found.inputs, found.shape.input) != ("int32", (words(fields),)):
        raise ValueError("several inputs should be packed as they say")
    if len({one.name for one in fields}) != len(fields) or any(
        not (one.name.isdigit() or one.name.isidentifier()) for one in fields
    ):
        raise ValueError("several inputs should have a name each")
    if any(side < 0 for one in fields for side in one.shape) or any(one.ragged and not one.shape for one in fields):
        raise ValueError("the shape of an input is not possible")


def _name(numbers: Tensor) -> Dtype:
    found: Any = str(numbers.dtype).removeprefix("torch.")
    return found


@cache
def _adapter() -> TypeAdapter[DataSummary]:
    return TypeAdapter(DataSummary)
