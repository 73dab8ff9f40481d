"""A federation: the clients' data, and beside it the truth that only scoring may see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.errors import InputError
from fedsoft.seeds import generator

Task = Literal["regression", "classification"]


FAR = 10.0  # a mean or deviation of an input that is too large to learn from as it is


@dataclass(frozen=True)
class DataShape:
    """What a model must know of the data: the task, the shape of one input, and the number of outputs or classes."""

    task: Task
    input: tuple[int, ...]
    outputs: int


@dataclass(frozen=True)
class Truth:
    """What is known about a federation because it was made: never shown to an algorithm.

    Arguments:
        mixture: the mixture that each client was drawn with, `[N, sources]`.
        train_sources, held_out_sources: the source of each point, in the order of the pools.
        tests: one test set (x, y) for each source.
        names: the names of the sources.
        noise_floor: the error that no model can beat, where it is known.
    """

    mixture: Tensor
    train_sources: Tensor
    held_out_sources: Tensor
    tests: tuple[tuple[Tensor, Tensor], ...]
    names: tuple[str, ...]
    noise_floor: float | None = None

    def fractions(self, train: ClientData) -> Tensor:
        """The share of each source among each client's training points: what u_ks estimates, `[N, sources]`."""
        one_hot = torch.nn.functional.one_hot(self.train_sources, len(self.names)).double()
        return train.mean_by_client(one_hot[train.points])


@dataclass(frozen=True)
class Columns:
    """What tables of clients call things: the features in the order of x, and the classes where they are text."""

    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Scale:
    """What takes every column of the training points to mean 0 and deviation 1: one value for each element of an input.

    Of all clients together: were each scaled by its own, the same input would mean something else for everybody. In a
    federation that is three sums from every client: of 1, of x and of x^2.
    """

    mean: Tensor
    deviation: Tensor  # 1 for a column that is constant

    @staticmethod
    def of(x: Tensor) -> Scale:
        """From points `x[points, ...]`."""
        mean, deviation = x.double().mean(0), x.double().std(0, correction=0)
        # What rounding leaves of a constant is no deviation.
        constant = deviation <= 1e-9 * mean.abs()
        return Scale(mean, torch.where(constant, 1.0, deviation))

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs as models see them, for inputs as they are in files."""
        kind = x.dtype if x.is_floating_point() else torch.float32
        return ((x.double() - self.mean.to(x.device)) / self.deviation.to(x.device)).to(kind)

    def back(self, x: Tensor) -> Tensor:
        """Inputs as they are in files, for inputs as models see them."""
        return (x.double() * self.deviation.to(x.device) + self.mean.to(x.device)).to(x.dtype)


@dataclass(frozen=True)
class Federation:
    """Clients with training points and held-out points of their own, and the truth where it is known.

    Where data arrives over time, `before` holds other training points that clients have in the rounds before
    `change_at`, as many as in `train`; held-out points and truth are those of `train`.

    Where inputs are scaled, points here are as models see them. `Run.predict`, `Run.adopt`, `newcomer` and exported
    models take inputs as they were before.
    """

    train: ClientData
    held_out: ClientData
    names: tuple[str, ...]
    shape: DataShape
    truth: Truth | None = None
    columns: Columns = Columns()
    before: ClientData | None = None
    change_at: int = 0
    scale: Scale | None = None

    def __len__(self) -> int:
        return len(self.train)

    @property
    def about(self) -> str:
        """How the data was understood, in a few words."""
        shape, sides = self.shape, "x".join(map(str, self.shape.input))
        some = f"{shape.outputs} target{'s' * (shape.outputs != 1)}"
        aim = f"{shape.outputs} classes" if shape.task == "classification" else some
        sources = f", sources {', '.join(self.truth.names)}" if self.truth else ""
        points, held_out = int(self.train.sizes.sum()), int(self.held_out.sizes.sum())
        scaled = " scaled to mean 0 and deviation 1" if self.scale is not None else ""
        told = f"{len(self)} clients, {points} points and {held_out} held out, inputs of {sides}{scaled}"
        return f"{told}, {aim}{sources}"

    @property
    def unscaled(self) -> str | None:
        """A sentence where inputs are far from zero mean and deviation one, which local solvers need; else None."""
        x = self.train.x
        if not x.is_floating_point() or len(x) < 2:
            return None
        flat = x.double().flatten(1)
        mean, deviation = float(flat.mean(0).abs().max()), float(flat.std(0).max())
        if mean <= FAR and deviation <= FAR:
            return None
        return (
            f"Inputs are not scaled (means up to {mean:.3g}, deviations up to {deviation:.3g}): networks learn little "
            "from them; bring every column to mean 0 and deviation 1 (for a folder: dataset.standardize = true)"
        )

    def standardised(self) -> Federation:
        """The same with every column of the inputs at mean 0 and deviation 1 over all training points."""
        if self.train.x.dtype == torch.uint8:
            raise InputError("standardize = true is not allowed for images of type uint8: these are divided by 255")
        scale = Scale.of(self.train.x)
        parts = {name: replace(data, x=scale(data.x)) for name, data in
                 (("train", self.train), ("held_out", self.held_out))}  # fmt: skip
        return replace(self, **parts, scale=scale)

    def as_seen(self, x: Tensor) -> Tensor:
        """Inputs from outside as models see them."""
        return x if self.scale is None else self.scale(x)

    def __repr__(self) -> str:
        return f"<Federation: {self.about}>"

    @property
    def fingerprint(self) -> str:
        """Changes when a client or a training point does: a run must not go on with other data."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self.names:
            digest.update(f"{len(name)}:{name}".encode())
        earlier = () if self.before is None else (self.before.x, self.before.y)
        for tensor in (self.train.sizes, self.train.x, self.train.y, *earlier):
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        if self.train.augment is not None:
            digest.update(repr(self.train.augment).encode())
        return digest.hexdigest()

    def only(self, source: int) -> Federation:
        """The clients with only their points of one source; those that have none to train on are left out.

        For oracles: what could be learnt if the sources were separated. Test sets and names stay those of all sources.
        """
        truth = self.truth
        if truth is None:
            raise InputError(f"source = {source} is not allowed: the sources of these points are not known")
        if not 0 <= source < len(truth.names):
            raise InputError(f"source = {source} is not allowed: should be 0 to {len(truth.names) - 1}")
        train, train_sources = _only(self.train, truth.train_sources, source)
        held_out, held_out_sources = _only(self.held_out, truth.held_out_sources, source)
        kept = torch.nonzero(train.sizes)[:, 0]
        if not len(kept):
            raise InputError(f"source = {source} is not allowed: no client has points of '{truth.names[source]}'")
        rows = kept.tolist()
        return Federation(
            train.take(rows),
            held_out.take(rows),
            tuple(self.names[k] for k in rows),
            self.shape,
            replace(truth, mixture=truth.mixture[kept], train_sources=train_sources, held_out_sources=held_out_sources),
            self.columns,
        )

    def newcomer(self, x: Any, y: Any, name: str = "newcomer") -> tuple[Tensor, Tensor]:
        """The points of somebody who is not among the clients, as tensors, checked against those of the clients."""
        x, y = _tensors(name, x, y)
        if self.shape.task == "classification" and y.is_floating_point() and bool((y != y.round()).any()):
            raise InputError(f"client '{name}': y holds numbers that are not whole, the run's labels are classes")
        y = y.long() if self.shape.task == "classification" else y.to(self.train.y.dtype)
        for part, value, like in (("x", x, self.train.x), ("y", y, self.train.y)):
            if value.shape[1:] != like.shape[1:]:
                raise InputError(
                    f"client '{name}': {part} of a point is {list(value.shape[1:])}, "
                    f"but that of the run's clients is {list(like.shape[1:])}"
                )
        if (x.dtype == torch.uint8) != (self.train.x.dtype == torch.uint8):
            kind = "uint8 (images)" if self.train.x.dtype == torch.uint8 else "numbers of another type than uint8"
            raise InputError(f"client '{name}': x is {str(x.dtype).removeprefix('torch.')}, the run's data is {kind}")
        if self.shape.task == "classification":
            _check_labels(name, y, self.shape.outputs)
        return self.as_seen(x), y

    @staticmethod
    def from_clients(
        clients: Sequence[tuple[Any, Any]],
        *,
        names: Sequence[str] | None = None,
        held_out: float = 0.2,
        task: Task | Literal["auto"] = "auto",
        classes: int | None = None,
        seed: int = 0,
    ) -> Federation:
        """Make a federation from your own data.

        Arguments:
            clients: one (x, y) per client, arrays or tensors of any number of points. Integer y means classification.
                Inputs of type uint8 are taken for images: models see them divided by 255.
            names: a name for each client; its draws depend on it, so keep it when you re-order clients.
            held_out: the share of each client's points that is kept for scoring its personal model.
            task: what y is, when its type does not tell.
            classes: the number of classes, when the largest label does not tell.
            seed: decides which points are held out.
        """
        if not 0 <= held_out < 1:
            raise InputError(f"held_out = {held_out} is not allowed: should be at least 0 and below 1")
        names = tuple(map(str, names)) if names is not None else tuple(map(str, range(len(clients))))
        if len(names) != len(clients) or len(set(names)) != len(names):
            raise InputError(f"names: {len(set(names))} different names for {len(clients)} clients, need one for each")
        if not clients:
            raise InputError("clients: the list is empty, a federation needs at least one client")
        pairs = [_tensors(name, x, y) for name, (x, y) in zip(names, clients, strict=True)]
        task, pairs = _task(task, pairs)
        shape = _shape(task, names, pairs, classes)
        train, held = [], []
        for name, (x, y) in zip(names, pairs, strict=True):
            order = torch.from_numpy(generator(seed, "held-out", name).permutation(len(y)))
            cut = int(len(y) * held_out)
            held.append((x[order[:cut].sort().values], y[order[:cut].sort().values]))
            train.append((x[order[cut:].sort().values], y[order[cut:].sort().values]))
        return Federation(ClientData.concat(train), ClientData.concat(held), names, shape)


def _only(data: ClientData, sources: Tensor, source: int) -> tuple[ClientData, Tensor]:
    """The points of one source, in the order of `data.points`; clients may be left with none."""
    of = sources[data.points]
    mine = data.points[of == source]
    sizes = torch.bincount(data.owners[of == source], minlength=len(data))
    left = replace(data, x=data.x[mine], y=data.y[mine], starts=torch.cumsum(sizes, 0) - sizes, sizes=sizes)
    return left, sources[mine]


def _tensors(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """One client's points as tensors, checked."""
    pair = []
    for part, value in (("x", x), ("y", y)):
        try:
            # A copy: arrays may be read-only or run backwards, and the caller may write to his later.
            tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise InputError(f"client '{name}': {part} is not an array of numbers ({error})") from None
        if tensor.is_complex():
            raise InputError(f"client '{name}': {part} holds complex numbers, only real ones are allowed")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"client '{name}': {part} holds NaN or infinite values, clean or drop those points")
        pair.append(tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor)
    x, y = pair
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise InputError(
            f"client '{name}': x has shape {list(x.shape)} and y {list(y.shape)}, "
            "should be x[points, features...] and y[points]"
        )
    if len(y) == 0:
        raise InputError(f"client '{name}' has no points, leave it out")
    if y.ndim == 2 and y.shape[1] == 1:  # one target in a column
        y = y[:, 0]
    return (x if x.is_floating_point() or x.dtype == torch.uint8 else x.float()), y


def _task(task: Task | Literal["auto"], pairs: list[tuple[Tensor, Tensor]]) -> tuple[Task, list[tuple[Tensor, Tensor]]]:
    """Decide between regression and classification, and bring the targets into its type."""
    if task == "auto":
        task = "regression" if any(y.is_floating_point() for _, y in pairs) else "classification"
    if task == "regression":
        return task, [(x, y if y.is_floating_point() else y.float()) for x, y in pairs]
    if any(y.is_floating_point() and bool((y != y.round()).any()) for _, y in pairs):
        raise InputError("task = 'classification' needs whole numbers as labels, some are not")
    return task, [(x, y.long()) for x, y in pairs]


def _shape(task: Task, names: tuple[str, ...], pairs: list[tuple[Tensor, Tensor]], classes: int | None) -> DataShape:
    """The shape that all clients share, or a sentence about the first that differs."""
    first_x, first_y = pairs[0]
    for name, (x, y) in zip(names, pairs, strict=True):
        if x.shape[1:] != first_x.shape[1:] or y.shape[1:] != first_y.shape[1:]:
            raise InputError(
                f"client '{name}': a point is x{list(x.shape[1:])}, y{list(y.shape[1:])}, "
                f"but that of client '{names[0]}' is x{list(first_x.shape[1:])}, y{list(first_y.shape[1:])}"
            )
    if task == "regression":
        return DataShape(task, tuple(first_x.shape[1:]), int(np.prod(first_y.shape[1:], dtype=int)))
    if first_y.ndim != 1:
        raise InputError(f"y has shape [points, {first_y.shape[1:]}], class labels should be one number per point")
    largest = max(0, *(int(y.max()) for _, y in pairs))
    classes = classes if classes is not None else largest + 1
    for name, (_, y) in zip(names, pairs, strict=True):
        _check_labels(name, y, classes)
    return DataShape(task, tuple(first_x.shape[1:]), classes)


def _check_labels(name: str, y: Tensor, classes: int) -> None:
    if int(y.min()) < 0 or int(y.max()) >= classes:
        bad = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise InputError(f"client '{name}': label {bad} is out of range, should be 0 to {classes - 1}")
