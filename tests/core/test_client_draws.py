"""Draws of many clients: the numbers themselves, and that they depend on names alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsoft.core.client_draws import Draws, Names
from fedsoft.seeds import generator_at

MANY = Names([f"client {k}" for k in range(4000)])
SMALL = 1e-4  # a p-value that is not expected


def numpy_of(draws: Draws, name: str, call: int) -> np.random.Generator:
    """numpy's own Philox at the counter of a client and call."""
    first, second = map(int, Names([name]).keys[0])
    return generator_at(draws.key, (0, call, first, second))


@given(st.integers(0, 2**62), st.text(max_size=5), st.integers(0, 10**6), st.integers(1, 40))
def test_numbers_are_those_of_numpys_generator(seed: int, name: str, t: int, count: int) -> None:
    draws = Draws(seed, "a", t, names=["other", name])
    for call in (1, 2):
        assert np.array_equal(draws.random(count)[1], numpy_of(draws, name, call).random(count))


def test_an_order_is_a_shuffle_by_hand() -> None:
    draws = Draws(5, "b", names=["x", "y"])
    found = draws.permutations([7, 30], 2)
    rng = numpy_of(draws, "y", 1)
    halves = itertools.chain.from_iterable((word & 0xFFFFFFFF, word >> 32) for word in _words(rng))
    for row in found:
        order = list(range(30))
        for i in range(29, 0, -1):
            j = next(halves) * (i + 1) >> 32  # none of these few falls where it would have to be drawn again
            order[i], order[j] = order[j], order[i]
        assert (row[7:] - 7).tolist() == order


def _words(rng: np.random.Generator) -> list[int]:
    return [int(word) for word in rng.integers(2**64, size=100, dtype=np.uint64)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_a_client_draws_the_same_alone_and_among_others_in_any_order(sizes: list[int], seed: int) -> None:
    names = [f"n{k}" for k in range(len(sizes))]
    ends = np.cumsum(sizes)

    def all_of(draws: Draws, counts: list[int]) -> list[np.ndarray]:
        own = draws.random(2)
        orders = draws.permutations(counts, 2)
        return [own, draws.normal_each(counts, 2), draws.random_each(counts), draws.integers_each(7, counts), orders]

    together = all_of(Draws(seed, "a", names=names), sizes)
    for k in np.random.default_rng(seed).permutation(len(sizes)):
        alone = all_of(Draws(seed, "a", names=[names[k]]), [sizes[k]])
        part = slice(ends[k] - sizes[k], ends[k])
        assert np.array_equal(alone[0][0], together[0][k])
        assert all(np.array_equal(one, other[part]) for one, other in zip(alone[1:4], together[1:4], strict=True))
        assert np.array_equal(alone[4], together[4][:, part] - (ends[k] - sizes[k]))


def test_names_that_are_taken_or_repeated_keep_their_draws() -> None:
    draws = Draws(0, "a", names=MANY)
    rows = np.array([5, 3999, 5])
    assert list(MANY.take(rows)) == ["client 5", "client 3999", "client 5"]
    assert np.array_equal(draws.take(rows).random(3), draws.random(3)[rows])
    assert list(MANY.take(rows).repeat(2)) == ["client 5"] * 2 + ["client 3999"] * 2 + ["client 5"] * 2
    assert MANY.take(rows)[1] == "client 3999"
    assert list(MANY.take(rows)[1:]) == ["client 3999", "client 5"]


def test_a_generator_for_each_client_goes_on_and_is_independent_of_the_rest() -> None:
    draws = Draws(0, "a", names=["x", "y"])
    first = [g.random() for g in draws]
    assert first == [numpy_of(draws, name, 0).random() for name in ("x", "y")]
    assert draws[1].random() != first[1]
    assert draws[-1] is draws[1]
    assert first[0] not in draws.random(50)
    with pytest.raises(IndexError):
        _ = draws[2]


def test_numbers_are_even() -> None:
    found = Draws(1, "even", names=MANY).random(25)
    assert stats.kstest(found.ravel(), "uniform").pvalue > SMALL
    # One number of each client, and many of one client.
    assert stats.kstest(found[:, 0], "uniform").pvalue > SMALL
    assert stats.kstest(Draws(1, "even", names=["one"]).random(50_000)[0], "uniform").pvalue > SMALL
    bits = np.unpackbits(Draws(1, "bits", names=MANY).words(np.full(4000, 3)).view(np.uint8)).reshape(-1, 64)
    z = (bits.mean(0) - 0.5) * 2 * np.sqrt(len(bits))
    assert np.abs(z).max() < 5
    assert stats.chisquare(np.bincount(Draws(1, names=MANY).integers_each(10, np.full(4000, 20)))).pvalue > SMALL


def test_exponential_and_normal_numbers_have_their_distributions() -> None:
    assert stats.kstest(Draws(2, "e", names=MANY).exponential(25).ravel(), "expon").pvalue > SMALL
    found = Draws(2, "n", names=MANY).normal_each(np.full(len(MANY), 250)).astype(np.float64)
    assert stats.kstest(found[:200_000], "norm").pvalue > SMALL
    for limit in (1, 2, 3, 3.6541528853610088, 4):  # the tail beyond the lowest layer is drawn otherwise
        wanted = 2 * stats.norm.sf(limit) * len(found)
        assert abs((np.abs(found) > limit).sum() - wanted) < 5 * np.sqrt(wanted)
    assert abs(np.mean(found > 0) - 0.5) < 5 * 0.5 / np.sqrt(len(found))


def test_every_order_is_as_probable_as_any_other() -> None:
    orders = Draws(3, "o", names=MANY).permutations(np.full(len(MANY), 4), 6).reshape(-1, 4) % 4
    counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > SMALL
    # In a long order every place is as probable for every point.
    long = Draws(3, "long", names=["x"]).permutations([50], 8000)
    table = np.stack([np.bincount(long[:, place], minlength=50) for place in range(50)])
    assert stats.chisquare(table.ravel(), ddof=2 * 50 - 2).pvalue > SMALL


def test_names_rounds_and_seeds_are_independent() -> None:
    rounds = np.concatenate([Draws(0, "r", t, names=MANY.take(np.arange(4))).random(2000) for t in range(8)])
    seeds = np.concatenate([Draws(seed, "r", 0, names=["1"]).random(2000) for seed in range(1, 9)])
    numbers = np.concatenate([Draws(0, "r", 0, names=[str(k) for k in range(16)]).random(2000), rounds[4:], seeds])
    correlation = np.corrcoef(numbers) - np.eye(len(numbers))
    assert np.abs(correlation).max() < 5.5 / np.sqrt(2000)
    shifted = np.corrcoef(numbers[:, 1:], numbers[:, :-1])
    assert np.abs(shifted - np.eye(len(shifted))).max() < 5.5 / np.sqrt(2000)
    sums = numbers.sum(0)  # as large as sums of independent numbers
    assert sums.var() == pytest.approx(len(numbers) / 12, rel=5 * np.sqrt(2 / 2000))
