"""Clusters as many as there are: what is linked by short steps, and how short they have to be."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def linked(d: Tensor, scale: float) -> Tensor:
    """Return the cluster of each row of `d[m, D]`, numbered by mean, so that the order of clients does not matter."""
    from scipy.sparse.csgraph import connected_components

    if len(d) == 1:
        return torch.zeros_like(d[:, 0], dtype=torch.int64)
    distance = torch.cdist(d, d, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance.clone().fill_diagonal_(torch.inf).amin(1).sort().values
    labels = connected_components((distance <= scale * float(near[knee(near)])).cpu().numpy(), directed=False)[1]
    means = [d[labels == j].mean(0).tolist() for j in range(labels.max() + 1)]
    number = np.argsort(sorted(range(len(means)), key=means.__getitem__))
    return torch.as_tensor(number[labels], device=d.device)


def knee(rising: Tensor) -> int:
    """Return where values in order are farthest below the line from the first to the last; the last if nowhere."""
    along = torch.linspace(0, 1, len(rising), dtype=rising.dtype, device=rising.device)
    below = rising[0] + along * (rising[-1] - rising[0]) - rising
    return int(below.argmax()) if float(below.max()) > 1e-9 * float(rising[-1]) else len(rising) - 1
