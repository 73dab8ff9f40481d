"""The exact minimizer, for models that are linear in their parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.core.batches import Problem
from fedsoft.core.local_solve import OptimizerState, blocks
from fedsoft.core.model import Layout, as_numbers
from fedsoft.errors import InputError
from fedsoft.settings import settings

__all__ = ["Exact"]


@settings
class Exact:
    """Solves the proximal problem exactly by its normal equations (linear regression only), so that gamma_0 = 0.

    The minimizer of `1/n sum_i (<w, x_i> - y_i)^2 + strength/2 |w|^2 - <target, w>` solves
    `(2/n X^T X + strength I) w = 2/n X^T y + target`. Of several minimizers it takes the one nearest
    to where it starts, as descent would.
    """

    def init_state(self, w: Tensor, layout: Layout | None = None) -> OptimizerState:
        return {}

    def solve(self, problem: Problem, w: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState, Tensor]:
        model, data = problem.model, problem.data
        if model.features is None:
            raise InputError("local solver 'exact' needs the model 'linear' on a regression with one output")
        m, size = w.shape
        gram = torch.zeros(m, size, size, dtype=torch.float64, device=w.device)
        moment = torch.zeros(m, size, dtype=torch.float64, device=w.device)
        for block in blocks(data):
            phi = model.features(as_numbers(data.x[block.places], torch.float64)).double()
            weight = block.real.double() * 2 / data.sizes[block.rows, None]
            if problem.point_weights is not None:
                weight *= problem.point_weights[block.order]
            scaled = phi * weight[:, :, None]
            gram.index_add_(0, block.rows, scaled.transpose(1, 2) @ phi)
            moment.index_add_(0, block.rows, (scaled * data.y[block.places].double()[:, :, None]).sum(1))
        if problem.prox is not None:
            gram += problem.prox.matrix().double()
            moment += problem.prox.target.double()
        start = w.double()[:, :, None]
        change = torch.linalg.pinv(gram, hermitian=True) @ (moment[:, :, None] - gram @ start)
        return (start + change)[:, :, 0].to(w.dtype), {}, data.sizes.clone()
