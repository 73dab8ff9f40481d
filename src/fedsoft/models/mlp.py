"""A multi-layer perceptron, batched over clients."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedsoft.core.backends import Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.metrics import goal
from fedsoft.core.model import Builder, Layout, Model, Params, xavier_normal
from fedsoft.settings import checked

__all__ = ["mlp"]


@checked
def mlp(hidden: list[Annotated[int, Field(ge=1)]] | None = None) -> Builder:
    """Fully connected layers with ReLU between them.

    Arguments:
        hidden: the width of each hidden layer, default: `[64]`.
    """
    widths = [64] if hidden is None else hidden

    def build(shape: DataShape) -> Model:
        sides = [math.prod(shape.input), *widths, shape.outputs]
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(pairwise(sides)):
            shapes |= {f"{i}.weight": (after, before), f"{i}.bias": (after,)}
        layout, last = Layout(shapes), len(sides) - 2
        single = shape.task == "regression" and shape.outputs == 1

        def layer(params: Params, h: Tensor, i: int) -> Tensor:
            return torch.baddbmm(params[f"{i}.bias"].unsqueeze(1), h, params[f"{i}.weight"].transpose(1, 2))

        def latent(params: Params, x: Tensor) -> Tensor:
            h = x.flatten(2)
            for i in range(last):
                h = layer(params, h, i).relu()
            return h

        def forward(params: Params, x: Tensor) -> Tensor:
            h = layer(params, latent(params, x), last)
            return h.squeeze(2) if single else h

        def module(params: Params) -> nn.Module:
            net = nn.Sequential(nn.Flatten())
            for i, (before, after) in enumerate(pairwise(sides)):
                net.extend([nn.Linear(before, after), *([nn.ReLU()] if i < last else [])])
            net = net.to(params["0.weight"])
            net.load_state_dict({f"{2 * int(i) + 1}.{part}": value
                                 for (i, part), value in ((n.split("."), v) for n, v in params.items())})  # fmt: skip
            return net

        aim = goal(shape.task)
        backend = Stacked(layout, forward, aim.loss)
        return Model(
            layout, xavier_normal(layout), backend, aim.loss, aim.predict, aim.metric, module=module, latent=latent
        )

    return build
