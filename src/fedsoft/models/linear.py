"""Linear regression and softmax regression."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.checks import checked
from fedsoft.federation import DataShape
from fedsoft.model import Builder, Layout, Model, Params, goal, xavier_normal

__all__ = ["linear"]


@checked
def linear(bias: bool = False) -> Builder:
    """A linear model: `<w, x>` for regression (the paper's synthetic experiments), logits `W x` for classification.

    Arguments:
        bias: add an intercept. The paper's synthetic data needs none.
    """

    def build(shape: DataShape) -> Model:
        inputs = 1
        for side in shape.input:
            inputs *= side
        width = inputs + bias
        layout = Layout({"weight": (shape.outputs, width)})

        def inputs_of(x: Tensor) -> Tensor:
            x = x.flatten(2)
            return torch.cat([x, x.new_ones(*x.shape[:2], 1)], dim=2) if bias else x

        single = shape.task == "regression" and shape.outputs == 1

        def forward(params: Params, x: Tensor) -> Tensor:
            out = torch.bmm(inputs_of(x), params["weight"].transpose(1, 2))
            return out.squeeze(2) if single else out

        without_bias = xavier_normal(Layout({"weight": (shape.outputs, inputs)}))

        def draw(rng: np.random.Generator) -> Tensor:
            weight = without_bias(rng).view(shape.outputs, inputs)
            return torch.nn.functional.pad(weight, (0, int(bias))).flatten()  # the intercept starts at 0

        def module(params: Params) -> nn.Module:
            net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, shape.outputs, bias)).to(params["weight"])
            state = {"1.weight": params["weight"][:, :inputs]}
            net.load_state_dict(state | ({"1.bias": params["weight"][:, inputs]} if bias else {}))
            return net

        aim = goal(shape.task)
        return Model(layout, draw, forward, aim.loss, aim.predict, aim.metric,
                     features=inputs_of if single else None, module=module)  # fmt: skip

    return build
