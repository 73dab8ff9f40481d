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
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field

from fedsoft import plugins
from fedsoft.core.contract import Algorithm
from fedsoft.core.local_solve import Solver
from fedsoft.errors import FedsoftError, InputError, unknown
from fedsoft.flower.keys import read_private_key
from fedsoft.flower.node.own_points import Data, OwnPoints
from fedsoft.flower.node.policy import Policy
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.runs import spec as specs
from fedsoft.runs.spec import RunSpec
from fedsoft.secure.protection import Secure
from fedsoft.settings import renamed, settings
from fedsoft.storage.files import read_text
from fedsoft.storage.toml import toml

LONGEST_SOCKET = 100  # the system allows a few more


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

    @property
    def points(self) -> OwnPoints:
        return OwnPoints(self.path.parent, self.data, self.policy.points)

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
        found = self.points.all()
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
