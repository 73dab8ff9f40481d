from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.errors import InputError
from tests.algorithms.plain import drawn, groups, least_squares, of_one_source, of_source
from tests.helpers import Pairs, fitted, silent

# Three sources; without noise the exact solver finds them, so that updates and their distances are known.
THETA = torch.tensor([[8.0, 0.0], [-4.0, 6.0], [-4.0, 0.0]]).double()
SOURCES = [2, 0, 1, 0, 2, 1, 1, 0]
SIZES = [5 + k for k in range(len(SOURCES))]


def pure_clients(noise: float = 0.0) -> Pairs:
    """One source each, 5 to 12 points."""
    return of_one_source(THETA, SOURCES, SIZES, noise)


# --- the phases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [3, "all"])
def test_before_the_clustering_it_is_fedavg(K: Any) -> None:
    pairs = pure_clients(noise=1.0)
    sgd = fs.SGD(lr=0.05, epochs=1, batch=4)
    run = fitted(fs.FLHC(warm=3, K=K), pairs, 3, sgd)
    fedavg = fitted(fs.FedAvg(K=K), pairs, 3, sgd)
    assert torch.equal(run.state.centers, fedavg.state.centers)
    assert run.state.per_client["s"].tolist() == [-1] * 8
    assert run.state.u.tolist() == [[1.0]] * 8


def test_the_clustering_by_hand() -> None:
    # Round 0 brings the common model to the mean of all solutions, by n_k. In round 1 all train from it, whatever K is,
    # and each cluster becomes the mean of its own, by n_k.
    pairs = pure_clients(noise=1.0)
    w, n = torch.from_numpy(least_squares(pairs)), torch.tensor(SIZES).double()
    run = fitted(fs.FLHC(warm=1, S=3), pairs, 2)
    assert torch.allclose(run.state.extra["common"][0], n @ w / n.sum(), atol=1e-9)
    assert groups(run) == of_source(SOURCES)
    for s in range(3):
        own = run.state.per_client["s"] == s
        assert torch.allclose(run.state.centers[s], n[own] @ w[own] / n[own].sum(), atol=1e-9)
        assert torch.allclose(run.state.extra["deltas"][s], (w[own] - run.state.extra["common"]).mean(0), atol=1e-9)
    assert torch.equal(run.state.u, torch.nn.functional.one_hot(run.state.per_client["s"]).double())
    # Clusters are numbered by their mean update, in lexicographic order.
    assert run.state.extra["deltas"][:, 0].tolist() == sorted(run.state.extra["deltas"][:, 0].tolist())


def test_everybody_is_asked_in_the_round_of_the_clustering_only() -> None:
    run = fitted(fs.FLHC(warm=2, S=3, K=3), pure_clients(), 5)
    assert [record.selected for record in run.history] == [3, 3, 8, 3, 3]


def test_without_warm_rounds_the_first_clusters() -> None:
    assert groups(fitted(fs.FLHC(warm=0, S=3), pure_clients(), 1)) == of_source(SOURCES)


def test_with_one_cluster_it_stays_fedavg() -> None:
    pairs, sgd = pure_clients(noise=1.0), fs.SGD(lr=0.05, epochs=1, batch=4)
    run = fitted(fs.FLHC(warm=2, S=1), pairs, 6, sgd)
    fedavg = fitted(fs.FedAvg(), pairs, 6, sgd)
    assert torch.allclose(run.state.centers, fedavg.state.centers, atol=1e-12)


# --- distances and cuts -----------------------------------------------------------------------------------------------

LINKS = [
    (distance, linkage)
    for distance in ("l2", "l1", "cosine")
    for linkage in ("complete", "average", "ward")
    if linkage != "ward" or distance == "l2"
]


@pytest.mark.parametrize(("distance", "linkage"), LINKS)
def test_every_distance_and_linkage_finds_the_sources(distance: Any, linkage: Any) -> None:
    run = fitted(fs.FLHC(warm=1, S=3, distance=distance, linkage=linkage), pure_clients(noise=0.3), 3)
    assert groups(run) == of_source(SOURCES)


# |theta_1 - theta_2| = 6 in l2 and l1; the mean delta of source 0 is sqrt(180) = 13.4 from 1 and 12 from 2 in l2,
# 18 and 12 in l1. Complete linkage joins 1 and 2 at 6, and 0 at its farthest member.
@pytest.mark.parametrize(
    ("distance", "threshold", "clusters"),
    [("l2", 5.9, 3), ("l2", 6.1, 2), ("l2", 13.3, 2), ("l2", 13.5, 1), ("l1", 17.9, 2), ("l1", 18.1, 1)],
)
def test_the_tree_is_cut_at_the_threshold_whatever_S_says(distance: Any, threshold: float, clusters: int) -> None:
    run = fitted(fs.FLHC(warm=1, threshold=threshold, distance=distance), pure_clients(), 3)
    assert len(run.state.centers) == clusters
    assert (
        len(fitted(fs.FLHC(warm=1, threshold=threshold, distance=distance, S=None), pure_clients(), 3).centers)
        == clusters
    )


def test_cosine_does_not_look_at_lengths() -> None:
    algorithm = fs.FLHC(distance="cosine", S=2)
    delta = torch.tensor([[1.0, 0.1], [100.0, 0.0], [0.0, 0.1], [0.1, 100.0], [0.0, 0.0]]).double()
    s = algorithm.clusters(delta[:4])
    assert s.tolist() == [1, 1, 0, 0]
    assert algorithm.distances(delta[1:2], delta)[0].tolist() == pytest.approx([1 - 1 / 1.01**0.5, 0, 1, 0.999, 1])
    assert bool((algorithm.clusters(delta) >= 0).all())  # an update of zero has no direction


# --- clients that do not answer ---------------------------------------------------------------------------------------


def test_a_client_absent_from_the_clustering_uses_the_common_model_and_joins_later() -> None:
    # Client 3 (source 0) is silent in rounds 1 and 2; in round 3 it trains from the common model and joins.
    pairs = pure_clients(noise=1.0)
    away = silent(lambda job, t, name: name == "3" and t in (1, 2))
    run = fitted(fs.FLHC(warm=1, S=3), pairs, 3, dropout=away)
    assert run.state.per_client["s"][3] == -1
    assert run.state.u[3].tolist() == pytest.approx([1 / 3] * 3)
    assert torch.allclose(run.predict(pairs[3][0], client=3), pairs[3][0] @ run.state.extra["common"][0])
    joined = fitted(fs.FLHC(warm=1, S=3), pairs, 4, dropout=away)
    assert groups(joined) == of_source(SOURCES)
    # What it trained from the common model is not averaged into the cluster; in round 4 it takes part.
    assert torch.allclose(joined.state.centers, run.state.centers, atol=1e-9)
    own, n, w = (
        joined.state.per_client["s"] == joined.state.per_client["s"][3],
        torch.tensor(SIZES).double(),
        torch.from_numpy(least_squares(pairs)),
    )
    after = fitted(fs.FLHC(warm=1, S=3), pairs, 5, dropout=away)
    assert torch.allclose(
        after.state.centers[after.state.per_client["s"][3]], n[own] @ w[own] / n[own].sum(), atol=1e-9
    )


def test_joining_is_by_the_update_from_the_common_model_and_not_from_a_center() -> None:
    pairs, sgd = pure_clients(), fs.SGD(lr=0.1, epochs=1, batch=100, shuffle=False)
    run = fitted(fs.FLHC(warm=3, S=3), pairs, 6, sgd, dropout=silent(lambda job, t, name: name == "3" and t < 5))
    x, y = pairs[3]
    delta = -0.1 * 2 / len(y) * x.T @ (x @ run.state.extra["common"][0] - y)
    assert int(run.state.per_client["s"][3]) == int((run.state.extra["deltas"] - delta).norm(dim=1).argmin())


def test_when_nobody_answers_the_clustering_is_tried_again() -> None:
    run = fitted(fs.FLHC(warm=1, S=3), pure_clients(), 2, dropout=silent(lambda job, t, name: t == 1))
    assert run.state.per_client["s"].tolist() == [-1] * 8
    again = fitted(fs.FLHC(warm=1, S=3, K=2), pure_clients(), 3, dropout=silent(lambda job, t, name: t == 1))
    assert [record.selected for record in again.history] == [2, 8, 8]
    assert groups(again) == of_source(SOURCES)


def test_one_answer_is_one_cluster() -> None:
    run = fitted(fs.FLHC(warm=1, S=3), pure_clients(), 3, dropout=silent(lambda job, t, name: t == 1 and name != "4"))
    assert len(run.state.centers) == 1
    assert run.state.per_client["s"].tolist() == [0] * 8  # the others joined in round 2


# --- against a plain loop ---------------------------------------------------------------------------------------------


def plain_flhc(pairs: Pairs, w0: np.ndarray, rounds: int, warm: int, S: int, K: int, away: set[int]) -> Any:
    """l2, complete linkage; two full-batch steps of 0.05; the clients `away` are silent in round `warm`."""
    everyone = range(len(pairs))

    def train(k: int, w: np.ndarray) -> np.ndarray:
        x, y = (part.numpy() for part in pairs[k])
        for _ in range(2):
            w = w - 0.05 * 2 / len(y) * x.T @ (x @ w - y)
        return w

    def fedavg(models: dict[int, np.ndarray], old: np.ndarray) -> np.ndarray:
        n = {k: len(pairs[k][1]) for k in models}
        return sum((n[k] * models[k] for k in models), 0 * old) / sum(n.values()) if models else old

    common, centers, means, own = w0, [w0], [], dict.fromkeys(everyone, -1)
    for t in range(rounds):
        selected = drawn(t, K, len(pairs))
        if t < warm:
            common = fedavg({k: train(k, common) for k in selected}, common)
            centers = [common]
        elif t == warm:
            w = {k: train(k, common) for k in everyone if k not in away}
            found = [[k] for k in w]
            while len(found) > S:
                options = [(a, b) for b in range(len(found)) for a in range(b)]
                a, b = min(
                    options,
                    key=lambda ab: max(np.linalg.norm(w[i] - w[j]) for i in found[ab[0]] for j in found[ab[1]]),
                )
                found[a] += found.pop(b)
            found.sort(key=lambda group: np.mean([w[k] - common for k in group], axis=0).tolist())
            means = [np.mean([w[k] - common for k in group], axis=0) for group in found]
            own.update({k: s for s, group in enumerate(found) for k in group})
            centers = [fedavg({k: w[k] for k in group}, common) for group in found]
        else:
            w = {k: train(k, centers[own[k]] if own[k] >= 0 else common) for k in selected}
            centers = [fedavg({k: w[k] for k in selected if own[k] == s}, c) for s, c in enumerate(centers)]
            for k in selected:
                if own[k] < 0:
                    own[k] = int(np.argmin([np.linalg.norm(w[k] - common - mean) for mean in means]))
    return list(own.values()), np.array(centers)


@pytest.mark.parametrize("K", [3, 5])
def test_a_run_equals_the_plain_loop(K: int) -> None:
    pairs, away = pure_clients(noise=1.0), {2, 4, 7}
    local = fs.SGD(lr=0.05, epochs=2, batch=100, shuffle=False)
    silence = silent(lambda job, t, name: t == 4 and int(name) in away)
    run = fitted(fs.FLHC(warm=4, S=3, K=K), pairs, 9, local, dropout=silence)
    first = fitted(fs.FLHC(), pairs, 0).state.centers[0].numpy()
    own, centers = plain_flhc(pairs, first, 9, 4, 3, K, away)
    assert run.state.per_client["s"].tolist() == own
    assert run.state.centers.numpy() == pytest.approx(centers, abs=1e-9)


# --- recovery and settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_the_dominant_source_is_recovered(distance: Any) -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=100, seed=1)
    sgd = fs.SGD(lr=0.005, epochs=3, batch=10)
    run = fs.fit(fs.FLHC(warm=8, distance=distance), fed, fs.models.linear(), rounds=12, solver=sgd)
    assert fed.truth is not None
    s, source = run.state.per_client["s"], fed.truth.fractions(fed.train).argmax(1)
    assert torch.equal(s, source) or torch.equal(s, 1 - source)


def test_ward_needs_l2() -> None:
    with pytest.raises(InputError, match=r"FLHC\.distance = 'l1' .*'ward' needs 'l2'"):
        fitted(fs.FLHC(linkage="ward", distance="l1"), pure_clients(), 1)


def test_the_tree_must_be_cut_somewhere() -> None:
    with pytest.raises(InputError, match=r"FLHC\.S is missing.*threshold"):
        fitted(fs.FLHC(S=None), pure_clients(), 1)


@pytest.mark.parametrize("setting", [{"warm": -1}, {"distance": "l3"}, {"threshold": -1}, {"S": 0}, {"linkage": "one"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FLHC\.{next(iter(setting))} = "):
        fs.FLHC(**setting)
