"""kNN-Per by its authors.

git clone https://github.com/omarfoq/knn-per; git -C knn-per checkout ee175202
python -m audits knnper knn-per
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedsoft as fs
from audits.common import CLASSES, INPUTS, Audit, Ours, Pairs, class_points, compared, load, ours, softmax_model
from audits.foreign import code, commit_of

__all__ = ["audit"]

K, LAM = 3, 0.4
WITHOUT = ("faiss", "torchvision", "tensorboard", "matplotlib", "seaborn", "tqdm", "PIL", "h5py")


class Flat:
    """What `faiss.IndexFlatL2` does: exact neighbours by squared distance."""

    def __init__(self, *_: Any) -> None:
        self.vectors = np.zeros((0, INPUTS), np.float32)

    def add(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        squared = np.square(queries[:, None] - self.vectors[None]).sum(2)
        order = np.argsort(squared, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(squared, order, 1), order


def _theirs(folder: Path, start: Ours, pairs: Pairs, x: Tensor) -> Tensor:
    """Return what the authors' clients predict for x: the center and the neighbours, mixed by a given weight."""
    found = []
    with code(folder, without=WITHOUT) as load_module:
        client, store = load_module("client"), load_module("datastore")
        center = load(softmax_model(), start.run.state.centers[0])
        for own_x, own_y in pairs:
            one: Any = object.__new__(client.KNNPerClient)  # its constructor makes an index of faiss
            one.k, one.n_train_samples, one.num_classes, one.features_dimension = K, len(own_y), CLASSES, INPUTS
            one.capacity = len(own_y)
            one.datastore = object.__new__(store.DataStore)
            one.datastore.capacity, one.datastore.index = len(own_y), Flat()
            one.train_features, one.train_labels = own_x.numpy(), own_y.numpy()
            one.test_features, one.features_flag = x.numpy(), True
            one.build_datastore()
            one.gather_knn_outputs()
            predicted = torch.softmax(center(x), 1).detach().numpy()
            found.append(LAM * one.test_knn_outputs + (1 - LAM) * predicted)
    return torch.from_numpy(np.stack(found))


def audit(folder: Path) -> Audit:
    """Compare what clients predict after one round of FedAvg, for points that nobody trained on."""
    pairs = class_points()
    x = torch.from_numpy(np.random.default_rng(7).standard_normal((20, INPUTS))).float()
    algorithm = fs.KNNPer(k=K, lam=LAM)
    mine = ours(algorithm, pairs, fs.models.module(softmax_model), fs.SGD(lr=0.1, epochs=1, shuffle=False), 2)
    predicted = torch.stack([torch.as_tensor(mine.run.predict(x, client=k)) for k in range(len(pairs))])
    what = f"predictions of eight clients for 20 points, {K} neighbours, lambda {LAM}"
    findings = [compared(what, predicted, _theirs(folder, mine, pairs, x))]
    paper = "Marfoq, Neglia, Kameni, Vidal. ICML 2022"
    return Audit("knnper", paper, "omarfoq/knn-per", commit_of(folder), "the authors", findings)
