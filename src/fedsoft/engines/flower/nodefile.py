"""A node as one TOML file: where its data is, which model it agreed to, where its memory lives.

name = "hospital-a"
socket = "worker.sock"          # where its worker listens; paths are relative to this file
memory = "memory"               # what its clients keep between rounds

[data]
path = "data"                   # a folder with one file for each client, or one file
# loader = "mine.data:clients"  # or a function of yours
# clients = ["hospital-a"]      # their names in the federation; unless told those of the files

[model]                         # the only model that this node trains; any unless told
name = "mlp"
hidden = [32]
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from fedsoft import plugins
from fedsoft.checks import renamed, settings, toml
from fedsoft.errors import InputError
from fedsoft.federation import DataShape, Federation

LONGEST_SOCKET = 100  # the system allows a few more


@settings
class Data:
    """Where a node's points are. Exactly one of `path`, `loader` and `shard`.

    Arguments:
        path: a folder with one `.npz`, `.csv` or `.parquet` file for each client, or one such file.
        loader: `module:function`; the function returns a `Federation`, a dictionary of (x, y) by client, or a list of
            (x, y), one for each of `clients`.
        shard: `[k, n]`: part k of n of the clients that the run itself describes, for trying a federation out.
        clients: the names that the clients have in the federation.
        label: the column with the targets, for tables.
        held_out: the share of points that is kept for scoring.
    """

    path: str | None = None
    loader: str | None = None
    shard: tuple[int, int] | None = None
    clients: list[str] | None = None
    label: str = "y"
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2


@settings
class NodeFile:
    """What a node's TOML file says.

    Arguments:
        name: of the node, for logs.
        socket: where its worker listens.
        memory: the folder for what its clients keep.
        data: where its points are.
        model: what it agreed to train; anything else is refused.
        allow: what it may import beside what comes with the package, as `module:name`.
        workers: threads; one for each core unless told.
        ram: for client memory and replies, such as `4G`; half of what is available unless told.
    """

    name: Annotated[str, Field(min_length=1)]
    socket: str = "worker.sock"
    memory: str = "memory"
    data: dict[str, Any]
    model: dict[str, Any] | None = None
    allow: list[str] = Field(default_factory=list)
    workers: Annotated[int, Field(ge=1)] | None = None
    ram: str | None = None


class NodeConfig:
    """A node's TOML file, read and checked."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            raw = toml(path.read_text("utf-8"))
        except OSError as error:
            raise InputError(f"cannot read '{path}': {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"'{path}' is not valid TOML: {error}") from None
        with renamed({"NodeFile": "", "Data": "data"}):
            self.file = NodeFile(**raw)
            self.data = Data(**self.file.data)
        given = [key for key in ("path", "loader", "shard") if getattr(self.data, key) is not None]
        if len(given) != 1:
            raise InputError(f"'{path}': [data] should have one of path, loader and shard, has {given or 'none'}")
        if self.data.shard is not None and not 0 <= self.data.shard[0] < self.data.shard[1]:
            raise InputError(f"data.shard = {list(self.data.shard)} is not allowed: should be [k, n] with 0 <= k < n")
        if self.data.loader is not None and ":" not in self.data.loader:
            raise InputError(f"data.loader = '{self.data.loader}' is not allowed: should be module:function")
        if len(str(self.socket)) > LONGEST_SOCKET:
            raise InputError(f"socket = '{self.socket}' is too long: should have at most {LONGEST_SOCKET} signs")

    @property
    def name(self) -> str:
        """Of the node."""
        return self.file.name

    @property
    def socket(self) -> Path:
        """Where the worker listens."""
        return self.path.parent / self.file.socket

    @property
    def memory(self) -> Path:
        """Where clients' memory is."""
        return self.path.parent / self.file.memory

    def check_names(self, spec: dict[str, Any]) -> None:
        """Refuse a run that would import what this node's owner did not allow, or train another model."""
        for key, kind in (("algorithm", "algorithms"), ("model", "models"), ("local", "solvers")):
            name = str(spec[key]["name"])
            if name not in plugins.names(kind) and name not in self.file.allow:
                raise InputError(f"{key} '{name}' is not allowed on node '{self.name}': put it into 'allow' there")
        if self.file.model is not None:
            name, given = str(self.file.model.get("name")), dict(self.file.model)
            given.pop("name", None)
            agreed = {"name": name, **plugins.resolve("models", name, given)}
            if agreed != spec["model"]:
                raise InputError(f"node '{self.name}' trains the model {agreed}, not {spec['model']}")

    def own_points(self, shape: DataShape) -> Federation:
        """The clients of this node, with the shape of data that the federation agreed on."""
        found = self._loaded()
        if self.data.clients is not None:
            if len(self.data.clients) != len(found):
                raise InputError(f"data.clients names {len(self.data.clients)} clients, the data has {len(found)}")
            found = replace(found, names=tuple(self.data.clients))
        if (found.shape.task, found.shape.input) != (shape.task, shape.input) or found.shape.outputs > shape.outputs:
            raise InputError(f"the data of node '{self.name}' has {found.shape}, the federation has {shape}")
        return replace(found, shape=shape, truth=None)

    def _loaded(self) -> Federation:
        data = self.data
        if data.loader is not None:
            found = plugins.find("datasets", data.loader)()
            if isinstance(found, Federation):
                return found
            names = [str(name) for name in found] if isinstance(found, dict) else data.clients
            pairs = list(found.values()) if isinstance(found, dict) else list(found)
            return Federation.from_clients(pairs, names=names, held_out=data.held_out)
        from fedsoft.datasets.folder import folder

        path = (self.path.parent / Path(str(data.path)).expanduser()).absolute()
        if not path.is_file():
            return folder(path, label=data.label, held_out=data.held_out)
        with TemporaryDirectory() as alone:
            (Path(alone) / path.name).symlink_to(path)
            return folder(alone, label=data.label, held_out=data.held_out)
