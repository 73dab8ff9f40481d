"""The loss of what a client predicts with several models."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.core.metrics import binary_cross_entropy, squared_loss
from fedsoft.core.site import Site


def mixture_losses(site: Site, w: Tensor, shares: Tensor) -> Tensor:
    """Return the summed loss `[m]` of clients that add up predictions of models `w[m, J, P]` by `shares[m, J]`.

    It is the loss of mean predictions for squared loss, else -log of the mean likelihood of a point. A model that
    nobody uses is not evaluated. All are finite: what is not counts as the largest number there is.
    """
    data, model = site.data, site.model
    used = shares.any(0).nonzero().flatten().tolist()
    each, own = [w[:, j] for j in used], shares[data.owners][:, used]
    if model.loss is squared_loss:
        mean = sum(own[:, i].view(-1, *[1] * (data.y.ndim - 1)) * site.predictions(one) for i, one in enumerate(each))
        values = model.loss(torch.as_tensor(mean)[None], data.y[data.points][None])[0]
    else:
        outputs = data.y[:1].numel() if model.loss is binary_cross_entropy else 1  # whose mean it is
        losses = torch.stack([site.point_losses(one) for one in each], 1)
        tiny = torch.finfo(losses.dtype).tiny
        values = -(own.clamp(min=tiny).log() - outputs * losses).logsumexp(1) / outputs
    total = values.new_zeros(len(data)).index_add_(0, data.owners, values)
    return total.nan_to_num(nan=torch.finfo(total.dtype).max)
