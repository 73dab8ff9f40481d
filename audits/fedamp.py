"""FedAMP in PFLlib, the library that most comparisons take it from; its authors published no code.

git clone https://github.com/TsingZ0/PFLlib; git -C PFLlib checkout d832e76f
python -m audits fedamp PFLlib
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedsoft as fs
from audits.common import Audit, Finding, Ours, Pairs, class_points, compared, load, ours, row, softmax_model
from audits.foreign import code, commit_of

__all__ = ["audit"]

ROUNDS, LR, EPOCHS, BATCH = 4, 0.1, 2, 5
ALPHA, SIGMA, LAM = 1.0, 20.0, 1.0


def _theirs(folder: Path, start: Ours, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return the personal models, and what the server sent to the clients in the last round."""
    without = ("torchvision", "h5py", "ujson", "matplotlib", "torchtext", "sklearn.preprocessing", "opacus", "calmsize",
               "cvxpy", "flcore.trainmodel")  # fmt: skip
    with code(folder, "system", without=without) as load_module:
        servers, clients = (load_module(f"flcore.{one}amp") for one in ("servers.server", "clients.client"))
        server: Any = object.__new__(servers.FedAMP)  # its constructor reads data sets
        server.alphaK, server.sigma, server.num_join_clients = ALPHA, SIGMA, len(pairs)
        server.global_model, server.uploaded_ids, server.uploaded_models = softmax_model(), [], []
        people: list[Any] = []
        assert start.personal is not None
        for k, ((x, y), w) in enumerate(zip(pairs, start.personal, strict=True)):
            one: Any = object.__new__(clients.clientAMP)
            one.id, one.alphaK, one.lamda, one.local_epochs = k, ALPHA, LAM, EPOCHS
            one.train_slow = one.send_slow = one.learning_rate_decay = False
            one.device, one.loss = "cpu", nn.CrossEntropyLoss()
            one.train_time_cost = one.send_time_cost = {"num_rounds": 0, "total_cost": 0.0}
            one.model, one.client_u = load(softmax_model(), w), load(softmax_model(), w)
            one.optimizer = torch.optim.SGD(one.model.parameters(), lr=LR)
            loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
            one.load_train_data = lambda loader=loader: loader
            people.append(one)
        server.selected_clients = people
        for _ in range(ROUNDS):
            server.send_models()
            for one in people:
                one.train()
            server.uploaded_ids = [one.id for one in people]
            server.uploaded_models = [load(softmax_model(), row(one.model)) for one in people]
        sent = torch.stack([row(one.client_u) for one in people])
        return torch.stack([row(one.model) for one in people]), sent


def audit(folder: Path) -> Audit:
    """Run PFLlib's clients and server beside ours, and beside training alone."""
    pairs = class_points()
    solver = fs.SGD(lr=LR, epochs=EPOCHS, batch=BATCH, shuffle=False)
    module = fs.models.module(softmax_model)
    mine = ours(fs.FedAMP(alpha=ALPHA, sigma=SIGMA, lam=LAM), pairs, module, solver, ROUNDS)
    theirs, _ = _theirs(folder, mine, pairs)
    own = mine.run.state.per_client["w"]
    remark = (
        "`clientAMP` computes |w - u| from `p.data`, which has no gradient, and does not square it: the pull of the "
        "method is not there."
    )
    findings = [compared(f"personal models after {ROUNDS} rounds, as it is", own, theirs, remark)]
    alone = ours(fs.FedAMP(alpha=ALPHA, sigma=SIGMA, lam=0.0), pairs, module, solver, ROUNDS)
    findings.append(
        compared(
            "the same, against ours with lam = 0, which is training alone", alone.run.state.per_client["w"], theirs
        )
    )
    spread = float((own.mean(0) - own).norm(dim=1).mean() / (theirs.mean(0) - theirs).norm(dim=1).mean())
    findings.append(
        Finding("how far clients' models are from their mean", "different", None, f"ours {spread:.2f} times theirs")
    )
    paper = "Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. AAAI 2021"
    return Audit("fedamp", paper, "TsingZ0/PFLlib", commit_of(folder), "others", findings)
