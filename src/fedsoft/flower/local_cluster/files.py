"""The folder of a federation: certificates, keys, one folder for each node, the app, the address of the SuperLink.

A project that `fedsoft flower init` writes is such a folder as well, without keys and nodes of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from fedsoft.errors import FedsoftError, InputError
from fedsoft.flower.keys import make_certificates, make_key
from fedsoft.flower.server.identity import fingerprint_of
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

APP = Path(__file__).parents[1] / "project" / "app"


@dataclass(frozen=True)
class ClusterSettings:
    """What a federation's folder says about it.

    Arguments:
        address: of the SuperLink.
        nodes: how many there are in this folder; 0 where they are elsewhere.
    """

    address: str
    nodes: int


@dataclass(frozen=True)
class ClusterFiles:
    """Where things are in a federation's folder."""

    folder: Path

    @property
    def app(self) -> Path:
        """The Flower app that is submitted."""
        return self.folder / "app"

    @property
    def authority(self) -> Path:
        """The certificate that all parties trust."""
        return self.folder / "certificates" / "ca.pem"

    @property
    def presets(self) -> Path:
        """Descriptions of the runs that were started here: the data that nodes of this folder may make."""
        return self.folder / "presets"

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the nodes' keys, in the order of their shares."""
        return [fingerprint_of(self.public_key(k)) for k in range(self.settings.nodes)]

    def node(self, k: int) -> Path:
        return self.folder / "nodes" / f"node-{k}"

    def key(self, k: int) -> Path:
        return self.folder / "keys" / f"node-{k}"

    def public_key(self, k: int) -> Path:
        return self.folder / "keys" / f"node-{k}.pub"

    def socket(self, name: int | str) -> Path:
        """Return where a worker or launcher listens: not in the folder, because paths of sockets must be short."""
        label = hashlib.blake2b(str(self.folder.absolute()).encode(), digest_size=6).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"fedsoft-{os.getuid()}-{label}"
        folder.mkdir(exist_ok=True, mode=0o700)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise FedsoftError(f"'{folder}' is not a folder of yours alone: remove it")
        return folder / str(name)

    @property
    def settings(self) -> ClusterSettings:
        try:
            return ClusterSettings(**read_json(self.folder / "federation.json"))
        except (OSError, ValueError, TypeError):
            raise InputError(f"there is no federation in '{self.folder}': start one with 'fedsoft flower up'") from None

    def write_settings(self, settings: ClusterSettings) -> None:
        write_json(self.folder / "federation.json", asdict(settings))

    def prepare(self, nodes: int, address: str) -> None:
        """Write certificates, keys and nodes that are missing. Each node holds its share of a run's clients."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.authority.exists():
            make_certificates(self.authority.parent)
        shutil.copytree(APP, self.app, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        for k in range(nodes):
            if not self.key(k).exists():
                make_key(self.key(k))
            self.node(k).mkdir(parents=True, exist_ok=True)
            data = {"shard": [k, nodes], "preset": str(self.presets)}
            values = {"name": f"node-{k}", "socket": str(self.socket(k)), "workers": 1, "data": data}
            values["key"] = str(self.key(k).absolute())
            if not (self.node(k) / "node.toml").exists():
                (self.node(k) / "node.toml").write_text(tomli_w.dumps(values), "utf-8")
        self.write_settings(ClusterSettings(address, nodes))
