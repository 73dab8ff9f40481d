"""What a client predicts with: one model, or several with a share each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.core.contract import Gate, PersonalModels
from fedsoft.core.local_solve import evaluation_block
from fedsoft.core.model import Model
from fedsoft.core.site import Site


@dataclass(frozen=True)
class Ensemble:
    """Models `w[J, P]` whose predictions are averaged by `shares[J]`. Usually one model of share 1.

    With a `gate` it is up to the gate how predictions become one.
    """

    model: Model
    w: Tensor
    shares: Tensor
    gate: Gate | None = None

    @staticmethod
    def single(model: Model, w: Tensor) -> Ensemble:
        """Return an ensemble of one model `w[P]`."""
        return Ensemble(model, w[None], w.new_ones(1))

    @staticmethod
    def of(model: Model, personal: PersonalModels, row: int = 0) -> Ensemble:
        """Return what the client in this row predicts with."""
        if personal.shares is None:
            return Ensemble.single(model, personal.models[row])
        models = personal.models[row] if personal.models.ndim == 3 else personal.models
        return Ensemble(model, models, personal.shares[row], None if personal.gate is None else personal.gate.row(row))

    def predict(self, x: Tensor) -> Tensor:
        """Return values or probabilities for inputs `x[points, ...]`."""
        parts = []
        for rows in x.split(evaluation_block(x, len(self.w))):
            inputs = self.model.inputs(rows.to(self.w.device), self.w.dtype)
            each = self.model.predict(self.model.outputs(self.w, inputs.expand(len(self.w), *inputs.shape)))
            if self.gate is None:
                parts.append(torch.tensordot(self.shares.to(each), each, dims=1))
            else:
                nobody_else = torch.zeros(len(rows), dtype=torch.int64, device=self.w.device)
                parts.append(self.gate.combined(rows.to(self.w.device), nobody_else, each))
        return torch.cat(parts)


def mixed(centers: Tensor, u: Tensor, *, largest: bool) -> PersonalModels:
    """Return the mixture of all centers by `u[m, S]`, or only the center of each client's `largest` share."""
    return PersonalModels(centers[u.argmax(1)]) if largest else PersonalModels(centers, u)


def predictions(site: Site, personal: PersonalModels) -> Tensor:
    """Return what the clients of a site predict for their points."""
    if personal.shares is None:
        return site.predictions(personal.models)
    rows = personal.models if personal.models.ndim == 3 else personal.models.expand(len(site), -1, -1)
    each = torch.stack([site.predictions(w) for w in rows.unbind(1)])  # [J, points, ...]
    if personal.gate is None:
        return added(personal.shares[site.data.owners], each)
    return personal.gate.combined(site.data.x[site.data.points], site.data.owners, each)


def added(shares: Tensor, each: Tensor) -> Tensor:
    """Add up predictions `each[J, points, ...]` by `shares[points, J]`."""
    return (shares.T.view(*shares.T.shape, *[1] * (each.ndim - 2)) * each).sum(0)
