"""FedRep by its authors.

git clone https://github.com/lgcollins/FedRep; git -C FedRep checkout d82e6298
python -m audits fedrep FedRep
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedsoft as fs
from audits.common import CLASSES, INPUTS, Audit, Finding, Ours, Pairs, class_points, compared, load, ours, row
from audits.foreign import code, commit_of

__all__ = ["audit"]

ROUNDS, LR, EPOCHS, BODY, BATCH = 3, 0.1, 4, 1, 5
MOMENTUM, DECAY = 0.5, 1e-4  # fixed in the authors' code


def network() -> nn.Module:
    """A body and a head; without biases, which the authors' weight decay leaves out."""
    return nn.Sequential(nn.Linear(INPUTS, 6, bias=False), nn.Tanh(), nn.Linear(6, CLASSES, bias=False))


def _theirs(folder: Path, start: Ours, pairs: Pairs) -> Tensor:
    """Return the body after some rounds of `LocalUpdate.train`, averaged as in `main_fedrep.py`."""
    without = ("FedProx", "models.language_utils", "models.test")
    with code(folder, without=without) as load_module:
        update: Any = load_module("models.Update").LocalUpdate
        body, heads = row(load(network(), start.centers[0])), [start.centers[0].clone() for _ in pairs]
        total = sum(len(y) for _, y in pairs)
        shared = ["0.weight"]
        for _ in range(ROUNDS):
            mean = torch.zeros_like(body)
            for k, (x, y) in enumerate(pairs):
                one = object.__new__(update)  # its constructor shuffles
                one.args = SimpleNamespace(
                    alg="fedrep", dataset="mnist", local_ep=EPOCHS, local_rep_ep=BODY, device="cpu", local_bs=BATCH,
                    local_updates=10**9,
                )  # fmt: skip
                one.indd, one.loss_func = None, nn.CrossEntropyLoss()
                one.ldr_train = DataLoader(TensorDataset(x, y), batch_size=BATCH)
                net = load(network(), torch.cat([body[: 6 * INPUTS], heads[k][6 * INPUTS :]]))
                one.train(net, shared, lr=LR)
                heads[k] = row(net)
                mean += heads[k] * len(y) / total
            body = mean
        return body[: 6 * INPUTS]


def audit(folder: Path) -> Audit:
    """Run both on eight clients of 5 to 23 points, batches in order."""
    pairs = class_points()
    solver = fs.SGD(lr=LR, momentum=MOMENTUM, weight_decay=DECAY, epochs=EPOCHS, batch=BATCH, shuffle=False)
    algorithm = fs.FedRep(body_epochs=BODY)
    mine = ours(algorithm, pairs, fs.models.module(network, init="own"), solver, ROUNDS)
    theirs = _theirs(folder, mine, pairs)
    what = f"body after {ROUNDS} rounds: {EPOCHS - BODY} passes for heads, {BODY} for the body, momentum {MOMENTUM}"
    findings = [_program(folder), compared(what, mine.run.state.centers[0][: 6 * INPUTS], theirs)]
    paper = "Collins, Hassani, Mokhtari, Shakkottai. ICML 2021"
    return Audit("fedrep", paper, "lgcollins/FedRep", commit_of(folder), "the authors", findings)


def _program(folder: Path) -> Finding:
    """Say whether Python reads the file that `main_fedrep.py` imports for its tests."""
    path = folder / "models" / "test.py"
    try:
        compile(path.read_text("utf-8"), path.name, "exec")
    except SyntaxError as error:
        where = f"{type(error).__name__} in models/test.py, line {error.lineno}: {error.msg}"
        return Finding("`main_fedrep.py`, as it is", "cannot run", remark=where)
    return Finding("models/test.py is a program", "equal")
