"""The backward pass written by hand against the one that torch records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import fedsoft as fs
from fedsoft.core import kernels
from fedsoft.core.batch_iterator import iterate_batches
from fedsoft.core.batches import Problem
from fedsoft.core.client_data import Augment, ClientData, DataShape, augmented
from fedsoft.core.client_draws import Draws
from fedsoft.core.model import Model
from fedsoft.networks import few_products as products
from tests.helpers import random_stack

SHAPE = DataShape("classification", (2, 9, 8), 5)


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few products also where the library's own convolutions are faster."""
    monkeypatch.setattr(products, "WIDE", False)


def letters(head: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=(1, 2), stride=(1, 2)), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 5, bias=False), head,
    )  # fmt: skip


def deep() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(40, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 2, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(nn.Conv2d(2, 40, 5, padding=3), block, nn.Identity(), nn.Flatten(), nn.Linear(48, 5))


def large() -> nn.Module:
    # A weight that is large enough for its gradient to stay a product.
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(1152, 60), nn.ReLU(), nn.Linear(60, 5)
    )


def few_products(padding: int, bias: bool) -> nn.Module:
    """The second convolution is one of 5 x 5 between many channels, on images with an odd side."""
    left = [(side + 2 * padding - 4) // 2 for side in SHAPE.input[1:]]
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 18, 5, padding=padding, bias=bias), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(18 * left[0] * left[1], 5),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "few products": lambda: few_products(2, True),
    "few products, no padding": lambda: few_products(0, False),
    "few products, wide padding": lambda: few_products(3, True),
    "letters": lambda: letters(nn.Identity()),
    "two softmaxes": lambda: letters(nn.Sequential(nn.ReLU(), nn.Softmax(1))),
    "deep": deep,
    "large": large,
}


def batch(m: int, points: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(m, points, *SHAPE.input, dtype=dtype)
    x[:, 0] = 0.25  # equal neighbours, as in the background of an image: the largest is not unique
    y = torch.randint(0, 5, (m, points))
    return x, y, torch.rand(m, points, dtype=dtype)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("m", "points"), [(1, 1), (1, 5), (3, 6), (1, 40), (2, 70)])
def test_gradients_and_outputs_are_those_that_torch_records(name: str, m: int, points: int) -> None:
    model = fs.models.module(NETWORKS[name])(SHAPE)
    assert model.backend.name == "chain"
    assert model.backend.one_client_at_a_time
    w, (x, y, weight) = random_stack(model, m), batch(m, points)
    loop = model.by("loop")
    assert loop.backend.name == "loop"
    torch.testing.assert_close(model.outputs(w, x), loop.outputs(w, x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.gradient(w, x, y, weight), loop.gradient(w, x, y, weight), rtol=1e-9, atol=1e-11)


def test_memory_that_is_used_again_does_not_leak_into_the_next_batch() -> None:
    model = fs.models.module(large)(SHAPE)
    w = random_stack(model, 1)
    x, y, weight = batch(1, 7)
    expected = model.gradient(w, x, y, weight)
    for points in (3, 9, 1):
        model.gradient(w, *batch(1, points))
    assert torch.equal(model.gradient(w, x, y, weight), expected)
    few = model.gradient(w, x[:, :2], y[:, :2], weight[:, :2])
    torch.testing.assert_close(
        few, model.by("loop").gradient(w, x[:, :2], y[:, :2], weight[:, :2]), rtol=1e-9, atol=1e-11
    )


def test_inputs_are_left_as_they_were() -> None:
    model = fs.models.module(NETWORKS["letters"])(SHAPE)
    w, (x, y, weight) = random_stack(model, 2), batch(2, 4)
    before = x.clone(), w.clone()
    model.gradient(w, x, y, weight)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


def test_a_loss_of_ones_own_reaches_the_chain() -> None:
    def smooth(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.2, reduction="none")

    model = fs.models.module(deep, loss=smooth)(SHAPE)
    assert model.backend.name == "chain"
    w, (x, y, weight) = random_stack(model, 2), batch(2, 4)
    torch.testing.assert_close(
        model.gradient(w, x, y, weight), model.by("loop").gradient(w, x, y, weight), rtol=1e-9, atol=1e-11
    )


class Skips(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "another forward": lambda: Skips(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(126, 5)),
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(168, 5)),
    "padding by reflection": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(288, 5)
    ),
    "a pool of three": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(16, 5)),
    "an unknown layer": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(168, 5)),
    "a matrix on images": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Linear(6, 6), nn.Flatten(), nn.Linear(168, 5)
    ),
    "a frozen layer": lambda: frozen(),
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
}  # fmt: skip


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(168, 5))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plain_chain_is_left_to_torch(name: str) -> None:
    assert "chain" not in fs.models.module(REFUSED[name])(SHAPE).backends


def test_few_products_are_close_in_single_precision() -> None:
    model = fs.models.module(NETWORKS["few products"])(SHAPE)
    w, (x, y, weight) = random_stack(model, 1), batch(1, 5)
    exact, found = model.by("loop").gradient(w, x, y, weight), model.gradient(w.float(), x.float(), y, weight.float())
    assert (found - exact).norm() < 3e-6 * exact.norm()


def test_wide_vectors_leave_convolutions_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds() -> list[str]:
        chain: Any = fs.models.module(NETWORKS["few products"])(SHAPE).backend
        return [type(link.make()).__name__ for link in chain.network.links]

    assert "FewProducts" in kinds()
    monkeypatch.setattr(products, "WIDE", True)
    assert "FewProducts" not in kinds()


def test_images_that_all_models_see_give_the_same_outputs() -> None:
    model = fs.models.module(NETWORKS["letters"])(SHAPE)
    w, (x, _, _) = random_stack(model, 3), batch(1, 70)
    together = model.outputs(w, x.expand(3, *x.shape[1:]))
    torch.testing.assert_close(together, model.outputs(w, x.repeat(3, 1, 1, 1, 1)), rtol=0, atol=0)
    torch.testing.assert_close(together, model.by("loop").outputs(w, x.repeat(3, 1, 1, 1, 1)))


# --- a whole solve ----------------------------------------------------------------------------------------------------


def solved(backend: str, dtype: Any = "float64", chunk: int | None = None) -> Tensor:
    pairs = [
        (torch.rand(n, 2, 9, 8, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 5) for n in (7, 12, 4)
    ]
    algorithm, fed, model = fs.FedSoft(S=2, lam=0.3), fs.Federation.from_clients(pairs), fs.models.module(large)
    solver, options = fs.Adam(lr=1e-3, epochs=2, batch=3), fs.FitOptions(dtype=dtype, backend=backend, chunk=chunk)
    run = fs.fit(algorithm, fed, model, rounds=2, solver=solver, options=options)
    return run.state.centers


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_backends_end_in_the_same_centers(backend: str) -> None:
    torch.testing.assert_close(solved("chain"), solved(backend), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_stacks_of_any_size_end_in_the_same_centers() -> None:
    torch.testing.assert_close(solved("chain", chunk=1), solved("chain", chunk=3), rtol=1e-8, atol=1e-10)


def test_single_precision_is_near_double() -> None:
    torch.testing.assert_close(solved("chain", "float32").double(), solved("chain"), rtol=0, atol=2e-4)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(fs.InputError, match="backend = 'fast' is not allowed for this model: should be one of auto"):
        solved("fast")


# --- Adam in one pass -------------------------------------------------------------------------------------------------


def torch_adam(w: Tensor, g: Tensor, first: Tensor, second: Tensor, lr: float, step: int) -> Tensor:
    p = w.clone().requires_grad_()
    optimiser = torch.optim.Adam([p], lr=lr, betas=(0.8, 0.95), eps=1e-6)
    p.grad = g
    optimiser.state[p] = {"step": torch.tensor(float(step)), "exp_avg": first.clone(), "exp_avg_sq": second.clone()}
    optimiser.step()
    return p.detach()


@given(st.integers(0, 10_000), st.booleans(), st.integers(1, 9))
def test_adam_in_one_pass_is_adam(seed: int, pulled: bool, points: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    out, width, lr, t = 4, 11, 0.02, 3
    w, first, second, target = rand(out, width), rand(out, width), rand(out, width).square(), rand(out, width)
    left, right, strength = rand(points, out), rand(points, width), 0.7
    g = left.t() @ right + (strength * w - target if pulled else 0)
    expected = torch_adam(w, g, first, second, lr, t)
    slow = (1 - 0.8 ** (t + 1)) / lr
    scale, eps = slow / (1 - 0.95 ** (t + 1)) ** 0.5, 1e-6 * slow
    one = [torch.tensor([v], dtype=torch.float64).numpy() for v in (strength, scale, eps)]
    keep = torch.tensor([0.8, 0.95], dtype=torch.float64).numpy()
    flat = [a.clone().view(1, -1).numpy() for a in (w, left.t() @ right, first, second, target)]
    kernels.adam_rows(flat[0], flat[1], (flat[2], flat[3]), (pulled, one[0], flat[4]), (keep, one[1], one[2]))
    torch.testing.assert_close(torch.from_numpy(flat[0]).view(out, width), expected, rtol=1e-10, atol=1e-12)
    a = [v.clone().numpy() for v in (w, left, right, first, second)]
    kernels.adam_outer(a[0], a[1], a[2], (a[3], a[4]), (pulled, one[0], target.numpy()), (keep, one[1], one[2]))
    torch.testing.assert_close(torch.from_numpy(a[0]), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(torch.from_numpy(a[3]), torch.from_numpy(flat[2]).view(out, width))
    torch.testing.assert_close(torch.from_numpy(a[4]), torch.from_numpy(flat[3]).view(out, width))


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9), st.integers(1, 20), st.booleans())
def test_products_of_few_points_are_those_of_torch(seed: int, points: int, out: int, width: int, double: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    x, w, bias, slope = (
        torch.randn(*shape, generator=draw, dtype=dtype)
        for shape in ((points, width), (out, width), (out,), (points, out))
    )
    outputs, before = torch.full_like(slope, float("nan")), torch.full_like(x, float("nan"))
    kernels.thin_outputs(x.numpy(), w.numpy(), bias.numpy(), outputs.numpy())
    kernels.thin_input_gradients(slope.numpy(), w.numpy(), before.numpy())
    torch.testing.assert_close(outputs, F.linear(x, w, bias))
    torch.testing.assert_close(before, slope @ w)


def test_what_is_not_a_number_stays_visible() -> None:
    model = fs.models.module(large)(SHAPE)
    w, (x, y, weight) = random_stack(model, 1), batch(1, 3)
    x[0, 1, 0, 0, 0] = float("nan")
    assert bool(model.gradient(w, x, y, weight).isnan().any())
    pooled = torch.tensor([[[[1.0, float("nan")], [2.0, 3.0]]]])
    out, place = torch.empty(1, 1, 1, 1), torch.empty(1, 1, 1, 1, dtype=torch.uint8)
    kernels.pool(pooled.permute(0, 2, 3, 1).contiguous().numpy(), out.numpy(), place.numpy())
    assert bool(out.isnan())


def test_pools_and_columns_are_those_of_torch() -> None:
    x = torch.randn(3, 2, 7, 5)
    x[:, :, :2] = 1
    last = x.permute(0, 2, 3, 1).contiguous()
    out, place, back = torch.empty(3, 3, 2, 2), torch.empty(3, 3, 2, 2, dtype=torch.uint8), torch.empty_like(last)
    kernels.pool(last.numpy(), out.numpy(), place.numpy())
    x_ = x.clone().requires_grad_()
    expected = F.max_pool2d(x_, 2)
    assert torch.equal(out.permute(0, 3, 1, 2), expected)
    slope = torch.randn_like(out)
    kernels.unpool(slope.numpy(), place.numpy(), back.numpy())
    found = torch.autograd.grad(expected, x_, slope.permute(0, 3, 1, 2))[0]
    assert torch.equal(back.permute(0, 3, 1, 2), found)
    for kernel, padding in ((3, 1), (5, 2), (2, 0), (3, 3)):
        sides = [side + 2 * padding - kernel + 1 for side in x.shape[2:]]
        cols = torch.full((3, 2 * kernel**2, *sides), float("nan"))
        kernels.columns(x.numpy(), cols.numpy(), kernel, padding)
        assert torch.equal(cols.flatten(2), F.unfold(x, kernel, padding=padding))


# --- images that are varied in training -------------------------------------------------------------------------------


def test_batches_hold_images_varied_by_their_clients_own_draws() -> None:
    model: Model = fs.models.letters_cnn(channels=(2, 2), hidden=4)(DataShape("classification", (1, 8, 8), 3))
    images = [torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8) for n in (5, 3)]
    data = ClientData.concat([(x, torch.arange(len(x)) % 3) for x in images])
    data = replace(data, augment=Augment(pad=2, flip=True))
    batches = iterate_batches(
        Problem(model, data, None, None, lambda: Draws(0, names=["0", "1"])), torch.float32, batch=2, epochs=2,
        shuffle=True,
    )  # fmt: skip
    seen = [(step, b, batches.current()[0].clone()) for step, b in batches]
    for k, x in enumerate(images):
        draws = Draws(0, names=[str(k)])
        orders = draws.permutations([len(x)], 2)
        shift, flip = Augment(pad=2, flip=True).draw(draws, [2 * len(x)])
        for step, b, batch_x in seen:
            epoch = step // len(batches.batch_weights)
            points = torch.from_numpy(orders[epoch][2 * b : 2 * b + 2])
            at = points + epoch * len(x)
            if len(points):
                got = batch_x[k][: len(points)]
                assert torch.equal(got, augmented(x[points], shift[at], flip[at]))
    assert not any(torch.equal(x, images[0][:2]) for _, _, x in seen)
