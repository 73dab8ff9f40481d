"""Networks on tokens, on several inputs and on sequences: as a plain loop calls them, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.networks.stacking import Stackable
from fedsoft.training.prepare import as_model

VOCABULARY, CLASSES, WIDTH = 30, 3, 8


class Tokens(nn.Module):
    """A mean of embeddings of a fixed number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.int64
        return self.head(self.embedding(x).mean(1))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="sum"), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.bag(x, per_sample_weights=mask.to(self.head.weight.dtype)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        found = self.encoder(self.embedding(x), src_key_padding_mask=padding_mask)
        found = found.masked_fill(padding_mask[..., None], 0.0)
        return self.head(found.sum(1) / (~padding_mask).sum(1, keepdim=True))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.gru(packed)[1][-1])


class Signal(nn.Module):
    """Reads sequences of vectors, and asks for nothing but their mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.first(x).tanh() * mask[..., None]).sum(1))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.numbers = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(2, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)
        found = (self.embedding(tokens) * mask[..., None]).sum(1)
        return self.head(found + self.numbers(numbers))


def sequences(n: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(1, 7)).tolist() for _ in range(n)]


def labels(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 99).integers(0, CLASSES, n)


def tokens(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (n, 5))


def signals(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rng.integers(1, 6), 2)).astype(np.float32) for _ in range(n)]


def named(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "tokens": rng.integers(0, VOCABULARY, (n, 4)), "numbers": rng.standard_normal((n, 2)),
        "mask": rng.random((n, 4)) < 0.7,
    }  # fmt: skip


def placed(n: int, seed: int) -> Any:
    return tuple(named(n, seed).values())


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Any], set[str]]] = {
    "tokens": (Tokens, tokens, {"stacked", "loop"}),
    "bag": (Bag, sequences, {"stacked", "loop"}),
    "transformer": (Transformer, sequences, {"stacked", "loop"}),
    "gru": (Recurrent, sequences, {"loop"}),
    "signal": (Signal, signals, {"stacked", "loop"}),
    "by name": (Several, named, {"stacked", "loop"}),
    "by place": (Several, placed, {"stacked", "loop"}),
}
SIZES = (9, 4, 13)


def federation(kind: str, **settings: Any) -> fs.Federation:
    _, make, _ = CASES[kind]
    return fs.Federation.from_clients([(make(n, k), labels(n, k)) for k, n in enumerate(SIZES)], **settings)


def called(net: nn.Module, kind: str, x: Any) -> Tensor:
    """Call a network as a user would write it."""
    dtype = next(net.parameters()).dtype
    if kind == "tokens":
        return net(torch.from_numpy(x))
    if kind in ("by name", "by place"):
        given = x if kind == "by name" else dict(zip(("tokens", "numbers", "mask"), x, strict=True))
        a, b, c = (torch.from_numpy(given[key]) for key in ("tokens", "numbers", "mask"))
        return net(a, b.to(dtype), c)
    rows = [torch.as_tensor(row) for row in x]
    lengths = torch.tensor([len(row) for row in rows])
    values = pad_sequence(rows, batch_first=True)
    values = values.to(dtype) if values.is_floating_point() else values
    mask = torch.arange(values.shape[1]) < lengths[:, None]
    return net(values, lengths if kind == "gru" else ~mask if kind == "transformer" else mask)


@pytest.mark.parametrize("kind", CASES)
def test_outputs_and_gradients_are_those_of_a_plain_loop(kind: str) -> None:
    make, given, backends = CASES[kind]
    fed = federation(kind, held_out=0)
    model = as_model(make, fed)
    assert set(model.backends) == backends
    net, data = make().double(), fed.train
    rng = np.random.default_rng(5)
    w = torch.stack([model.draw(rng).double() for _ in SIZES])
    least = min(SIZES)
    rows = [data.client(k)[0][:least] for k in range(len(SIZES))]
    y = torch.stack([data.client(k)[1][:least] for k in range(len(SIZES))])
    weight = torch.rand(len(SIZES), least, dtype=torch.float64)
    outputs, gradients = [], []
    for k, n in enumerate(SIZES):
        vector_to_parameters(w[k], net.parameters())
        net.zero_grad()
        x = given(n, k)
        few = {key: v[:least] for key, v in x.items()} if isinstance(x, dict) else x[:least]
        few = tuple(part[:least] for part in x) if isinstance(x, tuple) else few
        output = called(net, kind, few)
        (F.cross_entropy(output, y[k], reduction="none") * weight[k]).sum().backward()
        outputs.append(output.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    for name in backends:
        by = model.by(name)
        assert torch.allclose(by.outputs(w, torch.stack(rows)), torch.stack(outputs), atol=1e-10)
        assert torch.allclose(by.gradient(w, torch.stack(rows), y, weight), torch.stack(gradients), atol=1e-10)


@pytest.mark.parametrize("kind", CASES)
def test_a_run_is_the_same_on_every_backend_and_for_any_chunk(kind: str) -> None:
    make, _, backends = CASES[kind]
    runs = [
        fs.fit(
            fs.FedSoft(S=2), federation(kind), make, rounds=2, solver=fs.SGD(lr=0.1, epochs=2, batch=4),
            options=fs.FitOptions(backend=backend, dtype="float64", chunk=chunk),
        )
        for backend in sorted(backends) for chunk in (1, 3)
    ]  # fmt: skip
    for run in runs[1:]:
        assert torch.allclose(run.state.centers, runs[0].state.centers, atol=1e-9)
        assert run.scores().personal_held_out == runs[0].scores().personal_held_out


@pytest.mark.parametrize("kind", ["bag", "transformer", "gru", "signal"])
def test_padding_changes_no_result(kind: str) -> None:
    runs = [
        fs.fit(fs.FedSoft(S=2), federation(kind, length=length), CASES[kind][0], rounds=2,
               solver=fs.SGD(lr=0.1, epochs=2, batch=4), options=fs.FitOptions(dtype="float64"))
        for length in (None, 11)
    ]  # fmt: skip
    assert torch.allclose(runs[0].state.centers, runs[1].state.centers, atol=1e-12)
    x = CASES[kind][1](5, 77)
    for pick in ({"center": 1}, {"client": 2}):
        assert torch.allclose(runs[0].predict(x, **pick), runs[1].predict(x, **pick), atol=1e-12)
    adopted = [run.adopt(x, labels(5, 77), how="personal") for run in runs]
    assert torch.allclose(adopted[0].shares, adopted[1].shares, atol=1e-9)
    assert torch.allclose(adopted[0].predict(x), adopted[1].predict(x), atol=1e-9)


@pytest.mark.parametrize("kind", CASES)
def test_a_run_predicts_as_the_network_itself(kind: str) -> None:
    make, given, _ = CASES[kind]
    run = fs.fit(fs.FedAvg(), federation(kind), make, rounds=1)
    assert run.model.module is not None
    x = given(6, 3)
    with torch.no_grad():
        want = called(run.model.module(run.centers[0]), kind, x).softmax(-1)
    for found in (run.predict(x, center=0), run.adopt(x, labels(6, 3), how="center").predict(x)):
        assert torch.allclose(found, want, atol=1e-5)


def test_a_network_learns_what_only_the_order_of_tokens_tells() -> None:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(4):
        x = [rng.permutation([1, 2] + [0] * int(rng.integers(0, 4))).tolist() for _ in range(60)]
        pairs.append((x, np.array([row.index(1) < row.index(2) for row in x]).astype(int)))
    fed = fs.Federation.from_clients(pairs, classes=CLASSES)
    run = fs.fit(fs.FedAvg(), fed, Recurrent, rounds=8, solver=fs.Adam(lr=0.02, epochs=5, batch=10))
    assert run.scores().personal_held_out.mean > 0.95  # pyright: ignore[reportOptionalMemberAccess]


# --- integers that are numbers ----------------------------------------------------------------------------------------


def test_integers_are_floats_to_a_network_that_cannot_take_them_else() -> None:
    x, y = np.arange(24).reshape(12, 2) % 5, np.arange(12) % 2
    net = nn.Linear(2, 2)
    runs = [
        fs.fit(fs.FedAvg(), fs.Federation.from_clients([(x.astype(kind), y)]), net, rounds=1)
        for kind in (np.int64, np.float32)
    ]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)


# --- errors -----------------------------------------------------------------------------------------------------------


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return {"logits": self.head(x)}["logit"]


@pytest.mark.parametrize(
    ("x", "model", "sentence"),
    [
        (
            np.full((6, 5), VOCABULARY),
            Tokens,
            r"fails on 3 points of shape \[5\] \(integers from 30 to 30\)",
        ),
        (named(6, 0), nn.Linear(2, 3), "forward of the network has no input 'tokens', it has 'input'"),
        (named(6, 0), fs.models.linear(), "it takes one input, the data has several"),
        (signals(6, 0), nn.Linear(3, 3), r"fails on 3 points of the inputs up to 5x2 \(floats\)"),
        (np.ones((6, 2)), Keyed, "'logit'"),
        (named(6, 0)["numbers"], Several, "missing 2 required positional arguments"),
    ],
)
def test_what_a_network_cannot_take_is_one_sentence(x: Any, model: Any, sentence: str) -> None:
    fed = fs.Federation.from_clients([(x, np.arange(6) % CLASSES)])
    with pytest.raises(InputError, match=sentence) as error:
        fs.fit(fs.FedAvg(), fed, model, rounds=1)
    assert "\n" not in str(error.value)


def test_a_token_beyond_the_vocabulary_is_found_wherever_it_is() -> None:
    """Among thousands of points of other clients, before a run begins; and among those to predict for."""
    x = np.zeros((400, 5), int)
    x[397, 3] = VOCABULARY
    pairs = [(np.zeros((900, 5), int), np.arange(900) % 3), (x, np.arange(400) % 3)]
    with pytest.raises(InputError, match="integers from 0 to 30"):
        fs.fit(fs.FedAvg(), fs.Federation.from_clients(pairs, held_out=0.5), Tokens, rounds=1)
    run = fs.fit(fs.FedAvg(), federation("tokens"), Tokens, rounds=1)
    for bad in (lambda: run.predict(x, center=0), lambda: run.predict(x, client=0), lambda: run.adopt(x, x[:, 0])):
        with pytest.raises(InputError, match=r"fails on these points \(integers from 0 to 30\)"):
            bad()
    with pytest.raises(InputError, match="this network takes integers"):
        run.predict(x + 0.5, center=0)


# --- operations in a form that can be stacked -------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["none", "boolean", "added", "causal"])
def test_attention_is_that_of_torch(mask: str) -> None:
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 4, 5, 8, dtype=torch.float64, generator=drawn) for _ in range(3))
    seen = torch.rand(2, 3, 1, 5, 5, generator=drawn) > 0.4
    seen[0, 0, 0, 1] = False  # a query that may look at nothing
    added = torch.randn(5, 5, dtype=torch.float64, generator=drawn)
    options: dict[str, Any] = {
        "none": {}, "boolean": {"attn_mask": seen}, "added": {"attn_mask": added}, "causal": {"is_causal": True},
    }[mask]  # fmt: skip
    with Stackable():
        found = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.allclose(found, F.scaled_dot_product_attention(q, k, v, **options), atol=1e-12)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False), ("max", False)])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_bags_of_embeddings_are_those_of_torch(mode: str, padding: int | None, weighted: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    table = torch.randn(2, 9, 4, dtype=torch.float64, generator=drawn)
    x, shares = torch.randint(0, 9, (2, 6, 5), generator=drawn), torch.rand(2, 6, 5, dtype=torch.float64)
    x[0, 0] = 3  # nothing but padding

    def one(table: Tensor, x: Tensor, shares: Tensor) -> Tensor:
        return F.embedding_bag(
            x, table, mode=mode, padding_idx=padding, per_sample_weights=shares if weighted else None
        )

    want = torch.stack([one(*each) for each in zip(table, x, shares, strict=True)])
    with Stackable():
        assert torch.allclose(vmap(one)(table, x, shares), want, atol=1e-12)
