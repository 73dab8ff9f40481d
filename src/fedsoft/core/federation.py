"""A federation: the clients' data, and beside it the truth that only scoring may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_arrays import (
    as_pair,
    check_clients,
    check_new_client,
    check_new_inputs,
    coded,
    divide,
)
from fedsoft.core.client_data import ClientData, DataShape, Task
from fedsoft.core.columns import Columns
from fedsoft.core.fingerprints import digest, repeated
from fedsoft.core.label_notices import coding_notices, label_notices
from fedsoft.core.scaling import Scale, is_scaled, scaling_warning
from fedsoft.core.splits import Split, at_random, check_left
from fedsoft.errors import InputError, unknown


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
        """Return the share of each source among each client's training points: what u_ks estimates, `[N, sources]`."""
        one_hot = torch.nn.functional.one_hot(self.train_sources, len(self.names)).double()
        return train.mean_by_client(one_hot[train.points])


@dataclass(frozen=True)
class Federation:
    """Clients with training points and held-out points of their own, and the truth where it is known.

    Where data arrives over time, `before` holds other training points that clients have in the rounds before
    `change_at`, as many as in `train`; held-out points and truth are those of `train`.

    Where inputs are scaled, points here are as models see them. `Run.predict`, `Run.adopt`, `new_client` and exported
    models take inputs as they were before.
    """

    train: ClientData
    held_out: ClientData
    names: tuple[str, ...]
    shape: DataShape
    truth: Truth | None = None
    columns: Columns = field(default_factory=Columns)
    before: ClientData | None = None
    change_at: int = 0
    scale: Scale | None = None
    notices: tuple[str, ...] = ()  # what looks wrong with the data, though it can be used

    def __len__(self) -> int:
        return len(self.train)

    @property
    def about(self) -> str:
        """How the data was understood, in a few words."""
        shape = self.shape
        sides = ", ".join(one.about for one in shape.fields) or "x".join(map(str, shape.input))
        sides += " (integers)" * (not shape.fields and _is_integer(self.train.x))
        several = f"{shape.outputs} target{'s' * (shape.outputs != 1)}"
        aims = {"classification": f"{shape.outputs} classes", "multilabel": f"{shape.outputs} labels"}
        aim = aims.get(shape.task, several)
        sources = f", sources {', '.join(self.truth.names)}" if self.truth else ""
        points, held_out = int(self.train.sizes.sum()), int(self.held_out.sizes.sum())
        scaled = f"{', floats' * bool(shape.fields)} scaled to mean 0 and std 1" if self.scale is not None else ""
        counts = f"{len(self)} clients, {points} points and {held_out} held out, inputs of {sides}{scaled}"
        return f"{counts}, {aim}{sources}"

    @property
    def unscaled(self) -> str | None:
        """A sentence where inputs are far from mean 0 and std 1; else None. Integers may be tokens, without a scale."""
        return scaling_warning(self.train.x)

    def standardized(self) -> Federation:
        """Return the same with every column of the inputs at mean 0 and std 1 over all training points.

        Of several inputs those of floats are scaled; tokens, masks and bytes stay as they are.
        """
        if self.train.x.dtype == torch.uint8:
            raise InputError("standardize = true is not allowed for images of type uint8: these are divided by 255")
        scale = Scale.of(self.train.x, self.shape.fields)
        if (self.shape.fields and not scale.parts) or (self.columns.tokens and not self.shape.fields):
            raise InputError("standardize = true is not allowed here: no input is of floats, and tokens have no scale")
        return self.scaled(scale)

    def scaled(self, scale: Scale) -> Federation:
        """Return the same with its inputs scaled so, which were not scaled before."""
        train, held_out = (replace(data, x=scale(data.x)) for data in (self.train, self.held_out))
        return replace(self, train=train, held_out=held_out, scale=scale)

    def as_seen(self, x: Tensor) -> Tensor:
        """Return inputs from outside as models see them; raise for points of this federation, which are so already."""
        if self.scale is None:
            return x
        if len(x) and is_scaled(x.cpu(), (self.train.x, self.held_out.x), self.scale):
            raise InputError(
                "x holds points of this federation, whose inputs are scaled already and would be scaled twice: give "
                "inputs as they are in your data, or use run.held_out_predictions()"
            )
        return self.scale(x)

    def __repr__(self) -> str:
        return f"<Federation: {'. '.join([self.about, *self.notices])}>"

    @property
    def fingerprint(self) -> str:
        """Changes when the data does: a run must not go on, nor its scores be shown, with other data.

        Its first half is about clients and training points, the second about held-out points and test sets.
        """
        before = () if self.before is None else (self.before.x, self.before.y)
        how = "" if self.train.augment is None else repr(self.train.augment)
        trained = digest(self.names, (self.train.sizes, self.train.x, self.train.y, *before), how)
        tests = () if self.truth is None else [part for test in self.truth.tests for part in test]
        return trained + digest((), (self.held_out.sizes, self.held_out.x, self.held_out.y, *tests))

    def only(self, source: int) -> Federation:
        """Return the clients with only their points of one source; those without any to train on are left out.

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

    def new_client(self, x: Any, y: Any, name: str = "new client") -> tuple[Tensor, Tensor]:
        """Return the points of a new client as models see them, checked against those of the clients."""
        x, y = check_new_client(name, x, coded(name, y, self.columns), self.shape, self.train)
        return self.as_seen(x), y

    def uncoded(self) -> Federation:
        """Return the same with whole-number labels as they stand in the data: other nodes may have other ones."""
        labels = self.columns.labels
        if labels is None or not self.columns.whole:
            return self
        if labels[0] < 0:
            raise InputError(f"label {labels[0]} is not allowed: classes should be 0, 1, 2, ...")
        train, held_out = (replace(data, y=torch.from_numpy(labels)[data.y]) for data in (self.train, self.held_out))
        columns = replace(self.columns, classes=None, whole=False)
        shape = replace(self.shape, outputs=int(labels[-1]) + 1)
        return replace(self, train=train, held_out=held_out, columns=columns, shape=shape)

    def new_inputs(self, x: Any) -> Tensor:
        """Return inputs from outside as models see them, checked against those of the clients."""
        return self.as_seen(check_new_inputs(x, self.shape, self.train.x))

    @staticmethod
    def from_clients(
        clients: Sequence[Any],
        *,
        names: Sequence[str] | None = None,
        held_out: float = 0.2,
        split: Split | Mapping[str, Any] | None = None,
        task: Task | Literal["auto"] = "auto",
        classes: int | Sequence[str] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> Federation:
        """Make a federation from your own data.

        Arguments:
            clients: one (x, y) per client, arrays or tensors of any number of points, or a torch data set of such
                pairs. Integers and text as y mean classification. Inputs of type uint8 are taken for images: models see
                them divided by 255. Other integers reach a network as int64 where it takes them, as `nn.Embedding`
                does. x may be a dictionary of arrays, which a network's forward gets by name, a tuple of arrays, which
                it gets by place, or a list of sequences of unequal length; see docs/models.md.
            names: a name for each client; its draws depend on it, so keep it when you re-order clients.
            held_out: the share of each client's points that is kept for scoring its personal model.
            split: how these are chosen, default: at random. One of `{"time": t}`, `{"group": g}` and
                `{"column": c, "test": values}`, where t, g and c have an array of values per client; or the points
                themselves, `{"test": pairs}`, one for each client or by name for some (see `core.splits.Split`).
            task: what y is, default: by its type.
            classes: the number of classes, default: the largest label + 1; for labels that are text their order. Whole
                numbers that do not begin at 0 are numbered in their order, as text is.
            length: of sequences, to which shorter ones are padded; default: that of the longest.
            seed: decides which points are held out.
        """
        if not 0 <= held_out < 1:
            raise InputError(f"held_out = {held_out} is not allowed: should be at least 0 and below 1")
        names = tuple(map(str, names)) if names is not None else tuple(map(str, range(len(clients))))
        shape, pairs, columns = check_clients(names, clients, task, classes, length)
        given = {"task_given": task != "auto", "classes_given": classes is not None or columns.classes is not None}
        notices = [*coding_notices(columns), *label_notices(shape, [y for _, y in pairs], **given)]
        made = Federation(ClientData.concat(pairs), ClientData.concat([(x[:0], y[:0]) for x, y in pairs]), names, shape,
                          columns=columns, notices=tuple(notices))  # fmt: skip
        split = split if split is None or isinstance(split, Split) else Split(**split)
        if split is None:
            masks = at_random(names, [len(y) for _, y in pairs], held_out, seed)
        elif split.kind == "test":
            return made.with_test(split.test)
        else:
            masks = split.masks(names, _values(names, pairs, split), held_out, seed)
            for name, mask in zip(names, masks, strict=True):
                check_left(name, mask)
        train, held = divide(pairs, masks)
        return replace(made, train=train, held_out=held)

    def with_test(self, test: Sequence[Any] | Mapping[str, Any]) -> Federation:
        """Return the same with these held-out points: a pair (x, y) for each client, or by name for some."""
        given = test if isinstance(test, Mapping) else dict(zip(self.names, test, strict=False))
        if not isinstance(test, Mapping) and len(test) != len(self):
            raise InputError(f"test has {len(test)} parts for {len(self)} clients, should be one for each")
        for name in given:
            if name not in self.names:
                raise InputError(
                    f"test is for a client that has no training points: {unknown('client', name, self.names)}"
                )
        none = (self.train.x[:0], self.train.y[:0])
        pairs = [self.new_client(*as_pair(name, given[name]), name) if name in given else none for name in self.names]
        held_out = ClientData.concat(pairs)
        notices = self.notices
        if count := repeated(self.train, held_out):
            notices += (f"{count} of {len(held_out.y)} held-out points are training points of the same client, too",)
        return replace(self, held_out=held_out, notices=notices)


def _is_integer(x: Tensor) -> bool:
    return x.dtype in (torch.int32, torch.int64)


def _values(names: Sequence[str], pairs: Sequence[tuple[Tensor, Tensor]], split: Split) -> list[np.ndarray]:
    """Return the column that a split is made by, for each client."""
    values = [np.asarray(own) for own in split.by]
    if [len(own) for own in values] != [len(y) for _, y in pairs]:
        raise InputError(f"split.{split.kind} should have an array for each of {len(names)} clients, a value per point")
    return values


def _only(data: ClientData, sources: Tensor, source: int) -> tuple[ClientData, Tensor]:
    """Return the points of one source, in the order of `data.points`; clients may be left with none."""
    of = sources[data.points]
    mine = data.points[of == source]
    sizes = torch.bincount(data.owners[of == source], minlength=len(data))
    return data.reordered(mine, sizes), sources[mine]
