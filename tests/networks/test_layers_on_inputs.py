"""Layers that draw and keep statistics, in networks that read tokens, several inputs and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import fedsoft as fs
from fedsoft.core.model import Step
from fedsoft.training.prepare import as_model

VOCABULARY, CLASSES, WIDTH, LONGEST = 20, 3, 8, 5
SIZES = (9, 4, 13, 1)


class Encoder(nn.Module):
    """The encoder layer of torch with its defaults: it drops in attention and in three other places."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, **options)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        found = self.layer(self.embedding(tokens), src_key_padding_mask=~mask)
        return self.head(found.masked_fill(~mask[..., None], 0.0).sum(1))


class Attention(nn.Module):
    """Attention whose shares are wanted too, which torch computes in another way."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, batch_first=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        found, shares = self.attention(x, x, x, key_padding_mask=~mask, need_weights=True)
        return self.head(found.masked_fill(~mask[..., None], 0.0).sum(1)) + shares.sum((1, 2))[:, None]


class Bag(nn.Module):
    """A bag of embeddings before BatchNorm and dropout."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.bag, self.norm = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="sum"), nn.BatchNorm1d(WIDTH)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        found = self.bag(tokens, per_sample_weights=mask.to(self.head.weight.dtype))
        return self.head(self.drop(self.norm(found)))


class Recurrent(nn.Module):
    """Two recurrent layers on packed sequences, with dropout between them."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2, dropout=dropout, batch_first=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(tokens), mask.sum(1), batch_first=True, enforce_sorted=False)
        return self.head(self.gru(packed)[1][-1])


CASES: dict[str, tuple[Callable[..., nn.Module], set[str]]] = {
    "encoder": (Encoder, {"stacked", "loop"}),
    "attention": (Attention, {"stacked", "loop"}),
    "bag": (Bag, {"stacked", "loop"}),
    "recurrent": (Recurrent, {"loop"}),
}


def clients() -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    rng = np.random.default_rng(0)
    pairs = []
    for n in SIZES:
        mask = np.arange(LONGEST) < rng.integers(1, LONGEST + 1, n)[:, None]
        pairs.append(({"tokens": rng.integers(0, VOCABULARY, (n, LONGEST)), "mask": mask}, rng.integers(0, CLASSES, n)))
    return pairs


def run_of(make: Callable[[], nn.Module], **options: Any) -> fs.Run:
    return fs.fit(
        fs.FedSoft(S=2), fs.Federation.from_clients(clients(), held_out=0), make, rounds=2,
        solver=fs.SGD(lr=0.1, epochs=2, batch=4), options=fs.FitOptions(dtype="float64", **options),
    )  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_runs_agree_over_backends_chunks_and_workers(kind: str) -> None:
    make, backends = CASES[kind]
    federation = fs.Federation.from_clients(clients(), held_out=0)
    assert set(as_model(make, federation).backends) == backends
    first = run_of(make, backend="loop", chunk=2, workers=1)
    for backend in sorted(backends):
        one, two = (run_of(make, backend=backend, chunk=2, workers=workers) for workers in (1, 2))
        assert torch.equal(one.state.centers, two.state.centers)
        for run in (one, run_of(make, backend=backend, chunk=4)):
            torch.testing.assert_close(run.state.centers, first.state.centers, atol=1e-9, rtol=1e-9)
    without = run_of(lambda: make(dropout=0.0), backend="loop")
    assert not torch.allclose(first.state.centers, without.state.centers, atol=1e-4)  # something was dropped


@pytest.mark.parametrize("kind", ["encoder", "attention", "bag"])
def test_a_stack_draws_what_each_client_draws_alone(kind: str) -> None:
    data = fs.Federation.from_clients(clients(), held_out=0)
    model, train = as_model(CASES[kind][0], data), data.train
    draws = np.random.default_rng(1)
    w = torch.stack([model.draw(draws).double() for _ in range(3)])
    x, y = (torch.stack([train.client(k)[part][:4] for k in range(3)]) for part in (0, 1))
    step = Step(torch.tensor([5, 6, 5]), torch.tensor([4, 3, 4]))
    weight = torch.ones(3, 4, dtype=torch.float64) * (torch.arange(4) < step.points[:, None])
    found = {name: torch.empty_like(w) for name in ("stacked", "loop", "other keys")}
    for name, out in found.items():
        keys = step.keys + (name == "other keys")
        model.by("loop" if name == "loop" else "stacked").gradient_into(out, w, x, y, weight, Step(keys, step.points))
    torch.testing.assert_close(found["stacked"], found["loop"], atol=1e-10, rtol=1e-10)
    assert all((found["stacked"] - found["other keys"]).abs().amax(1) > 1e-4)


@pytest.mark.slow
def test_padding_changes_no_draw() -> None:
    """A mask is a hash of coordinates: those of elements do not depend on how far a sequence is padded."""

    pairs = [
        ([row[: int(length)].tolist() for row, length in zip(x["tokens"], x["mask"].sum(1), strict=True)], y)
        for x, y in clients()
    ]
    runs = [
        fs.fit(
            fs.FedAvg(), fs.Federation.from_clients(pairs, held_out=0, length=length), Encoder, rounds=2,
            solver=fs.SGD(lr=0.1, batch=4), options=fs.FitOptions(dtype="float64"),
        )
        for length in (None, 11)
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].state.centers, runs[1].state.centers, atol=1e-10, rtol=1e-10)
