"""Fixed-point sums: right within the stated error, whatever is clipped or wraps around on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsoft.core.replies import Kind
from fedsoft.secure.coding import LEVELS, MODELS, NUMBERS, Coding, coding_of, weights_coding

CODINGS = [
    MODELS,
    NUMBERS,
    weights_coding(60),
    Coding(16, 8.0),
    Coding(20, 8.0, LEVELS, 60, 3),
    Coding(11, 2.0, LEVELS, 60),
]


def drawn(seed: int, m: int, n: int, S: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows, and weights that sum to 1 at most."""
    rng = np.random.default_rng(seed)
    weights = rng.random((S, m)) * rng.choice([-1, 0, 1], (S, m))
    weights /= np.maximum(np.abs(weights).sum(1, keepdims=True), 1e-300)
    return torch.from_numpy(rng.standard_normal((m, n)) * scale), torch.from_numpy(weights)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), m=st.integers(1, 60), S=st.integers(1, 4), scale=st.floats(1e-6, 1e12))
def test_sums_are_right_within_the_error(coding: Coding, seed: int, m: int, S: int, scale: float) -> None:
    rows, weights = drawn(seed, m, 5, S, scale)
    found = coding.coded_sum(rows, weights)
    wanted = weights @ rows.clamp(-coding.reach, coding.reach)
    rounding = 1e-14 * coding.reach  # of float64
    assert float((coding.decoded(found.total) - wanted).abs().max()) <= coding.error(m) + rounding
    counted = (weights != 0).any(0)[:, None]
    assert found.counts[0] == int(((rows.abs() > coding.reach) & counted).sum())


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), m=st.integers(1, 20))
def test_masks_that_cancel_out_leave_no_trace(coding: Coding, seed: int, m: int) -> None:
    """Clients send bytes with masks on them, which wrap around; their sum is the plain one, bit by bit."""
    rows, weights = drawn(seed, m, 7, 2, coding.reach)
    masks = torch.from_numpy(np.random.default_rng(seed).integers(-(2**63), 2**63, (m, 2, 7), dtype=np.int64))
    masks[-1] = -masks[:-1].sum(0)
    sent = [
        coding.packed(coding.coded_sum(rows[k : k + 1], weights[:, k : k + 1], torch.tensor([k])).total + masks[k])
        for k in range(m)
    ]
    assert {len(one) for one in sent} == {coding.size(14)}
    total = torch.stack([coding.unpacked(one, 14) for one in sent]).sum(0).view(2, 7)
    assert torch.equal(coding.decoded(total), coding.decoded(coding.coded_sum(rows, weights).total))


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_does_not_wrap_around(coding: Coding, sign: int) -> None:
    m = coding.clients or (1000 if coding.bits > 16 else 50)
    rows, weights = torch.full((m, 1), sign * 1e30), torch.full((1, m), 1 / m, dtype=torch.float64)
    total = coding.decoded(coding.coded_sum(rows, weights).total)
    assert float(total) == pytest.approx(sign * coding.reach, abs=coding.error(m) + 1e-12 * coding.reach)


def test_what_is_no_number_counts_as_zero_and_is_told() -> None:
    rows = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [2.0, 1.0]])
    weights = torch.tensor([[0.25, 0.25, 0.5]])
    found = MODELS.coded_sum(rows, weights)
    assert MODELS.decoded(found.total).tolist() == [[0.25 * MODELS.reach + 1.0, 1.0]]
    assert found.counts[0] == 2
    assert MODELS.coded_sum(rows, torch.tensor([[0.0, 0.0, 1.0]])).counts[0] == 0


def test_few_bits_are_right_in_the_mean() -> None:
    """Rounded at random, another way each time: the errors have the mean 0, and the stated standard deviation."""
    rows, weights = drawn(0, 20, 4, 1, 0.5)
    wanted = weights @ rows
    found = []
    for seed in range(500):
        coding = Coding(10, 2.0, clients=20, seed=seed)
        found.append(coding.decoded(coding.coded_sum(rows, weights).total) - wanted)
    errors = torch.stack(found) / Coding(10, 2.0, clients=20).unit
    assert float(errors.mean(0).abs().max()) < 4 * np.sqrt(20) / 2 / np.sqrt(500)
    assert float(errors.std()) < np.sqrt(20) / 2


def test_values_are_counted_by_their_size() -> None:
    """(R / 2^j, R / 2^(j - 1)] for j = 1, 2, ...; first those that were clipped, last all that are smaller."""
    coding = Coding(20, 4.0, 5, clients=3)
    rows = torch.tensor([[4.1, 4.0, 2.1, 2.0, 1.0, 0.5, 0.3, 1e-9, 0.0, torch.nan]], dtype=torch.float64)
    assert coding.counts(rows).tolist() == [2, 2, 1, 1, 3]


def test_a_coded_model_takes_at_most_1_3_times_the_bytes_of_float32() -> None:
    assert MODELS.bytes <= 1.3 * 4
    assert coding_of(Kind.MODEL) is MODELS
    assert coding_of(Kind.COUNTS) is NUMBERS


def test_the_digits_of_a_sum_of_weights_do_not_tell_them() -> None:
    """Shares of points are few numbers, which float32 rounds each in its own way. Sets of them that have the same
    points in a center are the same sum, within what is rounded at random."""
    n = torch.tensor([40, 50, 60, 45])
    unit, rng = weights_coding(4).unit, np.random.default_rng(0)
    totals: dict[int, list[float]] = {}
    for _ in range(2000):
        counts = torch.from_numpy(rng.integers(0, n.numpy() + 1))
        told = (counts.float() / n).double() * (n / n.sum().double())
        totals.setdefault(int(counts.sum()), []).append(float(told.sum()))
    assert max(max(found) - min(found) for found in totals.values()) < 0.5 * unit
    assert weights_coding(4).error(4) < 1e-5
