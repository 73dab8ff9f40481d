from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.centers.mixing import select
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Limit, Run, play, prepare
from fedsoft.trust.absence import Absent
from tests.helpers import Pairs, federation

THETA = torch.tensor([[9.0, 1.0, 0.0], [-2.0, 9.0, 1.0], [0.0, -3.0, 9.0]]).double()
SOURCES = [2, 0, 1, 0, 2, 1, 1, 0]
SIZES = [6 + k for k in range(len(SOURCES))]


def clients(noise: float = 1.0) -> Pairs:
    """One source each, 6 to 13 points."""
    rng = np.random.default_rng(0)
    pairs = []
    for n, s in zip(SIZES, SOURCES, strict=True):
        x = torch.from_numpy(rng.standard_normal((n, 3)))
        pairs.append((x, x @ THETA[s] + noise * torch.from_numpy(rng.standard_normal(n))))
    return pairs


def fitted(pairs: Pairs, rounds: int, local: Any = None, absent: Absent | None = None, **settings: Any) -> Run:
    fed = federation(pairs)
    simulation = prepare(
        fs.FedGroup(**settings), fed, fs.models.linear(), seed=0, local=local or fs.Exact(), dtype="float64"
    )
    simulation.absent = absent
    with torch.no_grad():
        state = simulation.start()
    run = Run(fed, simulation, state, [])
    for run.state, record in play(simulation, fed, state, [], Limit(rounds)):
        run.history.append(record)
    return run


def silent(who: Callable[[str, int, str], bool]) -> Absent:
    return lambda job, t, names: np.array([who(job, t, name) for name in names])


def solutions(pairs: Pairs) -> Tensor:
    return torch.stack([torch.from_numpy(np.linalg.lstsq(x.numpy(), y.numpy())[0]) for x, y in pairs])


def groups(run: Run) -> set[frozenset[int]]:
    s = run.state["s_k"].tolist()
    return {frozenset(k for k, own in enumerate(s) if own == j) for j in set(s) - {-1}}


OF_SOURCE = {frozenset(k for k, own in enumerate(SOURCES) if own == j) for j in range(3)}


def drawn(t: int, K: int) -> list[int]:
    """Who is drawn in round t."""
    even = torch.full((1, len(SOURCES)), 1 / len(SOURCES), dtype=torch.float64)
    races = [generator(0, "select", t, str(k)) for k in range(len(SOURCES))]
    return select(even, K, races, replacement=False)[0].nonzero().flatten().tolist()


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_first_rounds_by_hand() -> None:
    pairs = clients()
    w, n = solutions(pairs), torch.tensor(SIZES).double()
    first, formed, trained = (fitted(pairs, rounds, S=3) for rounds in (0, 1, 2))
    common = first.state["common"]
    assert torch.equal(first.state["centers"], common.repeat(3, 1))
    assert groups(formed) == groups(trained) == OF_SOURCE
    for s in range(3):
        own = formed.state["s_k"] == s
        # A group's first model is the common one plus the PLAIN mean of its updates; later means are by n_k.
        assert torch.allclose(formed.state["centers"][s], w[own].mean(0), atol=1e-9)
        assert torch.allclose(formed.state["deltas"][s], w[own].mean(0) - common[0], atol=1e-9)
        assert torch.allclose(trained.state["centers"][s], n[own] @ w[own] / n[own].sum(), atol=1e-9)
    assert torch.equal(formed.state["u"], torch.nn.functional.one_hot(formed.state["s_k"]).double())
    # Groups are numbered by their mean update, in lexicographic order.
    assert formed.state["deltas"][:, 0].tolist() == sorted(formed.state["deltas"][:, 0].tolist())


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


# --- the sample, newcomers, and clients that do not answer ------------------------------------------------------------


def test_the_sample_has_so_many_clients_per_group() -> None:
    run = fitted(clients(), 1, S=2, pretrain=3, K=2)
    assert run.history[0]["selected"] == 6
    assert (run.state["s_k"] >= 0).nonzero().flatten().tolist() == drawn(0, 6)
    assert fitted(clients(), 1, S=2, pretrain=20).history[0]["selected"] == 8


def test_newcomers_join_the_group_of_the_nearest_direction() -> None:
    pairs = clients()
    run = fitted(pairs, 2, S=3, pretrain=1)
    sample = drawn(0, 3)
    later = [k for k in range(8) if k not in sample]
    assert run.history[1]["joined"] == len(later) == 5
    delta = solutions(pairs) - run.state["common"]
    cosine = torch.nn.functional.cosine_similarity(delta[:, None], run.state["deltas"][None], dim=2)
    assert run.state["s_k"][later].tolist() == cosine.argmax(1)[later].tolist()
    # They do one task more in that round, and take part in the mean of their group at once.
    assert run.history[1]["gradients"] == sum(SIZES) + sum(SIZES[k] for k in later)
    n, w = torch.tensor(SIZES).double(), solutions(pairs)
    for s in range(3):
        own = run.state["s_k"] == s
        assert torch.allclose(run.state["centers"][s], n[own] @ w[own] / n[own].sum(), atol=1e-9)


def test_until_it_is_drawn_a_client_uses_the_first_model() -> None:
    pairs = clients()
    run = fitted(pairs, 1, S=2, pretrain=1)
    k = next(k for k in range(8) if k not in drawn(0, 2))
    assert run.state["s_k"][k] == -1
    assert run.state["u"][k].tolist() == [0.5, 0.5]
    assert torch.allclose(run.predict(pairs[k][0], client=k), pairs[k][0] @ run.state["common"][0])


def test_a_newcomer_that_does_not_answer_is_asked_again() -> None:
    sample = drawn(0, 3)
    away = next(k for k in range(8) if k not in sample)
    absent = silent(lambda job, t, name: job == "introduce" and name == str(away) and t < 3)
    run = fitted(clients(), 3, absent=absent, S=3, pretrain=1)
    assert run.state["s_k"][away] == -1
    assert run.history[2] | {"selected": 8, "answered": 7, "joined": 0} == run.history[2]
    assert bool((fitted(clients(), 4, absent=absent, S=3, pretrain=1).state["s_k"] >= 0).all())


def test_when_nobody_answers_in_round_0_the_next_begins_anew() -> None:
    absent = silent(lambda job, t, name: t == 0)
    run = fitted(clients(), 1, absent=absent, S=3)
    assert run.state["s_k"].tolist() == [-1] * 8
    assert torch.equal(run.state["centers"], run.state["common"].repeat(3, 1))
    assert groups(fitted(clients(), 2, absent=absent, S=3)) == OF_SOURCE


def test_a_group_that_nobody_is_in_keeps_the_first_model_and_takes_no_newcomers() -> None:
    # Two clients answer in round 0, for three groups.
    absent = silent(lambda job, t, name: t == 0 and name not in ("0", "1"))
    run = fitted(clients(), 3, absent=absent, S=3)
    assert set(run.state["s_k"].tolist()) == {0, 1}
    assert torch.equal(run.state["centers"][2], run.state["common"][0])


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_with_one_group_it_is_fedavg_after_the_first_round() -> None:
    pairs, sgd = clients(), fs.SGD(lr=0.05, epochs=2, batch=100, shuffle=False)
    run = fitted(pairs, 4, sgd, S=1, K=3)
    state = {"centers": fitted(pairs, 1, sgd, S=1, K=3).state["centers"]}
    fedavg = prepare(fs.FedAvg(K=3), federation(pairs), fs.models.linear(), seed=0, local=sgd, dtype="float64")
    with torch.no_grad():
        fedavg.start()
        for t in (1, 2, 3):
            state, _ = fedavg.round(state, t)
    # pretrain = 20 covers everybody, so that there are no newcomers.
    assert torch.allclose(run.state["centers"], state["centers"], atol=1e-12)


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
        now = drawn(t, K)
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
    formed = fitted(pairs, 1, sgd, **settings).state
    sample = {k: int(s) for k, s in enumerate(formed["s_k"]) if s >= 0}
    own, centers = plain_fedgroup(pairs, formed["common"][0].numpy(), 7, 2, K, sample)
    run = fitted(pairs, 7, sgd, **settings)
    assert {k: int(s) for k, s in enumerate(run.state["s_k"]) if s >= 0} == own
    assert len(own) > len(sample)
    assert run.state["centers"].numpy() == pytest.approx(centers, abs=1e-9)


# --- recovery and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"pretrain": 5, "K": 50}])
def test_the_dominant_source_is_recovered(settings: dict[str, Any]) -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=100, seed=1)
    sgd = fs.SGD(lr=0.005, epochs=3, batch=10)
    run = fs.fit(fs.FedGroup(**settings), fed, fs.models.linear(), rounds=12, local=sgd)
    assert fed.truth is not None
    s, source = run.state["s_k"], fed.truth.fractions(fed.train).argmax(1)
    assert torch.equal(s, source) or torch.equal(s, 1 - source)


@pytest.mark.parametrize("setting", [{"S": 0}, {"directions": 0}, {"pretrain": 0}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedGroup\.{next(iter(setting))} = "):
        fs.FedGroup(**setting)
