"""FedRC by its authors, and the FedSoft and FedEM that come with it.

git clone https://github.com/LINs-lab/FedRC; git -C FedRC checkout ce792292
python -m audits fedrc FedRC
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedsoft as fs
from audits import effects, em_family
from audits.common import CLASSES, Audit, Finding, Ours, Pairs, class_points, compared, load, ours, softmax_model
from audits.foreign import code, commit_of
from fedsoft.algorithms.fedrc import FedRC

__all__ = ["audit"]

S, ROUNDS, LR, EPOCHS, BATCH = 3, 6, 0.1, 1, 5
RARE = 1e-8


def _label_shares(shares: list[list[float]], people: list[Any]) -> list[list[float]]:
    """Return the shares of labels within each center by the rule of `run_experiment.py`, which is no function there.

    Sums are added to the shares of the round before.
    """
    for j in range(S):
        for one in people:
            for y in range(CLASSES):
                shares[j][y] += float(one.labels_learner_weights[j][y])
        shares[j] = [max(value, RARE) for value in shares[j]]
        total = sum(shares[j])
        shares[j] = [value / total for value in shares[j]]
    return shares


def _theirs(folder: Path, start: Ours, pairs: Pairs, kind: str, *, carry: bool) -> tuple[Tensor, Tensor]:
    """Return centers and mixtures; `carry`: add sums of labels to the shares of the round before, as published."""
    with code(folder, without=em_family.WITHOUT) as load_module:
        sgd = partial(torch.optim.SGD, lr=LR)
        people = em_family.clients(load_module, kind, pairs, start.centers, sgd, BATCH, EPOCHS)
        shared = em_family.ensemble(load_module, start.centers, sgd)
        average, copy = (getattr(load_module("utils.torch_utils"), one) for one in ("average_learners", "copy_model"))
        sizes = torch.tensor([float(len(y)) for _, y in pairs])
        shares = [[0.0] * CLASSES for _ in range(S)]
        for _ in range(ROUNDS):  # `CentralizedAggregator.mix` without its log files
            for one in people:
                one.step()
            for s, learner in enumerate(shared):
                average([one.learners_ensemble[s] for one in people], learner, weights=sizes / sizes.sum())
            for one in people:
                for s, learner in enumerate(one.learners_ensemble):
                    copy(learner.model, shared[s].model)
            if kind == "FedRC":
                shares = _label_shares(shares if carry else [[0.0] * CLASSES for _ in range(S)], people)
                for one in people:
                    one.update_labels_weights(shares)
        return em_family.centers_of(shared), torch.stack([one.learners_ensemble.learners_weights for one in people])


def audit(folder: Path) -> Audit:
    """Run FedRC and FedEM of this repository beside ours; say what its FedSoft is."""
    pairs = class_points()
    solver = fs.SGD(lr=LR, epochs=EPOCHS, batch=BATCH, shuffle=False)
    findings: list[Finding] = []
    mine = ours(FedRC(S=S), pairs, fs.models.module(softmax_model), solver, ROUNDS)
    assert mine.run.state.u is not None
    what = f"centers after {ROUNDS} rounds, S = {S}, SGD, batches of {BATCH}"
    centers, mixtures = _theirs(folder, mine, pairs, "FedRC", carry=False)
    findings += [
        compared(f"FedRC: {what}; sums of labels of one round", mine.run.state.centers, centers),
        compared("FedRC: the clients' mixtures", mine.run.state.u, mixtures),
    ]
    centers, _ = _theirs(folder, mine, pairs, "FedRC", carry=True)
    remark = (
        "`run_experiment.py` adds each round's sums of labels to the shares of the round before, so that these count "
        "as one more point of each center. Ours are sums over points alone, as in the paper."
    )
    findings.append(compared("FedRC: the same as published", mine.run.state.centers, centers, remark))
    mine = ours(fs.FedEM(S=S), pairs, fs.models.module(softmax_model), solver, ROUNDS)
    centers, _ = _theirs(folder, mine, pairs, "MixtureClient", carry=False)
    findings.append(compared(f"its FedEM: {what}", mine.run.state.centers, centers))
    findings += _its_fedsoft(folder, pairs)
    paper = "Guo, Tang, Lin. ICML 2024"
    return Audit("fedrc", paper, "LINs-lab/FedRC", commit_of(folder), "the authors", findings)


def _its_fedsoft(folder: Path, pairs: Pairs) -> list[Finding]:
    """Have its FedSoft count once which center explains each point, from centers that are given."""
    mine = ours(fs.FedSoft(S=3, tau=1), pairs, fs.models.module(softmax_model), fs.SGD(lr=LR, shuffle=False), 1)
    with code(folder, without=em_family.WITHOUT) as load_module:
        made: Any = load_module("aggregator").FedSoftAggregator
        server = object.__new__(made)  # its constructor replaces the last layer of a network with a `classifier`
        sgd = partial(torch.optim.SGD, lr=LR)
        server.n_clusters, server.n_learners, server.c_round, server.log_freq = 3, 1, 0, 10**6
        server.global_learners = [em_family.ensemble(load_module, center[None], sgd) for center in mine.centers]
        server.clients = em_family.clients(load_module, "FedSoft", pairs, mine.centers[:2], sgd, BATCH, EPOCHS)
        server.sampled_clients, server.test_clients = server.clients, []
        server.sample_clients = lambda: None
        server.clusters_weights = torch.zeros(len(pairs), 3)
        for one in server.clients:
            one.step = lambda: None  # only the estimation is looked at
        server.mix()
    counts = torch.stack(
        [
            torch.stack([_losses(center, x, y) for center in mine.centers]).argmax(0).bincount(minlength=3)
            for x, y in pairs
        ]
    )
    worst = counts.float().clamp(min=1e-4)
    worst = worst / worst.sum(1, keepdim=True)
    assert mine.run.state.u is not None
    remark = (
        "`FedSoftAggregator.mix` takes `torch.max` of the losses: every point counts for the center that explains it "
        "worst."
    )
    what, theirs = "its FedSoft: importance weights of three centers", server.clusters_weights
    settings = {"S": 2, "K": 60, "tau": 2, "sigma": 1e-4, "lam": 0.01}
    plain = effects.centers_and_mixtures(fs.FedSoft(**settings))
    reverse = effects.centers_and_mixtures(effects.Reversed(**settings))
    return [
        compared(what, mine.run.state.u, theirs, remark),
        compared("the same, against shares of points by their largest loss", worst, theirs),
        Finding(
            "what that does", "different", None,
            f"FedSoft on digits-2: best centers {plain[0]} % as published, {reverse[0]} % reversed; error of the "
            f"estimated mixtures {plain[1]} and {reverse[1]} percentage points ({effects.ABOUT}). With two centers "
            "the worst is the other one, so that centers find a source all the same.",
        ),
    ]  # fmt: skip


def _losses(center: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(load(softmax_model(), center)(x), y, reduction="none").detach()
