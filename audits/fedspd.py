"""FedSPD: the authors' anonymous submission.

git clone https://github.com/Anonymous-Submission-for-AISTATS/FedSPD_Anonymous_Submission FedSPD
git -C FedSPD checkout c2e47d83
python -m audits fedspd FedSPD
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedsoft as fs
from audits.common import Audit, Pairs, class_points, compared, load, ours, row, softmax_model
from audits.foreign import code, commit_of
from fedsoft.algorithms.fedspd import FedSPD

__all__ = ["audit"]

S, LEAST = 2, 10  # the authors' code leaves no center fewer points than this


def _many_points() -> Pairs:
    """The clients of the other audits, with eight times as many points each."""
    every = [class_points(seed) for seed in range(8)]
    return [
        (torch.cat([pairs[k][0] for pairs in every]), torch.cat([pairs[k][1] for pairs in every]))
        for k in range(len(every[0]))
    ]


def _theirs(folder: Path, centers: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return the shares of `data_clustering_M`, and the models that `agg_train_UB_M` mixes, not trained."""
    shares, mixed = np.zeros((len(pairs), S, 1)), []
    with code(folder, "src", without=("torchvision", "tqdm", "tensorboardX")) as load_module:
        train: Any = load_module("train")
        args = SimpleNamespace(gpu=0, clusters=S, local_bs=10**9, lr=0.1)
        for k, (x, y) in enumerate(pairs):
            models = [nn.Sequential(load(softmax_model(), center), nn.LogSoftmax(1)) for center in centers]
            groups: dict[int, np.ndarray] = {}
            counts = np.zeros((len(pairs), S))
            points, everyone = TensorDataset(x, y), np.arange(len(y))
            train.data_clustering_M(models, args, everyone, points, groups, k, counts, 0, shares)
            train.tqdm = list
            train.agg_train_UB_M(k, models, args, points, points, everyone, groups, None, None, None, 0, 1.0, 0)
            mixed.append(row(models[0]))
    return torch.from_numpy(shares[:, :, 0]).float(), torch.stack(mixed)


def audit(folder: Path) -> Audit:
    """Compare which points a center explains best, and the mix that personal training starts from."""
    pairs = _many_points()
    module = fs.models.module(softmax_model)
    # Trained beforehand, so that the centers are far apart; their own last mix is not looked at.
    mine = ours(FedSPD(S=S), pairs, module, fs.SGD(lr=0.3, epochs=2, shuffle=False), 5)
    u = mine.run.state.u
    assert u is not None
    shares, mixed = _theirs(folder, mine.run.state.centers, pairs)
    sizes = torch.tensor([float(len(y)) for _, y in pairs])
    large = ((u * sizes[:, None]) >= LEAST).all(1)
    assert bool(large.any())
    few = class_points()
    small = ours(FedSPD(S=S), few, module, fs.SGD(lr=0.3, epochs=2, shuffle=False), 5)
    assert small.run.state.u is not None
    remark = (
        f"Where a center explains fewer than {LEAST} points of a client, theirs hands it points of the largest group."
    )
    findings = [
        compared(f"shares of points, the {int(large.sum())} clients with {LEAST} points or more of each center",
                 u[large], shares[large]),
        compared("shares of points, clients of 5 to 23 points", small.run.state.u,
                 _theirs(folder, small.run.state.centers, few)[0], remark),
        compared("the mixed model before its training, the same clients as first", (u @ mine.run.state.centers)[large],
                 mixed[large]),
    ]  # fmt: skip
    paper = "Lin, Yagan, Joe-Wong. UAI 2025"
    repository = "Anonymous-Submission-for-AISTATS/FedSPD_Anonymous_Submission"
    return Audit("fedspd", paper, repository, commit_of(folder), "the authors", findings)
