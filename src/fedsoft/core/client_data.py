"""The points of many clients in two tensors.

All points lie in one pool, client after client; a client is a start and a size. Nothing is padded in storage, so one
large client among many small ones costs nothing, and `take` copies no data. Padding appears only in the batches that
are gathered from here (see `batches`).

Images may be varied each time they are trained on: how is said here beside the points (`Augment`), and done by
`augmented`; the draws belong to the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_draws import Counts, Draws
from fedsoft.core.inputs import InputField
from fedsoft.core.mapped import pick

Task = Literal["regression", "classification", "multilabel"]


@dataclass(frozen=True)
class DataShape:
    """What a model must know of the data.

    Arguments:
        task: what the targets are.
        input: the shape of one input; of several, that of a point with all of them packed.
        outputs: the number of outputs or classes.
        fields: of several inputs: what is packed where, see `inputs`.
    """

    task: Task
    input: tuple[int, ...]
    outputs: int
    fields: tuple[InputField, ...] = ()


@dataclass(frozen=True)
class Augment:
    """How images are varied in training: shifted by up to `pad` pixels each way, and mirrored half of the time.

    As in the paper's CIFAR-10 experiments: pad by reflection, crop at random, flip horizontally.
    """

    pad: int
    flip: bool

    def draw(self, draws: Draws, counts: Counts) -> tuple[Tensor, Tensor]:
        """Draw shifts `[points, 2]` (down, right) and flips `[points]` for `augmented`, `counts` for each client."""
        drawn = torch.from_numpy(draws.random_each(counts, 3))
        shift = (drawn[:, :2] * (2 * self.pad + 1)).long() - self.pad
        flip = drawn[:, 2] < 0.5
        return shift, flip if self.flip else torch.zeros_like(flip)


def augmented(x: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Return images `x[..., channels, height, width]` cropped at their shifts, then mirrored where `flip[...]`.

    What lies beyond an edge is its reflection. A shift is that of the crop (down, right), less than height and width.
    """
    height, width = x.shape[-2:]
    column = torch.arange(width, device=x.device)
    rows = _reflected(torch.arange(height, device=x.device) + shift[..., :1], height)
    columns = _reflected(torch.where(flip[..., None], column.flip(0), column) + shift[..., 1:], width)
    # One gather from the images themselves: nothing is padded, and channels share their places.
    places = (rows.unsqueeze(-1) * width + columns.unsqueeze(-2)).flatten(-2).unsqueeze(-2)
    return x.flatten(-2).gather(-1, places.expand(*x.shape[:-2], height * width)).view_as(x)


def _reflected(place: Tensor, side: int) -> Tensor:
    """Return places beyond an edge reflected at it: -1 is 1, and `side` is `side - 2`."""
    last = side - 1
    return last - (last - place.abs()).abs()


@dataclass(frozen=True)
class ClientData:
    """The points of `n` clients, ragged.

    Arguments:
        x: inputs of all points, `[points, ...]`, several of them packed (`inputs`); in memory, or with rows on disk
            (`mapped`).
        y: targets of all points, `[points]` or `[points, outputs]`.
        starts: where each client's points begin in the pool, `[n]`.
        sizes: how many points each client has (the paper's n_k), `[n]`.
        augment: how they are varied in training, if at all.
    """

    x: Tensor
    y: Tensor
    starts: Tensor
    sizes: Tensor
    augment: Augment | None = None

    @staticmethod
    def concat(clients: Sequence[tuple[Tensor, Tensor]]) -> ClientData:
        """Concatenate the clients' tensors."""
        sizes = torch.tensor([len(y) for _, y in clients], dtype=torch.int64)
        starts = torch.cumsum(sizes, 0) - sizes
        return ClientData(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]), starts, sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, ids: np.ndarray | Sequence[int]) -> ClientData:
        """Return some of the clients, in the order of `ids`. No point is copied."""
        index = torch.as_tensor(np.asarray(ids, dtype=np.int64), device=self.starts.device)
        return replace(self, starts=self.starts[index], sizes=self.sizes[index])

    def reordered(self, points: Tensor, sizes: Tensor) -> ClientData:
        """Return clients of these sizes with the points at these places of the pool, client after client."""
        return replace(
            self, x=pick(self.x, points), y=self.y[points], starts=torch.cumsum(sizes, 0) - sizes, sizes=sizes
        )

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        begin, size = int(self.starts[k]), int(self.sizes[k])
        return self.x[begin : begin + size], self.y[begin : begin + size]

    @cached_property
    def offsets(self) -> Tensor:
        """Where each client begins among `points`."""
        return torch.cumsum(self.sizes, 0) - self.sizes

    @cached_property
    def points(self) -> Tensor:
        """The place in the pool of every point of these clients, client after client."""
        along = torch.arange(int(self.sizes.sum()), device=self.sizes.device)
        return along + torch.repeat_interleave(self.starts - self.offsets, self.sizes)

    @cached_property
    def owners(self) -> Tensor:
        """The row of the client that each of `points` belongs to."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.sizes.device), self.sizes)

    def mean_by_client(self, values: Tensor) -> Tensor:
        """Return the mean over each client's points of `values[points, ...]`; NaN for a client without points."""
        total = values.new_zeros((len(self), *values.shape[1:])).index_add_(0, self.owners, values)
        return total / self.sizes.view(-1, *[1] * (values.ndim - 1))

    def to(self, device: str | torch.device, dtype: torch.dtype) -> ClientData:
        """Return the same points on a device, with floating-point inputs and targets in `dtype`."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

        return replace(self, x=move(self.x), y=move(self.y), starts=self.starts.to(device), sizes=self.sizes.to(device))
