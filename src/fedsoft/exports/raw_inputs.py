"""The inputs of exported models: plain tensors under names, from which masks and packed points are made inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsoft.core.federation import Federation
from fedsoft.core.inputs import InputField, Part, made_up, unpack
from fedsoft.core.model import Model
from fedsoft.networks.inputs import Inputs, Reader, called
from fedsoft.seeds import generator

SAMPLE = 7  # points that an export is checked on
Scaled = tuple[Tensor, Tensor]
"""Mean and standard deviation of an input."""


@dataclass(frozen=True)
class RawInputs:
    """What an exported model is given.

    Arguments:
        reader: of the model's network.
        names: of the tensors, in order; a sequence is followed by its lengths.
    """

    reader: Reader
    names: tuple[str, ...]

    @staticmethod
    def of(model: Model, net: nn.Module) -> RawInputs:
        reader = model.inputs if isinstance(model.inputs, Reader) else Reader()
        names: list[str] = []
        ragged = sum(one.ragged for one in reader.fields)
        for one, name in zip(reader.fields, called(net, reader.fields), strict=True):
            names += [name, *(["lengths" if ragged == 1 else f"{name}_lengths"] if one.ragged else [])]
        return RawInputs(reader, tuple(names) or ("x",))

    @property
    def kinds(self) -> list[tuple[InputField, str, str | None]]:
        """Each of several inputs with its name and that of its lengths."""
        left = iter(self.names)
        return [(one, next(left), next(left) if one.ragged else None) for one in self.reader.fields]

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return points as they are kept as those tensors: integers as int64, all else in its own type."""
        if not self.reader.fields:
            return (x.long() if self.reader.tokens else x,)
        found: list[Tensor] = []
        for part in unpack(self.reader.fields, x).values():
            values = part.values.long() if part.values.dtype == torch.int32 else part.values
            values = values.float() if values.dtype == torch.float64 else values
            found += [values, *([] if part.lengths is None else [part.lengths])]
        return tuple(found)

    def read(self, raw: Sequence[Tensor], dtype: torch.dtype, scale: Mapping[str, Scaled]) -> Inputs:
        """Return what a network is called with; a single input is a number already.

        `scale` has mean and std of those of several inputs that are scaled.
        """
        if not self.reader.fields:
            return raw[0].long() if self.reader.tokens else raw[0]
        given: Mapping[str, Tensor] = dict(zip(self.names, raw, strict=True))
        parts = {}
        for one, name, lengths in self.kinds:
            part = Part(given[name], None if lengths is None else given[lengths])
            if one.name in scale:
                values = scaled(part.values, scale[one.name], dtype)
                if part.lengths is not None:  # padding stays 0
                    values = values * part.mask.view(*part.mask.shape, *[1] * (values.ndim - 2))
                part = Part(values, part.lengths)
            parts[one.name] = part
        return self.reader.beside_each(parts, dtype)

    def about(self, federation: Federation) -> list[tuple[str, list[int], str]]:
        """Return name, shape of a point and type of each tensor."""
        if not self.reader.fields:
            plain = "uint8" if federation.train.x.dtype == torch.uint8 else "float32"
            return [("x", list(federation.shape.input), "int64" if self.reader.tokens else plain)]
        found = []
        for one, name, lengths in self.kinds:
            dtype = {"int32": "int64", "float64": "float32"}.get(one.kind, one.kind)
            found += [(name, list(one.shape), dtype), *([(lengths, [], "int64")] if lengths else [])]
        return found


def scales(federation: Federation) -> dict[str, Scaled]:
    """Return mean and std of each input that is scaled, by its name; a single one is called x."""
    scale = federation.scale
    if scale is None:
        return {}
    return scale.parts if scale.fields else {"x": (scale.mean, scale.std)}


def scaled(x: Tensor, by: Scaled | None, dtype: torch.dtype) -> Tensor:
    """Return an input as a network reads it."""
    return x.to(dtype) if by is None else ((x.double() - by[0]) / by[1]).to(dtype)


def sample(federation: Federation, dtype: torch.dtype) -> Tensor:
    """Return inputs as they are in files, to try models on: drawn, because a saved run has no points.

    Integers cannot be drawn without knowing which of them mean something: those of clients, or 0.
    """
    shape, x = federation.shape, federation.train.x
    if not shape.fields and x.dtype in (torch.uint8, torch.float32, torch.float64):
        return _drawn(federation, dtype)
    some = x[:SAMPLE].cpu() if len(x) else made_up(shape.input, shape.fields, x.dtype, SAMPLE)
    return some if federation.scale is None else federation.scale.back(some)


def _drawn(federation: Federation, dtype: torch.dtype) -> Tensor:
    rng, sides = generator(0, "export"), (SAMPLE, *federation.shape.input)
    if federation.train.x.dtype == torch.uint8:
        return torch.from_numpy(rng.integers(0, 256, sides, dtype="uint8"))
    x = torch.from_numpy(rng.standard_normal(sides))
    return (x if federation.scale is None else federation.scale.back(x)).to(dtype)
