"""What a client predicts with: one model, or several with a share each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.core.contract import PersonalModels
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.model import Model
from fedsoft.core.site import Site


@dataclass(frozen=True)
class Ensemble:
    """Models `w[J, P]` whose predictions are averaged by `shares[J]`. Usually one model of share 1."""

    model: Model
    w: Tensor
    shares: Tensor

    @staticmethod
    def single(model: Model, w: Tensor) -> Ensemble:
        """Return an ensemble of one model `w[P]`."""
        return Ensemble(model, w[None], w.new_ones(1))

    @staticmethod
    def of(model: Model, personal: PersonalModels, row: int = 0) -> Ensemble:
        """Return what the client in this row predicts with."""
        if personal.shares is None:
            return Ensemble.single(model, personal.models[row])
        return Ensemble(model, personal.models, personal.shares[row])

    def predict(self, x: Tensor) -> Tensor:
        """Return values or probabilities for inputs `x[points, ...]`."""
        parts = []
        for rows in x.split(evaluation_block(x, len(self.w))):
            inputs = self.model.inputs(rows.to(self.w.device), self.w.dtype)
            each = self.model.predict(self.model.outputs(self.w, inputs.expand(len(self.w), *inputs.shape)))
            parts.append(torch.tensordot(self.shares.to(each), each, dims=1))
        return torch.cat(parts)


def mixed(centers: Tensor, u: Tensor, *, largest: bool) -> PersonalModels:
    """Return the mixture of all centers by `u[m, S]`, or only the center of each client's `largest` share."""
    return PersonalModels(centers[u.argmax(1)]) if largest else PersonalModels(centers, u)


def predictions(site: Site, personal: PersonalModels) -> Tensor:
    """Return what the clients of a site predict for their points."""
    if personal.shares is None:
        return site.predictions(personal.models)
    each = torch.stack([site.predictions(w.expand(len(site), -1)) for w in personal.models])  # [J, points, ...]
    share = personal.shares[site.data.owners].T
    return (share.view(*share.shape, *[1] * (each.ndim - 2)) * each).sum(0)
