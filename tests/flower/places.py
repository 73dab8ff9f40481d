"""Nodes in this process, for what needs no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.node.node import Node
from fedsoft.flower.server.engine import FlowerEngine
from fedsoft.flower.server.terms import Terms
from fedsoft.flower.submission import Submission
from fedsoft.flower.wire import Packed, WireMessage
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec

Spoil = Callable[[int, WireMessage, WireMessage], WireMessage | str]
"""(node, what was asked, its answer) to what comes back."""


def spec(algorithm: str | dict[str, Any] = "fedsoft", **changes: Any) -> RunSpec:
    """Eight clients with synthetic data, so small that a round takes milliseconds."""
    synthetic = {"name": "synthetic", "clients": 8, "points": [5, 16], "dimension": 3, "test_points": 20}
    raw: dict[str, Any] = {
        "rounds": 3, "algorithm": algorithm, "model": "linear",
        "solver": {"name": "adam", "lr": 0.01, "epochs": 2}, "dataset": synthetic, **changes,
    }  # fmt: skip
    return RunSpec.from_dict(raw if "dataset" in changes else raw | {"partition": "10:90"})


class QuietNode(Node):
    """A node that keeps its log."""

    def __init__(self, config: NodeConfig) -> None:
        self.said: list[str] = []
        super().__init__(config, self.said.append)


def node_at(folder: Path, text: str) -> QuietNode:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.toml").write_text(text, "utf-8")
    return QuietNode(NodeConfig(folder / "node.toml"))


def shard(k: int, count: int = 4) -> str:
    """The file of a node that holds a share of synthetic clients; see `describe`."""
    return f'name = "node-{k}"\nworkers = 1\n[data]\nshard = [{k}, {count}]\npreset = "../presets"\n'


def shards(folder: Path, count: int = 4) -> dict[int, QuietNode]:
    """Nodes 1, 2, ... with a shard each. Made anew in the same folder, they find what they kept."""
    return {k + 1: node_at(folder / f"node-{k}", shard(k, count)) for k in range(count)}


def describe(run_spec: RunSpec, node: Node) -> None:
    """Write down which data the owner of a node lets it make."""
    if node.config.data.preset is not None:
        folder = node.config.path.parent / node.config.data.preset
        folder.mkdir(exist_ok=True)
        (folder / f"{run_spec.hash}.toml").write_text(run_spec.to_toml(), "utf-8")


def key_of(number: int) -> str:
    """The fingerprint of a node's key."""
    return f"SHA256:{number:043d}"


class Direct:
    """A transport to nodes in this process; a test may change what comes back."""

    def __init__(self, nodes: Mapping[int, Node], spoil: Spoil | None = None) -> None:
        self.there, self.spoil = dict(nodes), spoil
        self.sent: list[tuple[int, WireMessage, WireMessage]] = []

    def nodes(self) -> dict[int, str]:
        return {number: key_of(number) for number in self.there}

    def exchange(self, messages: Mapping[int, Packed], seconds: float) -> Iterator[tuple[int, Packed | str]]:
        for number, message in messages.items():
            asked = WireMessage.unpacked(*message)
            answer: WireMessage | str = self.there[number].answer(asked)
            assert isinstance(answer, WireMessage)
            self.sent.append((number, asked, answer))
            if self.spoil is not None:
                answer = self.spoil(number, asked, answer)
            if answer != "":
                yield number, answer if isinstance(answer, str) else answer.packed()

    def late(self) -> list[int]:
        return []


def run(run_spec: RunSpec, path: Path, transport: Direct, *, nodes: int = 4, **terms: Any) -> RunFolder:
    """A run on nodes in this process, clients one at a time, so that the bits are those of `alone`."""
    given, keys = {"assembly": 0.001, **terms}, [key_of(number + 1) for number in range(nodes)]
    for node in transport.there.values():
        describe(run_spec, node)
    submission = Submission(spec=run_spec.to_dict(), label="", folder=path, terms=Terms(**given), allow=[], keys=keys)
    make = partial(FlowerEngine, transport=transport, submission=submission, notify=lambda text: None)
    return execute(run_spec, path, RunOptions(chunk=1, engine=make))[0]


def alone(run_spec: RunSpec, path: Path) -> RunFolder:
    """The same run in this process."""
    return execute(run_spec, path, RunOptions(chunk=1))[0]


def state(folder: RunFolder) -> dict[str, Tensor]:
    """The server's saved state."""
    point = folder.checkpoint()
    assert point is not None
    return point.state.tensors()


def equal(a: RunFolder, b: RunFolder) -> bool:
    """Whether two runs ended in the same bits."""
    first, second = state(a), state(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    """What the server noted of that kind."""
    lines = (folder.path / "federation.jsonl").read_text("utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == kind]
