"""Runs as text, settings on the command line and the files of nodes, whatever is in them."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.flower.node.config import NodeConfig
from fedsoft.runs import spec
from fedsoft.runs.presets import presets
from tests.fuzz.mutation import cases, mutated, refused

PRESETS = [(resources.files("fedsoft") / "presets" / f"{name}.toml").read_bytes() for name in presets()]
OWN = b"""rounds = 50
work = 100000
seed = 3
dropout = 0.1
algorithm = { name = "fedsoft", S = 2, lam = 0.1, K = "all" }
dataset = { name = "folder", path = "hospitals", label = "outcome" }
model = { name = "mlp", hidden = [32] }
solver = { name = "adam", lr = 1e-3, epochs = 5, batch = 16 }
aggregator = { name = "trimmed", share = 0.2 }
[fast]
rounds = 2
"""


@cases()
@given(content=mutated([*PRESETS, OWN, OWN]), fast=st.booleans())
def test_specs(tmp_path_factory: pytest.TempPathFactory, content: bytes, fast: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "own.toml"
    path.write_bytes(content)
    found = []
    if not refused(lambda: found.append(spec.read(str(path), fast=fast))):
        again = spec.RunSpec.from_dict(tomllib.loads(found[0].to_toml()), found[0].label)
        assert again == found[0]
        assert again.hash == found[0].hash
        assert Path(found[0].id).name == found[0].id  # a name, not a path
        assert found[0].title


CHANGES = [
    b"lam=0.1", b"algorithm.lam=0.1", b"rounds=3", b"partition=30:70", b"partition=random", b"model=mlp",
    b"model.hidden=[3, 4]", b"dataset.clients=12", b"points=[5, 16]", b"solver.name=sgd", b"aggregator=median",
    b"attack.share=0.1", b"dtype=float64", b"seed=1", b"data_seed=2", b"dropout=0.3", b"algorithm=fedem",
]  # fmt: skip


@cases()
@given(changes=st.lists(mutated(CHANGES), min_size=1, max_size=3))
def test_settings(changes: list[bytes]) -> None:
    found = []
    texts = [change.decode("utf-8", "surrogateescape") for change in changes]
    if not refused(lambda: found.append(spec.read("synthetic-10-90", texts))):
        assert spec.RunSpec.from_dict(tomllib.loads(found[0].to_toml()), found[0].label) == found[0]


NODES = [
    b'name = "hospital-a"\nsocket = "worker.sock"\nmemory = "memory"\nworkers = 2\nram = "1G"\n[data]\npath = "data"\n'
    b'clients = ["a"]\nheld_out = 0.2\n[model]\nname = "mlp"\nhidden = [32]\n',
    b'name = "n"\n[data]\nshard = [0, 4]\npreset = "synthetic-10-90"\n',
    b'name = "n"\n[data]\npath = "d"\n[policy]\nalgorithms = ["fedsoft"]\npoints = 9\nram = "1G"\n'
    b"bounds = { S = [1, 4] }\nprivacy = { counts = 1.0 }\n",
    b'name = "n"\nallow = ["mine:it"]\n[data]\nloader = "mine.data:clients"\n',
]
RUN = spec.read("synthetic-10-90").to_dict()


@cases()
@given(content=mutated(NODES))
def test_files_of_nodes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "node.toml"
    path.write_bytes(content)
    refused(lambda: NodeConfig(path).read(RUN))
