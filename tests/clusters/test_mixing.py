from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fedsoft.clusters.averaging import average
from fedsoft.clusters.importance_weights import aggregation_weights, importance_weights
from fedsoft.clusters.selection import select
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.replies import Answer
from fedsoft.engine.client_store import Budget, ClientStore


def of_sizes(*sizes: int) -> ClientData:
    return ClientData.concat([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])


# --- importance weights -----------------------------------------------------------------------------------------------

# Client 0 has 3 points, client 1 has 4; two centers. By hand, the smaller loss of each point is that of center:
# client 0: 0, 0, 1; client 1: 1, 1, 1, 1.
LOSSES = torch.tensor([[1.0, 2.0], [1.0, 2.0], [90.0, 3.0], [5.0, 0.0], [6.0, 1.0], [7.0, 2.0], [8.0, 7.0]])


def test_importance_weights_of_two_clients_by_hand() -> None:
    u = importance_weights(LOSSES, of_sizes(3, 4), sigma=0.01)
    assert u == pytest.approx(np.array([[2 / 3, 1 / 3], [0.01, 1.0]]))


def test_every_point_votes_not_the_mean_loss_of_the_client() -> None:
    # The mean loss of client 0 is 30.7 under center 0 and 2.3 under center 1, yet two of its three points choose 0.
    u = importance_weights(LOSSES, of_sizes(3, 4), sigma=0.0)
    assert u[0, 0] > u[0, 1]


def test_points_choose_the_smallest_loss_not_the_largest() -> None:
    u = importance_weights(torch.tensor([[0.1, 5.0, 9.0]]), of_sizes(1), sigma=0.0)
    assert u.tolist() == [[1.0, 0.0, 0.0]]


def test_rows_are_raised_to_sigma_and_not_normalised_again() -> None:
    u = importance_weights(torch.tensor([[0.0, 1.0, 1.0]] * 4), of_sizes(4), sigma=0.25)
    assert u.tolist() == [[1.0, 0.25, 0.25]]


def test_importance_weights_follow_the_rows_of_the_clients_asked_for() -> None:
    data = of_sizes(3, 4).take([1, 0])
    losses = torch.cat([LOSSES[3:], LOSSES[:3]])  # in the order of data.points: client after client
    assert importance_weights(losses, data, sigma=0.0)[:, 0].tolist() == pytest.approx([0.0, 2 / 3])


loss_tables = st.integers(1, 4).flatmap(
    lambda S: st.lists(st.lists(st.floats(0, 100, width=32), min_size=S, max_size=S), min_size=1, max_size=12)
)


@given(loss_tables, st.floats(0, 0.5))
def test_importance_weights_lie_between_sigma_and_1_and_cover_every_point(
    table: list[list[float]], sigma: float
) -> None:
    losses = torch.tensor(table, dtype=torch.float64)
    u = importance_weights(losses, of_sizes(len(table)), sigma)[0]
    assert sigma <= float(u.min()) <= float(u.max()) <= 1
    assert 1 - 1e-9 <= float(u.sum()) <= 1 + len(u) * sigma + 1e-9


@given(loss_tables, st.integers(-3, 3))
def test_a_point_that_is_hard_for_all_centers_votes_as_before(table: list[list[float]], power: int) -> None:
    losses = torch.tensor(table, dtype=torch.float64)
    data = of_sizes(len(table))
    # Scaling by a power of 2 is exact, so that no tie is made or broken by rounding.
    assert torch.equal(importance_weights(losses, data, 0.0), importance_weights(losses * 2.0**power, data, 0.0))


# --- aggregation weights ----------------------------------------------------------------------------------------------


def test_aggregation_weights_of_two_clients_by_hand() -> None:
    u = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    n = torch.tensor([10, 40])
    # center 0: 5 and 10 of 15; center 1: 5 and 30 of 35
    assert aggregation_weights(u, n) == pytest.approx(np.array([[1 / 3, 2 / 3], [1 / 7, 6 / 7]]))


def test_a_center_that_nobody_uses_draws_everybody_alike() -> None:
    v = aggregation_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 3]))
    assert v.tolist() == [[0.25, 0.75], [0.5, 0.5]]


weight_tables = st.integers(1, 4).flatmap(
    lambda S: st.lists(st.lists(st.floats(0, 1, width=32), min_size=S, max_size=S), min_size=1, max_size=8)
)


@given(weight_tables, st.integers(1, 1000))
def test_aggregation_weights_are_a_distribution_over_clients_and_ignore_the_unit_of_n(
    table: list[list[float]], factor: int
) -> None:
    u, n = torch.tensor(table), torch.arange(1, len(table) + 1)
    v = aggregation_weights(u, n)
    assert v.shape == (u.shape[1], u.shape[0])
    assert bool((v >= 0).all())
    assert v.sum(1) == pytest.approx(np.ones(u.shape[1]))
    assert aggregation_weights(u, n * factor) == pytest.approx(v.numpy())


# --- selection --------------------------------------------------------------------------------------------------------


def draws_of(clients: int, t: int, seed: int = 0) -> Draws:
    return Draws(seed, "select", t, names=[str(k) for k in range(clients)])


def rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


SKEWED = [0.05, 0.1, 0.15, 0.3, 0.4]


def frequencies(v: list[float], K: int, *, replacement: bool, draws: int) -> Counter[tuple[int, ...]]:
    """How often each outcome was drawn: who, as often as drawn, in ascending order."""
    outcomes: Counter[tuple[int, ...]] = Counter()
    for t in range(draws):
        times = select(rows(v), K, draws_of(len(v), t), replacement=replacement)[0]
        outcomes[tuple(k for k, n in enumerate(times.tolist()) for _ in range(int(n)))] += 1
    return outcomes


def successive_draws(v: list[float], K: int) -> dict[tuple[int, ...], float]:
    """The probability of each set when K clients are drawn one after the other, each in proportion to v among those
    that are left: what numpy's `choice(replace=False, p=v)` does."""
    sets: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(v)), K):
        probability, left = 1.0, 1.0
        for k in order:
            probability *= v[k] / left
            left -= v[k]
        key = tuple(sorted(order))
        sets[key] = sets.get(key, 0.0) + probability
    return sets


def independent_draws(v: list[float], K: int) -> dict[tuple[int, ...], float]:
    """The multinomial probability of each outcome of K independent draws from v."""
    outcomes = {}
    for outcome in itertools.combinations_with_replacement(range(len(v)), K):
        times = [outcome.count(k) for k in range(len(v))]
        ways = math.factorial(K) / math.prod(map(math.factorial, times))
        outcomes[outcome] = ways * math.prod(p**n for p, n in zip(v, times, strict=True))
    return outcomes


def fits(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The p-value of a chi-square test."""
    total = sum(observed.values())
    assert set(observed) <= set(expected)
    return stats.chisquare([observed[o] for o in expected], [p * total for p in expected.values()]).pvalue


def test_without_replacement_the_sets_are_those_of_successive_draws() -> None:
    observed = frequencies(SKEWED, 2, replacement=False, draws=4000)
    assert fits(observed, successive_draws(SKEWED, 2)) > 1e-3
    # The test can tell: neither equal chances nor chances that are twice as skewed would pass.
    for wrong in ([0.2] * 5, [p**2 / sum(q**2 for q in SKEWED) for p in SKEWED]):
        assert fits(observed, successive_draws(wrong, 2)) < 1e-6


def test_inclusion_without_replacement_is_that_of_numpy_choice() -> None:
    K, draws, rng = 3, 4000, np.random.default_rng(1)
    numpy_included = np.zeros(5)
    for _ in range(draws):
        numpy_included[rng.choice(5, K, replace=False, p=SKEWED)] += 1
    included = sum(select(rows(SKEWED), K, draws_of(5, t), replacement=False)[0].numpy() for t in range(draws))
    assert included / draws == pytest.approx(numpy_included / draws, abs=5 * math.sqrt(2 * 0.25 / draws))


def test_with_replacement_the_counts_are_multinomial() -> None:
    observed = frequencies(SKEWED, 3, replacement=True, draws=4000)
    assert fits(observed, independent_draws(SKEWED, 3)) > 1e-3
    assert fits(observed, independent_draws([0.2] * 5, 3)) < 1e-6


def test_one_draw_is_a_draw_from_v_in_both_ways() -> None:
    expected = {(k,): p for k, p in enumerate(SKEWED)}
    for replacement in (False, True):
        assert fits(frequencies(SKEWED, 1, replacement=replacement, draws=4000), expected) > 1e-3


def test_many_draws_with_replacement_from_one_heavy_client_keep_their_mean() -> None:
    # K far beyond the number of clients, so that clients ring many times.
    v, K = [0.9, 0.06, 0.04], 200
    mean = sum(select(rows(v), K, draws_of(3, t), replacement=True)[0].numpy() for t in range(300)) / 300
    assert mean == pytest.approx(np.array(v) * K, abs=5 * math.sqrt(K * 0.25 / 300))


class Metronomes:
    """Stands in for draws of which every gap of a client is the same."""

    def __init__(self, gaps: list[float]) -> None:
        self.gaps = gaps

    def exponential(self, *shape: int) -> np.ndarray:
        return np.stack([np.full(shape, gap) for gap in self.gaps])


def test_a_client_may_be_drawn_far_more_often_than_expected() -> None:
    # Client 0 rings a thousand times before anybody else, where 10 of 100 draws were to be expected: as many rings as
    # it takes have to be looked at.
    gaps: Any = Metronomes([0.001, *[1.0] * 9])
    assert select(rows([0.1] * 10), 100, gaps, replacement=True).tolist() == [[100.0] + [0.0] * 9]


def test_centers_draw_independently_of_each_other() -> None:
    # Two centers with the same weights draw the same pair of 5 clients in 1 of 10 rounds.
    same = 0
    for t in range(1000):
        drawn = select(rows([0.2] * 5, [0.2] * 5), 2, draws_of(5, t), replacement=False)
        same += bool(torch.equal(drawn[0], drawn[1]))
    assert same / 1000 == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / 1000))


@st.composite
def weighted(draw: st.DrawFn) -> Tensor:
    """Rows of probabilities, some of them 0."""
    clients, centers = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    cell = st.one_of(st.just(0.0), st.floats(1e-4, 1))
    table = draw(st.lists(st.lists(cell, min_size=clients, max_size=clients), min_size=centers, max_size=centers))
    return aggregation_weights(torch.tensor(table, dtype=torch.float64).T, torch.ones(clients))


@given(weighted(), st.integers(1, 10), st.integers(0, 10**6))
def test_without_replacement_K_distinct_clients_are_drawn_or_all_that_have_weight(v: Tensor, K: int, t: int) -> None:
    drawn = select(v, K, draws_of(v.shape[1], t), replacement=False)
    assert set(drawn.flatten().tolist()) <= {0.0, 1.0}
    assert drawn.sum(1).tolist() == [min(K, int((row > 0).sum())) for row in v]


@given(weighted(), st.integers(1, 40), st.integers(0, 10**6))
def test_with_replacement_exactly_K_draws_are_made(v: Tensor, K: int, t: int) -> None:
    assert select(v, K, draws_of(v.shape[1], t), replacement=True).sum(1).tolist() == [K] * len(v)


@given(weighted(), st.integers(1, 10), st.integers(0, 10**6), st.booleans())
def test_a_client_of_weight_0_is_never_drawn(v: Tensor, K: int, t: int, replacement: bool) -> None:
    assert float(select(v, K, draws_of(v.shape[1], t), replacement=replacement)[v == 0].sum()) == 0


@given(weighted(), st.integers(1, 10), st.integers(0, 10**6), st.booleans(), st.randoms())
def test_the_draw_does_not_depend_on_the_order_of_clients(
    v: Tensor, K: int, t: int, replacement: bool, random: Random
) -> None:
    order = list(range(v.shape[1]))
    random.shuffle(order)
    drawn = select(v, K, draws_of(len(order), t), replacement=replacement)
    shuffled = draws_of(len(order), t).take(order)
    assert torch.equal(select(v[:, order], K, shuffled, replacement=replacement), drawn[:, order])


@pytest.mark.parametrize("replacement", [False, True])
def test_a_client_of_next_to_no_weight_can_be_drawn_from_without_a_warning(replacement: bool) -> None:
    # Its ring lies beyond the largest number; that is as good as never.
    assert select(rows([1.0, 1e-310]), 1, draws_of(2, 0), replacement=replacement).tolist() == [[1.0, 0.0]]


# --- averages ---------------------------------------------------------------------------------------------------------

OLD = torch.tensor([[7.0, 8.0], [9.0, 10.0]])


def test_average_of_two_clients_by_hand() -> None:
    w = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
    weights = torch.tensor([[1.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
    assert average(w, weights, OLD).tolist() == [[4.0, 5.0], [1.0, 2.0]]


def test_average_divides_by_those_who_answered() -> None:
    # Three were drawn for each center, but only these two answered.
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert average(w, torch.ones(2, 2, dtype=torch.float64), OLD).tolist() == [[2.0, 3.0], [2.0, 3.0]]


def test_a_center_without_an_answer_stays_as_it_was() -> None:
    w = torch.tensor([[1.0, 2.0]])
    assert average(w, torch.tensor([[0.0], [1.0]], dtype=torch.float64), OLD).tolist() == [[7.0, 8.0], [1.0, 2.0]]


def test_all_centers_stay_when_nobody_answers() -> None:
    assert torch.equal(average(OLD[:0], torch.zeros(2, 0, dtype=torch.float64), OLD), OLD)


def test_average_keeps_the_precision_of_the_models() -> None:
    assert average(torch.ones(1, 2), torch.ones(2, 1, dtype=torch.float64), OLD).dtype == torch.float32


def test_an_average_of_rows_that_stay_where_they_are_is_that_of_the_rows() -> None:
    w = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
    weights = torch.tensor([[1.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    replies = ClientStore(2, Budget(0))
    replies.put(np.arange(2), {"w": w})
    answer = Answer(np.arange(2), {"w": replies.column("w")})
    assert average(answer["w"], weights, OLD).tolist() == average(w, weights, OLD).tolist() == [[4, 5], [9, 10]]
    assert average(answer["w"], weights, OLD).dtype == torch.float32


def test_an_average_of_nobodys_rows_is_the_old_one() -> None:
    answer = Answer(np.arange(0), {})
    assert torch.equal(average(answer["w"], torch.zeros(2, 0, dtype=torch.float64), OLD), OLD)


def test_averages_are_summed_in_float64() -> None:
    # In float32 the small ones would be lost in the sum.
    w = torch.tensor([[2.0**24], *[[1.0]] * 64])
    weights = torch.ones(1, 65, dtype=torch.float64)
    assert average(w, weights, OLD[:1, :1]).item() == pytest.approx((2**24 + 64) / 65, rel=1e-7)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=8), st.data())
def test_an_average_lies_among_the_values_averaged(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 5), min_size=len(values), max_size=len(values)))
    w = torch.tensor(values, dtype=torch.float64)[:, None]
    mean = float(average(w, torch.tensor([weights], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)))
    assert min(values) - 1e-9 <= mean <= max(values) + 1e-9
