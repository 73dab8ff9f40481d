from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.federation import DataShape, Federation, Truth
from fedsoft.core.metrics import ACCURACY, MSE
from fedsoft.evaluation.scores import (
    align,
    center_scores,
    center_usage,
    oracle_models,
    oracle_scores,
    recovery,
    score,
    weights_by_source,
)
from fedsoft.evaluation.spread import Spread

# --- a number per client ----------------------------------------------------------------------------------------------


def test_the_worst_decile_is_the_mean_of_the_largest_errors_or_of_the_smallest_accuracies() -> None:
    values = torch.arange(20.0)[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    error, accuracy = Spread.of(values, MSE), Spread.of(values, ACCURACY)
    assert error == Spread(mean=9.5, median=9.5, worst_decile=18.5, clients=20, std=np.arange(20.0).std())
    assert accuracy == Spread(mean=9.5, median=9.5, worst_decile=0.5, clients=20, std=np.arange(20.0).std())


def test_few_clients_have_at_least_one_in_the_worst_decile() -> None:
    spread = Spread.of(torch.tensor([1.0, 5.0, 3.0]), MSE)
    assert spread == Spread(mean=3.0, median=3.0, worst_decile=5.0, clients=3, std=float(np.std([1.0, 3.0, 5.0])))


def test_clients_without_a_value_do_not_count() -> None:
    nan = float("nan")
    assert Spread.of(torch.tensor([nan, 1.0, 3.0, nan]), MSE) == Spread(2.0, 2.0, 3.0, 2, 1.0)
    assert Spread.of(torch.tensor([nan, nan]), MSE) is None


# --- which center stands for which source -----------------------------------------------------------------------------


def test_alignment_undoes_a_permutation_of_the_centers() -> None:
    errors = np.array([[1.0, 9.0, 8.0], [7.0, 2.0, 9.0], [9.0, 8.0, 1.0]])
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert align(errors[order], higher_is_better=False) == order
        assert align(1 - errors[order] / 10, higher_is_better=True) == order


def test_alignment_is_one_to_one_even_if_one_center_serves_all_sources_best() -> None:
    assert align(np.array([[1.0, 2.0], [3.0, 9.0]]), higher_is_better=False) == [1, 0]


def test_centers_left_over_stand_for_the_source_they_serve_best() -> None:
    errors = np.array([[5.0, 9.0], [1.0, 9.0], [9.0, 1.0], [9.0, 4.0]])
    assert align(errors, higher_is_better=False) == [0, 0, 1, 1]


def test_with_fewer_centers_than_sources_each_stands_for_another_source() -> None:
    assert align(np.array([[9.0, 1.0, 2.0], [9.0, 3.0, 5.0]]), higher_is_better=False) == [2, 1]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_alignment_uses_each_source_once_before_any_twice(centers: int, sources: int, seed: int) -> None:
    alignment = align(np.random.default_rng(seed).random((centers, sources)), higher_is_better=False)
    assert len(alignment) == centers
    assert len(set(alignment)) == min(centers, sources)


# --- recovery of the mixture ------------------------------------------------------------------------------------------

MIXTURE = torch.tensor([[0.1, 0.9], [0.7, 0.3]], dtype=torch.float64)


def test_recovery_is_0_for_the_true_mixture_in_the_order_of_the_centers() -> None:
    assert recovery(MIXTURE[:, [1, 0]], MIXTURE, [1, 0]) == pytest.approx(0)
    assert recovery(MIXTURE[:, [1, 0]], MIXTURE, [0, 1]) == pytest.approx((0.8 + 0.4) / 2)


def test_recovery_ignores_that_rows_may_sum_to_more_than_1() -> None:
    assert recovery(MIXTURE * 1.25, MIXTURE, [0, 1]) == pytest.approx(0)


def test_recovery_adds_up_the_centers_that_stand_for_one_source() -> None:
    u = torch.tensor([[0.05, 0.9, 0.05], [0.5, 0.3, 0.2]], dtype=torch.float64)
    assert recovery(u, MIXTURE, [0, 1, 0]) == pytest.approx(0)


def test_recovery_counts_a_source_without_a_center_as_missed() -> None:
    assert recovery(torch.ones(2, 1, dtype=torch.float64), MIXTURE, [1]) == pytest.approx((0.1 + 0.1 + 0.7 + 0.7) / 4)


def test_weights_by_source_are_means_over_the_clients_of_that_majority() -> None:
    truth = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    u = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    assert weights_by_source(u, truth) == [[0.5, 0.5], [0.5, 0.5]]
    assert weights_by_source(u[:1], truth[:1]) == [[1.0, 0.0], []]


# --- scores of centers ------------------------------------------------------------------------------------------------


def test_center_scores_are_the_mean_metric_of_each_center_on_each_source() -> None:
    model = fs.models.linear()(DataShape("regression", (1,), 1))
    x = torch.tensor([[1.0], [2.0]])
    tests = [(x, x[:, 0] * 3), (x, x[:, 0] * 0)]
    # Errors of w = 3 and w = 1: (0 + 0)/2, (9 + 36)/2; (4 + 16)/2, (1 + 4)/2.
    assert center_scores(model, torch.tensor([[3.0], [1.0]]), tests).tolist() == [[0.0, 22.5], [10.0, 2.5]]


def test_center_scores_of_classes_are_accuracies() -> None:
    model = fs.models.linear()(DataShape("classification", (1,), 2))
    x, y = torch.tensor([[1.0], [2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0, 0])
    centers = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # class 1 where x > 0, and the reverse
    assert center_scores(model, centers, [(x, y)]).tolist() == [[0.75], [0.25]]


def classes_federation() -> Federation:
    """Two sources that label by the sign of x, one of them the wrong way round; both clients have a known truth."""
    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]])
    y = (x[:, 0] > 0).long()
    fed = Federation.from_clients([(x, y), (x, 1 - y)], held_out=0.0)
    sources = torch.tensor([0] * 4 + [1] * 4)
    tests = ((x, y), (x, 1 - y))
    return replace(fed, truth=Truth(torch.eye(2).double(), sources, sources[:0], tests, ("right", "wrong")))


def test_scores_of_classes_take_the_higher_accuracy_as_the_better() -> None:
    fed = classes_federation()
    model = fs.models.linear()(fed.shape)
    centers = torch.tensor([[5.0, -5.0], [-5.0, 5.0]])  # center 0 is right for source 1
    u = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    scores = score(fed, model, centers, u, torch.tensor([0.5, 1.0]), torch.tensor([float("nan")] * 2))
    assert (scores.metric, scores.higher_is_better, scores.sources) == ("accuracy", True, ["right", "wrong"])
    assert scores.centers == [[0.0, 1.0], [1.0, 0.0]]
    assert scores.alignment == [1, 0]
    assert scores.best == [1, 0]
    assert scores.recovery == pytest.approx(0)
    assert scores.personal_train == Spread(0.75, 0.75, 0.5, 2, 0.25)
    assert scores.personal_held_out is None
    assert scores.oracle is None  # no closed form


def test_without_a_truth_only_personal_models_are_scored() -> None:
    fed = replace(classes_federation(), truth=None)
    model = fs.models.linear()(fed.shape)
    scores = score(fed, model, torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2), torch.ones(2))
    assert (scores.centers, scores.alignment, scores.best, scores.recovery, scores.oracle) == (None,) * 5
    assert scores.personal_train == Spread(1.0, 1.0, 1.0, 2)


# --- the oracle -------------------------------------------------------------------------------------------------------


def test_the_oracle_is_least_squares_on_the_points_of_each_source() -> None:
    fed = fs.datasets.synthetic(clients=10, points=(20, 30), dimension=4, test_points=50, seed=0)
    assert fed.truth is not None
    models = oracle_models(fs.models.linear()(fed.shape), fed)
    assert models is not None
    for s in range(2):
        mine = (fed.truth.train_sources == s).numpy()
        least = np.linalg.lstsq(fed.train.x.double().numpy()[mine], fed.train.y.double().numpy()[mine])[0]
        assert models[s].numpy() == pytest.approx(least, abs=1e-8)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_the_oracle_comes_near_the_noise_floor_and_not_below(noise: float) -> None:
    fed = fs.datasets.synthetic(noise=noise, test_points=4000, seed=1)
    assert fed.truth is not None
    found = oracle_scores(fs.models.linear()(fed.shape), fed)
    assert found is not None
    assert fed.truth.noise_floor == noise**2
    # Some 7,500 points for 10 parameters add a thousandth; a mean over 4,000 squares spreads by sqrt(2 / 4000).
    assert found[0] == pytest.approx([noise**2] * 2, rel=5 * np.sqrt(2 / 4000))


def test_the_scale_of_errors_is_the_mean_squared_distance_between_sources() -> None:
    fed = fs.datasets.synthetic(partition="random", S=3, noise=0.0, clients=20, test_points=10, seed=0)
    model = fs.models.linear()(fed.shape)
    found, models = oracle_scores(model, fed), oracle_models(model, fed)
    assert found is not None
    assert models is not None
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert found[1] == pytest.approx(np.mean([float(((models[i] - models[j]) ** 2).sum()) for i, j in pairs]), rel=1e-6)


def test_a_source_without_points_has_no_oracle() -> None:
    fed = fs.datasets.synthetic(partition="0:1", clients=1, points=(5, 5), dimension=2, test_points=5)
    assert oracle_scores(fs.models.linear()(fed.shape), fed) is None


def test_a_run_is_scored_by_its_own_centers_and_weights() -> None:
    fed = fs.datasets.synthetic(clients=10, points=(20, 30), dimension=3, test_points=200, seed=0)
    run = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=10, solver=fs.Exact())
    scores = run.scores()
    assert fed.truth is not None
    assert scores.centers is not None
    assert scores.alignment is not None
    for s in range(2):
        for j, (x, y) in enumerate(fed.truth.tests):
            assert scores.centers[s][j] == pytest.approx(float(((x @ run.state.centers[s] - y) ** 2).mean()), rel=1e-5)
    assert run.history[-1].centers == scores.centers
    x, y = fed.held_out.client(4)
    own = float(((run.predict(x, client=4) - y) ** 2).mean())
    errors = run.engine.personal_scores(run.state, fed.held_out)
    assert float(errors[4]) == pytest.approx(own, rel=1e-5)


@pytest.mark.parametrize("model", [fs.models.digits_cnn(), fs.models.mlp(hidden=[4])], ids=["cnn", "mlp"])
def test_a_method_without_centers_is_scored(model: Any) -> None:
    fed = fs.datasets.digits(clients=3, points=(10, 12), rotations=[0, 90], seed=0)
    run = fs.fit(fs.Local(), fed, model, rounds=1, solver=fs.SGD(epochs=1))
    assert run.scores().centers is None
    personal = run.scores().personal_train
    assert personal is not None
    assert personal.clients == 3


def test_what_clients_make_of_centers_needs_no_truth() -> None:
    """Two centers y = x and y = -x, three clients: two of the first kind, one of the second, 2, 1 and 3 points."""
    x = [[[1.0], [2.0]], [[3.0]], [[1.0], [1.0], [4.0]]]
    y = [[1.0, 2.0], [3.0], [-1.0, -1.0, -3.0]]
    fed = Federation.from_clients([(np.array(a), np.array(b)) for a, b in zip(x, y, strict=True)], held_out=0)
    model = fs.models.linear(bias=False)(fed.shape)
    u = torch.tensor([[0.9, 0.1], [0.8, 0.4], [0.2, 0.8]])  # rows may sum to a little more than 1
    first, second = center_usage(model, torch.tensor([[1.0], [-1.0]]), u, fed)
    assert first.share == pytest.approx((0.9 * 2 + 0.8 / 1.2 + 0.2 * 3) / 6)
    assert (first.clients, second.clients) == (2, 1)
    assert first.on_own == 0
    assert second.on_own == pytest.approx(1 / 3)
    assert first.on_all == pytest.approx((4 + 4 + 49) / 6)
    alone = center_usage(model, torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, 0.0]] * 3), fed)
    assert (alone[1].clients, alone[1].on_own, alone[1].share) == (0, None, 0)


def test_runs_on_own_data_log_what_clients_make_of_centers() -> None:
    draw = np.random.default_rng(0)
    fed = Federation.from_clients([(draw.normal(size=(20, 3)), draw.normal(size=20)) for _ in range(4)])
    run = fs.fit(
        fs.FedSoft(S=2),
        fed,
        fs.models.linear(),
        rounds=3,
        solver=fs.SGD(epochs=1),
        options=fs.FitOptions(score_every=2),
    )
    assert [bool(record.served) for record in run.history] == [True, False, True]
    uses = run.scores().served
    assert uses is not None
    assert sum(use.clients for use in uses) == 4
    assert sum(use.share for use in uses) == pytest.approx(1)
    assert run.history[-1].served[0].on_all == pytest.approx(uses[0].on_all)


def test_scores_print_as_a_few_lines() -> None:
    fed = fs.datasets.synthetic(clients=10, test_points=50, seed=0)
    told = str(fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=2).scores()).splitlines()
    assert [line.split(" ")[0] for line in told] == [
        "mse",
        "mse",
        "center",
        "center",
        "mse",
        "mse",
        "mean",
        "mse",
        "mse",
        "what",
        "what",
    ]
    assert told[0].count("*") == 2  # one mark, and what it means
    assert "oracle" in told[0]
    assert "noise floor 1" in told[1]
    assert told[6].startswith("mean |u - true share| = ")
    alone = [(torch.randn(9, 2), torch.arange(9) % 2) for _ in range(4)]
    run = fs.fit(fs.FedSoft(S=2), fs.Federation.from_clients(alone), fs.models.linear(), rounds=1)
    assert str(run.scores()).startswith("center 0: ")
