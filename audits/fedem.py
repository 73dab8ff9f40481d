"""FedEM by its authors.

git clone https://github.com/omarfoq/FedEM; git -C FedEM checkout 996faddf
python -m audits fedem FedEM
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import fedsoft as fs
from audits import em_family
from audits.common import Audit, Ours, Pairs, class_points, compared, ours, softmax_model
from audits.foreign import code, commit_of

__all__ = ["audit"]

S, ROUNDS, LR, EPOCHS, BATCH = 3, 6, 0.1, 1, 5


def _theirs(folder: Path, start: Ours, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return centers and mixtures of the authors' `CentralizedAggregator` over `MixtureClient`."""
    with code(folder, without=em_family.WITHOUT) as load_module:
        sgd = partial(torch.optim.SGD, lr=LR)
        people = em_family.clients(load_module, "MixtureClient", pairs, start.centers, sgd, BATCH, EPOCHS)
        shared = em_family.ensemble(load_module, start.centers, sgd)
        silent = em_family.Silent()
        server = load_module("aggregator").CentralizedAggregator(
            clients=people, global_learners_ensemble=shared, log_freq=10**6, global_train_logger=silent,
            global_test_logger=silent, sampling_rate=1.0,
        )  # fmt: skip
        for _ in range(ROUNDS):
            server.mix()
        mixtures = torch.stack([one.learners_ensemble.learners_weights for one in people])
        return em_family.centers_of(shared), mixtures


def audit(folder: Path) -> Audit:
    """Run both on eight clients of 5 to 23 points, batches in order, everybody in every round."""
    pairs = class_points()
    solver = fs.SGD(lr=LR, epochs=EPOCHS, batch=BATCH, shuffle=False)
    mine = ours(fs.FedEM(S=S), pairs, fs.models.module(softmax_model), solver, ROUNDS)
    centers, mixtures = _theirs(folder, mine, pairs)
    assert mine.run.state.u is not None
    findings = [
        compared(f"centers after {ROUNDS} rounds, S = {S}, SGD, batches of {BATCH}", mine.run.state.centers, centers),
        compared("the clients' mixtures", mine.run.state.u, mixtures),
    ]
    paper = "Marfoq, Neglia, Bellet, Kameni, Vidal. NeurIPS 2021"
    return Audit("fedem", paper, "omarfoq/FedEM", commit_of(folder), "the authors", findings)
