"""pFedMe by its authors.

git clone https://github.com/CharlieDinh/pFedMe; git -C pFedMe checkout caf24b1f
python -m audits pfedme pFedMe
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import fedsoft as fs
from audits.common import Audit, Ours, Pairs, class_points, compared, load, ours, row, softmax_model
from audits.foreign import code, commit_of

__all__ = ["audit"]

ROUNDS, BATCH, EPOCHS = 3, 5, 1
ETA, PERSONAL, LAM, STEPS, BETA = 0.05, 0.09, 5.0, 5, 1.0


def _theirs(folder: Path, start: Ours, pairs: Pairs, decay: float) -> tuple[Tensor, Tensor]:
    """Return the center and the personal models of the authors' users and server."""
    with code(folder, without=("h5py", "matplotlib", "tqdm", "torchvision")) as load_module:
        users = load_module("FLAlgorithms.users.userpFedMe")
        servers = load_module("FLAlgorithms.servers.serverpFedMe")
        server: Any = object.__new__(servers.pFedMe)  # its constructor reads data sets
        server.model, server.beta, server.users = load(softmax_model(), start.centers[0]), BETA, []
        for k, (x, y) in enumerate(pairs):
            points = TensorDataset(x, y)
            batches = -(-len(y) // BATCH)  # an epoch: users draw one batch after the other
            one = users.UserpFedMe(
                "cpu", str(k), points, points, [softmax_model(), "Mclr_CrossEntropy"], BATCH, ETA, BETA, LAM,
                batches * EPOCHS, None, STEPS, PERSONAL,
            )  # fmt: skip
            one.optimizer.param_groups[0]["mu"] = decay
            server.users.append(one)
        server.selected_users = server.users
        for _ in range(ROUNDS):
            server.send_parameters()
            for one in server.users:
                one.train(one.local_epochs)
            server.persionalized_aggregate_parameters()
        return row(server.model)[None], torch.stack([row(one.model) for one in server.users])


def audit(folder: Path) -> Audit:
    """Run both, with the weight decay that the code has and the paper has not, and without."""
    pairs = class_points()
    solver = fs.SGD(lr=1.0, epochs=EPOCHS, batch=BATCH, shuffle=False)
    algorithm = fs.pFedMe(eta=ETA, personal_lr=PERSONAL, lam=LAM, steps=STEPS, beta=BETA)
    mine = ours(algorithm, pairs, fs.models.module(softmax_model), solver, ROUNDS)
    what = f"center after {ROUNDS} rounds, {STEPS} steps per batch of {BATCH}"
    remark = "The optimizer adds 0.001 w to the gradient of the personal models, which the paper does not have."
    findings = [
        compared(f"{what}, as it is", mine.run.state.centers, _theirs(folder, mine, pairs, 0.001)[0], remark),
        compared(f"{what}, without its weight decay", mine.run.state.centers, _theirs(folder, mine, pairs, 0.0)[0]),
    ]
    paper = "Dinh, Tran, Nguyen. NeurIPS 2020"
    return Audit("pfedme", paper, "CharlieDinh/pFedMe", commit_of(folder), "the authors", findings)
