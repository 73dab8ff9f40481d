from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import APART, chosen, drawn, least_squares, local_sgd
from tests.helpers import RAGGED, Pairs, federation, fitted, regression_clients, silent


def mean_loss(pair: tuple[Tensor, Tensor], c: np.ndarray) -> float:
    x, y = (part.numpy() for part in pair)
    return float(np.mean((y - x @ c) ** 2))


def in_order(models: np.ndarray) -> np.ndarray:
    return np.array(sorted(models.tolist()))


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_a_center_moves_along_its_members_mean_change_weighted_by_points(lr: float) -> None:
    pairs = regression_clients()
    run = fitted(fs.HypCluster(S=2, server_lr=lr), pairs, 1, begun={"centers": APART})
    c, local, n = APART.numpy(), least_squares(pairs), np.array(RAGGED)
    chosen = np.array([np.argmin([mean_loss(pair, c[s]) for s in range(2)]) for pair in pairs])
    assert 0 < chosen.sum() < len(pairs)
    assert run.state.u.argmax(1).tolist() == run.engine.client_states["s"].tolist() == chosen.tolist()
    for s in range(2):
        change = np.average(local[chosen == s] - c[s], axis=0, weights=n[chosen == s])
        assert run.state.centers[s].numpy() == pytest.approx(c[s] + lr * change, abs=1e-9)
        # Not weighted, as in IFCA, it would be another center.
        assert np.abs(change - (local[chosen == s] - c[s]).mean(0)).max() > 0.01


def test_momentum_carries_the_last_change_on() -> None:
    # One center, and clients that always find the same model w: c = c + m, m = 1/2 m + (w - c), by hand.
    x = torch.tensor([[1.0], [2.0]]).double()
    run = fitted(
        fs.HypCluster(S=1, server_momentum=0.5),
        [(x, 4 * x[:, 0])] * 2,
        3,
        begun={"centers": torch.zeros(1, 1).double()},
    )
    # round 0: m = 4, c = 4; round 1: m = 2 + 0, c = 6; round 2: m = 1 - 2, c = 5
    assert float(run.state.centers) == pytest.approx(5.0)
    assert float(run.state.extra["momentum"]) == pytest.approx(-1.0)


# --- the paper's loop -------------------------------------------------------------------------------------------------

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


def plain_loop(
    pairs: Pairs, c: list[np.ndarray], t0: int, rounds: int, K: int, seed: int, lr: float, momentum: float
) -> tuple[list[np.ndarray], dict[int, int]]:
    """Rounds t0 to the end: centers, and the last choice of each client."""
    S, m, choice = len(c), [np.zeros_like(center) for center in c], {}
    for t in range(t0, rounds):
        ids = drawn(t, K, len(pairs), seed)
        for k in ids:
            choice[k] = int(np.argmin([mean_loss(pairs[k], c[s]) for s in range(S)]))
        moved = list(c)
        for s in range(S):
            change, points = np.zeros_like(c[s]), 0
            for k in ids:
                if choice[k] == s:
                    n = len(pairs[k][1])
                    change += n * (local_sgd(c[s], pairs[k], k, t, SGD, seed) - c[s])
                    points += n
            if points:
                m[s] = momentum * m[s] + change / points
                moved[s] = c[s] + lr * m[s]
        c = moved
    return c, choice


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.6)])
@pytest.mark.parametrize("S", [1, 3])
def test_rounds_with_few_participants_equal_the_plain_loop(S: int, lr: float, momentum: float) -> None:
    pairs, K, seed, rounds = regression_clients(), 4, 3, 6
    run = fitted(fs.HypCluster(S=S, K=K, server_lr=lr, server_momentum=momentum), pairs, rounds, SGD, seed=seed)
    first = [run.model.draw(generator(seed, "center", s)).double().numpy() for s in range(S)]
    c, choice = plain_loop(pairs, first, 0, rounds, K, seed, lr, momentum)
    assert run.state.centers.numpy() == pytest.approx(np.array(c), abs=1e-9)
    assert {k: int(run.engine.client_states["s"][k]) for k in choice} == choice
    assert [record.selected for record in run.history] == [K] * rounds


@pytest.mark.parametrize("K", [4, 8])
@pytest.mark.parametrize("rounds", [1, 4])
def test_rounds_from_spread_centers_equal_the_plain_loop(K: int, rounds: int) -> None:
    pairs, S, seed = regression_clients(), 3, 5
    run = fitted(fs.HypCluster(S=S, K=K, first="spread"), pairs, rounds, SGD, seed=seed)
    # Round 0: train from one draw, pick one model, then again and again the model of the client served worst.
    start = run.model.draw(generator(seed, "center", 0)).double().numpy()
    ids = drawn(0, K, 8, seed)
    models = {k: local_sgd(start, pairs[k], k, 0, SGD, seed) for k in ids}
    picked = chosen(seed, 0, [1.0 if k in ids else 0.0 for k in range(8)], 1, "first")
    while len(picked) < S:
        best = {k: min(mean_loss(pairs[k], models[j]) for j in picked) for k in ids if k not in picked}
        picked.append(max(best, key=lambda k: best[k]))
    c, choice = plain_loop(pairs, [models[k] for k in picked], 1, rounds, K, seed, 1.0, 0.0)
    assert run.state.centers.numpy() == pytest.approx(np.array(c), abs=1e-9)
    if rounds == 1:  # and who is nearest to which of them is known at once
        choice = {k: int(np.argmin([mean_loss(pairs[k], models[j]) for j in picked])) for k in ids}
        assert {k for k in range(8) if bool(run.state.u[k].max() == 1)} == set(ids)
    assert {k: int(run.engine.client_states["s"][k]) for k in choice} == choice
    evaluations = sum(RAGGED[k] for k in ids) * (1 + 1 + 2 + 3)
    assert run.history[0].evaluations == evaluations


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [SGD, fs.Exact()])
def test_with_one_center_it_is_fedavg(local: Any) -> None:
    one, other = (
        fitted(algorithm, regression_clients(), 4, local) for algorithm in (fs.HypCluster(S=1, K=5), fs.FedAvg(K=5))
    )
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-10)


def test_with_clients_of_one_size_it_is_ifca_and_with_others_it_is_not() -> None:
    for sizes, same in (([9] * 8, True), (RAGGED, False)):
        one, other = (
            fitted(a, regression_clients(sizes), 3, SGD, begun={"centers": APART})
            for a in (fs.HypCluster(S=2), fs.IFCA(S=2))
        )
        assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12) == same


def test_a_center_that_nobody_joins_stays_and_so_does_its_momentum() -> None:
    pairs = regression_clients()
    algorithm = fs.HypCluster(S=2, server_momentum=0.9)
    # Both centers move in round 0; then those of the second are silent.
    chosen = fitted(algorithm, pairs, 1, SGD, begun={"centers": APART}).engine.client_states["s"].tolist()
    second = [str(k) for k in range(8) if chosen[k] == 1]
    runs = [
        fitted(
            algorithm,
            pairs,
            rounds,
            SGD,
            begun={"centers": APART},
            dropout=silent(lambda job, t, name: name in second and t > 0),
        )
        for rounds in (1, 4)
    ]
    one, four = (run.state.tensors() for run in runs)
    for name in ("centers", "extra.momentum"):
        assert torch.equal(one[name][1], four[name][1])
        assert not torch.equal(one[name][0], four[name][0])
    assert bool(runs[0].state.extra["momentum"][1].abs().max() > 0)


# --- spread centers ---------------------------------------------------------------------------------------------------


def test_spread_centers_are_models_of_different_clients() -> None:
    pairs = regression_clients()
    run = fitted(fs.HypCluster(S=8, first="spread"), pairs, 1)
    assert in_order(run.state.centers.numpy()) == pytest.approx(in_order(least_squares(pairs)), abs=1e-9)


def test_more_centers_than_clients_keep_their_draws() -> None:
    pairs = regression_clients((5, 6, 7))
    run, before = (fitted(fs.HypCluster(S=5, first="spread"), pairs, rounds) for rounds in (1, 0))
    assert torch.equal(run.state.centers[3:], before.state.centers[3:])
    assert in_order(run.state.centers[:3].numpy()) == pytest.approx(in_order(least_squares(pairs)), abs=1e-9)
    assert run.state.u[:, 3:].sum() == 0


def test_when_nobody_answers_centers_are_spread_in_the_next_round() -> None:
    pairs = regression_clients()
    silence = silent(lambda job, t, name: t == 0)
    waiting, late = (fitted(fs.HypCluster(S=8, first="spread"), pairs, r, dropout=silence) for r in (1, 2))
    assert bool(waiting.state.extra["spread"])
    assert torch.equal(waiting.state.centers, fitted(fs.HypCluster(S=8), pairs, 0).state.centers)
    assert not bool(late.state.extra["spread"])
    assert in_order(late.state.centers.numpy()) == pytest.approx(in_order(least_squares(pairs)), abs=1e-9)


def test_when_nobody_judges_the_spread_is_tried_again_from_the_same_draws() -> None:
    pairs = regression_clients()
    deaf = silent(lambda job, t, name: job == "judge" and t == 0)
    run, late, before = (fitted(fs.HypCluster(S=3, first="spread"), pairs, r, dropout=deaf) for r in (1, 2, 0))
    assert torch.equal(run.state.centers, before.state.centers)
    assert bool(run.state.extra["spread"])
    assert not bool(late.state.extra["spread"])


def test_the_first_pick_and_the_spread_do_not_depend_on_the_order_of_clients() -> None:
    pairs, order = regression_clients(), [4, 0, 7, 2, 1, 6, 3, 5]
    names = [f"client {k}" for k in range(8)]
    runs = [
        fitted(
            fs.HypCluster(S=3, K=6, first="spread"),
            federation([pairs[k] for k in ids], [names[k] for k in ids]),
            3,
            SGD,
        )
        for ids in (list(range(8)), order)
    ]
    assert torch.allclose(runs[0].state.centers, runs[1].state.centers, atol=1e-9)
    assert torch.equal(runs[0].state.u[order], runs[1].state.u)


@pytest.mark.parametrize("first", ["draw", "spread"])
def test_spread_centers_part_the_sources_where_drawn_ones_do_not(first: Any) -> None:
    # From the draws of this seed every client finds the same center better, and the other is never trained.
    fed = fs.datasets.synthetic(partition="10:90", seed=6)
    run = fs.fit(fs.HypCluster(S=2, first=first), fed, fs.models.linear(), rounds=10, seed=6)
    scores = run.scores()
    assert scores.recovery is not None
    assert sorted(run.state.u.sum(0).tolist()) == ([0, 100] if first == "draw" else [50, 50])
    # 0.1 is what choosing one source for a client of 10:90 must miss by.
    assert (scores.recovery < 0.11) == (first == "spread")


@pytest.mark.parametrize(
    "setting",
    [{"S": 0}, {"K": 0}, {"first": "zero"}, {"server_lr": 0}, {"server_momentum": 1}, {"server_momentum": -1}],
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"HypCluster\.{next(iter(setting))} = "):
        fs.HypCluster(**setting)
