"""A node with data of its own, and what a server says to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsoft.flower.node.refusals import Refusal
from fedsoft.flower.wire import WireMessage
from tests.flower.places import QuietNode, node_at, spec

KEY = f"SHA256:{'A' * 43}"
SECRET_VALUE = 2.281134


def own_data(folder: Path, clients: dict[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, n) in enumerate(clients.items()):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, 3))
        lines = [f"{a},{b},{c},{a - b + SECRET_VALUE}" for a, b, c in x]
        (folder / f"{name}.csv").write_text("diagnosis,dose,age,y\n" + "\n".join(lines) + "\n", "utf-8")


def hospital(tmp_path: Path, text: str = "", clients: dict[str, int] | None = None) -> QuietNode:
    """A node with data of its own."""
    own_data(tmp_path / "node" / "data", {"a": 30, "b": 30} if clients is None else clients)
    return node_at(tmp_path / "node", f'name = "n"\nworkers = 1\n[data]\npath = "data"\n{text}')


OWN = {"name": "nodes", "clients": {"a": KEY, "b": KEY}, "input": [3], "task": "regression"}


def described(**changes: Any) -> dict[str, Any]:
    return spec(**{"dataset": OWN, "algorithm": "fedavg", "model": "linear", **changes}).to_dict()


def ask(node: QuietNode, raw: dict[str, Any], kind: str = "hello", **about: Any) -> WireMessage:
    tensors = about.pop("tensors", {})
    head = {"kind": kind, "experiment": "e", "attempt": 1, "spec": raw, **about}
    sent = WireMessage.unpacked(*WireMessage(head, tensors).packed())  # as it comes over the wire
    return node.answer(sent)


def refused(node: QuietNode, raw: dict[str, Any], kind: str = "hello", **about: Any) -> str:
    """The code, after a look that nothing else is told."""
    answer = ask(node, raw, kind, **about)
    assert answer.head.keys() == {"node", "refused"}, answer.head
    assert not answer.tensors
    assert answer.head["refused"] in list(Refusal)
    return answer.head["refused"]


def train(node: QuietNode, raw: dict[str, Any], size: int = 3, **about: Any) -> WireMessage:
    ask(node, raw, **{key: about[key] for key in ("experiment", "attempt") if key in about})
    about = {
        "job": "train",
        "round": 0,
        "ask": 0,
        "clients": ["a"],
        "tensors": {"shared/centers": torch.zeros(1, size)},
    } | about
    return ask(node, raw, "job", **about)
