"""What predicts for somebody: one model, or several with a share each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Memory, Site, State
from fedsoft.errors import InputError
from fedsoft.local import evaluation_block
from fedsoft.model import Model, as_numbers


@dataclass(frozen=True)
class Blend:
    """Models `w[J, P]` whose predictions are added up by `shares[J]`. Most often one model of share 1."""

    model: Model
    w: Tensor
    shares: Tensor

    @staticmethod
    def single(model: Model, w: Tensor) -> Blend:
        """One model `w[P]`."""
        return Blend(model, w[None], w.new_ones(1))

    def predict(self, x: Tensor) -> Tensor:
        """Values or probabilities for inputs `x[points, ...]`."""
        parts = []
        for rows in x.split(evaluation_block(x, len(self.w))):
            inputs = as_numbers(rows.to(self.w.device), self.w.dtype).to(self.w.dtype)
            each = self.model.predict(self.model.outputs(self.w, inputs.expand(len(self.w), *inputs.shape)))
            parts.append(torch.tensordot(self.shares.to(each), each, dims=1))
        return torch.cat(parts)


def mixed(site: Site, models: Tensor, shares: Tensor) -> Tensor:
    """What clients predict for their points with all of `models[S, P]`, added up by each client's `shares[m, S]`."""
    each = torch.stack([site.predictions(w.expand(len(site), -1)) for w in models])  # [S, points, ...]
    share = shares[site.data.owners].T
    return (share.view(*share.shape, *[1] * (each.ndim - 2)) * each).sum(0)


@dataclass(frozen=True)
class _Listening(Site):
    """A site that answers its j-th question for predictions with the j-th unit vector, and keeps the models."""

    heard: list[Tensor] = field(default_factory=list, kw_only=True)
    room: int = field(default=0, kw_only=True)

    def predictions(self, w: Tensor) -> Tensor:
        """Not a prediction: a name for it that survives being added up."""
        self.heard.append(w[0].clone())
        answer = w.new_zeros(1, max(self.room, len(self.heard)))
        answer[0, len(self.heard) - 1] = 1
        return answer if self.room else answer[:, :1]


def blend_of(algorithm: Algorithm, site: Site, mine: Memory, shared: State) -> Blend:
    """What the one client of a site predicts with.

    An algorithm says how a client predicts as a function of `site.predictions(w)`; asked with unit vectors in place of
    predictions, it gives away its models and the shares that it adds them up with.
    """
    x, y = site.data.x[:1], site.data.y[:1]
    alone = replace(site, data=ClientData.concat([(x, y)]))
    plain = {name: getattr(alone, name) for name in Site.__dataclass_fields__}
    first = _Listening(**plain)
    algorithm.predict(first, mine, shared)
    second = _Listening(**plain, room=len(first.heard))
    shares = algorithm.predict(second, mine, shared)
    blend = Blend(site.model, torch.stack(second.heard), shares[0])
    expected = algorithm.predict(alone, mine, shared)
    if not torch.allclose(blend.predict(x), expected, rtol=1e-4, atol=1e-5):
        raise InputError(f"{type(algorithm).__name__} predicts by more than a sum of models: its clients have no model")
    return blend
