from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.core.partition import apportion


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Mixtures of some clients, some shares 0, and the number of points of each."""
    clients, sources = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    share = st.one_of(st.just(0.0), st.floats(1e-3, 1))
    table = np.array(
        draw(st.lists(st.lists(share, min_size=sources, max_size=sources), min_size=clients, max_size=clients))
    )
    table[table.sum(1) == 0] = 1.0
    sizes = draw(st.lists(st.integers(0, 500), min_size=clients, max_size=clients))
    return table / table.sum(1, keepdims=True), np.array(sizes)


@given(mixtures())
def test_counts_add_up_to_the_sizes_and_are_within_1_of_the_exact_share(made: tuple[np.ndarray, np.ndarray]) -> None:
    mixture, sizes = made
    counts = apportion(mixture, sizes)
    assert np.array_equal(counts.sum(1), sizes)
    assert counts.min() >= 0
    assert np.abs(counts - mixture * sizes[:, None]).max() <= 1 + 1e-9


@given(mixtures())
def test_a_source_without_a_share_gets_no_point(made: tuple[np.ndarray, np.ndarray]) -> None:
    mixture, sizes = made
    assert apportion(mixture, sizes)[mixture == 0].sum() == 0


def test_whole_shares_are_met_exactly_although_decimals_are_not() -> None:
    # 0.29 * 100 is 28.999999999999996 in binary.
    assert apportion(np.array([[0.29, 0.71]]), np.array([100])).tolist() == [[29, 71]]


def test_the_largest_remainder_is_rounded_up() -> None:
    # 1.25, 1.5, 2.25 of 5 points.
    assert apportion(np.array([[0.25, 0.3, 0.45]]), np.array([5])).tolist() == [[1, 2, 2]]
