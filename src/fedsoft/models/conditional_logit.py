"""Conditional logit: which of a few alternatives is taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.core.backends import Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.compiled_solves import Form
from fedsoft.core.metrics import goal
from fedsoft.core.model import Builder, Layout, Model, Params
from fedsoft.errors import InputError
from fedsoft.settings import checked

__all__ = ["conditional_logit"]

NEVER = -1e4  # the utility of an alternative that is not available: finite, so that gradients are too


class Utilities(nn.Module):
    """The utility of each alternative, `<w, attributes>`."""

    def __init__(self, weight: Tensor, available: bool) -> None:
        super().__init__()
        self.weight, self.available = nn.Parameter(weight), available

    def forward(self, x: Tensor) -> Tensor:
        return utilities(x, self.weight[:, None], self.available)


def utilities(x: Tensor, weight: Tensor, available: bool) -> Tensor:
    """Return utilities `[..., alternatives]` of inputs `[..., alternatives, attributes]` by `weight[..., width, 1]`."""
    if not available:
        return (x @ weight).squeeze(-1)
    return (x[..., :-1] @ weight).squeeze(-1) + (1 - x[..., -1]) * NEVER


@checked
def conditional_logit(available: bool = False) -> Builder:
    """McFadden's model of choices: an alternative is taken in proportion to `exp(<w, attributes>)`.

    One vector of weights is shared by all alternatives, so a person's weights are their tastes. Inputs are
    `[alternatives, attributes]`, the class is the alternative that was taken.

    Arguments:
        available: the last attribute is no attribute, but 1 where the alternative is available and 0 where not.
    """

    def build(shape: DataShape) -> Model:
        if shape.task != "classification" or len(shape.input) != 2 or shape.input[0] != shape.outputs:
            raise InputError(
                f"model 'conditional_logit' is not allowed for inputs {list(shape.input)} and {shape.outputs} outputs "
                f"({shape.task}): should be [alternatives, attributes] and the alternative that was taken"
            )
        width = shape.input[1] - available
        layout = Layout({"weight": (width,)})

        def draw(rng: np.random.Generator) -> Tensor:
            return torch.from_numpy(rng.standard_normal(width) / math.sqrt(width)).float()

        def forward(params: Params, x: Tensor) -> Tensor:
            return utilities(x, params["weight"][:, None, :, None], available)

        def module(params: Params) -> nn.Module:
            return Utilities(params["weight"].clone(), available)

        aim = goal(shape.task)
        stacked = Stacked(layout, forward, aim.loss)
        form = Form("available" if available else "choice", lambda x: x, shape.outputs)
        return Model(
            layout, draw, replace(stacked, name="compiled", form=form), aim.loss, aim.predict, aim.metric,
            is_linear=True, module=module, backends={"stacked": stacked},
        )  # fmt: skip

    return build
