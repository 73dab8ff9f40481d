"""Metrics that a run asks for: of personal models, centers and constant predictors, on every engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

import fedsoft as fs
from fedsoft.core.federation import Federation, Truth
from fedsoft.evaluation.values import Scores
from fedsoft.reports.withheld import without_centers
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec

NAMES = ["accuracy", "log_loss", "f1", "auc", "calibration"]


def federation(held_out: float = 0.4) -> Federation:
    """Six clients of two kinds; client 5 has only points of class 1."""
    rng = np.random.default_rng(0)
    clients = []
    for k in range(6):
        x = rng.standard_normal((30, 3))
        y = (x[:, 0] * (1 if k % 2 else -1) + 0.3 * rng.standard_normal(30) > 0).astype(int)
        clients.append((x, y if k < 5 else np.ones(30, dtype=int)))
    return Federation.from_clients(clients, held_out=held_out, classes=2)


def trained(fed: Federation, metrics: Any, algorithm: Any = None) -> fs.Run:
    options = fs.FitOptions(metrics=metrics)
    return fs.fit(algorithm or fs.FedSoft(S=2), fed, fs.models.linear(), rounds=3, solver=fs.SGD(lr=0.1, epochs=2),
                  options=options)  # fmt: skip


def test_personal_models_are_scored_client_by_client() -> None:
    fed = federation()
    scores = trained(fed, NAMES).scores()
    run = trained(fed, None)
    assert list(scores.metrics) == NAMES
    points = [fed.held_out.client(k) for k in range(6)]
    predictions = [run.predict(x, client=k).numpy() for k, (x, _) in enumerate(points)]
    auc = [roc_auc_score(y, p[:, 1]) for (_, y), p in zip(points[:5], predictions, strict=False)]
    f1 = [f1_score(y, p.argmax(1), average="macro") for (_, y), p in zip(points, predictions, strict=True)]
    found = scores.metrics["auc"]
    assert found.by_client_held_out == pytest.approx([*auc, None])
    assert (found.skipped_train, found.skipped_held_out) == (1, 1)
    assert found.held_out is not None
    assert found.held_out.mean == pytest.approx(np.mean(auc))
    assert found.held_out.std == pytest.approx(np.std(auc))
    assert (found.held_out.worst_decile, found.held_out.clients) == (pytest.approx(min(auc)), 5)
    assert found.held_out.worst_points == 12
    assert scores.metrics["f1"].by_client_held_out == pytest.approx(f1)
    assert scores.metrics["accuracy"].held_out == scores.personal_held_out
    assert scores.metrics["accuracy"].train == scores.personal_train


def test_metrics_change_nothing_else() -> None:
    plain, more = trained(federation(), None), trained(federation(), NAMES)
    assert torch.equal(plain.state.centers, more.state.centers)
    assert replace(more.scores(), metrics={}) == plain.scores()


def test_metrics_may_be_asked_for_afterwards() -> None:
    run = trained(federation(), None)
    assert run.scores(["auc"]) == trained(federation(), ["auc"]).scores()
    assert run.scores().metrics == {}
    counted = run.scores({"points": lambda y, prediction: len(y)}).metrics["points"]
    assert counted.by_client_held_out == [12.0] * 6


def test_centers_are_scored_on_the_points_of_all_and_of_their_own() -> None:
    fed = federation()
    run = trained(fed, ["auc", "accuracy"])
    scores = run.scores()
    assert scores.served is not None
    assert scores.metrics["accuracy"].on_all == pytest.approx([use.on_all for use in scores.served])
    assert scores.metrics["accuracy"].on_own == pytest.approx([use.on_own for use in scores.served])
    y = fed.held_out.y.numpy()
    areas = [roc_auc_score(y, run.predict(fed.held_out.x, center=s)[:, 1].numpy()) for s in range(2)]
    assert scores.metrics["auc"].on_all == pytest.approx(areas)
    hidden = without_centers(scores, [1]).metrics["auc"]
    assert hidden.on_all == [scores.metrics["auc"].on_all[0], None]  # pyright: ignore[reportOptionalSubscript]


def test_centers_are_scored_on_the_test_sets_of_sources() -> None:
    fed = federation()
    tests = tuple(fed.held_out.client(k) for k in range(2))
    sources = torch.arange(len(fed.train.y)) % 2
    fed = replace(fed, truth=Truth(torch.ones(6, 2).double() / 2, sources, sources[:0], tests, ("a", "b")))
    run = trained(fed, ["auc", "accuracy"])
    scores = run.scores()
    assert scores.centers is not None
    assert scores.metrics["accuracy"].centers == [pytest.approx(row) for row in scores.centers]
    right = [[roc_auc_score(y, run.predict(x, center=s)[:, 1].numpy()) for x, y in tests] for s in range(2)]
    assert scores.metrics["auc"].centers == [pytest.approx(row) for row in right]
    hidden = without_centers(scores, [0]).metrics["auc"].centers
    assert hidden is not None
    assert (hidden[0], hidden[1]) == ([None, None], pytest.approx(right[1]))


def test_without_held_out_points_nothing_is_scored_on_them() -> None:
    found = trained(federation(held_out=0.0), ["auc"]).scores().metrics["auc"]
    assert (found.held_out, found.skipped_held_out) == (None, 6)
    assert found.train is not None


def test_methods_without_centers_or_with_several_models_are_scored() -> None:
    assert trained(federation(), ["auc"], fs.Local()).scores().metrics["auc"].on_all is None
    assert trained(federation(), ["auc"], fs.FedEM(S=2)).scores().metrics["auc"].held_out is not None


def test_scores_with_metrics_are_read_as_they_were_written() -> None:
    scores = trained(federation(), NAMES).scores()
    assert Scores.from_dict(scores.to_dict()) == scores


# --- yardsticks -------------------------------------------------------------------------------------------------------


def test_constants_are_the_majority_of_each_client_and_of_all() -> None:
    """Client a has classes 0 0 1 and client b 1 1 1 1; one point each is held out in its own class."""
    a, b = (np.zeros((3, 1)), np.array([0, 0, 1])), (np.zeros((4, 1)), np.array([1, 1, 1, 1]))
    fed = Federation.from_clients([a, b], held_out=0.0)
    scores = fs.fit(fs.FedAvg(), fed, fs.models.linear(), rounds=1).scores()
    own, overall = scores.yardsticks
    assert (own.name, overall.name) == ("own majority class", "overall majority class")
    assert own.train is not None
    assert overall.train is not None
    assert own.train.mean == pytest.approx((2 / 3 + 1) / 2)
    assert overall.train.mean == pytest.approx((1 / 3 + 1) / 2)
    assert own.held_out is None


def test_constants_are_means_where_values_are_predicted() -> None:
    a, b = (np.zeros((2, 1)), np.array([0.0, 2.0])), (np.zeros((2, 1)), np.array([5.0, 5.0]))
    fed = Federation.from_clients([a, b], held_out=0.0)
    options = fs.FitOptions(metrics=["mae"])
    scores = fs.fit(fs.FedAvg(), fed, fs.models.linear(), rounds=1, options=options).scores()
    own, overall = scores.yardsticks
    assert own.train is not None
    assert overall.train is not None
    assert own.train.mean == pytest.approx((1 + 0) / 2)  # errors 1, 1 and 0, 0
    assert overall.train.mean == pytest.approx(((9 + 1) / 2 + 4) / 2)  # 3 is the mean of all
    by_mae = scores.metrics["mae"].yardsticks[1].train
    assert by_mae is not None
    assert by_mae.mean == pytest.approx(((3 + 1) / 2 + 2) / 2)


# --- run files and engines --------------------------------------------------------------------------------------------


def spec(**changes: Any) -> RunSpec:
    return RunSpec.from_dict({
        "algorithm": {"name": "fedsoft", "S": 2}, "model": "linear", "rounds": 2, "metrics": ["mae", "r2"],
        "dataset": {"name": "synthetic", "clients": 6, "points": [10, 20], "dimension": 3, "test_points": 30},
        "solver": {"name": "sgd", "epochs": 1}, **changes,
    })  # fmt: skip


def test_a_run_file_names_metrics(tmp_path: Path) -> None:
    folder, _ = execute(spec(), tmp_path / "run", RunOptions())
    scores = folder.scores()
    assert scores is not None
    assert list(scores.metrics) == ["mae", "r2"]
    assert fs.load(folder.path).scores() == scores
    assert spec().hash != spec(metrics=None).hash
    assert spec(metrics=[]) == spec(metrics=None)
    assert "metrics" not in spec(metrics=[]).to_dict()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [(["mea"], "metric 'mea'"), (["mae", "mae"], "each metric once"), (["auc"], "'auc' is not for regression"),
     ("mae", "metrics")],
)  # fmt: skip
def test_a_run_file_with_a_wrong_metric_is_refused_before_it_begins(metrics: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match=message):
        execute(spec(metrics=metrics), tmp_path / "run", RunOptions())
    assert not (tmp_path / "run").exists()


def test_named_metrics_need_predictions_that_they_know() -> None:
    """A network of the user's with a loss of its own may predict anything."""
    fed = fs.datasets.synthetic(clients=4, points=(10, 12), dimension=3, test_points=10)
    model = fs.models.module(
        lambda: torch.nn.Linear(3, 2), loss=lambda output, y: (output[:, 0] - y).square() + output[:, 1].square()
    )
    with pytest.raises(fs.InputError, match=r"mae need predictions \[4\], this model's are \[4, 2\]"):
        fs.fit(fs.FedAvg(), fed, model, rounds=1, options=fs.FitOptions(metrics=["mae"]))
    own = fs.FitOptions(metrics={"second": lambda y, prediction: prediction[:, 1].mean()})
    assert fs.fit(fs.FedAvg(), fed, model, rounds=1, options=own).scores().metrics["second"].train is not None


@pytest.mark.slow
def test_workers_of_ray_give_the_same_scores() -> None:
    pytest.importorskip("ray")
    here = trained(federation(), {"f1": "f1", "own": lambda y, p: float(p[:, 1].mean())})
    options = fs.FitOptions(engine="ray", workers=2, metrics={"f1": "f1", "own": lambda y, p: float(p[:, 1].mean())})
    there = fs.fit(fs.FedSoft(S=2), federation(), fs.models.linear(), rounds=3, solver=fs.SGD(lr=0.1, epochs=2),
                   options=options)  # fmt: skip
    for name, found in there.scores().metrics.items():
        assert found.by_client_held_out == pytest.approx(here.scores().metrics[name].by_client_held_out, abs=1e-5)
    there.engine.close()
