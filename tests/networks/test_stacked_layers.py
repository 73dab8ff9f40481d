"""Recurrent layers, attention and layers on sequences over a stack of clients, against what torch records for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Model
from fedsoft.networks import client_axis
from tests.helpers import random_stack

STEPS, FEATURES, CLASSES = 7, 6, 4
SHAPE = DataShape("classification", (STEPS, FEATURES), CLASSES)


class Sequence(nn.Module):
    """A layer on sequences, and the mean of its outputs classified."""

    def __init__(self, layer: nn.Module, width: int, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layer, self.head, self.call = layer, nn.Linear(width, CLASSES), call

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x) if self.call is None else self.call(self.layer, x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class Cells(nn.Module):
    """Last states, with a first state that is trained, and time along the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(FEATURES, 5), nn.Linear(10, CLASSES)
        self.first = nn.Parameter(torch.zeros(2, 1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        h, c = (part.expand(1, len(x), 5).contiguous() for part in self.first)
        _, (h, c) = self.lstm(x.transpose(0, 1), (h, c))
        return self.head(torch.cat([h[0], c[0]], -1))


def causal(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, mask=nn.Transformer.generate_square_subsequent_mask(STEPS, dtype=x.dtype), is_causal=True)


def padded(layer: nn.Module, x: Tensor) -> Any:
    unread = x[..., 0] > 0.5
    return layer(x, src_key_padding_mask=torch.cat([torch.zeros_like(unread[:, :1]), unread[:, 1:]], 1))


def unread(layer: nn.Module, x: Tensor) -> Any:
    mask = torch.eye(STEPS).bool()
    mask[2] = True  # a step that may look at nothing
    return layer(x, x, x, need_weights=False, attn_mask=mask)


def weighted(layer: nn.Module, x: Tensor) -> Any:
    out, shares = layer(x, x, x)
    return out * shares[..., :1]


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(FEATURES, 3, batch_first=True, **options)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Sequence(nn.LSTM(FEATURES, 5, batch_first=True), 5),
    "lstm of two layers, both ways": lambda: Sequence(
        nn.LSTM(FEATURES, 5, num_layers=2, bidirectional=True, batch_first=True), 10
    ),
    "first and last states": Cells,
    "gru": lambda: Sequence(nn.GRU(FEATURES, 5, num_layers=2, batch_first=True), 5),
    "gru without biases, both ways": lambda: Sequence(
        nn.GRU(FEATURES, 5, bias=False, bidirectional=True, batch_first=True), 10
    ),
    "rnn": lambda: Sequence(nn.RNN(FEATURES, 5, batch_first=True), 5),
    "rnn with relu": lambda: Sequence(nn.RNN(FEATURES, 5, nonlinearity="relu", batch_first=True), 5),
    "encoder": lambda: Sequence(encoder(), FEATURES),
    "encoder, norm first": lambda: Sequence(encoder(norm_first=True, activation="gelu"), FEATURES),
    "encoder, causal": lambda: Sequence(encoder(), FEATURES, causal),
    "encoder, padded": lambda: Sequence(encoder(bias=False), FEATURES, padded),
    "attention that may look at nothing": lambda: Sequence(attention(), FEATURES, unread),
    "attention with its weights": lambda: Sequence(attention(), FEATURES, weighted),
    "attention across": lambda: Sequence(attention(), FEATURES, lambda a, x: a(x, x.flip(1), x)[0]),
    "layers on sequences": lambda: Sequence(
        nn.Sequential(nn.Linear(FEATURES, 9, bias=False), nn.LayerNorm(9, bias=False), nn.Tanh(),
                      nn.LayerNorm(9, elementwise_affine=False), nn.Linear(9, 5)), 5
    ),
    "norm of several axes": lambda: Sequence(nn.LayerNorm([STEPS, FEATURES]), FEATURES),
}  # fmt: skip


def batch(m: int, points: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(m)
    x = torch.randn(m, points, *SHAPE.input, dtype=torch.float64, generator=draw)
    return x, torch.randint(0, CLASSES, (m, points), generator=draw), torch.rand(m, points, generator=draw).double()


def model_of(name: str) -> Model:
    return fs.models.module(NETWORKS[name])(SHAPE)


@pytest.mark.parametrize("name", NETWORKS)
def test_stacks_compute_what_torch_does_for_one_client(name: str) -> None:
    model = model_of(name)
    assert set(model.backends) == {"stacked", "loop"}
    stacked, loop = model.by("stacked"), model.by("loop")
    for m, points in ((1, 2), (3, 5)):
        w, (x, y, weight) = random_stack(model, m), batch(m, points)
        w = w + 0.1 * torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(0))  # biases, too
        torch.testing.assert_close(stacked.outputs(w, x), loop.outputs(w, x), rtol=1e-9, atol=1e-11)
        found, expected = (each.gradient(w, x, y, weight) for each in (stacked, loop))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-11)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_has_no_stacked_form_is_left_to_torch() -> None:
    projected = fs.models.module(lambda: Sequence(nn.LSTM(FEATURES, 5, proj_size=3, batch_first=True), 3))(SHAPE)
    assert set(projected.backends) == {"loop"}


def test_nothing_is_replaced_where_torch_has_no_way_out_of_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_axis, "KNOWN", False)
    assert set(model_of("lstm").backends) == {"loop"}
    model = model_of("layers on sequences")
    w, (x, y, weight) = random_stack(model, 2), batch(2, 3)
    torch.testing.assert_close(
        model.by("stacked").gradient(w, x, y, weight), model.by("loop").gradient(w, x, y, weight), rtol=1e-8, atol=1e-11
    )


@pytest.mark.parametrize(
    ("name", "few"), [("lstm", "loop"), ("encoder", "loop"), ("gru", "stacked"), ("rnn", "stacked")]
)
def test_small_stacks_take_the_faster_way(name: str, few: str) -> None:
    model = model_of(name)
    assert model.backend.name == "stacked"
    for m in (1, 2, 3, 4):
        w, (x, y, weight) = random_stack(model, m).float(), batch(m, 3)
        expected = model.by(few if m < 3 else "stacked").gradient(w, x.float(), y, weight.float())
        assert torch.equal(model.gradient(w, x.float(), y, weight.float()), expected)


@pytest.mark.parametrize("name", ["lstm", "gru", "encoder"])
def test_a_local_solve_is_that_of_the_plain_loop_for_any_number_of_workers(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(n, *SHAPE.input, generator=draw), torch.arange(n) % CLASSES) for n in (9, 14, 5, 11, 8)]

    def centers(**options: Any) -> Tensor:
        solver = fs.SGD(lr=0.05, momentum=0.9, epochs=3, batch=4)
        return fs.fit(
            fs.FedSoft(S=2, lam=0.3), fs.Federation.from_clients(pairs, held_out=0), NETWORKS[name], rounds=2,
            solver=solver, options=fs.FitOptions(**options),
        ).state.centers  # fmt: skip

    loop, one = centers(backend="loop"), centers(chunk=3)
    assert torch.equal(one, centers(chunk=3, workers=2))
    assert (one - loop).norm() <= 1e-6 * loop.norm()
