"""Draws inside of networks: named by client and step, the same for every backend, chunk and number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.draws import GOLDEN, STRIDES, kept, sub_key
from fedsoft.core.model import Model, Step
from fedsoft.errors import InputError
from fedsoft.networks.passes import Pass
from tests.helpers import class_clients, federation, fitted, random_stack

VECTORS = DataShape("classification", (6,), 3)
IMAGES = DataShape("classification", (2, 6, 6), 3)
SEVERAL = (9, 6, 12, 5, 1, 8)


class Encoder(nn.Module):
    """A default encoder layer of torch, points along the first axis or along the second, as is torch's default."""

    def __init__(self, batch_first: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dropout=dropout)
        self.head, self.axis = nn.Linear(8, 3), 1 if batch_first else 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x.view(-1, 3, 2))
        return self.head(self.layer(x if self.axis else x.transpose(0, 1)).mean(self.axis))


class Recurrent(nn.Module):
    """Two layers, with dropout between them."""

    def __init__(self, kind: Callable[..., nn.RNNBase] = nn.GRU, **options: Any) -> None:
        super().__init__()
        self.inner = kind(2, 4, num_layers=2, dropout=0.5, **options)
        self.batch_first = self.inner.batch_first
        self.head = nn.Linear(4 * (1 + self.inner.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 3, 2)
        return self.head(self.inner(x)[0][:, -1] if self.batch_first else self.inner(x.transpose(0, 1))[0][-1])


class Functional(nn.Module):
    """Dropout that is called and not a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.4, training=self.training))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), *layers, nn.Flatten(), nn.Linear(64, 3))


MAKERS: dict[str, tuple[Callable[[], nn.Module], DataShape]] = {
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)), VECTORS),
    "functional": (Functional, VECTORS),
    "channels": (lambda: images(nn.Dropout2d(0.3)), IMAGES),
    "alpha": (lambda: images(nn.SELU(), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.2)), IMAGES),
    "encoder": (Encoder, VECTORS),
    "encoder, points second": (lambda: Encoder(batch_first=False), VECTORS),
    "gru": (lambda: Recurrent(batch_first=True), VECTORS),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), VECTORS),
}


def stack_of(model: Model, shape: DataShape, points: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Parameters, and batches padded to the largest."""
    m, most = len(points), max(points)
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(m, most, *shape.input, dtype=torch.float64, generator=draws)
    y = torch.randint(0, shape.outputs, (m, most), generator=draws)
    weight = torch.rand(m, most, dtype=torch.float64, generator=draws)
    return random_stack(model, m), x, y, weight * (torch.arange(most) < torch.tensor(points)[:, None])


def gradient(model: Model, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, step: Step | None) -> Tensor:
    out = torch.full_like(w, torch.nan)
    for product in model.gradient_into(out, w, x, y, weight, step):
        product.write(model.layout, out[0])
    return out


# --- masks ------------------------------------------------------------------------------------------------------------


def by_hand(key: int, place: tuple[int, ...], p: float) -> float:
    """SplitMix64's finalizer in whole numbers of Python."""
    z = (key + sum(i * STRIDES[axis] for axis, i in enumerate(place))) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return 0.0 if z ^ (z >> 31) < int(p * 2**64) else 1 / (1 - p)


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.floats(0.01, 0.99))
def test_a_mask_is_the_hash_of_its_coordinates(key: int, shape: list[int], p: float) -> None:
    found = kept(torch.tensor([key, key + 1 if key < 0 else key - 1]), shape, p, torch.float64)
    assert found.shape == (2, *shape)
    for place in np.ndindex(*shape):
        assert float(found[0][place]) == by_hand(key % 2**64, place, p)


@given(st.integers(0, 2**62), st.lists(st.integers(1, 5), min_size=2, max_size=3), st.data())
def test_a_larger_batch_has_the_same_mask_where_the_smaller_one_has_it(key: int, shape: list[int], data: Any) -> None:
    larger = [side + data.draw(st.integers(0, 4)) for side in shape]
    small, large = (kept(torch.tensor(key), sides, 0.4, torch.float32) for sides in (shape, larger))
    assert torch.equal(small, large[tuple(slice(side) for side in shape)])


def test_masks_keep_the_share_that_they_should_and_look_independent() -> None:
    keys = sub_key(torch.arange(50), 3)
    masks = (kept(keys, (40, 60), 0.3, torch.float64) > 0).double()
    assert abs(float(masks.mean()) - 0.7) < 0.005  # 120,000 draws: a standard deviation is 0.0013
    for axis in (0, 1, 2):
        ahead, behind = masks.narrow(axis, 1, masks.shape[axis] - 1), masks.narrow(axis, 0, masks.shape[axis] - 1)
        both = torch.stack([ahead.flatten(), behind.flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.012
    assert kept(keys, (3,), 1.0, torch.float32).abs().sum() == 0
    assert len({*STRIDES}) == len(STRIDES)
    assert all(stride % 2 for stride in (*STRIDES, GOLDEN))


# --- one step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_every_backend_drops_the_same_and_nothing_when_it_predicts(name: str) -> None:
    make, shape = MAKERS[name]
    model = fs.models.module(make)(shape)
    assert model.needs_step
    points = (5, 4, 1)
    w, x, y, weight = stack_of(model, shape, points)
    step = Step(torch.tensor([4, 5, 6]), torch.tensor(points))
    plain = make().double().eval()
    for backend in model.backends:
        one = model.by(backend)
        for k in range(3):
            state = model.layout.unflatten(w[k])
            expected = torch.func.functional_call(plain, state, (x[k],))
            torch.testing.assert_close(one.outputs(w, x)[k], expected, rtol=1e-9, atol=1e-11)
        found = gradient(one, w, x, y, weight, step)
        torch.testing.assert_close(found, gradient(model, w, x, y, weight, step), rtol=1e-9, atol=1e-11)
        for k in range(3):  # alone, and without padding
            row, n = slice(k, k + 1), points[k]
            mine = Step(step.keys[row], step.points[row])
            alone = gradient(one, w[row], x[row, :n], y[row, :n], weight[row, :n], mine)
            torch.testing.assert_close(found[row], alone, rtol=1e-9, atol=1e-11)
        other = gradient(one, w, x, y, weight, Step(torch.tensor([7, 8, 9]), step.points))
        still = gradient(one, w, x, y, weight, None)
        assert (found - other).abs().max() > 1e-4
        assert (found - still).abs().max() > 1e-4


def test_a_step_is_that_of_a_network_with_the_mask_written_out() -> None:
    model = fs.models.module(MAKERS["dropout"][0])(VECTORS)
    w, x, y, weight = stack_of(model, VECTORS, (4, 4))
    keys = torch.tensor([11, 12])
    found = gradient(model, w, x, y, weight, Step(keys, torch.tensor([4, 4])))
    for k in range(2):
        mask = kept(sub_key(keys[k], 1), (4, 8), 0.3, torch.float64)
        v = w[k].clone().requires_grad_()
        p = model.layout.unflatten(v)
        with torch.enable_grad():
            hidden = torch.relu(x[k] @ p["0.weight"].T + p["0.bias"]) * mask
            output = hidden @ p["3.weight"].T + p["3.bias"]
            (F.cross_entropy(output, y[k], reduction="none") * weight[k]).sum().backward()
        torch.testing.assert_close(found[k], v.grad)


@pytest.mark.parametrize("p", [1e-18, 0.1])
def test_a_recurrent_layer_and_attention_compute_what_torch_does_besides_dropping(p: float) -> None:
    # With a share of nearly nothing nothing is dropped, but the path is that of dropout.
    for kind in (nn.GRU, nn.LSTM, nn.RNN):
        layer = kind(3, 4, num_layers=3, dropout=p, bidirectional=True).train()
        x = torch.randn(5, 2, 3)
        with Pass(torch.tensor(1)) as passed:
            out, last = layer(x)
        expected, expected_last = layer.eval()(x)
        assert passed.draws == 2
        assert torch.allclose(out, expected, atol=1e-6) == (p < 0.1)
        pair = (last, expected_last) if isinstance(last, Tensor) else (last[1], expected_last[1])
        assert pair[0].shape == pair[1].shape
        assert torch.allclose(*pair, atol=1e-6) == (p < 0.1)
    for options in ({}, {"need_weights": False}, {"attn_mask": torch.ones(3, 3).triu(1).bool(), "need_weights": False}):
        attention = nn.MultiheadAttention(8, 2, dropout=p).train()
        x = torch.randn(3, 4, 8)
        with Pass(torch.tensor(1)) as passed:
            out = attention(x, x, x, **options)[0]
        assert passed.draws == 1
        assert torch.allclose(out, attention.eval()(x, x, x, **options)[0], atol=1e-6) == (p < 0.1)


def test_packed_sequences_are_dropped_too() -> None:
    layer = nn.LSTM(3, 4, num_layers=2, dropout=1e-18)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    with Pass(torch.tensor(1)) as passed:
        out = layer(packed)[0].data
    assert passed.draws == 1
    assert torch.allclose(out, layer.eval()(packed)[0].data, atol=1e-6)


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(200_000, dtype=torch.float64).view(-1, 10)
    with Pass(torch.tensor(3)):
        out = F.alpha_dropout(x, 0.2, training=True)
    assert abs(float(out.mean())) < 0.02
    assert abs(float(out.var()) - 1) < 0.02


# --- whole runs -------------------------------------------------------------------------------------------------------


def trained_by(make: Callable[[], nn.Module], shape: DataShape, **settings: Any) -> tuple[Tensor, Tensor]:
    pairs = class_clients(SEVERAL, dimension=int(np.prod(shape.input)), classes=3)
    pairs = [(x.reshape(-1, *shape.input), y) for x, y in pairs]
    solver = fs.SGD(lr=0.05, epochs=2, batch=4)  # Adam enlarges the rounding of keys' biases, whose gradient is 0
    run = fitted(fs.FedSoft(S=2), pairs, 3, solver, model=fs.models.module(make), **settings)
    return run.state.centers, run.engine.client_states["w"]


@pytest.mark.parametrize("name", ["dropout", "encoder, points second", "gru", "channels"])
def test_runs_agree_over_backends_chunks_and_workers(name: str) -> None:
    make, shape = MAKERS[name]
    first = trained_by(make, shape, chunk=2, workers=1)
    again = trained_by(make, shape, chunk=2, workers=2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    others = [{"chunk": 6}, {"chunk": 1}] + [{"backend": name} for name in fs.models.module(make)(shape).backends]
    for settings in others:
        for a, b in zip(first, trained_by(make, shape, **settings), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_dropout_changes_training_and_neither_scores_nor_predictions_draw() -> None:
    pairs = class_clients(dimension=6, classes=3)
    kept_all, dropped = (
        fs.fit(fs.FedSoft(S=2), federation(pairs), make, rounds=2, solver=fs.SGD(lr=0.1, epochs=2))
        for make in (lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3)), MAKERS["functional"][0])
    )
    assert not torch.allclose(kept_all.state.centers, dropped.state.centers, atol=1e-3)
    x = pairs[0][0].float()
    assert torch.equal(dropped.predict(x, center=0), dropped.predict(x, center=0))
    net = dropped.model.module
    assert net is not None
    plain = net(dropped.model.layout.unflatten(dropped.state.centers[0]))
    torch.testing.assert_close(dropped.predict(x, center=0), plain(x).softmax(1).detach())


def test_algorithms_that_take_single_steps_draw_anew_for_every_gradient() -> None:
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.dropout(torch.ones_like(x), 0.5, self.training)
            if self.training:
                seen.append(x.detach().clone())
            return self.layer(x)

    fitted(
        fs.pFedMe(steps=2), class_clients((4,), dimension=6, classes=3), 1, fs.SGD(epochs=1, batch=4),
        model=fs.models.module(Watching), backend="loop",
    )  # fmt: skip
    assert not torch.equal(seen[-1], seen[-2])


# --- what is refused --------------------------------------------------------------------------------------------------


class Draws(nn.Module):
    def __init__(self, how: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.how(self, x))


def test_draws_in_prediction_are_refused_with_advice() -> None:
    with pytest.raises(InputError, match=r"draws when it predicts: give dropout training=self\.training"):
        fs.models.module(Draws(lambda _, x: F.dropout(x, 0.5)))(VECTORS)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("randn_like", lambda net, x: x + torch.randn_like(x) if net.training else x),
        ("bernoulli", lambda net, x: x * torch.bernoulli(torch.full_like(x, 0.5)) if net.training else x),
        ("gumbel_softmax", lambda net, x: F.gumbel_softmax(x) if net.training else x),
    ],
)
def test_draws_that_no_seed_controls_are_refused(name: str, how: Any) -> None:
    with pytest.raises(InputError, match=rf"calls {name}\(\), a draw that no seed of ours controls"):
        fs.models.module(Draws(how))(VECTORS)
