"""Averages that a few malicious clients cannot move far: an aggregator replaces the mean, for every algorithm alike.

Algorithms average by `answer["w"].weighted(...)`. With an aggregator the same call returns its result, so no algorithm
needs to know of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedsoft.core.replies import Answer, Rows

BLOCK = 2**22  # numbers that are sorted at once


class Aggregator(Protocol):
    """Combines several models into one."""

    def __call__(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return one model for `rows[m, P]` in float64. Their `weights[m]` are positive and sum to 1."""
        ...


@dataclass(frozen=True)
class RobustRows:
    """Replies whose weighted sums go through an aggregator. All of them are gathered in one place for it."""

    rows: Rows
    rule: Aggregator

    def gather(self) -> Tensor:
        return self.rows.gather()

    def weighted(self, weights: Tensor) -> Tensor:
        """Return the aggregate for each row of `weights[S, m]`, times their sum; 0 where all are 0."""
        rows = self.rows.gather().double()
        flat, weights = rows.flatten(1) if rows.ndim > 1 else rows[:, None], weights.to(rows.device, torch.float64)
        found = flat.new_zeros((len(weights), flat.shape[1]))
        for s, share in enumerate(weights):
            if bool((counted := share > 0).any()):
                total = share[counted].sum()
                found[s] = total * self.rule(flat[counted], share[counted] / total)
        return found.view(len(weights), *rows.shape[1:])


def guarded(answer: Answer, rule: Aggregator | None) -> Answer:
    """Return the answer with averages by the aggregator."""
    if rule is None or not len(answer.ids):
        return answer
    return replace(answer, values={name: RobustRows(rows, rule) for name, rows in answer.values.items()})


def trimmed_mean(rows: Tensor, weights: Tensor, trim: float) -> Tensor:
    """Return the coordinate-wise mean without the share `trim` of the weight at either end.

    A row at the edge counts with the part of its weight inside. As `trim` goes to 1/2 this becomes the median; for an
    even number of equal weights, the mean of the two in the middle.
    """
    step = max(1, BLOCK // len(rows))
    parts = []
    for block in rows.split(step, dim=1):
        values, order = block.sort(dim=0)
        share = weights[order]
        end = share.cumsum(0)
        inside = end.clamp(trim, 1 - trim) - (end - share).clamp(trim, 1 - trim)
        parts.append((values * inside).sum(0) / inside.sum(0))
    return torch.cat(parts)


def median(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted median of each coordinate."""
    return trimmed_mean(rows, weights, 0.5 - 1e-9)


def squared_distances(rows: Tensor) -> Tensor:
    """Return |w_j - w_k|^2 for all pairs, `[m, m]`; relative to the mean, against cancellation."""
    rows = rows - rows.mean(0)
    square = (rows * rows).sum(1)
    return (square[:, None] + square - 2 * rows @ rows.T).clamp(min=0)
