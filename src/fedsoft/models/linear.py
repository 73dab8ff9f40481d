"""Linear regression and softmax regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.core.backends import Stacked
from fedsoft.core.client_data import DataShape
from fedsoft.core.compiled_solves import Form
from fedsoft.core.metrics import cross_entropy, goal
from fedsoft.core.model import Builder, Layout, Model, OuterProduct, Params, Step, xavier_normal
from fedsoft.settings import checked

__all__ = ["linear"]


@dataclass(frozen=True)
class LeastSquares:
    """Outputs `<w, features(x)>` under squared loss, with the gradient in closed form."""

    features: Callable[[Tensor], Tensor]
    name: str = "compiled"
    one_client_at_a_time: bool = False
    form: Form | None = None

    def forward(self, params: Params, x: Tensor) -> Tensor:
        return torch.bmm(self.features(x), params["weight"].transpose(1, 2)).squeeze(2)

    def gradient_into(
        self, out: Tensor, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None = None
    ) -> Sequence[OuterProduct]:
        phi = self.features(x)
        error = torch.baddbmm(y.unsqueeze(2), phi, w.unsqueeze(2), beta=-2, alpha=2).squeeze(2)  # 2 (<w, phi> - y)
        torch.bmm(error.mul_(weight).unsqueeze(1), phi, out=out.unsqueeze(1))
        return ()

    def to_columns(self, x: Tensor) -> Tensor:
        return self.features(x[None])[0].t().contiguous()

    def column_weights(self, weight: Tensor) -> Tensor:
        """Return them with the 2 of the gradient, once for all steps."""
        return weight * 2

    def column_gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        error = (x * w.t().unsqueeze(1)).sum(0).sub_(y).mul_(weight)
        return (x * error).sum(1).t()


@checked
def linear(bias: bool = False) -> Builder:
    """A linear model: `<w, x>` for regression (the paper's synthetic experiments), logits `W x` for classification.

    Arguments:
        bias: add an intercept. The paper's synthetic data needs none.
    """

    def build(shape: DataShape) -> Model:
        inputs = math.prod(shape.input)
        width = inputs + bias
        layout = Layout({"weight": (shape.outputs, width)})

        def features(x: Tensor) -> Tensor:
            x = x.flatten(2)
            return torch.cat([x, x.new_ones(*x.shape[:2], 1)], dim=2) if bias else x

        single = shape.task == "regression" and shape.outputs == 1

        def forward(params: Params, x: Tensor) -> Tensor:
            return torch.bmm(features(x), params["weight"].transpose(1, 2))

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
        stacked = LeastSquares(features, name="stacked") if single else Stacked(layout, forward, aim.loss)
        form = None
        if single or aim.loss is cross_entropy:
            kind = "squared" if single else "softmax"
            form = Form(kind, lambda x: features(x[None])[0], shape.outputs)
        backend = stacked if form is None else replace(stacked, name="compiled", form=form)
        return Model(layout, draw, backend, aim.loss, aim.predict, aim.metric,
                     features=features if single else None, is_linear=True, module=module,
                     backends={"stacked": stacked}, latent=lambda _, x: x.flatten(2))  # fmt: skip

    return build
