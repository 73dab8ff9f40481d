"""A server reads a client's points from what the client sends, and what stops it, at a small scale.

The figures of the docs are those of `python -m benchmarks.attacks`, made by the same functions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks import sums
from benchmarks.inversion import CLOSE, PROTECTIONS, Protection, aim, errors, invert, noisy, recovered
from benchmarks.victim import SaysNo, points_of

pytest.importorskip("dp_accounting", reason='needs an accountant: pip install "fedsoft[privacy]"')


@pytest.mark.parametrize("data", ["normal", "digits"])
def test_trap_weights_read_points_of_a_client_that_adds_no_noise(data: str) -> None:
    found = invert(Protection(), data, seed=0, hidden=512)
    assert recovered(found) >= 32
    assert float(found.sort().values[31]) < 1e-4  # nothing about it is rough
    assert recovered(invert(Protection(), data, seed=0, questions=10)) >= 38


@pytest.mark.parametrize("data", ["normal", "digits"])
def test_no_point_counts_as_read_because_another_one_is_like_it(data: str) -> None:
    x = torch.from_numpy(points_of(data, 1040, 0)[0])
    assert recovered(errors(x[40:], x[:40])) == 0
    assert recovered(errors(x, x[:40])) == 40


@pytest.mark.parametrize(
    "name",
    [
        "FedSoft, λ = 1, from the mixture",
        "FedSoft, λ = 1/lr, from its own model, each trap twice",
        "bounds: epochs ≥ 5, batch ≤ 8",
        "noise on counts, ε = 1",
    ],
)
def test_what_does_not_help_against_trap_weights(name: str) -> None:
    without = recovered(invert(Protection(), "normal", seed=0))
    assert without >= 15
    assert recovered(invert(PROTECTIONS[name](), "normal", seed=0)) >= without - 2


def test_small_steps_that_cannot_be_made_smaller_only_make_it_harder() -> None:
    name = "bounds: epochs ≥ 5, batch ≤ 8, lr ≥ 0.01"
    one, ten = (recovered(invert(PROTECTIONS[name](), "normal", seed=0, questions=k)) for k in (1, 10))
    assert one < recovered(invert(Protection(), "normal", seed=0))
    assert ten > 10


@pytest.mark.parametrize("epsilon", [1000.0, 100.0, 10.0])
@pytest.mark.parametrize("data", ["normal", "digits"])
def test_noise_on_models_stops_trap_weights(epsilon: float, data: str) -> None:
    found = invert(noisy(epsilon), data, seed=0, questions=10)
    assert recovered(found) == 0
    assert float(found.min()) > 0.3


@pytest.mark.parametrize("data", ["normal", "digits"])
def test_it_is_the_noise_that_stops_them_and_not_what_comes_with_it(data: str) -> None:
    """The same learning rate and the same clipping, with noise of almost 0."""
    clipped = replace(noisy(10.0), policy={}, privacy={"update_clip": 1.0, "update_noise": 1e-12})
    assert recovered(invert(clipped, data, seed=0, questions=10)) >= 38


def test_an_owner_s_bounds_and_noise_cannot_be_left_out() -> None:
    """What protects is not the server's to choose."""
    for name in ("bounds: epochs ≥ 5, batch ≤ 8", "noise on models, ε = 10"):
        with pytest.raises(SaysNo, match=r"not-allowed|privacy-required"):
            invert(Protection(PROTECTIONS[name]().policy), "normal", seed=0)


@pytest.mark.slow
def test_one_point_comes_through_weak_noise_when_asked_often_and_a_budget_ends_that() -> None:
    assert float(aim(None, seed=0)[0]) < 1e-4
    weak, strong = aim(1000.0, seed=0, questions=50), aim(10.0, seed=0, questions=50)
    assert float(weak[0]) < 0.4  # one answer of epsilon = 1000 already shows the point
    assert float(weak[-1]) < 0.1
    assert float(strong[0]) > 0.6
    assert float(strong[-1]) < float(strong[0])
    stopped = aim(10.0, seed=0, questions=50, budget=10.01)
    assert len(stopped) == 1
    assert torch.equal(stopped, strong[:1])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a client of 1 point; points = 1", None),
        ("a client of 1 point; points = 10", "too-few-points"),
        ("1 of 40 points alone at a center; points = 1", None),
        ("1 of 40 points alone at a center; points = 10", "nothing sent"),
        ("two sums that differ by 1 of 40 points; points = 10", None),
        ("the same; algorithms as they are by default", "not-allowed"),
    ],
)
def test_points_are_read_from_sums_unless_these_are_not_told(name: str, told: str | None) -> None:
    kind, policy = sums.ATTACKS[name]
    found, _ = sums.attack(kind, 0, policy)
    if told is None:
        assert isinstance(found, float)
        assert found < 1e-4 < CLOSE
    else:
        assert found == told
