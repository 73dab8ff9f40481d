"""Sources made of labelled images, and clients that draw from them.

A source is a set of images under a rotation and a renaming of labels. The paper draws every point of a client anew: a
class uniformly, then an image of that class uniformly, with replacement. Held-out points are drawn alike, but from
images that no client trains on: where there are held-out points, a fixed fifth of every class's training images is set
aside for them, the same whatever the seed. Without any (`held_out = 0`) clients draw from all training images, as in
the paper. Test sets are the published test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import Augment, ClientData, DataShape
from fedsoft.core.client_draws import Draws
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.partition import apportion
from fedsoft.core.splits import at_random
from fedsoft.data.image_settings import ImageSettings
from fedsoft.data.memory_check import check_counts
from fedsoft.data.partition_names import as_partition
from fedsoft.errors import InputError, SettingError
from fedsoft.seeds import generator

SET_ASIDE = 0.2


@dataclass(frozen=True)
class Images:
    """Labelled images: uint8 `x[images, channels, height, width]` and int64 `y[images]`."""

    x: Tensor
    y: Tensor

    @staticmethod
    def of(x: np.ndarray, y: np.ndarray) -> Images:
        """Convert arrays, without a copy where the types are right already."""
        return Images(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64, copy=False)))

    def shrunk(self, name: str, size: int | None) -> Images:
        """Return images whose sides have `size` pixels, each the mean of a square of the old ones, as bytes still."""
        height, width = self.x.shape[-2:]
        if size is None or size == height == width:
            return self
        if height != width or height % size:
            sides = [side for side in range(1, height + 1) if height % side == 0]
            raise SettingError(name, "size", size, f"should be one of {', '.join(map(str, sides))}")
        factor = height // size
        squares = self.x.numpy().reshape(*self.x.shape[:2], size, factor, size, factor)
        total = squares.sum(axis=(3, 5), dtype=np.uint32)
        return Images(torch.from_numpy(((total + factor**2 // 2) // factor**2).astype(np.uint8)), self.y)

    def take(self, index: np.ndarray) -> Images:
        rows = torch.from_numpy(index)
        return Images(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Source:
    """One distribution of labelled images.

    Arguments:
        name: shown to users.
        train, test: images as they were published.
        rotation: degrees counterclockwise that all of them are turned by.
        labels: the new label of every class; None leaves them.
    """

    name: str
    train: Images
    test: Images
    rotation: int = 0
    labels: Tensor | None = None

    def view(self, images: Images) -> Images:
        """Return images the way this source shows them."""
        x = torch.rot90(images.x, self.rotation // 90, dims=(-2, -1))
        return Images(x, images.y if self.labels is None else self.labels[images.y])


def variants(
    train: Images, test: Images, classes: int, rotations: Sequence[int], permutations: int, seed: int, name: str = ""
) -> list[Source]:
    """Return one source for every rotation and every renaming of labels."""
    _check_once("rotations", rotations)
    tables = label_permutations(classes, permutations, seed)
    found = []
    for rotation in rotations:
        for number, table in enumerate(tables):
            parts = [
                name,
                f"{rotation}°" if len(rotations) > 1 or rotation or (not name and permutations == 1) else "",
                f"labels {number}" if permutations > 1 else "",
            ]
            title = " ".join(part for part in parts if part)
            found.append(Source(title, train, test, rotation, table if number else None))
    return found


def label_permutations(classes: int, count: int, seed: int) -> list[Tensor]:
    """Return different renamings of the labels; the first leaves them as they are."""
    found = [list(range(classes))]
    for number in range(1, count):
        rng = generator(seed, "labels", number)
        table = rng.permutation(classes).tolist()
        while table in found:  # at most 1000 of 10! are taken
            table = rng.permutation(classes).tolist()
        found.append(table)
    return [torch.tensor(table) for table in found]


def _check_once(what: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise InputError(f"{what} = {list(values)} is not allowed: should name each value once")


# Drawing clients


def federate(
    name: str, sources: Sequence[Source], classes: int, draw: ImageSettings, *, augment: bool = False
) -> Federation:
    """Return clients that draw from these sources as in the paper."""
    clients, points, held_out, seed = draw.clients, draw.points, draw.held_out, draw.seed
    S, image = len(sources), sources[0].train.x
    check_counts(
        name, clients=clients, points=points, held_out=held_out, sources=S, tests=0, point=image[0].numel()
    )  # fmt: skip
    low, high = points
    mixture = as_partition(draw.partition)(clients, S, generator(seed, "mixture"))
    sizes = generator(seed, "sizes").integers(low, high + 1, clients)
    shelves = [Shelves.of(name, source, classes, SET_ASIDE if held_out > 0 else 0.0) for source in sources]
    train, train_sources = _pool(sources, [shelf.train for shelf in shelves], apportion(mixture, sizes), "points", seed)
    extra = np.floor(sizes * held_out).astype(np.int64)
    held, held_sources = _pool(
        sources, [shelf.held_out for shelf in shelves], apportion(mixture, extra), "held-out", seed
    )
    truth = Truth(
        mixture=torch.from_numpy(mixture),
        train_sources=train_sources,
        held_out_sources=held_sources,
        tests=tuple(_test(name, source, s, draw.test_points, seed) for s, source in enumerate(sources)),
        names=tuple(source.name for source in sources),
    )
    shape = DataShape("classification", tuple(sources[0].train.x.shape[1:]), classes)
    if augment:  # the paper's 4 pixels of 32; held-out and test images stay as they are
        train = replace(train, augment=Augment(pad=shape.input[1] // 8, flip=True))
    return Federation(train, held, tuple(map(str, range(clients))), shape, truth)


@dataclass(frozen=True)
class Shelf:
    """The numbers of some images, class after class."""

    images: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @staticmethod
    def of(by_class: Sequence[np.ndarray]) -> Shelf:
        """Sort images by class."""
        counts = np.array([len(part) for part in by_class])
        return Shelf(np.concatenate(by_class), np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class Shelves:
    """The training images of a source, those for training and those set aside."""

    train: Shelf
    held_out: Shelf

    @staticmethod
    def of(name: str, source: Source, classes: int, set_aside: float) -> Shelves:
        """Sort the images of a source by class and set a share of each class aside."""
        labels = source.train.y.numpy()
        least = 2 if set_aside else 1
        train, held = [], []
        for label in range(classes):
            images = np.flatnonzero(labels == label)
            if len(images) < least:
                raise InputError(
                    f"{name}: source '{source.name}' has {len(images)} training images of class {label}, "
                    f"should have at least {least}"
                )
            # Not of the seed: an image that is set aside is so in every federation.
            order = generator(0, "set aside", label).permutation(len(images))
            cut = max(1, int(len(images) * set_aside)) if set_aside else 0
            held.append(images[np.sort(order[:cut])])
            train.append(images[np.sort(order[cut:])])
        return Shelves(Shelf.of(train), Shelf.of(held))


def _pool(
    sources: Sequence[Source], shelves: Sequence[Shelf], counts: np.ndarray, label: str, seed: int
) -> tuple[ClientData, Tensor]:
    """Draw points of every client with `counts[client, source]` of each source; drawn for each client on its own."""
    starts, sizes = (np.stack([getattr(shelf, part) for shelf in shelves]) for part in ("starts", "counts"))
    source = np.repeat(np.tile(np.arange(len(sources)), len(counts)), counts.ravel())
    draws = Draws(seed, label, names=[str(k) for k in range(len(counts))])
    kind = draws.integers_each(sizes.shape[1], counts.sum(1))
    place = starts[source, kind] + draws.integers_each(sizes[source, kind], counts.sum(1))
    x = torch.empty((len(source), *sources[0].train.x.shape[1:]), dtype=torch.uint8)
    y = torch.empty(len(source), dtype=torch.int64)
    for s, one in enumerate(sources):
        rows = np.flatnonzero(source == s)
        seen = one.view(one.train.take(shelves[s].images[place[rows]]))
        x[torch.from_numpy(rows)], y[torch.from_numpy(rows)] = seen.x, seen.y
    ends = torch.from_numpy(counts.sum(axis=1))
    return ClientData(x, y, torch.cumsum(ends, 0) - ends, ends), torch.from_numpy(source)


def _test(name: str, source: Source, s: int, test_points: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return the test images of a source: all of them, or `test_points` different ones."""
    total = len(source.test.y)
    if total == 0:
        raise InputError(f"{name}: source '{source.name}' has no test images, should have at least 1")
    if test_points is None or test_points >= total:
        seen = source.view(source.test)
    else:
        chosen = generator(seed, "test", s).permutation(total)[:test_points]
        seen = source.view(source.test.take(np.sort(chosen)))
    return seen.x.contiguous(), seen.y


# Clients that exist


def by_client(images: Images, ids: np.ndarray, classes: int, held_out: float, seed: int) -> Federation:
    """Return one client for each id, in their order; a share of the points of each is held out."""
    names, owner = np.unique(ids, return_inverse=True)
    train, held = [], []
    by_owner = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    masks = at_random([str(name) for name in names], [len(points) for points in by_owner], held_out, seed)
    for points, mask in zip(by_owner, masks, strict=True):
        held.append(points[mask])
        train.append(points[~mask])
    shape = DataShape("classification", tuple(images.x.shape[1:]), classes)
    return Federation(_gathered(images, train), _gathered(images, held), tuple(map(str, names)), shape)


def _gathered(images: Images, clients: list[np.ndarray]) -> ClientData:
    """Return a pool of these points of every client."""
    sizes = torch.tensor([len(points) for points in clients])
    chosen = images.take(np.concatenate(clients))
    return ClientData(chosen.x, chosen.y, torch.cumsum(sizes, 0) - sizes, sizes)
