from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import TWO, batches, drawn, gradient, local_training
from tests.helpers import RAGGED, Pairs, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.2, epochs=2, batch=5)  # fast enough that not everybody does best with the largest share

# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_round_of_two_clients_by_hand() -> None:
    # The center must hold both clients: keeping only the last one's model is what a known implementation does.
    lr, grid = 0.05, (0.25, 0.5, 0.75)
    run = fitted(fs.MAPPER(grid=grid), TWO, 1, fs.SGD(lr=lr, epochs=1, batch=3))
    c = float(fitted(fs.MAPPER(), TWO, 0).state.centers)
    slope = [lambda w: 2 / 3 * (6 * w - 14), lambda w: 2 * (4 * w + 4)]
    loss = [lambda w: (6 * w**2 - 28 * w + 46) / 3, lambda w: (2 * w + 2) ** 2]
    v, lam, w = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for k in range(2):
        tried = {share: c - lr * share * slope[k](c) for share in grid}
        lam[k] = min(grid, key=lambda share: loss[k](share * tried[share] + (1 - share) * c))
        v[k] = tried[lam[k]]
        w[k] = c - lr * (1 - lam[k]) * slope[k](lam[k] * v[k] + (1 - lam[k]) * c)
    memory, center = run.engine.client_states, float(run.state.centers)
    assert memory["lam"].flatten().tolist() == lam
    assert memory["v"].flatten().tolist() == pytest.approx(v)
    assert memory["w"].flatten().tolist() == pytest.approx([lam[k] * v[k] + (1 - lam[k]) * w[k] for k in range(2)])
    assert center == pytest.approx((3 * w[0] + 1 * w[1]) / 4)
    assert abs(center - w[0]) > 0.01
    assert abs(center - w[1]) > 0.01


def test_the_best_share_is_by_training_loss() -> None:
    # At a learning rate this high a large share overshoots the steep client's minimum and a small one does not; the
    # flat client never comes as far.
    flat = (torch.full((4, 1), 0.3).double(), torch.full((4,), 3.0).double())
    steep = (torch.full((4, 1), 2.0).double(), torch.full((4,), 3.0).double())
    run = fitted(fs.MAPPER(grid=(0.25, 1.0)), [flat, steep], 1, fs.SGD(lr=0.24, epochs=1, batch=4))
    assert run.engine.client_states["lam"].flatten().tolist() == [1.0, 0.25]


# --- limiting cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [SGD, fs.SGD(momentum=0.9, batch=5), fs.Adam(epochs=2, batch=5)])
def test_with_the_share_0_it_is_fedavg(local: Any) -> None:
    mixed, plain = (fitted(a, regression_clients(), 3, local) for a in (fs.MAPPER(K=3, grid=(0.0,)), fs.FedAvg(K=3)))
    assert torch.allclose(mixed.state.centers, plain.state.centers, atol=1e-12)
    first = fitted(fs.FedAvg(), regression_clients(), 0).state.centers
    assert torch.equal(mixed.engine.client_states["v"], first.expand(8, -1))


def test_with_the_share_1_it_is_local_training_and_the_center_stays() -> None:
    run = fitted(fs.MAPPER(K=3, grid=(1.0,)), regression_clients(), 4, SGD)
    assert torch.allclose(run.engine.client_states["w"], local_training(4, 3, SGD), atol=1e-12)
    first = fitted(fs.FedAvg(), regression_clients(), 0).state.centers
    assert torch.allclose(run.state.centers, first, atol=1e-12)


def test_the_order_of_the_grid_does_not_matter() -> None:
    # Every share starts from the client's v: carrying it over from the share before would depend on the order.
    one, other = (fitted(fs.MAPPER(grid=grid), regression_clients(), 3, SGD) for grid in ((0.25, 0.75), (0.75, 0.25)))
    for name, value in one.engine.client_states.items():
        assert torch.allclose(value, other.engine.client_states[name], atol=1e-12), name


# --- against a plain loop ---------------------------------------------------------------------------------------------


def specification(
    pairs: Pairs, first: Tensor, K: int, grid: tuple[float, ...], rounds: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """MAPPER one client, share and batch at a time: the center, and the clients' mixes, local models and shares."""
    c, mixes, local, shares = first, [first] * len(pairs), [first] * len(pairs), [grid[0]] * len(pairs)
    for t in range(rounds):
        selected, trained = drawn(t, K, len(pairs)), {}
        for k in selected:
            x, y = pairs[k]
            best, start = float("inf"), local[k]
            for share in grid:
                v = start  # the same for every share
                for batch in batches(k, t, len(y), SGD):
                    v = v - SGD.lr * share * gradient(share * v + (1 - share) * c, x[batch], y[batch])
                loss = float(((x @ (share * v + (1 - share) * c) - y) ** 2).mean())
                if loss < best:
                    best, local[k], shares[k] = loss, v, share
            lam, v, w = shares[k], local[k], c
            for batch in batches(k, t, len(y), SGD):
                w = w - SGD.lr * (1 - lam) * gradient(lam * v + (1 - lam) * w, x[batch], y[batch])
            trained[k], mixes[k] = w, lam * v + (1 - lam) * w
        points = sum(len(pairs[k][1]) for k in selected)
        c = torch.stack([len(pairs[k][1]) / points * trained[k] for k in selected]).sum(0)
    return c, torch.stack(mixes), torch.stack(local), torch.tensor(shares, dtype=torch.float64)


def test_a_run_equals_the_specification() -> None:
    pairs, grid = regression_clients(), (0.25, 0.5, 0.75)
    run = fitted(fs.MAPPER(K=3, grid=grid), pairs, 6, SGD)
    start = run.model.draw(generator(0, "center", 0)).double()
    c, mixes, local, shares = specification(pairs, start, 3, grid, 6)
    assert torch.allclose(run.state.centers[0], c, atol=1e-9)
    assert torch.allclose(run.engine.client_states["w"], mixes, atol=1e-9)
    assert torch.allclose(run.engine.client_states["v"], local, atol=1e-9)
    assert torch.allclose(run.engine.client_states["lam"][:, 0], shares)
    assert len(set(shares.tolist()) - {0.5}) > 1  # clients did choose, and not all the same


# --- who answers, and what it costs -----------------------------------------------------------------------------------


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    local = fs.SGD(batch=3)
    engine = engine_for(fs.MAPPER(), federation(TWO), fs.models.linear(), dtype="float64", solver=local)
    engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0)
    assert torch.allclose(state.centers, fitted(fs.MAPPER(), TWO[:1], 1, local).state.centers, atol=1e-12)


@pytest.mark.parametrize("grid", [(0.5,), (0.25, 0.5, 0.75)])
def test_the_work_of_the_grid_is_counted(grid: tuple[float, ...]) -> None:
    record = fitted(fs.MAPPER(grid=grid), regression_clients(), 1, SGD).history[0]
    assert record.gradients == (len(grid) + 1) * SGD.epochs * sum(RAGGED)
    assert record.evaluations == len(grid) * sum(RAGGED)
    assert record.bytes_down == record.bytes_up == 8 * 3 * 8


def test_a_solver_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="takes no single steps: use SGD or Adam"):
        fitted(fs.MAPPER(), TWO, 1, fs.Exact())


@pytest.mark.parametrize("setting", [{"K": 0}, {"grid": ()}, {"grid": (1.5,)}, {"grid": (-0.5, 0.5)}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"MAPPER\.{next(iter(setting))} = "):
        fs.MAPPER(**setting)
