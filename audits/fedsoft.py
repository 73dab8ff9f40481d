"""FedSoft by its authors.

git clone https://github.com/ycruan/FedSoft; git -C FedSoft checkout e71a4ab5
python -m audits fedsoft FedSoft
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedsoft as fs
from audits import effects
from audits.common import (
    CLASSES,
    Audit,
    Finding,
    Ours,
    Pairs,
    class_points,
    compared,
    load,
    ours,
    row,
    softmax_model,
)
from audits.foreign import code, commit_of

__all__ = ["audit"]

ROUNDS, LAM, TAU, LR, EPOCHS, BATCH = 4, 0.1, 2, 0.01, 2, 5


def _theirs(folder: Path, start: Ours, pairs: Pairs, rounds: int, *, mend: bool) -> Tensor:
    """Return the centers of the authors' `Server.run`; `mend`: drop the argument that `Client` does not take."""
    with code(folder) as load_module:
        clients, servers, solvers = (load_module(name) for name in ("clients", "servers", "solvers"))

        class Solver(solvers.BaseClientSolver):
            def __init__(self) -> None:
                super().__init__()
                self.batch_size, self.local_epoch, self.lr = BATCH, EPOCHS, LR
                self.optimizer_type, self.criterion = torch.optim.Adam, nn.CrossEntropyLoss()
                self.estimate_criterion = nn.CrossEntropyLoss(reduction="none")
                self.lr_scheduler_type, self.lr_step, self.lr_gamma = torch.optim.lr_scheduler.StepLR, 10**8, 1.0
                self.classification, self.num_classes = True, CLASSES
                self.reg_weight, self.count_smoother = LAM, 1e-4

        people = [clients.Client(k, TensorDataset(x, y), Solver()) for k, (x, y) in enumerate(pairs)]
        plan = solvers.ServerSolver(do_selection=False, estimation_interval=TAU)
        server = servers.Server(softmax_model, people, 2, None, plan)
        assert start.personal is not None
        for s, center in enumerate(server.cluster_vec):
            load(center, start.centers[s])
        for client, own in zip(people, start.personal, strict=True):
            load(client.model, own)
            if mend:
                client.estimate_importance_weights = _without_argument(client.estimate_importance_weights)
        server.run(rounds)
        return torch.stack([row(center) for center in server.cluster_vec])


def _without_argument(method):
    return lambda *_: method()


def audit(folder: Path) -> Audit:
    """Run both on eight clients of 5 to 23 points, batches in order."""
    pairs = class_points()
    solver = fs.Adam(lr=LR, epochs=EPOCHS, batch=BATCH, shuffle=False)
    algorithm = fs.FedSoft(S=2, K="all", lam=LAM, tau=TAU, sigma=1e-4)
    mine = ours(algorithm, pairs, fs.models.module(softmax_model), solver, ROUNDS)
    findings: list[Finding] = []
    try:
        _theirs(folder, mine, pairs, 1, mend=False)
    except TypeError as error:
        findings.append(Finding("one round of `Server.run`, as it is", "cannot run", remark=f"{error}"))
    theirs = _theirs(folder, mine, pairs, ROUNDS, mend=True)
    what = f"centers after {ROUNDS} rounds with that call mended: everybody selected, Adam, batches of {BATCH}"
    findings.append(compared(what, mine.run.state.centers, theirs))
    settings = {"S": 2, "K": 60, "tau": 2, "sigma": 1e-4, "lam": 0.01}
    plain, softmax = (
        effects.centers(fs.FedSoft(**settings)),
        effects.centers(fs.FedSoft(**settings), effects.softmax_head),
    )
    findings.append(
        Finding(
            "`MnistMLP` and `LettersCNN`: cross-entropy of a softmax (for letters of ReLU and softmax)",
            "different", None,
            f"A softmax of a softmax, whose gradient is small wherever the network is sure. FedSoft's best centers on "
            f"digits-2 with an MLP: {plain} % with logits, {softmax} % with ReLU and softmax ({effects.ABOUT}).",
        )
    )  # fmt: skip
    return Audit("fedsoft", "Ruan, Joe-Wong. AAAI 2022", "ycruan/FedSoft", commit_of(folder), "the authors", findings)
