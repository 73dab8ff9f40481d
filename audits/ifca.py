"""IFCA by its authors: the parts without TensorFlow.

git clone https://github.com/jichan3751/ifca; git -C ifca checkout 61e44b89
python -m audits ifca ifca
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import fedsoft as fs
from audits.common import (
    Audit,
    Finding,
    Ours,
    Pairs,
    class_points,
    compared,
    linear_model,
    linear_points,
    load,
    ours,
    row,
)
from audits.common import softmax_model as softmax
from audits.foreign import code, commit_of

__all__ = ["audit"]

S, ROUNDS, LR, STEPS = 2, 6, 0.05, 10


def _gradients(folder: Path, start: Ours, pairs: Pairs, rounds: int) -> Tensor:
    """Return the centers of `synthetic/train_cluster.py`: one gradient per client and round."""
    with code(folder, "synthetic") as load_module:
        made = load_module("train_cluster")
        config = {"train_seed": 0, "p": S, "m": len(pairs), "d": 3, "n": 0, "score": "set", "project_dir": ".",
                  "dataset_dir": "."}  # fmt: skip
        theirs = made.TrainCluster(config)
        data = {"data": [(x, y) for x, y in pairs], "params": [torch.zeros(3) for _ in range(S)]}
        theirs.setup(data)
        for model, center in zip(theirs.models, start.centers, strict=True):
            load(model, center)
        for _ in range(rounds):
            theirs.train(lr=LR)
        return torch.stack([row(model) for model in theirs.models])


def _models(folder: Path, start: Ours, pairs: Pairs) -> Tensor:
    """Return the centers of `mnist/train_cluster_mnist.py`: full-batch steps per client, models averaged."""
    with code(folder, "mnist", without=("torchvision",)) as load_module:
        made = load_module("train_cluster_mnist").TrainMNISTCluster
        theirs = object.__new__(made)  # its constructor reads MNIST
        theirs.config = {"m": len(pairs), "p": S, "tau": STEPS}
        theirs.criterion = nn.CrossEntropyLoss()
        theirs.dataset = {"train": {"cluster_assign": [0] * len(pairs)}}
        theirs.models = [load(softmax(), center) for center in start.centers]
        theirs.load_data = lambda k, train=True: pairs[k]
        for _ in range(ROUNDS):
            chosen = theirs.get_inference_stats(train=True)["cluster_assign"]
            theirs.train(chosen, lr=LR)
        return torch.stack([row(model) for model in theirs.models])


def _weight_of_better(folder: Path) -> float:
    """Return the weight that `score = em` gives to the better of two centers with losses 1 and 3."""
    with code(folder, "synthetic") as load_module:
        config = {"train_seed": 0, "p": 2, "m": 2, "d": 1, "n": 1, "score": "em", "project_dir": ".",
                  "dataset_dir": "."}  # fmt: skip
        theirs = load_module("train_cluster").TrainCluster(config)
        theirs.setup({"data": [(torch.ones(1, 1), torch.zeros(1))] * 2, "params": [torch.zeros(1)] * 2})
        weights = torch.tensor([1.0, 3.0]).sqrt()
        for model, weight in zip(theirs.models, weights, strict=True):
            load(model, weight[None])
        theirs.train(lr=0.1)
        moved = torch.stack(
            [w - model.weight().detach().squeeze() for w, model in zip(weights, theirs.models, strict=True)]
        )
        given = moved / (0.1 * 2 * weights)  # a step is the rate times the weight times the gradient 2 w
        return float(given[0] / given.sum())


def audit(folder: Path) -> Audit:
    """Run both variants beside ours."""
    plain = fs.SGD(lr=LR, epochs=1, batch=10**6, shuffle=False)
    same_sizes = [(x[:5], y[:5]) for x, y in linear_points()]
    mine = ours(fs.IFCA(S=S, average="gradient", lr=LR), same_sizes, fs.models.module(linear_model), plain, 1)
    assert mine.run.state.u is not None
    step = mine.run.state.centers - mine.centers
    theirs = _gradients(folder, mine, same_sizes, 1) - mine.centers
    remark = (
        "As in the paper the authors divide the sum of a cluster's gradients by all clients; ours divides by those of "
        "the cluster, so that a step does not shrink with the number of clusters."
    )
    share = mine.run.state.u.mean(0)[:, None]
    findings = [
        compared("gradients averaged: the step of one round, linear models", step, theirs, remark),
        compared("the same, ours times the cluster's share of the clients", step * share, theirs),
        Finding(
            "the soft choice, `score = em`", "different", None,
            f"The weights are a softmax of the losses, not of their negatives: of two centers with losses 1 and 3 the "
            f"better one gets {_weight_of_better(folder):.2f}. `config.json` has `set`.",
        ),
    ]  # fmt: skip
    pairs = class_points()
    steps = fs.SGD(lr=LR, epochs=STEPS, batch=10**6, shuffle=False)
    mine = ours(fs.IFCA(S=S), pairs, fs.models.module(softmax), steps, ROUNDS)
    findings.append(
        compared(f"models averaged, {ROUNDS} rounds of {STEPS} full-batch steps, clients of 5 to 23 points",
                 mine.run.state.centers, _models(folder, mine, pairs))
    )  # fmt: skip
    paper = "Ghosh, Chung, Yin, Ramchandran. NeurIPS 2020"
    return Audit("ifca", paper, "jichan3751/ifca", commit_of(folder), "the authors", findings)
