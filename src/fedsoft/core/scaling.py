"""Columns of inputs at mean 0 and standard deviation 1, and a warning where they are far from that.

Of several inputs those of floats are scaled; tokens, masks and bytes stay as they are. An element of a sequence is
scaled by all elements of all sequences, whatever its place, and padding stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.inputs import DTYPES, WORD, InputField, Part, pack, places, unpack, words
from fedsoft.core.mapped import MappedRows

FEW_ROWS = 4  # that are looked up
FAR = 10.0  # a mean or standard deviation of an input that is too large to learn from as it is


@dataclass(frozen=True, eq=False)
class Scale:
    """Takes every column of the training points to mean 0 and std 1: one value for each element of an input.

    Over all clients together: if each were scaled by its own, the same input would mean something else for everybody.
    In a federation that is three sums from every client: of 1, of x and of x^2.
    """

    mean: Tensor
    std: Tensor  # 1 for a column that is constant
    fields: tuple[InputField, ...] = ()
    """Of several inputs: what is packed where. Then mean and std have a value for each word of a point, of which those
    that are not the first of a float mean nothing."""

    @staticmethod
    def of(x: Tensor, fields: tuple[InputField, ...] = ()) -> Scale:
        """Return the scale of points `x[points, ...]`."""
        if not fields:
            return Scale(*_mean_and_std(x))
        given = unpack(fields, x)
        mean, std = torch.zeros(words(fields), dtype=torch.float64), torch.ones(words(fields), dtype=torch.float64)
        for one, place in _floats(fields):
            part = given[one.name]
            values = part.values if part.lengths is None else part.values[part.mask]
            for whole, found in zip((mean, std), _mean_and_std(values), strict=True):
                whole[place] = found.expand(one.shape).flatten()
        return Scale(mean, std, fields)

    @property
    def parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and std of each of several inputs that is scaled, in the shape of that input."""
        return {
            one.name: (self.mean[place].view(one.shape), self.std[place].view(one.shape))
            for one, place in _floats(self.fields)
        }

    def __call__(self, x: Tensor) -> Tensor:
        """Return inputs as models see them, for inputs as they are in files."""
        if isinstance(x, MappedRows):
            return x.changed(self)
        if self.fields:
            return self._each(x, lambda values, mean, std: (values - mean) / std)
        kind = x.dtype if x.is_floating_point() else torch.float32
        return ((x.double() - self.mean.to(x.device)) / self.std.to(x.device)).to(kind)

    def back(self, x: Tensor) -> Tensor:
        """Return inputs as they are in files, for inputs as models see them."""
        if self.fields:
            return self._each(x, lambda values, mean, std: values * std + mean)
        return (x.double() * self.std.to(x.device) + self.mean.to(x.device)).to(x.dtype)

    def _each(self, x: Tensor, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Return packed points with every input of floats changed, padding apart."""
        found = unpack(self.fields, x)
        for name, (mean, std) in self.parts.items():
            part = found[name]
            values = change(part.values.double(), mean.to(x.device), std.to(x.device))
            if part.lengths is not None:
                values = values * part.mask.view(*part.mask.shape, *[1] * (values.ndim - 2))
            found[name] = Part(values, part.lengths)
        return pack(self.fields, found)


def _floats(fields: Sequence[InputField]) -> list[tuple[InputField, slice]]:
    """Return the inputs of floats, each with the first word of each of its elements."""
    found = []
    for one, place in places(fields):
        each = DTYPES[one.kind].itemsize // WORD
        if one.kind in ("float32", "float64"):
            found.append((one, slice(place.start, place.start + each * math.prod(one.shape), each)))
    return found


def _mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = _moments(x, 0)
    # What rounding leaves of a constant is no standard deviation.
    return mean, torch.where(std <= 1e-9 * mean.abs(), 1.0, std)


def is_scaled(x: Tensor, pools: Sequence[Tensor], scale: Scale) -> bool:
    """Whether inputs are points of these pools, which are scaled: the same memory, or the same values.

    A few rows tell: they would have to be in a pool before and after scaling for the wrong answer.
    """
    pools = [pool for pool in pools if not isinstance(pool, MappedRows)]  # points on disk are not looked up
    if any(len(x) and np.may_share_memory(x.numpy(), pool.numpy()) for pool in pools):
        return True
    few = x[:: max(1, len(x) // FEW_ROWS)].unique(dim=0)
    if len(few) < 2 or torch.equal(scale(few), few):
        return False
    return bool(pools) and all(any(_has_row(pool.flatten(1), row) for pool in pools) for row in few.flatten(1))


def _has_row(pool: Tensor, row: Tensor) -> bool:
    near = pool[pool[:, 0].float() == row[0].float()]  # most rows differ in their first column already
    return bool((near.float() == row.float()).all(1).any())


def _moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over points `x[points, ...]`; those on disk are read twice, in blocks."""
    if not isinstance(x, MappedRows):
        return x.double().mean(0), x.double().std(0, correction=correction)
    zero = torch.zeros(x.shape[1:], dtype=torch.float64)
    mean = sum((rows.double().sum(0) for rows in x.blocks()), zero) / len(x)
    squares = sum(((rows.double() - mean).square().sum(0) for rows in x.blocks()), zero)
    return mean, (squares / (len(x) - correction)).sqrt()


def scaling_warning(x: Tensor) -> str | None:
    """Return a sentence where inputs are far from mean 0 and std 1, which local solvers need; else None."""
    if not x.is_floating_point() or len(x) < 2:
        return None
    means, stds = _moments(x, 1)
    mean, std = float(means.abs().max()), float(stds.max())
    if mean <= FAR and std <= FAR:
        return None
    return (
        f"Inputs are not scaled (means up to {mean:.3g}, standard deviations up to {std:.3g}): networks learn little "
        "from them; bring every column to mean 0 and standard deviation 1 (standardize = true for tables, "
        "folders and arrays, else federation.standardized())"
    )
