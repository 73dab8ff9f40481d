from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import TWO, least_squares
from tests.helpers import RAGGED, fitted, regression_clients

# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_round_of_two_clients_by_hand() -> None:
    lam, sigma = 0.5, 0.01
    run = fitted(fs.FedSoft(S=2, K="all", lam=lam, sigma=sigma), TWO, 1)
    # The first centers are drawn; the one of the larger slope explains client 0's first two points, the other the rest.
    c = fitted(fs.FedSoft(S=2), TWO, 0).state.centers.flatten().tolist()
    high = int(c[1] > c[0])
    u = {high: (2 / 3, sigma), 1 - high: (1 / 3, 1.0)}
    # w_k = (2/n sum x^2 + lam sum_s u_ks)^-1 (2/n sum x y + lam sum_s u_ks c_s)
    squares, products = (2 / 3 * 6, 2 / 1 * 4), (2 / 3 * (3 + 12 - 1), 2 / 1 * -4)
    w = [
        (products[k] + lam * (u[0][k] * c[0] + u[1][k] * c[1])) / (squares[k] + lam * (u[0][k] + u[1][k]))
        for k in range(2)
    ]
    centers = [(u[s][0] * 3 * w[0] + u[s][1] * 1 * w[1]) / (u[s][0] * 3 + u[s][1] * 1) for s in range(2)]
    assert run.state.u.T.tolist() == [pytest.approx(u[0]), pytest.approx(u[1])]
    assert run.engine.client_states["w"].flatten().tolist() == pytest.approx(w)
    assert run.state.centers.flatten().tolist() == pytest.approx(centers)


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_without_the_pull_personal_models_are_local_least_squares() -> None:
    pairs = regression_clients()
    run = fitted(fs.FedSoft(S=2, lam=0.0), pairs, 2)
    assert run.engine.client_states["w"].numpy() == pytest.approx(least_squares(pairs), abs=1e-8)


def test_with_one_center_and_no_pull_the_center_is_the_mean_by_number_of_points() -> None:
    pairs = regression_clients()
    run = fitted(fs.FedSoft(S=1, lam=0.0), pairs, 1)
    mean = np.average(least_squares(pairs), axis=0, weights=RAGGED)
    assert run.state.centers[0].numpy() == pytest.approx(mean, abs=1e-8)
    assert run.state.u.tolist() == [[1.0]] * len(pairs)


@pytest.mark.parametrize("local", [fs.SGD(lr=0.05, epochs=2, batch=5), fs.Adam(epochs=2, batch=5)], ids=["sgd", "adam"])
def test_with_one_center_that_clients_restart_from_it_is_fedprox(local: Any) -> None:
    pairs = regression_clients()
    soft = fitted(fs.FedSoft(S=1, lam=0.7, start="mixture", optimizer_state="fresh"), pairs, 4, local)
    prox = fitted(fs.FedProx(mu=0.7), pairs, 4, local)
    assert torch.allclose(soft.state.centers, prox.state.centers, rtol=0, atol=1e-12)


def test_with_one_center_and_persistent_models_it_is_fedprox_where_the_start_does_not_matter() -> None:
    pairs = regression_clients()
    soft = fitted(fs.FedSoft(S=1, lam=0.7), pairs, 4)  # solved exactly, so from wherever a client starts
    prox = fitted(fs.FedProx(mu=0.7), pairs, 4)
    assert torch.allclose(soft.state.centers, prox.state.centers, rtol=0, atol=1e-9)


def test_under_an_overwhelming_pull_personal_models_are_the_weighted_mean_of_the_centers() -> None:
    pairs = regression_clients()
    before, run = fitted(fs.FedSoft(S=2), pairs, 0), fitted(fs.FedSoft(S=2, lam=1e9), pairs, 1)
    u, c = run.state.u, before.state.centers
    expected = (u @ c) / u.sum(1, keepdim=True)
    assert torch.allclose(run.engine.client_states["w"], expected, atol=1e-6)


def test_clients_of_one_source_each_are_told_apart_exactly() -> None:
    # Without noise the right centers are a fixed point: each source's own model, u of 0 or 1.
    rng = np.random.default_rng(0)
    theta = torch.tensor([[3.0, -2.0], [-1.0, 4.0]]).double()
    pairs = []
    for k in range(6):
        x = torch.from_numpy(rng.standard_normal((20, 2)))
        pairs.append((x, x @ theta[k % 2]))
    run = fitted(fs.FedSoft(S=2, K="all", lam=0.1, sigma=0.0), pairs, 60)
    first = int(run.state.u[0].argmax())
    assert run.state.u[:, first].tolist() == [1.0, 0.0] * 3
    assert torch.allclose(run.state.centers[first], theta[0], atol=1e-6)
    assert torch.allclose(run.state.centers[1 - first], theta[1], atol=1e-6)


def test_starting_from_the_mixture_forgets_the_clients_own_model() -> None:
    pairs = regression_clients()
    slow = fs.SGD(lr=1e-9, epochs=1, batch=100)  # hardly moves: the model found is where the solve started
    own, mixture = (fitted(fs.FedSoft(S=2, start=start), pairs, 1, slow) for start in ("own", "mixture"))
    client = fitted(fs.FedSoft(S=2), pairs, 0).engine.client_states["w"]
    assert torch.allclose(own.engine.client_states["w"], client, atol=1e-6)
    expected = own.state.u @ fitted(fs.FedSoft(S=2), pairs, 0).state.centers
    assert torch.allclose(mixture.engine.client_states["w"], expected, atol=1e-6)


def test_optimizer_state_is_kept_over_rounds_only_when_asked() -> None:
    adam = fs.Adam(epochs=1, batch=5)
    steps = [-(-n // 5) for n in RAGGED]
    kept, fresh = (
        fitted(fs.FedSoft(optimizer_state=kept), regression_clients(), 3, adam) for kept in ("kept", "fresh")
    )
    assert kept.engine.client_states["optimizer.steps"].tolist() == [3 * n for n in steps]
    assert fresh.engine.client_states["optimizer.steps"].tolist() == steps


# --- first values, who works, and when --------------------------------------------------------------------------------


def test_every_center_is_a_draw_of_its_own_and_all_clients_share_a_further_one() -> None:
    run = fitted(fs.FedSoft(S=3), regression_clients(), 0)
    draws = [
        run.model.draw(generator(0, *labels)) for labels in (("center", 0), ("center", 1), ("center", 2), ("client",))
    ]
    assert torch.equal(run.state.centers, torch.stack(draws[:3]).double())
    assert torch.equal(run.engine.client_states["w"], draws[3].double().expand(8, -1))
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


@pytest.mark.parametrize("tau", [1, 2, 3])
def test_weights_are_estimated_every_tau_rounds_by_everybody(tau: int) -> None:
    run = fitted(fs.FedSoft(S=2, K=2, tau=tau), regression_clients(), 7)
    evaluated = [record.evaluations for record in run.history]
    assert evaluated == [2 * sum(RAGGED) if t % tau == 0 else 0 for t in range(7)]


def test_only_the_clients_drawn_work() -> None:
    before, run = fitted(fs.FedSoft(), regression_clients(), 0), fitted(fs.FedSoft(S=2, K=1), regression_clients(), 1)
    changed = (run.engine.client_states["w"] != before.engine.client_states["w"]).any(1)
    assert int(changed.sum()) == run.history[0].selected
    assert int(changed.sum()) <= 2
    assert run.history[0].gradients == sum(n for n, c in zip(RAGGED, changed.tolist(), strict=True) if c)


def test_with_K_drawn_the_center_is_their_plain_mean() -> None:
    run = fitted(fs.FedSoft(S=1, K=3), regression_clients(), 1)
    before = fitted(fs.FedSoft(S=1), regression_clients(), 0)
    w = run.engine.client_states["w"]
    drawn = (w != before.engine.client_states["w"]).any(1)
    assert int(drawn.sum()) == 3
    assert torch.allclose(run.state.centers[0], w[drawn].mean(0), atol=1e-12)


def test_everybody_works_when_all_take_part() -> None:
    assert [record.selected for record in fitted(fs.FedSoft(K="all"), regression_clients(), 3).history] == [8, 8, 8]


def test_more_draws_than_clients_need_replacement() -> None:
    with pytest.raises(InputError, match=r"K = 9 .*at most 8.*replacement"):
        fitted(fs.FedSoft(K=9), regression_clients(), 1)
    assert fitted(fs.FedSoft(K=9, replacement=True), regression_clients(), 1).rounds == 1


@pytest.mark.parametrize(
    "setting", [{"S": 0}, {"K": 0}, {"K": "some"}, {"lam": -1}, {"tau": 0}, {"sigma": 1}, {"start": "zero"}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedSoft\.{next(iter(setting))} = "):
        fs.FedSoft(**setting)


def test_a_misspelt_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="did you mean 'sigma'"):
        fs.FedSoft(sgima=0.1)  # type: ignore[call-arg]
