"""A node with one client of its own, and a server that asks it whatever it likes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from fedsoft import plugins
from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Model
from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.node.node import Node
from fedsoft.flower.wire import WireMessage
from fedsoft.runs.spec import RunSpec

NAME = "client"
KEY = f"SHA256:{0:043d}"


class SaysNo(Exception):
    """A refusal: all that the server is told is its code."""


def points_of(data: str, count: int, seed: int, inputs: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """So many points that nobody else has: of `normal` inputs and two classes, or of `digits`."""
    rng = np.random.default_rng(seed)
    if data == "normal":
        x = rng.standard_normal((count, inputs))
        return x, (x[:, 0] + rng.standard_normal(count) > 0).astype(np.int64)
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    rows = rng.permutation(len(found.target))[:count]
    return found.data[rows] / 16, found.target[rows].astype(np.int64)


class Victim:
    """A node with one client. Rounds count up, so that every question is another one.

    Arguments:
        folder: where its file, its points and its memory are; empty.
        x, y: the points.
        classes: of y; 0 for a regression.
        model: the only model that the owner lets it train.
        policy: what else the owner says.
    """

    def __init__(
        self, folder: Path, x: np.ndarray, y: np.ndarray, classes: int, model: Mapping[str, Any],
        policy: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        np.savez(folder / f"{NAME}.npz", x=x, y=y)
        data = {"path": f"{NAME}.npz", "held_out": 0.0}
        file = {"name": "victim", "workers": 1, "data": data, "model": dict(model), "policy": dict(policy or {})}
        (folder / "node.toml").write_text(tomli_w.dumps(file), "utf-8")
        (folder / "memory").mkdir()
        (folder / "memory" / ".secret").write_text("not told to the server", "utf-8")  # the same noise every time
        self.log: list[str] = []
        self.node, self.agreed, self.round = Node(NodeConfig(folder / "node.toml"), self.log.append), dict(model), -1
        self.shape = DataShape("classification" if classes else "regression", x.shape[1:], classes or 1)

    @property
    def model(self) -> Model:
        """What it trains, which the server knows."""
        given = {key: value for key, value in self.agreed.items() if key != "name"}
        return plugins.build("models", self.agreed["name"], given)(self.shape)

    def ask(self, job: str, shared: Mapping[str, Tensor], experiment: str = "run", **run: Any) -> dict[str, Tensor]:
        """The reply to a job of the next round; `run`: algorithm, solver and what else a server decides on."""
        about = {
            "name": "nodes", "clients": {NAME: KEY}, "input": list(self.shape.input), "task": self.shape.task,
            "outputs": self.shape.outputs,
        }  # fmt: skip
        spec = RunSpec.from_dict({"dataset": about, "model": self.agreed, "dtype": "float64", **run}).to_dict()
        head = {"experiment": experiment, "attempt": 1, "spec": spec}
        self._answer(WireMessage(head | {"kind": "hello"}, {}))
        self.round += 1
        head |= {"kind": "job", "job": job, "round": self.round, "clients": [NAME]}
        return self._answer(WireMessage(head, {f"shared/{name}": value for name, value in shared.items()})).tensors

    def _answer(self, parcel: WireMessage) -> WireMessage:
        """As it crosses the wire."""
        with torch.no_grad():
            answer = self.node.answer(WireMessage.unpacked(*parcel.packed()))
        if "refused" in answer.head:
            raise SaysNo(answer.head["refused"])
        return answer
