"""Noise in shares: what it adds up to, what it guarantees, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.safety.accountant import gaussian_epsilon, shares_epsilon
from fedsoft.secure.distributed import ORDERS, Mechanism
from fedsoft.secure.weighing import Noise, Weighing
from tests.test_conformance import fitted

PRIVATE = fs.Privacy(clip=1.0, noise=1.0)


def mechanism(**changes: Any) -> Mechanism:
    about: dict[str, Any] = {"clip": 1.0, "noise": 2.0, "sums": 1, "size": 5, "clients": 9, "own": False}
    return Mechanism(**about | changes)


# --- the guarantee ----------------------------------------------------------------------------------------------------


def divergence(order: int, distance: int, variance: float) -> float:
    """Of Skellam noise from itself at a distance, by summing up all outcomes."""
    from scipy.stats import skellam

    k = np.arange(-int(40 * variance**0.5) - order * distance, int(40 * variance**0.5) + order * distance + 1)
    p, q = skellam.logpmf(k - distance, variance / 2, variance / 2), skellam.logpmf(k, variance / 2, variance / 2)
    fine = np.isfinite(p) & np.isfinite(q)
    x = order * p[fine] - (order - 1) * q[fine]
    return float((x.max() + np.log(np.exp(x - x.max()).sum())) / (order - 1))


def test_the_stated_divergence_is_above_what_outcomes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """One number, coded coarsely; another client changes it as far as it can, a unit of rounding included."""
    monkeypatch.setattr("fedsoft.secure.distributed.FINEST", 4)
    monkeypatch.setattr("fedsoft.secure.distributed.COARSEST", 4)
    found = mechanism(noise=1.0, size=1)
    assert (found.step, found.variance) == (1 / 16, 32**2)
    for order, bound in zip(ORDERS[:3], found.divergences[:3], strict=True):
        outcomes = divergence(order, 33, found.variance)
        assert outcomes <= bound <= 1.1 * outcomes


@pytest.mark.parametrize("variance", [3.0, 20.0, 400.0])
@pytest.mark.parametrize("distance", [1, 2, 7])
def test_the_formula_bounds_the_divergence_of_skellam_noise(variance: float, distance: int) -> None:
    """The one of Agarwal, Kairouz and Liu, on which all rests, against the outcomes themselves."""
    for order in (2, 3, 8, 32):
        bound = order * distance**2 / (2 * variance) + min(
            ((2 * order - 1) * distance**2 + 6 * distance) / (4 * variance**2), 3 * distance / (2 * variance)
        )
        assert divergence(order, distance, variance) <= bound


@pytest.mark.parametrize("noise", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("times", [1, 30])
def test_epsilon_is_above_that_of_gaussian_noise_and_not_by_much(noise: float, times: int) -> None:
    """dp-accounting has the exact epsilon of Gaussian noise, and Renyi accounting of it."""
    import dp_accounting as dp

    stated = shares_epsilon(mechanism(noise=noise, size=1000), 1e-5, times)
    exact = gaussian_epsilon(noise, 1e-5, times)
    accountant = dp.rdp.RdpAccountant(ORDERS)
    accountant.compose(dp.GaussianDpEvent(noise), times)
    assert exact <= stated <= 1.03 * accountant.get_epsilon(1e-5)
    rho, log = times / (2 * noise**2), math.log(1e5)  # the closed form for zero-concentrated privacy
    assert stated <= 1.03 * (rho + 2 * math.sqrt(rho * log))


@pytest.mark.parametrize("own", [False, True])
def test_another_client_changes_sums_by_no_more_than_the_sensitivity(own: bool) -> None:
    """Random pairs of clients, near and far, before any noise: in units, with rounding."""
    rng, around = np.random.default_rng(0), torch.zeros(2, 4, dtype=torch.float64)
    found = mechanism(sums=2, size=4, own=own)
    coding, weights = found.coding(), torch.ones(2, 1, dtype=torch.float64)
    most, silent = 0.0, Noise(1.0, 0.0)
    limit = found.sensitivity / found.step + math.sqrt(2 * (4 + own))
    for _ in range(100):
        pair = []
        for _ in range(2):
            row = torch.from_numpy(rng.standard_normal((1, 4)) * 10 ** rng.uniform(-2, 4))
            shares = torch.from_numpy(rng.dirichlet([0.1, 0.1])[:, None]) if own else None
            keys = torch.zeros(1, 2, dtype=torch.int64)
            pair.append(Weighing(coding, weights, shares, around, silent, keys).sum(row).total.double())
        most = max(most, float((pair[0] - pair[1]).norm()))
    assert 0.6 * limit < most <= limit


@pytest.mark.parametrize("there", [6, 9])
def test_noise_of_the_least_number_of_clients_is_enough(there: int) -> None:
    """Nine are asked and six are enough: with six the variance is the stated one, with nine half as much more."""
    found = mechanism(size=4000)
    rows = torch.zeros(there, 4000, dtype=torch.float64)
    keys = torch.from_numpy(np.random.default_rng(1).integers(2**62, size=(there, 2)))
    what = Weighing(found.coding(), torch.ones(1, there, dtype=torch.float64), None, rows[:1], found.noise_of(6), keys)
    noise = what.sum(rows).total.double() + 0.5 * there - 0.5 * there
    assert float(noise.std()) ** 2 == pytest.approx(found.variance * there / 6, rel=0.1)


def test_sums_with_noise_do_not_wrap_around() -> None:
    found = mechanism(noise=10.0, size=200, clients=50)
    rows = torch.zeros(50, 200, dtype=torch.float64)
    rows[:, 0] = 1e9
    keys = torch.from_numpy(np.random.default_rng(1).integers(2**62, size=(50, 2)))
    weights, around = torch.ones(1, 50, dtype=torch.float64), torch.zeros(1, 200, dtype=torch.float64)
    coding = found.coding()
    total = Weighing(coding, weights, None, around, found.noise_of(34), keys).sum(rows).total
    assert float(coding.decoded(total)[0, 0]) == pytest.approx(50, abs=6 * found.noise * found.sensitivity * 1.3)
    assert int(total.abs().max()) < 2 ** (coding.bits - 1)


@pytest.mark.parametrize("clients", [10, 100, 1000])
def test_one_model_with_noise_takes_fewer_bytes_than_without(clients: int) -> None:
    assert mechanism(clients=clients, noise=1.0).coding().size(1000) <= 4000


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_states_its_epsilon() -> None:
    run = fitted("fedavg", made=fs.FedAvg(), secure=True, privacy=PRIVATE, rounds=3)
    spent = run.history[-1].privacy
    assert spent is not None
    assert (spent.releases, spent.honest) == (3, True)
    assert spent.epsilon == shares_epsilon(Mechanism(1.0, 1.0, 1, 3, 9, False), 1e-5, 3)
    assert "reaches" not in run.history[-1].notes
    assert "clipped_values" not in run.history[-1].notes


@pytest.mark.parametrize("made", [fs.FedAvg(), fs.FedProx(), fs.FedSoft(), fs.IFCA(), fs.HypCluster()], ids=str)
def test_with_next_to_no_noise_a_run_is_that_of_clipped_clients(made: Any) -> None:
    """Which may be told apart from the plain one only by the clip, here so large that it clips nothing."""
    about = {"rounds": 2, "secure": True}
    near = fitted("", made=made, privacy=fs.Privacy(clip=50.0, noise=1e-4), **about)
    other = fitted("", made=made, privacy=fs.Privacy(clip=50.0, noise=1e-3), **about)
    assert bool(near.state.centers.isfinite().all())
    assert float((near.state.centers - other.state.centers).abs().max()) < 1.0
    assert not torch.equal(near.state.centers, other.state.centers)


@pytest.mark.parametrize(("made", "privacy", "told"), [
    (fs.FedEM(), PRIVATE, "where clients send one model each and nothing else"),
    (fs.FedSoft(), fs.Privacy(clip=1.0, noise=1.0, counts=1.0), "goes without privacy.counts"),
    (fs.FedSoft(first="simplex"), PRIVATE, "it needs single models"),
], ids=["fedem", "counts", "start"])  # fmt: skip
def test_what_has_no_sound_guarantee_is_refused(made: Any, privacy: fs.Privacy, told: str) -> None:
    with pytest.raises(InputError, match=told):
        fitted("", made=made, secure=True, privacy=privacy)


class SumsOthers(fs.FedAvg):
    """Says that it only averages."""

    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        answer["w"].weighted(torch.ones(1, len(answer.ids)))
        return state, {}


def test_sums_without_noise_are_refused_when_they_are_asked_for() -> None:
    with pytest.raises(InputError, match="takes sums of 'w' that have no noise"):
        fitted("fedavg", made=SumsOthers(), secure=True, privacy=PRIVATE)
