"""Varied images: one gather gives what padding, cropping and flipping give one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedsoft.core.client_data import Augment, ClientData, augmented
from fedsoft.core.client_draws import Draws
from fedsoft.core.federation import DataShape, Federation


def one_by_one(x: Tensor, shift: Tensor, flip: Tensor, pad: int) -> Tensor:
    """The same in plain steps, image by image."""
    height, width = x.shape[-2:]
    made = []
    for image, (down, right), mirrored in zip(x, shift.tolist(), flip.tolist(), strict=True):
        padded = F.pad(image.double(), (pad, pad, pad, pad), mode="reflect") if pad else image.double()
        crop = padded[:, pad + down : pad + down + height, pad + right : pad + right + width]
        made.append(crop.flip(-1) if mirrored else crop)
    return torch.stack(made).to(x.dtype)


@given(
    st.integers(1, 6), st.sampled_from([1, 3]), st.integers(2, 9), st.integers(2, 9), st.integers(0, 8),
    st.booleans(), st.sampled_from([torch.uint8, torch.float32, torch.float64]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_gather_equals_pad_crop_and_flip(
    points: int, channels: int, height: int, width: int, pad: int, flip: bool, dtype: torch.dtype, seed: int
) -> None:
    pad = min(pad, height - 1, width - 1)
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (points, channels, height, width))).to(dtype)
    shift, mirrored = Augment(pad, flip).draw(Draws(seed, names=["a"]), [points])
    found = augmented(x, shift, mirrored)
    assert found.dtype == dtype
    assert torch.equal(found, one_by_one(x, shift, mirrored, pad))


def test_any_leading_shape_will_do() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (2, 5, 3, 8, 8), dtype=np.uint8))
    shift, flip = Augment(4, True).draw(Draws(0, names=["a"]), [10])
    found = augmented(x, shift.view(2, 5, 2), flip.view(2, 5))
    assert torch.equal(found.flatten(0, 1), augmented(x.flatten(0, 1), shift, flip))


def test_by_hand() -> None:
    x = torch.tensor([[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]], dtype=torch.uint8)
    right_and_down = augmented(x, torch.tensor([[1, 1]]), torch.tensor([False]))
    assert right_and_down[0, 0].tolist() == [[5, 6, 5], [8, 9, 8], [5, 6, 5]]
    mirrored = augmented(x, torch.tensor([[0, 0]]), torch.tensor([True]))
    assert mirrored[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]


def test_draws_cover_every_shift_and_flip_half_of_the_images() -> None:
    shift, flip = Augment(4, True).draw(Draws(0, names=["a", "b"]), [12_000, 8000])
    counts = torch.stack([(shift == value).double().mean(0) for value in range(-4, 5)])
    assert torch.allclose(counts, torch.full((9, 2), 1 / 9, dtype=torch.float64), atol=0.01)
    assert float(flip.double().mean()) == pytest.approx(0.5, abs=0.01)
    assert not Augment(4, False).draw(Draws(0, names=["a"]), [100])[1].any()


def test_it_stays_with_the_data() -> None:
    data = ClientData.concat([(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))] * 3)
    assert data.augment is None
    varied = replace(data, augment=Augment(1, True))
    assert varied.take([2, 0]).to("cpu", torch.float64).augment == Augment(1, True)


def test_data_that_is_varied_is_other_data() -> None:
    data = ClientData.concat([(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))])
    plain = Federation(data, data, ("0",), DataShape("classification", (1, 4, 4), 2))
    varied = replace(plain, train=replace(data, augment=Augment(1, True)))
    more = replace(plain, train=replace(data, augment=Augment(2, True)))
    assert len({plain.fingerprint, varied.fingerprint, more.fingerprint}) == 3
