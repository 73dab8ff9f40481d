"""What tells centers apart, on cases where it is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.evidence import Evidence
from fedsoft.core.columns import Columns
from fedsoft.core.model import Layout, Model
from fedsoft.evaluation.cluster_profiles import cluster_profiles
from fedsoft.evaluation.values import ClusterProfiles, VarianceRow
from fedsoft.evaluation.variance_table import parameter_names, prior_summary
from fedsoft.training.records import RoundRecord

SCALE = torch.tensor([1.0, 10.0, 0.1])


def regression() -> fs.Federation:
    rng = np.random.default_rng(0)
    x = [torch.from_numpy(rng.standard_normal((40, 3))).float() * SCALE for _ in range(4)]
    fed = fs.Federation.from_clients([(one, one[:, 0]) for one in x], names=["a", "b", "c", "d"], held_out=0.5)
    return replace(fed, columns=Columns(features=("age", "dose", "dye")))


def profiles(model: Model, centers: torch.Tensor, u: torch.Tensor, fed: fs.Federation) -> ClusterProfiles:
    found = cluster_profiles(model, centers, u, fed)
    assert found is not None
    return found


U = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])


def test_inputs_of_a_linear_model_count_by_their_spread() -> None:
    """The weight of dye differs most, but dose moves the prediction most."""
    fed = regression()
    model = fs.models.linear()(fed.shape)
    centers = torch.tensor([[1.0, 0.5, 2.0], [1.0, 0.0, -2.0]])
    found = profiles(model, centers, U, fed)
    first, second = found.profiles
    share = float(U[:, 0].mean())
    assert (first.share, first.clients, first.members) == (pytest.approx(share), 3, ["a", "b", "d"])
    assert [one.name for one in first.effects] == ["dose", "dye", "age"]
    spread = float(fed.held_out.x[:, 1].std(correction=0))
    assert first.effects[0].weight == 0.5
    assert first.effects[0].effect == pytest.approx(spread * 0.5 * (1 - share), rel=1e-4)
    assert second.effects[0].effect == pytest.approx(-spread * 0.5 * share, rel=1e-4)
    apart = fed.held_out.x @ (centers[0] - centers[1])
    assert found.pairs[0][1] == pytest.approx(float(apart.square().mean().sqrt() / fed.held_out.y.std(correction=0)))
    assert found.pairs[0][0] == 0
    assert first.told_by(1) == f"dose {first.effects[0].effect:+.2f}"


def test_attributes_of_choices_move_odds_and_constants_count_as_they_are() -> None:
    """Alternatives with a constant of the first one, and a price of which only differences matter."""
    rng = np.random.default_rng(0)
    price = rng.standard_normal((60, 2, 1)) + 100 * rng.standard_normal((60, 1, 1))
    own = np.concatenate([np.broadcast_to([[1.0], [0.0]], (60, 2, 1)), price], axis=2)
    pairs = [(torch.from_numpy(own).float(), torch.from_numpy(rng.integers(0, 2, 60))) for _ in range(4)]
    fed = fs.Federation.from_clients(pairs, held_out=0, classes=2)
    fed = replace(fed, columns=Columns(attributes=("car", "price"), outcomes=("drive", "walk")))
    model = fs.models.conditional_logit()(fed.shape)
    found = profiles(model, torch.tensor([[3.0, 0.0], [-3.0, 0.0]]), torch.full((4, 2), 0.5), fed)
    first = found.profiles[0]
    assert [(one.name, round(one.effect, 3)) for one in first.effects] == [("car", 3.0), ("price", 0.0)]
    assert found.pairs == [[0.0, 1.0], [1.0, 0.0]]  # they never take the same
    assert {one.name: one.more > 0.4 for one in first.classes} == {"drive": True, "walk": False}
    other = profiles(model, torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.full((4, 2), 0.5), fed).profiles[0]
    inside = price - price.mean(axis=1, keepdims=True)
    assert other.effects[0].effect == pytest.approx(float(np.sqrt((inside**2).mean())), rel=1e-3)


def test_a_network_is_told_by_its_predictions_alone() -> None:
    pairs = [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(4)]
    fed = fs.Federation.from_clients(pairs, held_out=0)
    model = fs.models.mlp(hidden=[2])(fed.shape)
    centers = torch.stack([model.draw(np.random.default_rng(s)) for s in range(2)]) * 3
    found = profiles(model, centers, U, fed)
    assert all(not one.effects and len(one.classes) == 2 for one in found.profiles)
    assert found.profiles[0].told_by().endswith(" %")


def test_nothing_is_told_of_a_center_that_is_not_published() -> None:
    hidden = fs.Conditions(privacy=fs.Privacy(floor=99))
    run = fs.fit(fs.FedSoft(S=2), regression(), fs.models.linear(), rounds=1, conditions=hidden)
    found = run.scores().clusters
    assert found is not None
    assert len(run.withheld) == 2
    assert all(one.apart is None and not (one.effects or one.members) for one in found.profiles)
    assert found.pairs == [[None, None], [None, None]]


def test_nothing_is_told_of_a_single_center() -> None:
    fed = regression()
    assert cluster_profiles(fs.models.linear()(fed.shape), torch.zeros(1, 3), torch.ones(4, 1), fed) is None


# --- names and rows of the variance table -----------------------------------------------------------------------------


def test_parameters_are_named_by_what_they_weigh() -> None:
    named = Columns(features=("sex", "age"), categories={"sex": ("f", "m")}, classes=("ill", "well"))
    layout = Layout({"weight": (2, 3), "bias": (2,)})
    assert parameter_names(layout, named)[:4] == ["sex=f, ill", "sex=m, ill", "age, ill", "sex=f, well"]
    assert parameter_names(layout, named)[-1] == "bias, well"
    assert parameter_names(Layout({"weight": (1, 2)}), Columns()) == ["weight 0", "weight 1"]
    assert parameter_names(Layout({"weight": (2,)}), Columns(attributes=("price", "time"))) == ["price", "time"]


def test_shares_add_up() -> None:
    assert VarianceRow("x", 1.0, 3.0, 1.0).shares == (0.25, 0.5, 0.25)
    assert VarianceRow("x", 0.0, 0.0, 0.0).shares == (0.0, 0.0, 0.0)


def test_the_last_weighing_is_summed_up() -> None:
    fed = regression()
    model = fs.models.linear()(fed.shape)
    usual = {"last": False, "seconds": 0.0, "gradients": 0, "bytes_down": 0, "bytes_up": 0}
    told = Evidence(log=-9.0, points=3, clients=2, numbers=1)
    history = [RoundRecord(round=1, evidence=told, variation=[[1.0, 3.0, 1.0]] * 4, **usual),
               RoundRecord(round=2, **usual)]  # fmt: skip
    found = prior_summary(history, model, fed.columns)
    assert found is not None
    assert [row.name for row in found.variance] == ["age", "dose", "dye"]
    assert (found.unit, found.evidence) == ("mse", told)
    assert "25% of it between sources, 50% within them, 25% in noise" in found.sentences[0]
    assert found.sentences[1].startswith("log evidence -3.0000 per point, -3.3333 less 1 for each of the 1 numbers")
    large = replace(found, evidence=replace(told, numbers=3))
    assert large.sentences[1].endswith("of a prior with 3 numbers: compare other S by held-out points")
    assert RoundRecord.from_dict(history[0].to_dict()) == history[0]
    assert prior_summary(history[1:], model, fed.columns) is None
