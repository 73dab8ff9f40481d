"""Rules in place of the mean: hand-computed cases, limits, and what malicious can do to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedsoft as fs
from fedsoft import aggregators
from fedsoft.core.replies import CHOICE, MIXTURE, MODEL, Answer
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.safety.malicious import malicious_clients, spoiled
from fedsoft.safety.robust import Aggregator, RobustRows, guarded, median, squared_distances, trimmed_mean
from tests.helpers import Held, trained

KINDS = {"w": MODEL, "u": MIXTURE, "s": CHOICE}


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def equal(m: int) -> Tensor:
    return torch.full((m,), 1 / m, dtype=torch.float64)


FIVE = rows([1, 10], [2, 20], [3, -5], [4, 0], [100, 30])


def test_the_median_of_an_odd_and_of_an_even_number() -> None:
    assert median(FIVE, equal(5)).tolist() == pytest.approx([3, 10])
    assert median(FIVE[:4], equal(4)).tolist() == pytest.approx([2.5, 5])


def test_the_weighted_median_is_where_half_of_the_weight_is_reached() -> None:
    weights = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6], dtype=torch.float64)
    assert median(FIVE, weights).tolist() == pytest.approx([100, 30])


def test_the_trimmed_mean_leaves_out_a_share_at_either_end() -> None:
    assert trimmed_mean(FIVE, equal(5), 0.2).tolist() == pytest.approx([3, 10])
    # A tenth is half of a client: the outermost count half.
    assert trimmed_mean(FIVE, equal(5), 0.1)[0] == pytest.approx((0.5 * 1 + 2 + 3 + 4 + 0.5 * 100) / 4)
    assert trimmed_mean(FIVE, equal(5), 0.0).tolist() == pytest.approx([22, 11])


def test_krum_takes_the_model_with_the_closest_neighbours() -> None:
    models = rows([0], [1], [1.5], [2.2], [50])
    # m = 5, f = 1: the nearest two. 1.5 has 0.5^2 + 0.7^2.
    assert aggregators.krum(share=0.2, multi=False)(models, equal(5)).tolist() == pytest.approx([1.5])
    multi = aggregators.krum(share=0.2)(models, equal(5))
    assert multi.tolist() == pytest.approx([(0 + 1 + 1.5 + 2.2) / 4])


def test_clipping_pulls_what_is_far_to_the_usual_distance() -> None:
    models = rows([-1.0], [0.0], [1.0], [30.0], [-2.0])
    # The median is 0, the distances 1, 0, 1, 30, 2: their median is 1.
    assert aggregators.clip()(models, equal(5)).tolist() == pytest.approx([(-1 + 0 + 1 + 1 - 1) / 5])
    assert aggregators.clip(factor=30)(models, equal(5)).tolist() == pytest.approx([28 / 5])


RULES = [
    aggregators.median(),
    aggregators.trimmed(),
    aggregators.krum(),
    aggregators.krum(multi=False),
    aggregators.clip(),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


@every_rule
def test_equal_models_stay_as_they_are(rule: Aggregator) -> None:
    assert rule(torch.ones(4, 3).double() * 7, equal(4)).tolist() == pytest.approx([7, 7, 7])
    assert rule(rows([3, 4]), equal(1)).tolist() == pytest.approx([3, 4])


@every_rule
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(8, 20), far=st.floats(1e2, 1e9))
def test_a_fifth_of_malicious_clients_cannot_move_a_center_out_of_the_honest_ones(
    rule: Aggregator, seed: int, m: int, far: float
) -> None:
    draw = np.random.default_rng(seed)
    honest = torch.from_numpy(draw.standard_normal((m, 3)))
    malicious = torch.from_numpy(far * draw.standard_normal((m // 4, 3)))
    center = rule(torch.cat([honest, malicious]), equal(m + m // 4))
    assert float(center.abs().max()) <= 3 * float(honest.abs().max())


@every_rule
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_clients_does_not_matter_and_a_shift_moves_the_center_along(rule: Aggregator, seed: int) -> None:
    draw = np.random.default_rng(seed)
    models, weights = torch.from_numpy(draw.standard_normal((9, 4))), torch.from_numpy(draw.random(9) + 0.1)
    weights = weights / weights.sum()
    order = torch.from_numpy(draw.permutation(9))
    here = rule(models, weights)
    torch.testing.assert_close(rule(models[order], weights[order]), here)
    torch.testing.assert_close(rule(models + 5, weights), here + 5)


def test_distances_do_not_drown_in_what_all_models_share() -> None:
    near = torch.tensor([[0.0], [1e-3], [3e-3]], dtype=torch.float64)
    torch.testing.assert_close(squared_distances(near + 1e6), torch.cdist(near, near) ** 2, rtol=1e-3, atol=1e-12)


def test_sums_are_middles_times_the_weight_and_centers_without_weight_are_zero() -> None:
    found = RobustRows(Held(FIVE), aggregators.median()).weighted(torch.tensor([[0.1] * 5, [0.0] * 5, [1, 0, 0, 0, 0]]))
    torch.testing.assert_close(found, rows([1.5, 5], [0, 0], [1, 10]))


def test_several_models_and_single_numbers_of_a_client_go_through_a_rule() -> None:
    three = torch.arange(5 * 2 * 3, dtype=torch.float32).view(5, 2, 3)
    assert RobustRows(Held(three), aggregators.median()).weighted(equal(5)[None]).shape == (1, 2, 3)
    numbers = RobustRows(Held(torch.tensor([1.0, 2, 3, 4, 1000])), aggregators.median())
    assert numbers.weighted(equal(5)[None]).tolist() == pytest.approx([3])


def test_without_a_rule_an_answer_stays_lazy() -> None:
    vault = ClientStore(2, Budget(10**6))
    vault.put(np.arange(2), {"w": torch.ones(2, 3)})
    answer = Answer(np.arange(2), {"w": vault.column("w")})
    assert guarded(answer, None) is answer


# --- malicious clients ------------------------------------------------------------------------------------------------


def error(algorithm: Any, **options: Any) -> float:
    """The mean error of the best centers, on sources that FedSoft tells apart."""
    fed = fs.datasets.synthetic(partition="10:90", clients=30, points=(40, 60), seed=0)
    run = trained(algorithm, fed, fs.models.linear(), rounds=12, solver=fs.SGD(lr=0.02, epochs=3, batch=20), **options)
    return math.fsum(run.history[-1].best) / 2


@pytest.mark.parametrize(
    "attack", [fs.attacks.sign_flip(scale=10), fs.attacks.scaled(factor=30), fs.attacks.gaussian(factor=30)], ids=str
)
def test_a_rule_undoes_most_of_an_attack(attack: object) -> None:
    algorithm = fs.IFCA(S=2)
    honest, plain = error(algorithm), error(algorithm, attack=attack)
    guarded = error(algorithm, attack=attack, aggregator=aggregators.median())
    assert plain > 2 * honest
    assert guarded < 1.3 * honest


def test_malicious_clients_are_the_same_for_all_and_as_many_as_asked_for() -> None:
    names = [str(k) for k in range(50)]
    found = malicious_clients(names, 0.2, seed=3)
    assert len(found) == 10
    assert found == malicious_clients(names[::-1], 0.2, seed=3)
    assert found != malicious_clients(names, 0.2, seed=4)


def test_flipped_signs_mirror_the_model_at_the_nearest_center() -> None:
    sent = {"centers": torch.tensor([[0.0, 0.0], [10.0, 10.0]])}
    reply = {"w": torch.tensor([[1.0, 2.0], [9.0, 12.0]]), "u": torch.ones(2, 2)}
    said = fs.attacks.sign_flip(scale=2.0).reply(reply, sent, KINDS, [])
    assert said["w"].tolist() == [[-2.0, -4.0], [12.0, 6.0]]
    assert said["u"] is reply["u"]
    assert fs.attacks.scaled(factor=3.0).reply(reply, sent, KINDS, [])["w"].tolist() == [[3.0, 6.0], [7.0, 16.0]]


def test_a_lie_about_the_mixture_names_one_center() -> None:
    sent = {"centers": torch.zeros(3, 2)}
    reply = {"u": torch.full((4, 3), 1 / 3), "s": torch.tensor([0, 1, 2, 0])}
    said = fs.attacks.lie(target=1).reply(reply, sent, KINDS, [])
    assert said["u"].tolist() == [[0, 1, 0]] * 4
    assert said["s"].tolist() == [1] * 4


def test_flipped_labels_are_learned_and_nobody_else_changes() -> None:
    fed = fs.datasets.digits(clients=10, points=(20, 30), seed=0)
    false = spoiled(fed.train, np.array([3]), fs.attacks.label_flip(), fed.shape)
    for k in range(10):
        old, new = fed.train.client(k)[1], false.client(k)[1]
        assert torch.equal(new, 9 - old if k == 3 else old)


def test_malicious_clients_keep_their_own_state_honest() -> None:
    fed = fs.datasets.synthetic(clients=10, points=(10, 20), seed=0)
    runs = [
        trained(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=1, solver=fs.SGD(epochs=1), **options)
        for options in ({}, {"attack": fs.attacks.sign_flip(share=0.5)})
    ]
    assert torch.equal(runs[0].engine.client_states["w"], runs[1].engine.client_states["w"])
    assert not torch.equal(runs[0].state.centers, runs[1].state.centers)
