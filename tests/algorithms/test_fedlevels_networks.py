"""FedLevels on networks: which picture of the clients it finds, and that it then trains what it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.closing import Beginning, task_done
from fedsoft.clusters.mixture_loss import mixture_losses
from fedsoft.clusters.network_levels import APART, TRIAL, WARM, Picture, clearest
from fedsoft.clusters.personal_way import SCALES
from tests.algorithms.plain import of_one_source
from tests.helpers import Pairs, class_clients, engine_for, federation, fitted

SGD = fs.SGD(lr=0.2, epochs=2, batch=5)
MLP = fs.models.mlp(hidden=[8])
UNDECIDED = WARM + 1 + APART + TRIAL  # rounds


def fed_levels(**settings: object) -> fs.FedLevels:
    return fs.FedLevels(**{"S": 2, "covariance": "isotropic", **settings})  # pyright: ignore[reportArgumentType]


def labelled(kind: Picture, clients: int = 24, points: int = 60) -> Pairs:
    """Classes of half-planes that a quarter or all of a client's points, or none, call by the opposite name."""
    rng, pairs = np.random.default_rng(0), []
    for k in range(clients):
        x = rng.standard_normal((points, 3))
        y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int)
        share = 0.75 if k % 2 else 0.25
        other = {Picture.ONE: False, Picture.CLIENTS: k % 2 == 1, Picture.POINTS: rng.random(points) < share}[kind]
        pairs.append((torch.from_numpy(x), torch.from_numpy(np.where(other, 1 - y, y))))
    return pairs


@pytest.mark.parametrize("kind", [Picture.ONE, Picture.CLIENTS])
def test_the_picture_that_made_the_clients_is_found(kind: Picture) -> None:
    run = fitted(fed_levels(), labelled(kind), UNDECIDED + 1, solver=SGD, model=MLP)
    assert Picture(int(run.state.extra["picture"])) is kind
    assert [record.phase for record in run.history][-1] == kind.name.lower()


# --- the choice -------------------------------------------------------------------------------------------------------


def table(*gains: list[float]) -> torch.Tensor:
    """Losses of clients under the three pictures, the same at all scales: 10 less what a picture gains."""
    return (10 - torch.tensor(gains).double().T)[:, :, None].expand(-1, -1, len(SCALES))


def test_one_model_for_all_unless_several_are_clearly_better() -> None:
    nothing, some, more = [0.0] * 4, [0.9, 1.0, 1.1, 1.0], [2.0, 2.1, 1.9, 2.0]
    unclear = [3.0, -2.0, 3.0, -2.0]
    assert clearest(table(nothing, nothing, nothing)) is Picture.ONE
    assert clearest(table(nothing, unclear, unclear)) is Picture.ONE
    assert clearest(table(nothing, some, nothing)) is Picture.CLIENTS
    assert clearest(table(nothing, some, more)) is Picture.POINTS
    assert clearest(table(nothing, [0.5] * 4, some)) is Picture.POINTS  # however little apart
    assert clearest(table(nothing, unclear, [0.4] * 4)) is Picture.ONE
    assert clearest(table(some, some, nothing)) is Picture.ONE
    assert clearest(table([0.0], [5.0], [9.0])) is Picture.ONE  # one client tells nothing of others


def test_each_picture_counts_with_its_best_scale() -> None:
    losses = torch.full((4, 3, len(SCALES)), 10.0, dtype=torch.float64)
    losses[:, 0, 3] = torch.tensor([7.0, 7.1, 6.9, 7.0])
    losses[:, 1, 8] = torch.tensor([8.0, 8.1, 7.9, 8.0])
    assert clearest(losses) is Picture.ONE
    losses[:, 2, 0] = torch.tensor([6.0, 6.1, 5.9, 6.0])
    assert clearest(losses) is Picture.POINTS


# --- its parts --------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_mixture_by_hand() -> None:
    x, y = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([1.0, 0.0]).double()
    engine = engine_for(fs.FedAvg(), federation([(x, y)]), fs.models.linear(bias=False), dtype="float64")
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    w, shares = torch.tensor([[[1.0], [-1.0]]]).double(), torch.tensor([[0.75, 0.25]]).double()
    assert mixture_losses(site, w, shares).tolist() == pytest.approx([0.5**2 + 1.0**2])  # mean slope: 1/2

    pairs = class_clients((4, 6))
    engine = engine_for(fs.FedAvg(), federation(pairs), fs.models.linear(), dtype="float64")
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    w = torch.stack([torch.stack([engine.model.draw(np.random.default_rng([k, j])) for j in (0, 1)]) for k in (0, 1)])
    shares = torch.tensor([[0.3, 0.7], [1.0, 0.0]]).double()
    for k, (inputs, labels) in enumerate(pairs):
        each = engine.model.outputs(w[k].double(), inputs.expand(2, *inputs.shape)).softmax(-1)
        mixed = (shares[k, :, None, None] * each).sum(0)[torch.arange(len(labels)), labels]
        assert float(mixture_losses(site, w.double(), shares)[k]) == pytest.approx(float(-mixed.log().sum()))


def test_models_are_trained_by_their_own_points_and_pulled_to_their_own_centers() -> None:
    theta = torch.tensor([[2.0, -1.0], [-1.0, 3.0]]).double()
    pairs = of_one_source(theta, (0, 1, 0), (12, 9, 7), 0.1)
    engine = engine_for(
        fs.FedAvg(), federation(pairs), fs.models.linear(bias=False), solver=fs.Exact(), dtype="float64"
    )
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    rng = np.random.default_rng(1)
    c = torch.from_numpy(rng.standard_normal((3, 2, 2)))
    part = torch.from_numpy(rng.integers(0, 2, 28))
    part[:12] = 0  # the first client has no point of its second model
    w = task_done(site, Beginning(c, part, torch.full((3, 2), 0.5).double()), c, strength=3.0, rate=1.0, task=0)
    for k, begin in enumerate((0, 12, 21)):
        x, y = pairs[k]
        for j in (0, 1):
            own = part[begin : begin + len(y)] == j
            if not own.any():
                assert torch.equal(w[k, j], c[k, j])
                continue
            gradient = 2 * x[own].T @ (x[own] @ w[k, j] - y[own]) + 3.0 * (w[k, j] - c[k, j])
            assert float(gradient.abs().max()) < 1e-9


# --- limits -----------------------------------------------------------------------------------------------------------


def test_one_center_is_fedprior_with_one() -> None:
    runs = [
        fitted(a, class_clients(), 3, model=fs.models.mlp(hidden=[4]), solver=SGD)
        for a in (fs.FedLevels(S=1), fs.FedPrior(S=1))
    ]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)
    assert torch.equal(runs[0].engine.client_states["own"], runs[1].engine.client_states["own"])
