"""The points of a node, as its owner's file names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsoft import plugins
from fedsoft.core.federation import DataShape, Federation
from fedsoft.datasets.nodes import agreed_shape
from fedsoft.errors import InputError
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.runs import spec as specs
from fedsoft.runs.run_options import federation_of
from fedsoft.runs.spec import RunSpec
from fedsoft.settings import settings


@settings
class Data:
    """Where a node's points are. Exactly one of `path`, `loader` and `shard`.

    Arguments:
        path: a folder with one file for each client, or one file.
        loader: a function `package.module:name` of the owner's; returns {name: (x, y)}, such pairs, or a Federation.
        shard: `[k, n]`: the k-th of n parts of the clients of a preset, for trying a federation out.
        preset: with `shard`: a preset's name, its TOML file, or a folder of such files. A node makes no data that only
            the server describes.
        clients: the names that the clients have in the federation.
        label: the column with the targets, for tables.
        held_out: the share of points that is kept for scoring.
        tokens: columns of tables that hold tokens.
        features: of several inputs: the arrays of an `.npz`.
        length: of sequences, as the federation agreed on it.
    """

    path: str | None = None
    loader: str | None = None
    shard: tuple[int, int] | None = None
    preset: str | None = None
    clients: list[str] | None = None
    label: str = "y"
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    tokens: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    length: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class OwnPoints:
    """The clients of a node.

    Arguments:
        folder: what paths are relative to.
        data: where the points are.
        least: the number of training points of a client that a run may have.
    """

    folder: Path
    data: Data
    least: int

    def federation(self, spec: RunSpec) -> Federation:
        """Return the clients of this node for a run. The server's word is taken for shapes only."""
        if self.data.shard is not None:
            return self._share(spec, *self.data.shard)
        if spec.dataset.name != "nodes" or spec.source is not None:
            raise Refused(
                Refusal.DATA, f"the run's dataset '{spec.dataset.name}' is not allowed: should be 'nodes', all of it"
            )
        about = spec.dataset.settings
        try:
            shape = agreed_shape(about)
        except InputError as error:
            raise Refused(Refusal.DATA, f"the run does not say what its inputs are: {error}") from None
        found = self.agreed(shape)
        rows = [row for row, name in enumerate(found.names) if name in about["clients"]]
        if not rows:
            raise Refused(Refusal.CLIENT, "the run names no client of this node")
        found = _only(found, rows)
        few = [f"'{name}' ({n})" for name, n in zip(found.names, found.train.sizes.tolist(), strict=True)
               if n < self.least]  # fmt: skip
        if few:
            raise Refused(
                Refusal.POINTS,
                f"clients have fewer training points than policy.points = {self.least}: {', '.join(few)}",
            )
        return found

    def _share(self, spec: RunSpec, k: int, n: int) -> Federation:
        """Return the k-th of n parts of the clients that a preset of this node's file describes."""
        wanted = (spec.dataset, spec.partition, spec.source)
        for preset in self._presets():
            if (preset.dataset, preset.partition, preset.source) == wanted:
                # Other seeds are other draws of the same data.
                whole = federation_of(replace(preset, seed=spec.seed, data_seed=spec.data_seed))
                rows = np.array_split(np.arange(len(whole)), n)[k].tolist()
                if not rows:
                    raise Refused(Refusal.DATA, f"this node has no clients: there are {len(whole)} for {n} nodes")
                return replace(_only(whole, rows), truth=None)
        raise Refused(Refusal.DATA, f"the run's data is not described in data.preset = '{self.data.preset}'")

    def _presets(self) -> list[RunSpec]:
        path = self.folder / str(self.data.preset)
        if path.is_dir():
            return [specs.read(str(file)) for file in sorted(path.glob("*.toml"))]
        return [specs.read(str(path) if path.suffix == ".toml" else str(self.data.preset))]

    def agreed(self, shape: DataShape) -> Federation:
        """Return the clients of this node, with the shape of data that the federation agreed on."""
        found = self.all()
        if not _agree(found.shape, shape):
            raise Refused(Refusal.DATA, f"the data here has {found.shape}, the run has {shape}")
        # How several inputs are packed is a matter of this node.
        shape = replace(shape, input=found.shape.input, fields=found.shape.fields)
        return replace(found, shape=shape, truth=None)

    def all(self) -> Federation:
        """Return all clients, by the names that they have in the federation."""
        found = self._loaded().uncoded()
        if self.data.clients is None:
            return found
        if len(self.data.clients) != len(found):
            detail = f"data.clients names {len(self.data.clients)} clients, the data has {len(found)}"
            raise Refused(Refusal.DATA, detail)
        return replace(found, names=tuple(self.data.clients))

    def _loaded(self) -> Federation:
        data = self.data
        if data.loader is not None:
            found = plugins.imported(data.loader, allow=[data.loader])()
            if isinstance(found, Federation):
                return found
            names = [str(name) for name in found] if isinstance(found, dict) else data.clients
            pairs = list(found.values()) if isinstance(found, dict) else list(found)
            return Federation.from_clients(pairs, names=names, held_out=data.held_out, length=data.length)
        from fedsoft.datasets.folder import folder

        path = (self.folder / Path(str(data.path)).expanduser()).absolute()
        read = partial(
            folder, label=data.label, held_out=data.held_out, categories=0, tokens=data.tokens, features=data.features,
            length=data.length,
        )  # fmt: skip
        if not path.is_file():
            return read(path)
        with TemporaryDirectory() as alone:
            (Path(alone) / path.name).symlink_to(path)
            return read(alone)


def _only(found: Federation, rows: list[int]) -> Federation:
    """Return some of the clients."""
    names = tuple(found.names[row] for row in rows)
    return replace(found, train=found.train.take(rows), held_out=found.held_out.take(rows), names=names)


def _agree(own: DataShape, asked: DataShape) -> bool:
    """Whether a run asks for the data that this node has. Floats may be of any size."""
    if (own.task, len(own.fields)) != (asked.task, len(asked.fields)) or own.outputs > asked.outputs:
        return False
    if not own.fields:
        return own.input == asked.input
    wanted = {one.name: one for one in asked.fields}
    return all(one.name in wanted and one.agrees(wanted[one.name]) for one in own.fields)
