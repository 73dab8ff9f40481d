from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.core.contract import State
from fedsoft.errors import InputError
from tests.algorithms.plain import drawn, groups, least_squares, of_one_source, of_source
from tests.helpers import Pairs, engine_for, federation, fitted, silent

THETA = torch.tensor([[9.0, 1.0, 0.0], [-2.0, 9.0, 1.0], [0.0, -3.0, 9.0]]).double()
SOURCES = [2, 0, 1, 0, 2, 1, 1, 0]
SIZES = [6 + k for k in range(len(SOURCES))]


def clients(noise: float = 1.0) -> Pairs:
    """One source each, 6 to 13 points."""
    return of_one_source(THETA, SOURCES, SIZES, noise)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_first_rounds_by_hand() -> None:
    pairs = clients()
    w, n = torch.from_numpy(least_squares(pairs)), torch.tensor(SIZES).double()
    first, formed, trained = (fitted(fs.FedGroup(S=3), pairs, rounds) for rounds in (0, 1, 2))
    common = first.state.extra["common"]
    assert torch.equal(first.state.centers, common.repeat(3, 1))
    assert groups(formed) == groups(trained) == of_source(SOURCES)
    for s in range(3):
        own = formed.state.per_client["s"] == s
        # A group's first model is the common one plus the PLAIN mean of its updates; later means are by n_k.
        assert torch.allclose(formed.state.centers[s], w[own].mean(0), atol=1e-9)
        assert torch.allclose(formed.state.extra["deltas"][s], w[own].mean(0) - common[0], atol=1e-9)
        assert torch.allclose(trained.state.centers[s], n[own] @ w[own] / n[own].sum(), atol=1e-9)
    assert torch.equal(formed.state.u, torch.nn.functional.one_hot(formed.state.per_client["s"]).double())
    # Groups are numbered by their mean update, in lexicographic order.
    assert formed.state.extra["deltas"][:, 0].tolist() == sorted(formed.state.extra["deltas"][:, 0].tolist())


def test_features_are_cosines_to_the_first_singular_directions() -> None:
    # The two long updates along the first axis are the first direction, (1, 0, 0). With one direction only the others,
    # all at right angles to it, look alike; with two, the second axis is told from the third.
    delta = torch.tensor([[9.0, 0, 0], [8.0, 0, 0], [0, 2.0, 0], [0, 3.0, 0], [0, 0, 1.0], [0, 0, 1.1]]).double()
    rng = np.random.default_rng(0)
    assert fs.FedGroup(S=2, directions=1).grouped(delta, rng).tolist() == [1, 1, 0, 0, 0, 0]
    assert fs.FedGroup(S=3, directions=1).grouped(delta, rng).tolist() == [1, 1, 0, 0, 0, 0]  # two that are distinct
    assert fs.FedGroup(S=3, directions=2).grouped(delta, rng).tolist() == [2, 2, 1, 1, 0, 0]
    assert fs.FedGroup(S=3, directions=9).grouped(delta, rng).tolist() == [2, 2, 1, 1, 0, 0]


def test_lengths_do_not_count() -> None:
    delta = torch.tensor([[0.01, 0.001], [50.0, 1.0], [-0.02, 0.0], [-70.0, 3.0]]).double()
    assert fs.FedGroup(S=2).grouped(delta, np.random.default_rng(0)).tolist() == [1, 1, 0, 0]


# --- the sample, new clients, and clients that do not answer ----------------------------------------------------------


def test_the_sample_has_so_many_clients_per_group() -> None:
    run = fitted(fs.FedGroup(S=2, pretrain=3, K=2), clients(), 1)
    assert run.history[0].selected == 6
    assert (run.state.per_client["s"] >= 0).nonzero().flatten().tolist() == drawn(0, 6, 8)
    assert fitted(fs.FedGroup(S=2, pretrain=20), clients(), 1).history[0].selected == 8


def test_new_clients_join_the_group_of_the_nearest_direction() -> None:
    pairs = clients()
    run = fitted(fs.FedGroup(S=3, pretrain=1), pairs, 2)
    sample = drawn(0, 3, 8)
    later = [k for k in range(8) if k not in sample]
    assert run.history[1].notes["joined"] == len(later) == 5
    delta = torch.from_numpy(least_squares(pairs)) - run.state.extra["common"]
    cosine = torch.nn.functional.cosine_similarity(delta[:, None], run.state.extra["deltas"][None], dim=2)
    assert run.state.per_client["s"][later].tolist() == cosine.argmax(1)[later].tolist()
    # They do one task more in that round, and take part in the mean of their group at once.
    assert run.history[1].gradients == sum(SIZES) + sum(SIZES[k] for k in later)
    n, w = torch.tensor(SIZES).double(), torch.from_numpy(least_squares(pairs))
    for s in range(3):
        own = run.state.per_client["s"] == s
        assert torch.allclose(run.state.centers[s], n[own] @ w[own] / n[own].sum(), atol=1e-9)


def test_until_it_is_drawn_a_client_uses_the_first_model() -> None:
    pairs = clients()
    run = fitted(fs.FedGroup(S=2, pretrain=1), pairs, 1)
    k = next(k for k in range(8) if k not in drawn(0, 2, 8))
    assert run.state.per_client["s"][k] == -1
    assert run.state.u[k].tolist() == [0.5, 0.5]
    assert torch.allclose(run.predict(pairs[k][0], client=k), pairs[k][0] @ run.state.extra["common"][0])


def test_a_new_client_that_does_not_answer_is_asked_again() -> None:
    sample = drawn(0, 3, 8)
    late = next(k for k in range(8) if k not in sample)
    away = silent(lambda job, t, name: job == "introduce" and name == str(late) and t < 3)
    run = fitted(fs.FedGroup(S=3, pretrain=1), clients(), 3, dropout=away)
    assert run.state.per_client["s"][late] == -1
    third = run.history[2]
    assert (third.selected, third.answered, third.notes["joined"]) == (8, 7, 0)
    assert bool((fitted(fs.FedGroup(S=3, pretrain=1), clients(), 4, dropout=away).state.per_client["s"] >= 0).all())


def test_when_nobody_answers_in_round_0_the_next_begins_anew() -> None:
    away = silent(lambda job, t, name: t == 0)
    run = fitted(fs.FedGroup(S=3), clients(), 1, dropout=away)
    assert run.state.per_client["s"].tolist() == [-1] * 8
    assert torch.equal(run.state.centers, run.state.extra["common"].repeat(3, 1))
    assert groups(fitted(fs.FedGroup(S=3), clients(), 2, dropout=away)) == of_source(SOURCES)


def test_a_group_that_nobody_is_in_keeps_the_first_model_and_takes_no_new_clients() -> None:
    # Two clients answer in round 0, for three groups.
    away = silent(lambda job, t, name: t == 0 and name not in ("0", "1"))
    run = fitted(fs.FedGroup(S=3), clients(), 3, dropout=away)
    assert set(run.state.per_client["s"].tolist()) == {0, 1}
    assert torch.equal(run.state.centers[2], run.state.extra["common"][0])


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_with_one_group_it_is_fedavg_after_the_first_round() -> None:
    pairs, sgd = clients(), fs.SGD(lr=0.05, epochs=2, batch=100, shuffle=False)
    run = fitted(fs.FedGroup(S=1, K=3), pairs, 4, sgd)
    state = State(fitted(fs.FedGroup(S=1, K=3), pairs, 1, sgd).state.centers)
    fedavg = engine_for(fs.FedAvg(K=3), federation(pairs), fs.models.linear(), seed=0, solver=sgd, dtype="float64")
    with torch.no_grad():
        fedavg.start()
        for t in (1, 2, 3):
            state, _ = fedavg.round(state, t)
    # pretrain = 20 covers everybody, so that there are no new clients.
    assert torch.allclose(run.state.centers, state.centers, atol=1e-12)


# --- against a plain loop ---------------------------------------------------------------------------------------------


def plain_fedgroup(pairs: Pairs, common: np.ndarray, rounds: int, S: int, K: int, formed: dict[int, int]) -> Any:
    """Two full-batch steps of 0.05. The groups of the sample are given: k-means is scikit-learn's own."""

    def train(k: int, w: np.ndarray) -> np.ndarray:
        x, y = (part.numpy() for part in pairs[k])
        for _ in range(2):
            w = w - 0.05 * 2 / len(y) * x.T @ (x @ w - y)
        return w

    own = dict(formed)
    means = [np.mean([train(k, common) - common for k in formed if formed[k] == s], axis=0) for s in range(S)]
    centers = [common + mean for mean in means]
    for t in range(1, rounds):
        now = drawn(t, K, len(pairs))
        for k in now:
            if k not in own:
                delta = train(k, common) - common
                cosines = [delta @ m / np.linalg.norm(delta) / np.linalg.norm(m) for m in means]
                own[k] = int(np.argmax(cosines))
        for s in range(S):
            inside = [k for k in now if own[k] == s]
            if inside:
                n = [len(pairs[k][1]) for k in inside]
                centers[s] = sum(n_k * train(k, centers[s]) for n_k, k in zip(n, inside, strict=True)) / sum(n)
    return own, np.array(centers)


@pytest.mark.parametrize("K", [2, 4])
def test_a_run_equals_the_plain_loop(K: int) -> None:
    pairs, sgd = clients(), fs.SGD(lr=0.05, epochs=2, batch=100, shuffle=False)
    settings: dict[str, Any] = {"S": 2, "pretrain": 2, "K": K}
    formed = fitted(fs.FedGroup(**settings), pairs, 1, sgd).state
    sample = {k: int(s) for k, s in enumerate(formed.per_client["s"]) if s >= 0}
    own, centers = plain_fedgroup(pairs, formed.extra["common"][0].numpy(), 7, 2, K, sample)
    run = fitted(fs.FedGroup(**settings), pairs, 7, sgd)
    assert {k: int(s) for k, s in enumerate(run.state.per_client["s"]) if s >= 0} == own
    assert len(own) > len(sample)
    assert run.state.centers.numpy() == pytest.approx(centers, abs=1e-9)


# --- recovery and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"pretrain": 5, "K": 50}])
def test_the_dominant_source_is_recovered(settings: dict[str, Any]) -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=100, seed=1)
    sgd = fs.SGD(lr=0.005, epochs=3, batch=10)
    run = fs.fit(fs.FedGroup(**settings), fed, fs.models.linear(), rounds=12, solver=sgd)
    assert fed.truth is not None
    s, source = run.state.per_client["s"], fed.truth.fractions(fed.train).argmax(1)
    assert torch.equal(s, source) or torch.equal(s, 1 - source)


@pytest.mark.parametrize("setting", [{"S": 0}, {"directions": 0}, {"pretrain": 0}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedGroup\.{next(iter(setting))} = "):
        fs.FedGroup(**setting)
