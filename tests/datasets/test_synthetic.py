from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.mapped import MappedRows
from fedsoft.data import memory_check
from fedsoft.errors import InputError
from fedsoft.evaluation.scores import oracle_models


def made(**settings: Any) -> tuple[Federation, Truth]:
    fed = fs.datasets.synthetic(**({"test_points": 50} | settings))
    assert fed.truth is not None
    return fed, fed.truth


def test_sizes_run_over_the_whole_range_both_ends_included() -> None:
    fed, _ = made(clients=2000, points=(3, 6), dimension=1)
    assert torch.bincount(fed.train.sizes)[3:].tolist() == pytest.approx([500] * 4, rel=0.2)
    assert set(fed.train.sizes.tolist()) == {3, 4, 5, 6}


def test_defaults_are_those_of_the_paper() -> None:
    fed, truth = made(seed=3)
    assert len(fed) == 100
    assert fed.train.sizes.min() >= 100
    assert fed.train.sizes.max() <= 200
    assert fed.shape.input == (10,)
    assert truth.mixture.tolist() == [[0.1, 0.9]] * 50 + [[0.9, 0.1]] * 50


@pytest.mark.parametrize(
    ("partition", "S"), [("10:90", 2), ("30:70", 2), ("linear", 2), ("random", 8), ("dirichlet(0.3)", 3)]
)
def test_each_clients_points_come_from_the_sources_in_its_mixture(partition: str, S: int) -> None:
    fed, truth = made(partition=partition, S=S, points=(20, 40), clients=30)
    error = (truth.fractions(fed.train) - truth.mixture).abs()
    assert bool((error <= 1 / fed.train.sizes[:, None] + 1e-9).all())
    held = fed.held_out.mean_by_client(torch.nn.functional.one_hot(truth.held_out_sources, S).double())
    assert bool(((held - truth.mixture).abs() <= 1 / fed.held_out.sizes[:, None] + 1e-9).all())


def test_points_follow_the_regression_of_their_source() -> None:
    # Without noise each source's points determine its theta exactly, and the other's points do not fit it.
    fed, truth = made(noise=0.0, clients=6, points=(20, 30), dimension=4)
    theta = oracle_models(fs.models.linear()(fed.shape), fed)
    assert theta is not None
    for x, y, sources in (
        (fed.train.x, fed.train.y, truth.train_sources),
        (fed.held_out.x, fed.held_out.y, truth.held_out_sources),
    ):
        own = (x.double() * theta[sources]).sum(1)
        other = (x.double() * theta[1 - sources]).sum(1)
        assert own.numpy() == pytest.approx(y.double().numpy(), abs=1e-4)
        assert float((other - y).abs().mean()) > 1
    for s, (x, y) in enumerate(truth.tests):
        assert (x.double() @ theta[s]).numpy() == pytest.approx(y.double().numpy(), abs=1e-4)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_noise_is_a_standard_deviation(noise: float) -> None:
    fed, truth = made(noise=noise, theta_variance=0.0, clients=50)
    assert float(fed.train.y.std()) == pytest.approx(noise, rel=0.05)
    assert truth.noise_floor == noise**2


@pytest.mark.parametrize("variance", [1.0, 10.0, 100.0])
def test_theta_has_the_variance_asked_for_and_not_its_square(variance: float) -> None:
    draws = []
    for seed in range(60):
        fed, _ = made(theta_variance=variance, noise=0.0, clients=2, points=(60, 60), test_points=1, seed=seed)
        models = oracle_models(fs.models.linear()(fed.shape), fed)
        assert models is not None
        draws.append(models.numpy())
    values = np.concatenate(draws)
    count = values.size
    assert values.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / count))
    assert values.mean() == pytest.approx(0, abs=5 * np.sqrt(variance / count))


def test_inputs_are_standard_normal() -> None:
    fed, _ = made()
    count = fed.train.x.numel()
    assert float(fed.train.x.mean()) == pytest.approx(0, abs=5 / np.sqrt(count))
    assert float(fed.train.x.var()) == pytest.approx(1, abs=5 * np.sqrt(2 / count))


def test_no_two_clients_share_a_point_nor_do_training_held_out_and_test_points() -> None:
    # The authors' code gave every client the same leading rows.
    fed, truth = made(clients=40)
    everything = torch.cat([fed.train.x, fed.held_out.x, *(x for x, _ in truth.tests)])
    assert len(torch.unique(everything, dim=0)) == len(everything)


def test_the_seed_decides_every_draw_and_nothing_else_does() -> None:
    settings = {"clients": 5, "points": (6, 9), "dimension": 2}
    (one, truth), (again, _), (other, other_truth) = made(**settings), made(**settings), made(**settings, seed=1)
    assert torch.equal(one.train.x, again.train.x)
    assert torch.equal(one.train.y, again.train.y)
    assert not torch.equal(one.train.x[:20], other.train.x[:20])
    assert not torch.equal(truth.tests[0][1], other_truth.tests[0][1])


def test_more_clients_leave_the_points_of_the_first_ones_alone() -> None:
    few, many = (made(clients=n, points=(7, 7), partition="1:1")[0] for n in (3, 6))
    assert torch.equal(few.train.x, many.train.x[: len(few.train.x)])
    assert torch.equal(few.train.y, many.train.y[: len(few.train.y)])


def test_held_out_points_are_a_share_of_n_k_on_top_of_it() -> None:
    fed, _ = made(clients=20, points=(10, 30), held_out=0.5)
    assert fed.held_out.sizes.tolist() == [n // 2 for n in fed.train.sizes.tolist()]
    assert len(made(clients=3, points=(10, 10), held_out=0.0)[0].held_out.points) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"points": (20, 10)}, r"points = \[20, 10\] is not allowed"),
        ({"clients": 0}, r"synthetic\.clients = 0 is not allowed"),
        ({"noise": -1.0}, r"synthetic\.noise = -1\.0 is not allowed"),
        ({"sources": 3}, "unknown setting of synthetic 'sources'"),
        ({"S": 3}, "needs S = 2 sources"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(**settings)


def test_points_that_would_fill_the_memory_stay_on_disk_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    here = fs.datasets.synthetic(clients=40)
    monkeypatch.setattr(memory_check, "lacking", lambda size: "too much" if size > 2e6 else None)
    there = fs.datasets.synthetic(clients=40)
    assert isinstance(there.train.x, MappedRows)
    assert not isinstance(here.train.x, MappedRows)
    assert torch.equal(there.train.x[torch.arange(len(here.train.x))], here.train.x)
    assert torch.equal(there.train.y, here.train.y)
    one, other = (fs.fit(fs.FedSoft(K=5, tau=2), each, fs.models.linear(), rounds=3) for each in (here, there))
    assert torch.equal(one.state.centers, other.state.centers)
    with pytest.raises(InputError, match="too much"):
        fs.datasets.synthetic(clients=10_000)
