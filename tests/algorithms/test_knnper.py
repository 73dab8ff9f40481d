from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.neighbours import Store
from fedsoft.core.client_draws import Draws
from fedsoft.errors import InputError
from tests.helpers import (
    RAGGED,
    Pairs,
    class_clients,
    engine_for,
    federation,
    fitted,
    played,
    regression_clients,
    silent,
)

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)
MLP, CLASSES = fs.models.mlp(hidden=[6]), 4


def store(keys: list[float], values: list[float], capacity: int = 6) -> Store:
    """One client with one number each."""
    pad = [0.0] * (capacity - len(keys))
    return Store(
        torch.tensor([keys + pad]).double()[:, :, None],
        torch.tensor([values + pad]).double(),
        torch.tensor([len(keys)]),
    )


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_neighbours_by_hand() -> None:
    """At 0.5 the points at 0 and 1 are as near as each other; at 0 their weights are 1 and exp(-1 / scale)."""
    own, nobody_else = store([0.0, 1.0, 5.0], [2.0, 4.0, 99.0]), torch.zeros(3, dtype=torch.int64)
    z = torch.tensor([[0.5], [0.0], [1e9]]).double()
    found = own.predict(z, nobody_else, k=2, scale=1.0).tolist()
    assert found[:2] == pytest.approx([3.0, (2 + 4 * np.exp(-1)) / (1 + np.exp(-1))])
    assert found[2] == pytest.approx(99.0)  # far from all: the nearest, and no 0 / 0
    found = own.predict(z, nobody_else, k=9, scale=1e12).tolist()
    assert found[0] == pytest.approx(35.0)  # all three alike, and no more than there are
    assert own.predict(z, nobody_else, k=1, scale=1.0).tolist()[1:] == [2.0, 99.0]


def test_a_client_without_points_says_nothing() -> None:
    found = store([], []).predict(torch.ones(2, 1).double(), torch.zeros(2, dtype=torch.int64), k=3, scale=1.0)
    assert found.tolist() == [0.0, 0.0]


def test_many_points_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    own = Store(
        torch.from_numpy(rng.standard_normal((3, 7, 2))),
        torch.from_numpy(rng.random((3, 7, 4))),
        torch.tensor([7, 3, 1]),
    )
    z, owners = torch.from_numpy(rng.standard_normal((20, 2))), torch.from_numpy(rng.integers(3, size=20))
    whole = own.predict(z, owners, 3, 1.0)
    monkeypatch.setattr("fedsoft.clusters.neighbours.AT_ONCE", 30)
    assert torch.equal(own.predict(z, owners, 3, 1.0), whole)


# --- the whole of it --------------------------------------------------------------------------------------------------


def latent(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the hidden layer, and probabilities."""
    hidden = torch.relu(x @ w[:18].view(6, 3).T + w[18:24])
    return hidden, (hidden @ w[24:48].view(CLASSES, 6).T + w[48:]).softmax(1)


def said(z: Tensor, keys: Tensor, y: Tensor, k: int, scale: float) -> Tensor:
    """What the nearest points say, one after the other."""
    found = torch.zeros(len(z), CLASSES).double()
    for i in range(len(z)):
        squares = [float(((z[i] - key) ** 2).sum()) for key in keys]
        for j in sorted(range(len(keys)), key=squares.__getitem__)[:k]:
            found[i, y[j]] += np.exp(-squares[j] / (6 * scale))
    return found / found.sum(1, keepdim=True)


def test_predictions_equal_the_plain_loop() -> None:
    pairs = class_clients()
    run = fitted(fs.KNNPer(k=3, scale=0.5), pairs, 3, SGD, model=MLP, seed=3)
    w, states = run.state.centers[0], run.engine.client_states
    x_new = torch.from_numpy(np.random.default_rng(9).standard_normal((5, 3)))
    chosen = []
    for k, (x, y) in enumerate(pairs):
        order = Draws(3, "held back", 0, names=[str(k)]).permutations([len(y)])[0]
        held = torch.from_numpy(order >= len(y) - int(0.2 * len(y)))
        z, p = latent(w, x)
        beside = said(z[held], z[~held], y[~held], 3, 0.5) if held.any() else torch.zeros(0, CLASSES).double()
        target = torch.nn.functional.one_hot(y, CLASSES).double()
        errors = [
            float(((1 - lam) * p[held] + lam * beside - target[held]).square().sum()) for lam in np.linspace(0, 1, 201)
        ]
        lam = float(states["lam"][k])
        if held.any():
            assert lam == pytest.approx(np.linspace(0, 1, 201)[int(np.argmin(errors))], abs=6e-3)
        chosen.append(lam)
        z_new, p_new = latent(w, x_new)
        expected = lam * said(z_new, z, y, 3, 0.5) + (1 - lam) * p_new
        assert torch.allclose(run.predict(x_new, client=k), expected, atol=1e-10)
        assert torch.allclose(run.ensemble(client=k).predict(x_new), expected, atol=1e-10)
    assert len({round(lam, 3) for lam in chosen}) > 2
    personal = run.scores().personal_train  # all clients at once
    hits = [float((run.predict(x, client=k).argmax(1) == y).double().mean()) for k, (x, y) in enumerate(pairs)]
    assert personal is not None
    assert personal.mean == pytest.approx(np.mean(hits))


def test_points_that_are_held_back_are_not_trained_on() -> None:
    pairs = class_clients()
    changed = []
    for k, (x, y) in enumerate(pairs):
        held = Draws(0, "held back", 0, names=[str(k)]).permutations([len(y)])[0] >= len(y) - int(0.2 * len(y))
        changed.append((torch.where(torch.from_numpy(held)[:, None], 100.0, x), y))
    one, other = (fitted(fs.KNNPer(), each, 2, SGD, model=MLP) for each in (pairs, changed))
    assert torch.equal(one.state.centers, other.state.centers)
    assert not torch.equal(one.engine.client_states["keys"], other.engine.client_states["keys"])


def test_nothing_is_held_back_where_too_few_points_would_be_left() -> None:
    """Whose models would be sent with those of fewer points than the owner of a node allows."""
    engine = engine_for(fs.KNNPer(held_back=0.5), federation(class_clients()), MLP, solver=SGD)
    engine.host.least_points = 6
    with torch.no_grad():
        engine.round(engine.start(), 0)
    used = [n - n // 2 if n - n // 2 >= 6 else n for n in RAGGED]
    assert engine.cost.gradients == SGD.epochs * sum(used)


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [fs.models.linear(), fs.models.mlp(hidden=[4])])
def test_with_lambda_0_it_is_fedavg(model: Any) -> None:
    pairs = regression_clients()
    one, other = (fitted(a, pairs, 3, SGD, model=model) for a in (fs.KNNPer(lam=0.0, K=5), fs.FedAvg(K=5)))
    assert torch.equal(one.state.centers, other.state.centers)
    for k, (x, _) in enumerate(pairs):
        assert torch.allclose(one.predict(x, client=k), other.predict(x, client=k), atol=1e-12)


@pytest.mark.parametrize("pairs", [regression_clients(), class_clients()])
def test_with_lambda_1_and_one_neighbour_clients_know_their_own_points(pairs: Pairs) -> None:
    run = fitted(fs.KNNPer(lam=1.0, k=1), pairs, 1, SGD)
    for k, (x, y) in enumerate(pairs):
        found = run.predict(x, client=k)
        assert torch.allclose(found.double() if found.ndim == 1 else found.argmax(1).double(), y.double())


def test_clients_that_differ_are_served_where_one_model_cannot() -> None:
    """Half of the clients count the classes backwards."""
    pairs = class_clients((60,) * 6)
    local = fs.SGD(lr=0.3, epochs=3, batch=10)
    mixed, pooled = (
        fs.fit(a, fs.Federation.from_clients(pairs), MLP, rounds=8, solver=local).scores().personal_held_out
        for a in (fs.KNNPer(), fs.FedAvg())
    )
    assert mixed is not None
    assert pooled is not None
    assert mixed.mean > pooled.mean + 0.15


def test_no_more_is_remembered_than_the_capacity() -> None:
    run = fitted(fs.KNNPer(capacity=7), class_clients(), 1, SGD, model=MLP)
    states = run.engine.client_states
    assert states["count"].tolist() == [min(7, n) for n in RAGGED]
    assert states["keys"].shape == (8, 7, 6)
    assert states["values"].sum(2).sum(1).tolist() == states["count"].tolist()


def test_a_client_that_did_not_answer_uses_the_center() -> None:
    fed = federation(class_clients())
    engine = engine_for(fs.KNNPer(lam=0.7), fed, MLP, seed=0, solver=SGD, dtype="float64")
    engine.dropouts = silent(lambda job, t, name: job == "remember" and name == "2")
    run = played(engine, fed, 2)
    x = class_clients()[2][0]
    assert torch.allclose(run.predict(x, client=2), run.predict(x, center=0), atol=1e-12)
    assert not torch.allclose(run.predict(x, client=1), run.predict(x, center=0))
    assert run.history[-1].notes["tuned"] == 7


def test_nothing_is_sent_but_models_and_clients_are_not_exported(tmp_path: Path) -> None:
    run = fitted(fs.KNNPer(), class_clients(), 2, SGD, model=MLP, dtype="float32")
    assert [record.bytes_up for record in run.history] == [8 * run.model.size * 4] * 2
    with pytest.raises(InputError, match="clients of KNNPer predict with is no network alone: export the centers"):
        fs.export(run, tmp_path / "client", client=0)


def test_statistics_of_clients_are_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, CLASSES))
    with pytest.raises(InputError, match="statistics = 'local' is not for KNNPer"):
        fitted(fs.KNNPer(), class_clients(), 1, SGD, model=fs.models.module(net, statistics="local"))


@pytest.mark.parametrize(
    "setting", [{"k": 0}, {"K": 0}, {"lam": 1.5}, {"held_back": 0.6}, {"scale": 0}, {"capacity": 0}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"KNNPer\.{next(iter(setting))} = "):
        fs.KNNPer(**setting)
