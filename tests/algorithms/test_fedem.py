from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.client_draws import Draws
from fedsoft.core.model import Builder
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.algorithms.plain import drawn, least_squares, sgd
from tests.helpers import RAGGED, Pairs, class_clients, engine_for, federation, fitted, regression_clients


def drawn_centers(run: Run, S: int, seed: int = 0) -> np.ndarray:
    return torch.stack([run.model.draw(generator(seed, "center", s)) for s in range(S)]).double().numpy()


def responsibilities(x: np.ndarray, y: np.ndarray, pi: np.ndarray, theta: np.ndarray, s2: float) -> np.ndarray:
    """q_i(s), point by point."""
    q = np.empty((len(y), len(theta)))
    for i in range(len(y)):
        log = [np.log(pi[s]) - (y[i] - x[i] @ theta[s]) ** 2 / (2 * s2) for s in range(len(theta))]
        top = np.exp(np.array(log) - max(log))
        q[i] = top / top.sum()
    return q


def weighted_least_squares(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.linalg.solve((x.T * q) @ x, (x.T * q) @ y)


# --- textbook EM ------------------------------------------------------------------------------------------------------


def mixture_data(n: int, d: int, S: int, seed: int, noise: float = 0.7) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((S, d)) * 3
    x = rng.standard_normal((n, d))
    y = (x * theta[rng.integers(S, size=n)]).sum(1) + noise * rng.standard_normal(n)
    return torch.from_numpy(x), torch.from_numpy(y)


def textbook_em(x: np.ndarray, y: np.ndarray, theta: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """EM for y = <x, theta_s> + N(0, s2), s with probability pi_s; s2 starts at the mean squared residual."""
    S = len(theta)
    pi, s2 = np.full(S, 1 / S), float(np.mean([(y - x @ theta[s]) ** 2 for s in range(S)]))
    for _ in range(rounds):
        q = responsibilities(x, y, pi, theta, s2)
        pi = q.mean(0)
        theta = np.array([weighted_least_squares(x, y, q[:, s]) for s in range(S)])
        s2 = sum(float(q[:, s] @ (y - x @ theta[s]) ** 2) for s in range(S)) / len(y)
    return pi, theta, s2


@pytest.mark.parametrize("S", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 5, 25])
def test_one_client_solved_exactly_is_textbook_em(S: int, rounds: int) -> None:
    x, y = mixture_data(90, 3, S, seed=S)
    run = fitted(fs.FedEM(S=S), [(x, y)], rounds)
    pi, theta, s2 = textbook_em(x.numpy(), y.numpy(), drawn_centers(run, S), rounds)
    assert run.engine.client_states["pi"][0].numpy() == pytest.approx(pi, abs=1e-9)
    assert run.state.u[0].numpy() == pytest.approx(pi, abs=1e-9)
    assert run.state.centers.numpy() == pytest.approx(theta, abs=1e-8)
    assert float(run.state.extra["s2"]) == pytest.approx(s2, abs=1e-9)


def test_textbook_em_separates_the_sources_so_that_agreement_means_something() -> None:
    x, y = mixture_data(90, 3, 2, seed=2)
    run = fitted(fs.FedEM(S=2), [(x, y)], 25)
    # The variance falls from that of y to that of the noise, 0.49.
    assert float(y.square().mean()) > 10
    assert 0.3 < float(run.state.extra["s2"]) < 0.6


def test_clients_with_the_same_points_are_textbook_em_too() -> None:
    # Averaging their least squares is exact: each is that of the pooled points.
    x, y = mixture_data(60, 2, 2, seed=4)
    run = fitted(fs.FedEM(S=2), [(x, y)] * 3, 8)
    pooled = np.tile(x.numpy(), (3, 1)), np.tile(y.numpy(), 3)
    pi, theta, s2 = textbook_em(*pooled, drawn_centers(run, 2), 8)
    assert run.state.u.numpy() == pytest.approx(np.tile(pi, (3, 1)), abs=1e-9)
    assert run.state.centers.numpy() == pytest.approx(theta, abs=1e-8)
    assert float(run.state.extra["s2"]) == pytest.approx(s2, abs=1e-9)


def test_the_scale_of_several_outputs_is_that_of_one() -> None:
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.standard_normal((20, 3))), torch.from_numpy(rng.standard_normal((20, 2)))
    run = fitted(fs.FedEM(S=1), [(x, y)], 1, fs.SGD(lr=0.05, epochs=1, batch=100))
    error = y - x @ run.state.centers[0].view(2, 3).T
    assert float(run.state.extra["s2"]) == pytest.approx(float(error.square().mean()), abs=1e-12)


# --- the paper's loop -------------------------------------------------------------------------------------------------

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


def plain_loop(
    pairs: Pairs, c: np.ndarray, K: int, rounds: int, seed: int, scale: str, reset: bool = False
) -> tuple[np.ndarray, np.ndarray, float]:
    """Centers, mixtures and scale; `reset` is a wrong version, whose mixtures start from uniform in every round."""
    N, S = len(pairs), len(c)
    pi, s2 = np.full((N, S), 1 / S), None
    for t in range(rounds):
        new, squares, points = c.copy(), 0.0, 0
        for k in drawn(t, K, N, seed):
            x, y = (part.numpy() for part in pairs[k])
            first = float(np.mean([(y - x @ c[s]) ** 2 for s in range(S)]))
            variance = 0.5 if scale == "fixed" else first if s2 is None else s2
            q = responsibilities(x, y, np.full(S, 1 / S) if reset else pi[k], c, variance)
            pi[k] = q.mean(0)
            for s in range(S):
                w = sgd(c[s], x, y, Draws(seed, "batches", t, names=[str(k)]), SGD, q[:, s])
                new[s] += len(y) / sum(len(other) for _, other in pairs) * (w - c[s])
                squares += float(q[:, s] @ (y - x @ w) ** 2)
            points += len(y)
        c, s2 = new, squares / points
    return c, pi, 0.5 if s2 is None or scale == "fixed" else s2


@pytest.mark.parametrize("scale", ["estimated", "fixed"])
@pytest.mark.parametrize("K", [3, 8])
def test_rounds_equal_the_plain_loop(scale: Literal["estimated", "fixed"], K: int) -> None:
    pairs, rounds, seed = regression_clients(), 5, 3
    run = fitted(fs.FedEM(S=3, K=K, scale=scale), pairs, rounds, SGD, seed=seed)
    c, pi, s2 = plain_loop(pairs, drawn_centers(run, 3, seed), K, rounds, seed, scale)
    assert run.state.centers.numpy() == pytest.approx(c, abs=1e-9)
    assert run.engine.client_states["pi"].numpy() == pytest.approx(pi, abs=1e-9)
    assert torch.equal(run.state.u, run.engine.client_states["pi"])
    assert float(run.state.extra["s2"]) == pytest.approx(s2, abs=1e-9)
    assert [record.selected for record in run.history] == [K] * rounds
    assert np.abs(c - drawn_centers(run, 3, seed)).max() > 0.01


# --- traps ------------------------------------------------------------------------------------------------------------

# Half of the points of y = 4x, half of y = -4x.
HALVES = [
    (
        torch.tensor([[1.0], [1.5], [2.0], [1.0], [1.5], [2.0]]).double(),
        torch.tensor([4.0, 6.0, 8.0, -4.0, -6.0, -8.0]).double(),
    )
]


def test_every_point_has_responsibilities_of_its_own_other_than_a_whole_batch() -> None:
    run = fitted(fs.FedEM(S=2, scale="fixed"), HALVES, 1)
    c, x, y = drawn_centers(run, 2), HALVES[0][0].numpy(), HALVES[0][1].numpy()
    q = responsibilities(x, y, np.full(2, 0.5), c, 0.5)
    theta = np.array([weighted_least_squares(x, y, q[:, s]) for s in range(2)])
    assert run.engine.client_states["pi"][0].numpy() == pytest.approx(q.mean(0), abs=1e-12)
    assert run.state.centers.numpy() == pytest.approx(theta, abs=1e-9)
    assert float(run.state.centers.abs().min()) > 1
    # The wrong version: the loss of the batch decides for all its points alike. Both centers would be the same, at 0.
    loss = np.array([np.mean((y - x @ c[s]) ** 2) for s in range(2)])
    batch = np.exp(-(loss - loss.min())) / np.exp(-(loss - loss.min())).sum()
    assert weighted_least_squares(x, y, np.full(6, batch[0])) == pytest.approx([0.0], abs=1e-9)


def test_mixtures_go_on_from_the_last_round_other_than_reset_to_uniform() -> None:
    pairs, seed = regression_clients(), 3
    run = fitted(fs.FedEM(S=2, K=8), pairs, 4, SGD, seed=seed)
    first = drawn_centers(run, 2, seed)
    _, kept, _ = plain_loop(pairs, first, 8, 4, seed, "estimated")
    _, reset, _ = plain_loop(pairs, first, 8, 4, seed, "estimated", reset=True)
    assert run.engine.client_states["pi"].numpy() == pytest.approx(kept, abs=1e-9)
    assert np.abs(kept - reset).max() > 0.01


def test_clients_that_are_absent_hold_the_old_center_and_their_mixture() -> None:
    pairs = regression_clients()
    before, run = fitted(fs.FedEM(S=1, K=2), pairs, 0), fitted(fs.FedEM(S=1, K=2), pairs, 1)
    local = least_squares(pairs)
    mixtures = fitted(fs.FedEM(S=2, K=2), pairs, 1).state.u  # who is drawn does not depend on S
    answered = (mixtures != 0.5).any(1).numpy()
    assert answered.sum() == 2
    c, share = before.state.centers[0].numpy(), np.array(RAGGED) / sum(RAGGED)
    step = (share[answered, None] * (local[answered] - c)).sum(0)
    assert run.state.centers[0].numpy() == pytest.approx(c + step, abs=1e-9)
    # Divided by the points of those who answered it would be all the way to their mean.
    assert np.abs(step - step / share[answered].sum()).max() > 0.1


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [SGD, fs.Exact(), fs.Adam(epochs=2, batch=5)])
def test_with_one_center_and_everybody_it_is_fedavg(local: Any) -> None:
    one, other = (fitted(algorithm, regression_clients(), 4, local) for algorithm in (fs.FedEM(S=1), fs.FedAvg()))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-10)
    assert one.state.u.tolist() == [[1.0]] * 8


@pytest.mark.parametrize("model", [fs.models.linear(bias=True), fs.models.mlp(hidden=[4])])
def test_cross_entropy_needs_no_scale(model: Builder) -> None:
    runs = [
        fitted(fs.FedEM(S=2, K=5, scale=scale), class_clients(), 3, SGD, model=model)
        for scale in ("estimated", "fixed")
    ]
    assert all(torch.equal(value, runs[1].state.tensors()[name]) for name, value in runs[0].state.tensors().items())
    assert runs[0].history[0].evaluations == runs[1].history[0].evaluations


def test_responsibilities_of_a_classifier_are_likelihoods() -> None:
    pairs = class_clients()
    run = fitted(fs.FedEM(S=2), pairs, 1, SGD, model=fs.models.linear(bias=True))
    centers = torch.from_numpy(drawn_centers(run, 2)).view(2, 4, 4)  # 4 classes; 3 features and the bias
    for k, (x, y) in enumerate(pairs):
        inputs = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        p = (inputs @ centers.mT).softmax(-1)[:, torch.arange(len(y)), y]  # p_s(y_i | x_i), [S, n]
        assert torch.allclose(run.state.u[k], (p / p.sum(0)).mean(1), atol=1e-12)


def test_without_noise_the_scale_vanishes_and_the_sources_are_exact() -> None:
    x, y = mixture_data(80, 2, 2, seed=2, noise=0.0)
    run = fitted(fs.FedEM(S=2), [(x, y)], 60)
    residual = (y[:, None] - x @ run.state.centers.T).abs().amin(1)
    assert float(residual.max()) < 1e-6
    assert 0 < float(run.state.extra["s2"]) < 1e-12


@pytest.mark.parametrize("scale", ["estimated", "fixed"])
def test_losses_far_beyond_what_exp_can_hold_do_no_harm(scale: Literal["estimated", "fixed"]) -> None:
    pairs = [(x.float() * 1e3, y.float() * 1e5) for x, y in regression_clients()]
    run = fs.fit(
        fs.FedEM(S=3, scale=scale), federation(pairs), fs.models.linear(), rounds=5, solver=fs.Adam(epochs=1)
    )  # in float32
    assert all(bool(torch.isfinite(value).all()) for value in run.state.tensors().values())
    assert torch.allclose(run.state.u.sum(1), torch.ones(8), atol=1e-5)


def test_a_scale_that_vanished_leaves_every_point_to_its_nearest_center() -> None:
    # As after a round in which all clients fitted their points without error. Every loss is infinite in units of s2,
    # and the client has ruled out the center that is nearest now: no 0/0 may come of it.
    pairs = [(torch.ones(1, 1), torch.tensor([40.0]))]
    engine = engine_for(fs.FedEM(S=2), federation(pairs), fs.models.linear(), seed=0, solver=fs.Exact())
    with torch.no_grad():
        tiny = torch.tensor(torch.finfo(torch.float32).tiny)
        state = engine.start().update(centers=torch.tensor([[0.0], [50.0]]), extra={"s2": tiny})
        engine.client_states["pi"] = torch.tensor([[1.0, 0.0]])
        state, _ = engine.round(state, 1)
    assert state.u.tolist() == [[0.0, 1.0]]
    assert state.centers.flatten().tolist() == pytest.approx([0.0, 40.0])
    assert 0 < float(state.extra["s2"]) < 1e-12


def test_a_center_without_any_weight_at_a_client_stays_there() -> None:
    # Both points lie on one center, the other is far beyond: its weights are 0 and every model would minimise 0.
    pairs = [(torch.tensor([[1.0], [2.0]]).double(), torch.tensor([1e3, 2e3]).double())]
    engine = engine_for(
        fs.FedEM(S=2, scale="fixed"), federation(pairs), fs.models.linear(), seed=0, solver=fs.Exact(), dtype="float64"
    )
    with torch.no_grad():
        state = engine.start().update(centers=torch.tensor([[1e3], [-7.0]]).double())
        state, _ = engine.round(state, 0)
    assert state.u.tolist() == [[1.0, 0.0]]
    assert state.centers.flatten().tolist() == pytest.approx([1e3, -7.0])


def test_every_center_is_a_task_and_scales_cost_evaluations() -> None:
    estimated, fixed = (
        fitted(fs.FedEM(S=3, scale=scale), regression_clients(), 1, SGD) for scale in ("estimated", "fixed")
    )
    assert estimated.history[0].gradients == 3 * SGD.epochs * sum(RAGGED)
    assert estimated.history[0].evaluations == 6 * sum(RAGGED)
    assert fixed.history[0].evaluations == 3 * sum(RAGGED)


# --- prediction -------------------------------------------------------------------------------------------------------


def test_predictions_are_the_mixture_of_all_centers_or_the_main_one() -> None:
    pairs = regression_clients()
    run, main = (fitted(fs.FedEM(S=3, predict_with=how), pairs, 2) for how in ("mixture", "largest"))
    x, c, pi = pairs[0][0], run.state.centers, run.engine.client_states["pi"]
    for k in range(len(pairs)):
        assert torch.allclose(run.predict(x, client=k), (x @ c.T) @ pi[k], atol=1e-12)
        assert torch.allclose(main.predict(x, client=k), x @ c[pi[k].argmax()], atol=1e-12)
    # All clients at once, as in scoring.
    errors = [float((y - (x @ c.T) @ pi[k]).square().mean()) for k, (x, y) in enumerate(pairs)]
    personal = run.scores().personal_train
    assert personal is not None
    assert personal.mean == pytest.approx(np.mean(errors), abs=1e-12)


def test_a_classifier_predicts_a_mixture_of_probabilities() -> None:
    pairs = class_clients()
    run = fitted(fs.FedEM(S=2), pairs, 2, SGD, model=fs.models.mlp(hidden=[4]))
    x, pi = pairs[1][0], run.engine.client_states["pi"][1]
    expected = sum(pi[s] * run.predict(x, center=s) for s in range(2))
    assert torch.allclose(run.predict(x, client=1), torch.as_tensor(expected), atol=1e-12)


def test_networks_of_several_outputs_estimate_a_scale_too() -> None:
    pairs = [(x, torch.stack([y, -y], 1)) for x, y in regression_clients()]
    run = fitted(fs.FedEM(S=2, K=6), pairs, 3, SGD, model=fs.models.mlp(hidden=[4]))
    assert 0 < float(run.state.extra["s2"]) < 10
    assert run.predict(pairs[0][0], client=0).shape == (5, 2)


# --- recovery ---------------------------------------------------------------------------------------------------------


def recovered(partition: str, seed: int, rounds: int, **data: Any) -> tuple[np.ndarray, float]:
    """Test error of the best center for each source, and the error of the mixtures."""
    fed = fs.datasets.synthetic(partition=partition, seed=seed, **data)
    run = fs.fit(fs.FedEM(S=2), fed, fs.models.linear(), rounds=rounds, seed=seed)
    scores = run.scores()
    assert scores.alignment is not None
    assert scores.recovery is not None
    assert sorted(scores.alignment) == [0, 1]
    return np.array(scores.centers).min(0), scores.recovery


def test_sources_and_mixtures_are_found() -> None:
    errors, mixture = recovered("linear", 0, 30, clients=30)
    assert (errors < 1.2).all()  # the noise alone is 1
    assert mixture < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("partition", ["10:90", "linear", "random"])
def test_sources_and_mixtures_are_found_at_the_papers_size(partition: str, seed: int) -> None:
    errors, mixture = recovered(partition, seed, 50)
    assert (errors < 1.1).all()
    assert mixture < 0.02


@pytest.mark.parametrize("setting", [{"S": 0}, {"K": 0}, {"scale": "free"}, {"predict_with": "smallest"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedEM\.{next(iter(setting))} = "):
        fs.FedEM(**setting)
