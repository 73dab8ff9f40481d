from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import drawn, least_squares, local_sgd
from tests.helpers import engine_for, federation, fitted, regression_clients, silent

# --- the first round --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S", [1, 2, 3])
def test_the_first_centers_are_those_of_k_means(S: int) -> None:
    pairs = regression_clients()
    run = fitted(fs.FeSEM(S=S, K=2), pairs, 1)
    models, s = least_squares(pairs), run.state.per_client["s"].numpy()
    plain: Any = KMeans(S, n_init=50, random_state=0).fit(models)  # pyright: ignore[reportArgumentType]
    within = 0.0
    for j in range(S):
        center = models[s == j].mean(0)  # not weighted by n_k
        assert run.state.centers[j].numpy() == pytest.approx(center, abs=1e-9)
        within += float(((models[s == j] - center) ** 2).sum())
    assert within == pytest.approx(plain.inertia_, abs=1e-9)
    assert torch.equal(run.state.u.argmax(1), run.state.per_client["s"])
    assert bool((run.state.u.sum(1) == 1).all())
    assert run.history[0].answered == 8  # everybody, whatever K is


def test_everybody_trains_from_one_common_draw() -> None:
    slow = fs.SGD(lr=1e-12, epochs=1, batch=100)  # hardly moves: the model found is where the solve started
    pairs = regression_clients()
    run = fitted(fs.FeSEM(S=2), pairs, 1, slow)
    start = run.model.draw(generator(0, "center", 0)).double()
    assert torch.allclose(run.state.centers, start.expand(2, -1), atol=1e-9)
    assert torch.equal(fitted(fs.FeSEM(S=2), pairs, 0).state.centers, start.repeat(2, 1))


@pytest.mark.parametrize("S", [2, 5, 9])
def test_more_centers_than_different_models_keep_the_draw(S: int) -> None:
    # Four clients, two and two with the same points: k-means would complain of more clusters than models.
    one, other = regression_clients()[1:3]
    run, before = (fitted(fs.FeSEM(S=S), [one, other, one, other], rounds) for rounds in (3, 0))
    s = run.state.per_client["s"].tolist()
    assert s == [s[0], 1 - s[0]] * 2
    assert {s[0], s[1]} == {0, 1}
    assert run.state.centers[s[:2]].numpy() == pytest.approx(least_squares([one, other]), abs=1e-9)
    assert torch.equal(run.state.centers[2:], before.state.centers[2:])


def test_when_nobody_answers_the_next_round_is_the_first() -> None:
    pairs = regression_clients()
    silence = silent(lambda job, t, name: t == 0)
    waiting, late = (fitted(fs.FeSEM(S=2, K=3), pairs, rounds, dropout=silence) for rounds in (1, 2))
    assert waiting.state.per_client["s"].tolist() == [-1] * 8
    assert torch.equal(waiting.state.centers, fitted(fs.FeSEM(S=2), pairs, 0).state.centers)
    assert late.history[1].answered == 8
    assert sorted(set(late.state.per_client["s"].tolist())) == [0, 1]


# --- the paper's loop -------------------------------------------------------------------------------------------------

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


@pytest.mark.parametrize("S", [1, 2, 3])
@pytest.mark.parametrize("missed", [[], ["1", "4", "6"]])
def test_rounds_with_few_participants_equal_the_plain_loop(S: int, missed: list[str]) -> None:
    pairs, K, seed, rounds = regression_clients(), 4, 3, 7
    away = silent(lambda job, t, name: name in missed and t == 0)
    begun, run = (fitted(fs.FeSEM(S=S, K=K), pairs, r, SGD, seed=seed, dropout=away) for r in (1, rounds))
    # From the outcome of k-means on, one client after the other.
    c, s = list(begun.state.centers.numpy()), begun.state.per_client["s"].tolist()
    assert [str(k) for k in range(8) if s[k] < 0] == missed
    joined = 0
    for t in range(1, rounds):
        members: list[list[np.ndarray]] = [[] for _ in range(S)]
        for k in drawn(t, K, 8, seed):
            joined += s[k] < 0
            start = c[s[k]] if s[k] >= 0 else sum(c) / S
            w = local_sgd(np.asarray(start), pairs[k], k, t, SGD, seed)
            s[k] = int(np.argmin([np.linalg.norm(w - c[j]) for j in range(S)]))
            members[s[k]].append(w)
        c = [np.mean(members[j], axis=0) if members[j] else c[j] for j in range(S)]
    assert joined == len(missed)
    assert run.state.per_client["s"].tolist() == s
    assert run.state.centers.numpy() == pytest.approx(np.array(c), abs=1e-9)
    assert [record.selected for record in run.history] == [8] + [K] * (rounds - 1)
    assert sum(record.evaluations for record in run.history) == 0


# --- by hand, and limits ----------------------------------------------------------------------------------------------


def test_a_round_of_two_clients_by_hand() -> None:
    # Their models are 1 and 4. Client 0 belonged to the center at 9, but the center at 2 is nearer to its model; so it
    # is to the model of client 1, and the center at 9 has no members left.
    pairs = [(torch.ones(2, 1).double(), torch.full((2,), v).double()) for v in (1.0, 4.0)]
    begun = {"centers": torch.tensor([[2.0], [9.0]]).double(), "per_client": {"s": torch.tensor([1, 0])}}
    run = fitted(fs.FeSEM(S=2), pairs, 1, begun=begun)
    assert run.state.per_client["s"].tolist() == [0, 0]
    assert run.state.centers.flatten().tolist() == pytest.approx([2.5, 9.0])
    assert run.state.u.tolist() == [[1.0, 0.0]] * 2


def test_with_one_center_and_clients_of_one_size_it_is_fedavg() -> None:
    pairs = regression_clients([9] * 6)
    one, other = (fitted(algorithm, pairs, 5, SGD) for algorithm in (fs.FeSEM(S=1), fs.FedAvg()))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)


def test_clients_of_different_sizes_count_alike_other_than_in_fedavg() -> None:
    one, other = (fitted(algorithm, regression_clients(), 1) for algorithm in (fs.FeSEM(S=1), fs.FedAvg()))
    assert float((one.state.centers - other.state.centers).abs().max()) > 0.01


def test_clients_predict_with_their_center_and_new_clients_with_the_mean_of_all() -> None:
    pairs = regression_clients()
    run = fitted(fs.FeSEM(S=2), pairs, 2, SGD, dropout=silent(lambda job, t, name: name == "3"))
    c, s, x = run.state.centers, run.state.per_client["s"].tolist(), pairs[0][0]
    assert s[3] == -1
    assert run.state.u[3].tolist() == [0.5, 0.5]
    for k in range(8):
        assert torch.allclose(run.predict(x, client=k), x @ (c.mean(0) if k == 3 else c[s[k]]), atol=1e-12)


def test_centers_close_together_are_still_told_apart() -> None:
    # Far from 0 and 1e-3 apart: distances by a product of matrices would be rounding (here in float32, over 25 models).
    pairs = [(torch.ones(2, 1), torch.full((2,), 1000.0 + (k % 2) * 1e-3)) for k in range(30)]
    engine = engine_for(fs.FeSEM(S=2), federation(pairs), fs.models.linear(), seed=0, solver=fs.Exact())
    centers, s = torch.tensor([[1000.0], [1000.001]]), torch.zeros(30, dtype=torch.int64)
    with torch.no_grad():
        state, _ = engine.round(engine.start().update(centers=centers, per_client={"s": s}), 1)
    assert state.per_client["s"].tolist() == [0, 1] * 15


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_clients_of_one_source_each_are_told_apart_exactly() -> None:
    rng = np.random.default_rng(0)
    theta = torch.tensor([[3.0, -2.0], [-1.0, 4.0], [5.0, 5.0]]).double()
    x = [torch.from_numpy(rng.standard_normal((20, 2))) for _ in range(9)]
    run = fitted(fs.FeSEM(S=3), [(x[k], x[k] @ theta[k % 3]) for k in range(9)], 3)
    s = run.state.per_client["s"].tolist()
    assert s == s[:3] * 3
    assert sorted(s[:3]) == [0, 1, 2]
    assert torch.allclose(run.state.centers[s[:3]], theta, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("partition", ["10:90", "linear"])
def test_the_main_source_of_clients_is_found(partition: str, seed: int) -> None:
    fed = fs.datasets.synthetic(partition=partition, seed=seed, clients=50)
    run = fs.fit(fs.FeSEM(S=2), fed, fs.models.linear(), rounds=10, seed=seed)
    truth, scores = fed.truth, run.scores()
    assert truth is not None
    assert scores.alignment is not None
    shares = truth.fractions(fed.train)
    source = torch.tensor(scores.alignment)[run.state.per_client["s"]]
    assert bool((source == shares.argmax(1))[shares.amax(1) > 0.7].all())


@pytest.mark.parametrize("setting", [{"S": 0}, {"K": 0}, {"K": "some"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FeSEM\.{next(iter(setting))} = "):
        fs.FeSEM(**setting)
