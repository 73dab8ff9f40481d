from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.algorithms.cfl import second_half
from fedsoft.errors import InputError
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.training import RoundRecord, Run
from tests.algorithms.plain import drawn, least_squares, of_source
from tests.helpers import Pairs, federation, fitted, regression_clients, silent

# Without noise and with the exact solver an update is exactly theta - c, so that norms and directions are known.
THETA = torch.tensor([[10.0, 0.0], [-5.0, 4.0], [-5.0, -4.0]]).double()
SOURCES = [0, 1, 2, 0, 1, 2, 0, 2, 1]


def pure_clients(sources: Sequence[int] = SOURCES, theta: Tensor = THETA) -> Pairs:
    """One source each, no noise."""
    rng = np.random.default_rng(0)
    inputs = [torch.from_numpy(rng.standard_normal((5 + k, theta.shape[1]))) for k in range(len(sources))]
    return [(x, x @ theta[s]) for x, s in zip(inputs, sources, strict=True)]


def members(run: Run) -> set[frozenset[int]]:
    """The clusters as sets of clients, whatever their numbers."""
    s = run.state.per_client["s"].tolist()
    return {frozenset(k for k, own in enumerate(s) if own == j) for j in range(len(run.state.centers))}


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_without_a_split_the_center_is_the_plain_mean_of_local_solutions() -> None:
    pairs = regression_clients()
    run = fitted(fs.CFL(), pairs, 1)
    assert run.state.centers[0].numpy() == pytest.approx(least_squares(pairs).mean(0), abs=1e-8)
    assert run.state.u.tolist() == [[1.0]] * len(pairs)


def test_a_split_by_hand_and_what_each_half_does_then() -> None:
    # Round 0 brings c to the mean 0 of all thetas; in round 1 |mean update| = 0 and the largest is |theta_0| = 10.
    settings = {"after": 1, "eps1": 0.5, "eps2": 6.0}
    run = fitted(fs.CFL(**settings), pure_clients(), 2)
    assert run.history[1].notes["mean_norms"] == pytest.approx([0.0], abs=1e-9)
    assert run.history[1].notes["largest_norms"] == pytest.approx([10.0])
    # cos(theta_1, theta_2) = 9/41 and cos(theta_0, theta_1) < 0: sources 1 and 2 stay together.
    assert members(run) == of_source([0, 1, 1, 0, 1, 1, 0, 1, 1])
    # Both halves go on from the same center.
    assert torch.allclose(run.state.centers, torch.zeros(2, 2).double(), atol=1e-9)
    # The half whose mean update comes first in lexicographic order, (-5, 0) before (10, 0), keeps the number.
    assert run.state.per_client["s"].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0]
    run = fitted(fs.CFL(**settings), pure_clients(), 3)
    assert torch.allclose(run.state.centers, torch.tensor([[-5.0, 0.0], [10.0, 0.0]]).double(), atol=1e-9)
    assert torch.equal(run.state.u, torch.nn.functional.one_hot(run.state.per_client["s"]).double())


# --- the trap ---------------------------------------------------------------------------------------------------------


def test_a_second_split_moves_clients_and_not_places_in_the_cluster() -> None:
    # The cluster of sources 1 and 2 is split in round 3 (round 2 brings it to (-5, 0)). Its members are clients 1, 2,
    # 4, 5, 7 and 8. Where their places 0 to 5 in the cluster are taken for clients, others are moved and this fails.
    run = fitted(fs.CFL(after=1, eps1=0.5, eps2=3.0), pure_clients(), 5)
    assert [len(record.notes["mean_norms"]) for record in run.history] == [1, 1, 2, 2, 3]
    assert members(run) == of_source(SOURCES)
    assert torch.allclose(run.state.centers[run.state.per_client["s"]], THETA[SOURCES], atol=1e-8)


def test_two_clusters_can_be_split_in_one_round() -> None:
    theta = torch.tensor([[9.0, 2.0], [9.0, -2.0], [-9.0, 2.0], [-9.0, -2.0]]).double()
    sources = [3, 0, 2, 1, 0, 3, 1, 2, 2, 0, 1, 3]
    run = fitted(fs.CFL(after=1, eps1=0.1, eps2=1.0), pure_clients(sources, theta), 5)
    assert [len(record.notes["mean_norms"]) for record in run.history] == [1, 1, 2, 2, 4]
    assert members(run) == of_source(sources)


def test_numbers_of_clusters_do_not_depend_on_the_order_of_clients() -> None:
    order, names = [4, 8, 0, 2, 7, 1, 3, 6, 5], [f"client {k}" for k in range(9)]
    pairs, sgd = pure_clients(), fs.SGD(lr=0.1, epochs=2, batch=4)
    one, other = (
        fitted(
            fs.CFL(after=2, eps1=2.0, eps2=1.0, K=6),
            federation([pairs[k] for k in ks], [names[k] for k in ks]),
            20,
            sgd,
        ).state
        for ks in (range(9), order)
    )
    assert len(one.centers) > 2
    assert torch.equal(one.per_client["s"][order], other.per_client["s"])
    assert torch.allclose(one.centers, other.centers, atol=1e-9)


def test_a_run_that_is_stopped_between_splits_resumes_to_the_same_bits(tmp_path: Path) -> None:
    spec = RunSpec.from_dict({
        "rounds": 8, "algorithm": {"name": "cfl", "after": 2, "eps1": 5.0, "eps2": 0.5}, "model": "linear",
        "solver": {"name": "sgd", "lr": 0.01, "epochs": 2}, "partition": "linear",
        "dataset": {"name": "synthetic", "clients": 12, "points": [10, 20], "dimension": 3, "test_points": 20},
    })  # fmt: skip

    def stop(record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    whole, _ = execute(spec, tmp_path / "whole", RunOptions())
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "stopped", RunOptions(callbacks=[stop]))
    resumed, _ = execute(spec, tmp_path / "stopped", RunOptions())
    clusters = [len(record.centers) for record in whole.records()]
    assert 1 < clusters[3] < clusters[7]  # splits before the stop and after it
    assert (resumed.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()


# --- when a split is due ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "clusters"),
    [
        ({}, 3),
        ({"after": 4}, 2),  # rounds 0 to 3 are without
        ({"after": 5}, 1),
        ({"eps1": 0.0}, 1),  # never stands still
        ({"eps2": 11.0}, 1),  # nobody pulls so hard
        ({"eps2": 4.5}, 2),  # enough for the first split, not for the second, where norms are 4
        ({"smallest": 9}, 1),  # there are 9 clients
        ({"smallest": 8}, 2),
        ({"smallest": 6}, 2),  # the half of 6 is not split
    ],
)
def test_when_a_cluster_is_split(settings: dict[str, Any], clusters: int) -> None:
    run = fitted(fs.CFL(**{"after": 1, "eps1": 0.5, "eps2": 3.0, **settings}), pure_clients(), 5)
    assert len(run.state.centers) == clusters


def test_a_cluster_that_still_moves_is_not_split() -> None:
    # In round 0 everybody agrees on the direction, |mean update| is far above eps1.
    run = fitted(fs.CFL(after=0, eps1=0.01, eps2=0.0), pure_clients(), 1)
    assert run.history[0].notes["mean_norms"][0] > 0.1
    assert len(run.state.centers) == 1


def test_updates_of_zero_do_no_harm() -> None:
    later = second_half(torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [2.0, 0.1]]))
    assert later.tolist() in ([False, True, False, True], [True, True, False, True])


# --- clients that do not answer ---------------------------------------------------------------------------------------


def test_absent_clients_are_split_by_their_last_update() -> None:
    # Clients 3 (source 0) and 5 (source 2) are silent from round 1 on, in which the first split happens.
    away = silent(lambda job, t, name: t >= 1 and name in ("3", "5"))
    run = fitted(fs.CFL(after=1, eps1=2.0, eps2=3.0), pure_clients(), 2, dropout=away)
    assert members(run) == of_source([0, 1, 1, 0, 1, 1, 0, 1, 1])
    assert run.state.per_client["known"].all()


def test_clients_that_never_answered_stay_with_the_number_of_the_cluster() -> None:
    away = silent(lambda job, t, name: name in ("3", "5"))
    run = fitted(fs.CFL(after=1, eps1=2.0, eps2=6.0), pure_clients(), 2, dropout=away)
    assert run.state.per_client["known"].tolist() == [k not in (3, 5) for k in range(9)]
    # Client 3 is of source 0, but nobody can know.
    assert run.state.per_client["s"].tolist() == [1, 0, 0, 0, 0, 0, 1, 0, 0]


def test_a_cluster_without_answers_stays_as_it_was() -> None:
    gone = silent(lambda job, t, name: t >= 2 and SOURCES[int(name)] == 0)
    run = fitted(fs.CFL(after=1, eps1=0.5, eps2=6.0), pure_clients(), 4, dropout=gone)
    assert torch.allclose(run.state.centers, torch.tensor([[-5.0, 0.0], [0.0, 0.0]]).double(), atol=1e-9)
    assert run.history[2].notes["largest_norms"][1] == 0


# --- against a plain loop ---------------------------------------------------------------------------------------------


def halves(updates: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """Complete linkage, step by step: join the groups whose LEAST similar pair is most similar, until two remain."""
    groups = [[i] for i in range(len(updates))]

    def similarity(i: int, j: int) -> float:
        return float(updates[i] @ updates[j] / np.linalg.norm(updates[i]) / np.linalg.norm(updates[j]))

    while len(groups) > 2:
        pairs = [(a, b) for b in range(len(groups)) for a in range(b)]
        a, b = max(pairs, key=lambda ab: min(similarity(i, j) for i in groups[ab[0]] for j in groups[ab[1]]))
        groups[a] += groups.pop(b)
    first, second = sorted(groups, key=lambda group: np.mean([updates[i] for i in group], axis=0).tolist())
    return first, second


def plain_cfl(pairs: Pairs, w: np.ndarray, rounds: int, K: int, eps: tuple[float, float], after: int, lr: float) -> Any:
    clusters, centers = [list(range(len(pairs)))], [w]
    last: dict[int, np.ndarray] = {}
    for t in range(rounds):
        selected = drawn(t, K, len(pairs))
        for j in range(len(clusters)):
            now = []
            for k in [k for k in clusters[j] if k in selected]:
                x, y = (part.numpy() for part in pairs[k])
                w = centers[j].copy()
                for _ in range(2):
                    w = w - lr * 2 / len(y) * x.T @ (x @ w - y)
                last[k] = w - centers[j]
                now.append(last[k])
            if not now:
                continue
            mean = np.mean(now, axis=0)
            centers[j] = centers[j] + mean
            apart = np.linalg.norm(mean) < eps[0] and max(np.linalg.norm(d) for d in now) > eps[1]
            if t >= after and apart and len(clusters[j]) > 2:
                known = [k for k in clusters[j] if k in last]
                _, second = halves([last[k] for k in known])
                leave = [known[i] for i in second]
                clusters[j] = [k for k in clusters[j] if k not in leave]
                clusters.append(leave)
                centers.append(centers[j])
    return clusters, np.array(centers)


@pytest.mark.parametrize("K", [5, 8, 12])
def test_a_run_equals_the_plain_loop(K: int) -> None:
    rng = np.random.default_rng(1)
    theta = torch.from_numpy(rng.standard_normal((3, 3)) * 3)
    pairs = pure_clients([int(s) for s in rng.integers(3, size=12)], theta)
    sgd = fs.SGD(lr=0.1, epochs=2, batch=100, shuffle=False)
    eps, after, rounds = (0.6, 0.8), 4, 25
    run = fitted(fs.CFL(K=K, eps1=eps[0], eps2=eps[1], after=after), pairs, rounds, sgd)
    first = fitted(fs.CFL(), pairs, 0).state.centers[0].numpy()
    clusters, centers = plain_cfl(pairs, first, rounds, K, eps, after, lr=0.1)
    assert len(clusters) >= 3  # a second split was among them
    assert [sorted(c) for c in clusters] == [
        torch.nonzero(run.state.per_client["s"] == j).flatten().tolist() for j in range(len(run.state.centers))
    ]
    assert run.state.centers.numpy() == pytest.approx(centers, abs=1e-9)


# --- recovery ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["10:90", "linear", "random"])
def test_the_dominant_source_is_recovered(partition: str) -> None:
    """Clients whose larger share is above 0.65, sources 17 apart.

    With this solver a run without splits ends at mean norms of 0.02 and largest norms of about 4. In `linear` and
    `random` shares vary without gaps, so after the first split norms of 2 remain and eps2 = 3 lies between; in `10:90`
    only noise of about 1.5 remains.
    """
    fed = fs.datasets.synthetic(partition=partition, clients=100, seed=1)
    sgd = fs.SGD(lr=0.005, epochs=3, batch=10)
    run = fs.fit(fs.CFL(after=10, eps1=0.2, eps2=3.0), fed, fs.models.linear(), rounds=20, solver=sgd)
    assert fed.truth is not None
    share = fed.truth.fractions(fed.train)
    clear = share.max(1).values > 0.65
    assert int(clear.sum()) >= 60
    s, source = run.state.per_client["s"][clear], share.argmax(1)[clear]
    assert len(run.state.centers) == 2
    assert bool((s == source).all()) or bool((s == 1 - source).all())


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"eps1": -1}, {"eps2": -1}, {"after": -1}, {"smallest": 0}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"CFL\.{next(iter(setting))} = "):
        fs.CFL(**setting)


def test_more_participants_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"CFL\.K = 10 .*at most 9"):
        fitted(fs.CFL(K=10), pure_clients(), 1)
