from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.contract import State
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.algorithms.plain import APART, drawn, least_squares, local_sgd
from tests.helpers import RAGGED, Pairs, engine_for, federation, fitted, regression_clients


def mean_losses(pairs: Pairs, centers: np.ndarray) -> np.ndarray:
    """f_k(c_j), `[N, S]`."""
    return np.array([[np.mean((y.numpy() - x.numpy() @ c) ** 2) for c in centers] for x, y in pairs])


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_model_averaging_is_the_plain_mean_of_the_members_least_squares() -> None:
    pairs = regression_clients()
    run = fitted(fs.IFCA(S=2), pairs, 1, begun={"centers": APART})
    chosen = mean_losses(pairs, APART.numpy()).argmin(1)
    local = least_squares(pairs)
    assert 0 < chosen.sum() < len(pairs)
    assert run.state.u.argmax(1).tolist() == chosen.tolist()
    assert bool((run.state.u.sum(1) == 1).all())
    for s in range(2):
        members = chosen == s
        assert run.state.centers[s].numpy() == pytest.approx(local[members].mean(0), abs=1e-9)
        # Weighted by n_k, as FedAvg does it, it would be another center.
        weighted = np.average(local[members], axis=0, weights=np.array(RAGGED)[members])
        assert np.abs(weighted - local[members].mean(0)).max() > 0.01


def test_gradient_averaging_is_one_step_along_the_members_mean_gradient() -> None:
    pairs, lr = regression_clients(), 0.07
    run = fitted(fs.IFCA(S=2, average="gradient", lr=lr), pairs, 1, begun={"centers": APART})
    c = APART.numpy()
    chosen = mean_losses(pairs, c).argmin(1)
    for s in range(2):
        gradients = [
            2 * x.numpy().T @ (x.numpy() @ c[s] - y.numpy()) / len(y)
            for (x, y), own in zip(pairs, chosen == s, strict=True)
            if own
        ]
        assert run.state.centers[s].numpy() == pytest.approx(c[s] - lr * np.mean(gradients, axis=0), abs=1e-12)
    assert run.history[0].gradients == sum(RAGGED)


def test_one_full_batch_step_averaged_as_a_model_is_the_averaged_gradient() -> None:
    step = fs.SGD(lr=0.07, epochs=1, batch=100)
    model = fitted(fs.IFCA(S=2), regression_clients(), 3, step, begun={"centers": APART})
    gradient = fitted(
        fs.IFCA(S=2, average="gradient", lr=0.07), regression_clients(), 3, step, begun={"centers": APART}
    )
    assert torch.allclose(model.state.centers, gradient.state.centers, atol=1e-12)
    assert torch.equal(model.state.u, gradient.state.u)


# --- the paper's loop -------------------------------------------------------------------------------------------------

SGD = fs.SGD(lr=0.02, epochs=2, batch=5)


@pytest.mark.parametrize("S", [1, 2, 3])
def test_rounds_with_few_participants_equal_the_plain_loop(S: int) -> None:
    pairs, K, seed, rounds = regression_clients(), 4, 3, 6
    run = fitted(fs.IFCA(S=S, K=K), pairs, rounds, SGD, seed=seed)
    c = [run.model.draw(generator(seed, "center", s)).double().numpy() for s in range(S)]
    choice = [0] * len(pairs)
    for t in range(rounds):
        members: list[list[np.ndarray]] = [[] for _ in range(S)]
        for k in drawn(t, K, len(pairs), seed):
            x, y = (part.numpy() for part in pairs[k])
            choice[k] = int(np.argmin([np.mean((y - x @ c[s]) ** 2) for s in range(S)]))
            members[choice[k]].append(local_sgd(c[choice[k]], pairs[k], k, t, SGD, seed))
        c = [np.mean(members[s], axis=0) if members[s] else c[s] for s in range(S)]
    assert run.state.centers.numpy() == pytest.approx(np.array(c), abs=1e-9)
    assert run.engine.client_states["s"].tolist() == choice
    assert [record.selected for record in run.history] == [K] * rounds


# --- limits -----------------------------------------------------------------------------------------------------------


def test_with_one_center_and_clients_of_one_size_it_is_fedavg() -> None:
    pairs = regression_clients([9] * 6)
    one, other = fitted(fs.IFCA(S=1, K=4), pairs, 5, SGD), fitted(fs.FedAvg(K=4), pairs, 5, SGD)
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)


def test_clients_of_different_sizes_count_alike_other_than_in_fedavg() -> None:
    one, other = fitted(fs.IFCA(S=1), regression_clients(), 1), fitted(fs.FedAvg(), regression_clients(), 1)
    assert float((one.state.centers - other.state.centers).abs().max()) > 0.01


@pytest.mark.parametrize("average", ["model", "gradient"])
def test_an_empty_cluster_keeps_its_center(average: Literal["model", "gradient"]) -> None:
    far = torch.stack([APART[0], torch.full((3,), 1e2, dtype=torch.float64)])
    run = fitted(fs.IFCA(S=2, average=average), regression_clients(), 3, SGD, begun={"centers": far})
    assert torch.equal(run.state.centers[1], far[1])
    assert not torch.equal(run.state.centers[0], far[0])
    assert run.state.u.tolist() == [[1.0, 0.0]] * 8


def test_without_noise_clients_of_one_source_each_are_told_apart_exactly() -> None:
    rng = np.random.default_rng(0)
    theta = torch.tensor([[3.0, -2.0], [-1.0, 4.0]]).double()
    x = [torch.from_numpy(rng.standard_normal((20, 2))) for _ in range(6)]
    pairs = [(x[k], x[k] @ theta[k % 2]) for k in range(6)]
    run = fitted(fs.IFCA(S=2), pairs, 2, begun={"centers": theta * 0.2})
    assert run.state.u.argmax(1).tolist() == [0, 1] * 3
    assert torch.allclose(run.state.centers, theta, atol=1e-9)


# --- traps ------------------------------------------------------------------------------------------------------------


class Copies(fs.IFCA):
    """The wrong version: all centers start as copies of one draw."""

    def init(self, site: Site, clients: int) -> State:
        state = super().init(site, clients)
        return state.update(centers=state.centers[:1].repeat(self.S, 1))


def test_centers_are_draws_of_their_own_because_equal_copies_never_part() -> None:
    fed = fs.datasets.synthetic(clients=20, seed=0)
    start = fitted(fs.IFCA(S=3), fed, 0).state.centers
    assert len({tuple(c) for c in start.tolist()}) == 3
    right, wrong = fitted(fs.IFCA(S=2), fed, 5), fitted(Copies(S=2), fed, 5)
    assert sorted(right.state.u.sum(0).tolist()) == [10, 10]
    assert sorted(wrong.state.u.sum(0).tolist()) == [0, 20]


def test_the_cluster_is_chosen_by_training_loss_not_by_held_out_points() -> None:
    # Held-out points of the other source: a choice by held-out (test) loss would be the other center for everybody.
    rng = np.random.default_rng(0)
    theta = torch.tensor([[3.0, -2.0], [-1.0, 4.0]]).double()
    x = [torch.from_numpy(rng.standard_normal((20, 2))) for _ in range(6)]
    train = federation([(x[k], x[k] @ theta[k % 2]) for k in range(6)])
    swapped = federation([(x[k], x[k] @ theta[1 - k % 2]) for k in range(6)])
    plain = fitted(fs.IFCA(S=2), replace(train, held_out=train.train), 3, begun={"centers": theta * 0.2})
    misled = fitted(fs.IFCA(S=2), replace(train, held_out=swapped.train), 3, begun={"centers": theta * 0.2})
    assert misled.state.u.argmax(1).tolist() == [0, 1] * 3
    assert all(torch.equal(value, misled.state.tensors()[name]) for name, value in plain.state.tensors().items())
    # The held-out points are really others, and scored as such.
    good, bad = plain.scores().personal_held_out, misled.scores().personal_held_out
    assert good is not None
    assert bad is not None
    assert good.mean < 1e-12 < 1 < bad.mean


def test_a_client_that_drops_out_is_not_counted() -> None:
    pairs = regression_clients()
    engine = engine_for(fs.IFCA(S=1), federation(pairs), fs.models.linear(), seed=0, solver=fs.Exact(), dtype="float64")
    engine.dropouts = lambda job, t, names: np.array([name in ("1", "4") for name in names])
    with torch.no_grad():
        state, notes = engine.round(engine.start(), 0)
    local = least_squares([pairs[k] for k in range(8) if k not in (1, 4)])
    assert notes == {"selected": 8, "answered": 6}
    assert state.centers[0].numpy() == pytest.approx(local.mean(0), abs=1e-9)


# --- recovery ---------------------------------------------------------------------------------------------------------


def hits(run: Run, above: float) -> Tensor:
    """Whether each client whose main source has a share larger than `above` is in the cluster that stands for it."""
    truth, scores = run.federation.truth, run.scores()
    assert truth is not None
    assert scores.alignment is not None
    shares = truth.fractions(run.federation.train)
    source = torch.tensor(scores.alignment)[run.state.u.argmax(1)]
    return (source == shares.argmax(1))[shares.amax(1) > above]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("partition", ["10:90", "linear", "random"])
def test_the_main_source_of_clients_is_found(partition: str, seed: int) -> None:
    fed = fs.datasets.synthetic(partition=partition, seed=seed)
    run = fs.fit(fs.IFCA(S=2), fed, fs.models.linear(), rounds=10, seed=seed)
    # Nearer to half and half, which center fits better is a matter of a few points: 2 of 80 are wrong above 0.6.
    found = hits(run, above=0.7)
    assert len(found) > 50
    assert bool(found.all())
    assert float(hits(run, above=0.6).double().mean()) >= 0.95


def test_one_center_that_suits_everybody_at_first_keeps_them_all() -> None:
    # Known weakness: from these draws every client finds the same center better, and the other is never trained.
    # Of ten seeds this is the only one.
    fed = fs.datasets.synthetic(partition="10:90", seed=6)
    run = fs.fit(fs.IFCA(S=2), fed, fs.models.linear(), rounds=10, seed=6)
    assert sorted(run.state.u.sum(0).tolist()) == [0, 100]


@pytest.mark.parametrize("setting", [{"S": 0}, {"K": 0}, {"average": "median"}, {"lr": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"IFCA\.{next(iter(setting))} = "):
        fs.IFCA(**setting)
