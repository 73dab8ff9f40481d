"""CFL by its first author.

git clone https://github.com/felisat/clustered-federated-learning; git -C clustered-federated-learning checkout 23a1c388
python -m audits cfl clustered-federated-learning
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import fedsoft as fs
from audits.common import Audit, Finding, Ours, Pairs, class_points, compared, load, ours, row, softmax_model
from audits.foreign import code, commit_of
from fedsoft.core.schedules import Schedule

__all__ = ["audit"]

# Thresholds that split this small federation twice; the notebook's rule, which is no function there.
ROUNDS, LR, EPOCHS, BATCH, AFTER, EPS1, EPS2, SMALLEST = 24, 0.1, 2, 5, 8, 10.0, 0.0, 2
FALL = 0.99  # of the rate before every local task, in `Client.compute_weight_update`


def _halves(similarity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do what `Server.cluster_clients` asks for, by the name that scikit-learn's argument has today."""
    cut = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete").fit(-similarity)
    return np.flatnonzero(cut.labels_ == 0), np.flatnonzero(cut.labels_ == 1)


def _theirs(folder: Path, start: Ours, pairs: Pairs, rounds: int, *, mend: bool) -> tuple[Tensor, list[list[int]]]:
    """Return every client's model and the clusters; `mend`: number the members of a half as clients."""
    with code(folder) as load_module:
        devices = load_module("fl_devices")
        sgd = lambda parameters: torch.optim.SGD(parameters, lr=LR)  # noqa: E731
        people: list[Any] = []
        for k, (x, y) in enumerate(pairs):
            one = devices.Client(softmax_model, sgd, TensorDataset(x, y), k, train_frac=1.0)
            one.train_loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
            load(one.model, start.centers[0])
            people.append(one)
        server = devices.Server(softmax_model, TensorDataset(*pairs[0]))
        clusters = [np.arange(len(people))]
        for t in range(rounds):
            for one in people:
                one.compute_weight_update(epochs=EPOCHS)
                one.reset()
            similarity = server.compute_pairwise_similarities(people)
            halves: list[np.ndarray] = []
            for members in clusters:
                inside = [people[k] for k in members]
                largest, mean = server.compute_max_update_norm(inside), server.compute_mean_update_norm(inside)
                if mean < EPS1 and largest > EPS2 and len(members) > SMALLEST and t >= AFTER:
                    for half in _halves(similarity[members][:, members]):
                        halves.append(members[half] if mend else half)
                else:
                    halves.append(members)
            clusters = halves
            server.aggregate_clusterwise([[people[k] for k in members] for members in clusters])
        return torch.stack([row(one.model) for one in people]), [sorted(map(int, one)) for one in clusters]


def audit(folder: Path) -> Audit:
    """Run the notebook's rule on eight clients, as it is and with the members of a half numbered as clients."""
    pairs = class_points()
    # The authors lower the rate before the first task already.
    falling = Schedule(name="step", every=1, factor=FALL)
    solver = fs.SGD(lr=LR * FALL, epochs=EPOCHS, batch=BATCH, shuffle=False, schedule=falling)
    algorithm = fs.CFL(eps1=EPS1, eps2=EPS2, after=AFTER, smallest=SMALLEST)
    module = fs.models.module(softmax_model)
    findings: list[Finding] = []
    for rounds in (AFTER, AFTER + 1):
        mine = ours(algorithm, pairs, module, solver, rounds)
        s = mine.run.state.per_client["s"]
        theirs, clusters = _theirs(folder, mine, pairs, rounds, mend=False)
        split = sorted(torch.nonzero(s == j).flatten().tolist() for j in range(int(s.max()) + 1))
        remark = "" if rounds == AFTER else (
            f"Theirs {sorted(clusters)}, ours {split}. In the round of a split theirs averages by the new halves, "
            "ours by the old cluster, so that both continue from one model."
        )  # fmt: skip
        what = "before any split" if rounds == AFTER else "in the round of the first split"
        own = mine.run.state.centers[s]
        findings.append(compared(f"every client's model {what}, {rounds} rounds", own, theirs, remark))
    mine = ours(algorithm, pairs, module, solver, 1)
    fits = {}
    for mend in (False, True):
        theirs, clusters = _theirs(folder, mine, pairs, ROUNDS, mend=mend)
        fits[mend] = (_accuracy(theirs, pairs), clusters)
    lost = sorted(set(range(len(pairs))) - {k for one in fits[False][1] for k in one})
    findings.append(
        Finding(
            f"clusters after {ROUNDS} rounds", "different", None,
            f"As it is {sorted(fits[False][1])}: after a second split members are positions within the cluster, not "
            f"clients, so clients {lost} are in no cluster and are trained no more, and others are in two. Mended "
            f"{sorted(fits[True][1])}. Accuracy on the clients' own points {fits[False][0]:.1f} % as it is, "
            f"{fits[True][0]:.1f} % mended.",
        )
    )  # fmt: skip
    findings.append(_call(folder))
    paper = "Sattler, Müller, Samek. IEEE TNNLS 2020"
    return Audit("cfl", paper, "felisat/clustered-federated-learning", commit_of(folder), "the authors", findings)


def _call(folder: Path) -> Finding:
    with code(folder) as load_module:
        server = load_module("fl_devices").Server(
            softmax_model, TensorDataset(torch.zeros(2, 3), torch.zeros(2).long())
        )
        try:
            server.cluster_clients(np.eye(4))
        except TypeError as error:
            return Finding("`Server.cluster_clients` with the scikit-learn of today", "cannot run", remark=str(error))
    return Finding("`Server.cluster_clients` with the scikit-learn of today", "equal", 0.0)


def _accuracy(models: Tensor, pairs: Pairs) -> float:
    """Return the accuracy of clients' models on their own points, mean over clients, in %."""
    right = [
        float((load(softmax_model(), w)(x).argmax(1) == y).float().mean())
        for w, (x, y) in zip(models, pairs, strict=True)
    ]
    return 100 * float(np.mean(right))
