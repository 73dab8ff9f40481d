"""A node as one TOML file: where its data is, what may be done with it, where its memory lives.

name = "hospital-a"
socket = "worker.sock"          # where its worker listens; paths are relative to this file
memory = "memory"               # what its clients keep between rounds

[data]
path = "data"                   # a folder with one file for each client, or one file
# loader = "mine.data:clients"  # or a function of yours
# clients = ["hospital-a"]      # their names in the federation; default: those of the files

[model]                         # the only model that this node trains; default: any that comes with fedsoft
name = "mlp"
hidden = [32]

[policy]                        # what a server may do with the data, see `policy.Policy`
algorithms = ["fedsoft", "fedavg"]
points = 20
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field

from fedsoft import plugins
from fedsoft.core.contract import Algorithm
from fedsoft.core.federation import DataShape, Federation
from fedsoft.core.local_solve import Solver
from fedsoft.datasets.nodes import agreed_shape
from fedsoft.errors import FedsoftError, InputError, unknown
from fedsoft.flower.keys import read_private_key
from fedsoft.flower.node.policy import Policy
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.runs import spec as specs
from fedsoft.runs.run_options import federation_of
from fedsoft.runs.spec import RunSpec
from fedsoft.secure.protection import Secure
from fedsoft.settings import renamed, settings
from fedsoft.storage.files import read_text
from fedsoft.storage.toml import toml

LONGEST_SOCKET = 100  # the system allows a few more


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


@settings
class NodeFile:
    """A node's TOML file.

    Arguments:
        name: of the node, for logs.
        socket: where its worker listens.
        memory: the folder for what its clients keep.
        data: where its points are.
        model: the only one that it trains; default: any that comes with fedsoft.
        allow: code outside of fedsoft that it may import, as `package.module:name`.
        policy: what a server may do with the data.
        key: the private key of the node, which its SuperNode has too; for sums that are seen by nobody one by one.
        peers: fingerprints of the nodes, this one among them, with which it sums; default: those that a run names.
        workers: threads; default: one for each core.
        cache: RAM for client memory and replies, such as `4G`, beyond which scratch files are used; default: half of
            what is available.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    socket: str = "worker.sock"
    memory: str = "memory"
    data: dict[str, Any]
    model: dict[str, Any] | None = None
    allow: list[str] = Field(default_factory=list)
    policy: dict[str, Any] = Field(default_factory=dict)
    key: str | None = None
    peers: list[str] = Field(default_factory=list)
    workers: Annotated[int, Field(ge=1)] | None = None
    cache: str | None = None


class NodeConfig:
    """A node's TOML file, read and checked. Errors name the file."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            raw = toml(read_text(path))
        except OSError as error:
            raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"'{path}' is not valid TOML: {error}") from None
        with self._named_in_errors():
            self._read(raw)

    @contextlib.contextmanager
    def _named_in_errors(self) -> Iterator[None]:
        try:
            yield
        except FedsoftError as error:
            raise InputError(f"'{self.path}': {error}") from None

    def _read(self, raw: dict[str, Any]) -> None:
        with renamed({"NodeFile": "", "Data": "data", "Policy": "policy", "NoiseFloor": "policy.privacy"}):
            self.file = NodeFile(**raw)
            self.data = Data(**self.file.data)
            self.policy = Policy.of(self.file.policy, synthetic=self.data.shard is not None, own_code=bool(self.allow))
        given = [key for key in ("path", "loader", "shard") if getattr(self.data, key) is not None]
        if len(given) != 1:
            raise InputError(f"[data] should have one of path, loader and shard, has {given or 'none'}")
        if self.data.shard is not None and not 0 <= self.data.shard[0] < self.data.shard[1]:
            raise InputError(f"data.shard = {list(self.data.shard)} is not allowed: should be [k, n] with 0 <= k < n")
        if (self.data.shard is None) != (self.data.preset is None):
            raise InputError("[data] should have shard and preset together, or neither of them")
        if self.data.loader is not None and not plugins.is_code(self.data.loader):
            raise InputError(f"data.loader = '{self.data.loader}' is not allowed: should be package.module:name")
        if len(str(self.socket)) > LONGEST_SOCKET:
            raise InputError(f"socket = '{self.socket}' is too long: should have at most {LONGEST_SOCKET} characters")

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def socket(self) -> Path:
        return self.path.parent / self.file.socket

    @property
    def memory(self) -> Path:
        return self.path.parent / self.file.memory

    @property
    def runs(self) -> Path:
        """The memory of each run: apart from the node's own files, whose names a server must not choose."""
        return self.memory / "runs"

    @cached_property
    def private_key(self) -> ec.EllipticCurvePrivateKey | None:
        """The key of the node, where its file names it."""
        return None if self.file.key is None else read_private_key(self.path.parent / self.file.key)

    @property
    def allow(self) -> list[str]:
        """Code outside of fedsoft that the owner names, in `allow` or as the model."""
        model = self.file.model or {}
        given = {key: value for key, value in model.items() if key != "name"}
        return [*self.file.allow, *plugins.code_in("models", str(model.get("name")), given)]

    def check(self) -> str:
        """Check all that the file names before the first request; return the node in one line."""
        with self._named_in_errors():
            return self._check()

    def _check(self) -> str:
        for key, kind in (("algorithms", "algorithms"), ("solvers", "solvers")):
            for name in getattr(self.policy, key) or ():
                if name not in (known := [*plugins.names(kind), *self.allow]):
                    raise unknown(f"name in policy.{key}", name, known)
        _ = self.private_key
        if self.policy.secure and self.file.key is None:
            raise InputError("policy.secure = true needs the node's 'key'")
        model = "any model" if self.file.model is None else f"model {self._agreed()['name']}"
        if self.data.shard is not None:
            k, n = self.data.shard
            return f"{self.name}: share {k} of {n} of what its presets describe, {model}"
        found = self._named(self._loaded().uncoded())
        points, held = int(found.train.sizes.sum()), int(found.held_out.sizes.sum())
        return f"{self.name}: {len(found)} clients, {points} points and {held} held out, {model}"

    def read(self, raw: dict[str, Any]) -> RunSpec:
        """Read a run as a server describes it, if the owner allows it. Nothing else is imported, built or called."""
        if any(
            not isinstance(raw.get(key), dict) or "name" not in raw[key] for key in ("algorithm", "solver", "model")
        ):
            raise Refused(Refusal.MESSAGE, "the run lacks its algorithm, solver or model")
        for name in specs.code_in(raw):
            if name not in self.allow:
                raise Refused(Refusal.NOT_ALLOWED, f"the run names the code '{name}', which is not in 'allow'")
        self.policy.check_names(raw, self.file.allow)  # what is allowed as the model is no algorithm
        if self.data.shard is None and "partition" in raw:
            raise Refused(Refusal.DATA, "the run has a partition, but the data of this node is its own")
        about_server = ("aggregator", "attack")
        try:
            spec = RunSpec.from_dict({k: v for k, v in raw.items() if k not in about_server}, allow=self.allow)
        except InputError as error:
            raise Refused(Refusal.NOT_ALLOWED, f"the run is not valid: {error}") from None
        for kind, part, role in (("algorithms", spec.algorithm, Algorithm), ("solvers", spec.solver, Solver)):
            made = plugins.find(kind, part.name, self.allow)
            if not (isinstance(made, type) and issubclass(made, role)):  # before it is called
                raise Refused(Refusal.NOT_ALLOWED, f"'{part.name}' is no {role.__name__}")
        if spec.secure is not None and spec.secure.share > Secure().share:
            detail = f"the run's secure.share = {spec.secure.share:g} is above {Secure().share:g}"
            raise Refused(Refusal.NOT_ALLOWED, detail)
        if spec.secure is None and self.policy.secure:
            raise Refused(Refusal.NOT_ALLOWED, "policy.secure asks for secure = true, which the run does not have")
        self.policy.check(spec.to_dict())  # with all settings as they will be used
        if self.file.model is not None and self._agreed() != spec.model.to_dict():
            detail = f"this node trains the model {self._agreed()}, not {spec.model.to_dict()}"
            raise Refused(Refusal.NOT_ALLOWED, detail)
        return spec

    def _agreed(self) -> dict[str, Any]:
        """Return the model of the owner's file, with all its settings."""
        given = dict(self.file.model or {})
        name = str(given.pop("name", None))
        return {"name": name, **plugins.resolve("models", name, given, self.allow)}

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
        found = self.own_points(shape)
        rows = [row for row, name in enumerate(found.names) if name in about["clients"]]
        if not rows:
            raise Refused(Refusal.CLIENT, "the run names no client of this node")
        found = replace(
            found, train=found.train.take(rows), held_out=found.held_out.take(rows),
            names=tuple(found.names[row] for row in rows),
        )  # fmt: skip
        few = [f"'{name}' ({n})" for name, n in zip(found.names, found.train.sizes.tolist(), strict=True)
               if n < self.policy.points]  # fmt: skip
        if few:
            raise Refused(
                Refusal.POINTS,
                f"clients have fewer training points than policy.points = {self.policy.points}: {', '.join(few)}",
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
                return replace(
                    whole, train=whole.train.take(rows), held_out=whole.held_out.take(rows),
                    names=tuple(whole.names[row] for row in rows), truth=None,
                )  # fmt: skip
        raise Refused(Refusal.DATA, f"the run's data is not described in data.preset = '{self.data.preset}'")

    def _presets(self) -> list[RunSpec]:
        path = self.path.parent / str(self.data.preset)
        if path.is_dir():
            return [specs.read(str(file)) for file in sorted(path.glob("*.toml"))]
        return [specs.read(str(path) if path.suffix == ".toml" else str(self.data.preset))]

    def own_points(self, shape: DataShape) -> Federation:
        """Return the clients of this node, with the shape of data that the federation agreed on."""
        found = self._named(self._loaded().uncoded())
        if not _agree(found.shape, shape):
            raise Refused(Refusal.DATA, f"the data here has {found.shape}, the run has {shape}")
        # How several inputs are packed is a matter of this node.
        shape = replace(shape, input=found.shape.input, fields=found.shape.fields)
        return replace(found, shape=shape, truth=None)

    def _named(self, found: Federation) -> Federation:
        """Give clients the names that they have in the federation."""
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

        path = (self.path.parent / Path(str(data.path)).expanduser()).absolute()
        read = partial(
            folder, label=data.label, held_out=data.held_out, categories=0, tokens=data.tokens, features=data.features,
            length=data.length,
        )  # fmt: skip
        if not path.is_file():
            return read(path)
        with TemporaryDirectory() as alone:
            (Path(alone) / path.name).symlink_to(path)
            return read(alone)


def _agree(own: DataShape, asked: DataShape) -> bool:
    """Whether a run asks for the data that this node has. Floats may be of any size."""
    if (own.task, len(own.fields)) != (asked.task, len(asked.fields)) or own.outputs > asked.outputs:
        return False
    if not own.fields:
        return own.input == asked.input
    wanted = {one.name: one for one in asked.fields}
    return all(one.name in wanted and one.agrees(wanted[one.name]) for one in own.fields)
