"""Nodes in this process, for what needs no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedsoft.engines.flower.node import Node
from fedsoft.engines.flower.nodefile import NodeConfig
from fedsoft.engines.flower.server import FlowerEngine
from fedsoft.engines.flower.terms import Rules
from fedsoft.engines.flower.wire import Parcel
from fedsoft.runs.execution import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.stage import Stage

Spoil = Callable[[int, Parcel, Parcel], Parcel | str]
"""(node, what was asked, its answer) to what comes back."""


def spec(algorithm: str | dict[str, Any] = "fedsoft", **changes: Any) -> RunSpec:
    """Eight clients with synthetic data, so small that a round takes milliseconds."""
    synthetic = {"name": "synthetic", "clients": 8, "points": [5, 16], "dimension": 3, "test_points": 20}
    raw: dict[str, Any] = {
        "rounds": 3, "algorithm": algorithm, "model": "linear",
        "local": {"name": "adam", "lr": 0.01, "epochs": 2}, "dataset": synthetic, **changes,
    }  # fmt: skip
    return RunSpec.from_dict(raw if "dataset" in changes else raw | {"partition": "10:90"})


def node_at(folder: Path, text: str) -> Node:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.toml").write_text(text, "utf-8")
    return Node(NodeConfig(folder / "node.toml"))


def shards(folder: Path, count: int = 4) -> dict[int, Node]:
    """Nodes 1, 2, ... with a shard each. Made anew in the same folder, they find what they kept."""
    return {
        k + 1: node_at(folder / f"node-{k}", f'name = "node-{k}"\nworkers = 1\n[data]\nshard = [{k}, {count}]\n')
        for k in range(count)
    }


class Direct:
    """A post that asks nodes in this process, and lets a test spoil what comes back."""

    def __init__(self, nodes: Mapping[int, Node], spoil: Spoil | None = None) -> None:
        self.there, self.spoil = dict(nodes), spoil
        self.sent: list[tuple[int, Parcel, Parcel]] = []

    def nodes(self) -> set[int]:
        return set(self.there)

    def exchange(
        self, letters: Mapping[int, tuple[str, bytes]], seconds: float
    ) -> Iterator[tuple[int, tuple[str, bytes] | str]]:
        for number, letter in letters.items():
            asked = Parcel.unpacked(*letter)
            answer: Parcel | str = self.there[number].answer(asked)
            assert isinstance(answer, Parcel)
            self.sent.append((number, asked, answer))
            if self.spoil is not None:
                answer = self.spoil(number, asked, answer)
            if answer != "":
                yield number, answer if isinstance(answer, str) else answer.packed()

    def late(self) -> list[int]:
        return []


def run(run_spec: RunSpec, path: Path, post: Direct, **rules: Any) -> RunFolder:
    """A run on nodes in this process, clients one at a time, so that the bits are those of `alone`."""
    told = {"assembly": 0.001, **rules}
    make = partial(FlowerEngine, post=post, spec=run_spec.to_dict(), rules=Rules(**told), tell=lambda text: None)
    return execute(run_spec, path, Stage(chunk=1, engine=make))[0]


def alone(run_spec: RunSpec, path: Path) -> RunFolder:
    """The same run in this process."""
    return execute(run_spec, path, Stage(chunk=1))[0]
