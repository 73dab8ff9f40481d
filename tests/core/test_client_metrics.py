"""Metrics of many clients at once, against scikit-learn client by client, and against cases by hand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.client_metrics import NAMED, Judged, OwnMetric, read_metrics
from fedsoft.core.metrics import Metric

NAN = float("nan")


def of(name: str, y: Any, prediction: Any, owners: Any = None, clients: int | None = None) -> list[float]:
    y, prediction = torch.as_tensor(y), torch.as_tensor(prediction)
    owners = torch.zeros(len(y), dtype=torch.int64) if owners is None else torch.as_tensor(owners)
    clients = clients if clients is not None else int(owners.max()) + 1
    return NAMED[name].values(Judged(y, prediction, owners, clients)).tolist()


def drawn(classes: int, *, ties: bool, clients: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Points of clients in mixed order, with all classes at every client."""
    rng = np.random.default_rng(classes)
    owners = rng.permutation(np.repeat(np.arange(clients), rng.integers(30, 60, clients)))
    y = rng.integers(0, classes, len(owners))
    for k in range(clients):
        y[np.flatnonzero(owners == k)[:classes]] = np.arange(classes)
    logits = rng.standard_normal((len(y), classes)) + np.eye(classes)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if ties:
        p = np.round(p * 8) + 1
        p /= p.sum(1, keepdims=True)
    return torch.from_numpy(y), torch.from_numpy(p), torch.from_numpy(owners)


def each(f: Any, y: Tensor, p: Tensor, owners: Tensor) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [float(f(y[owners == k].numpy(), p[owners == k].numpy())) for k in range(int(owners.max()) + 1)]


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_of_classes_are_those_of_scikit_learn(classes: int, ties: bool) -> None:
    y, p, owners = drawn(classes, ties=ties)

    def auc(y: np.ndarray, p: np.ndarray) -> Any:
        return sk.roc_auc_score(y, p[:, 1]) if classes == 2 else sk.roc_auc_score(y, p, multi_class="ovr")

    known = {
        "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
        "log_loss": sk.log_loss,
        "f1": lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"),
        "auc": auc,
    }
    for name, f in known.items():
        assert of(name, y, p, owners) == pytest.approx(each(f, y, p, owners), abs=1e-12), name


def test_the_area_under_the_curve_counts_pairs_in_order() -> None:
    """Positives 0.9 and 0.4, negatives 0.4 and 0.1: of four pairs three are in order and one is a tie."""
    p = torch.tensor([0.9, 0.4, 0.4, 0.1])
    assert of("auc", [1, 1, 0, 0], torch.stack([1 - p, p], 1)) == [pytest.approx(3.5 / 4)]


def test_a_client_of_one_class_has_no_area_and_does_not_disturb_the_others() -> None:
    p = torch.tensor([0.2, 0.8, 0.5, 0.6])
    found = of("auc", [0, 1, 1, 1], torch.stack([1 - p, p], 1), [0, 0, 2, 2], clients=3)
    assert found == pytest.approx([1.0, NAN, NAN], nan_ok=True)


@pytest.mark.parametrize("name", NAMED)
def test_clients_without_points_have_no_value(name: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    y, p = (none, torch.zeros(0, 3)) if "classification" in NAMED[name].tasks else (torch.zeros(0), torch.zeros(0))
    assert of(name, y, p, none, clients=2) == pytest.approx([NAN, NAN], nan_ok=True)


def test_classes_that_a_client_neither_has_nor_predicts_do_not_count() -> None:
    """Classes 0 and 1 of three: F1 of 0 is 2/3, that of 1 is 0.8; class 2 does not occur."""
    p = torch.eye(3)[[0, 1, 1, 1]]
    assert of("f1", [0, 0, 1, 1], p) == [pytest.approx((2 / 3 + 0.8) / 2)]


def test_calibration_is_the_gap_between_confidence_and_hits() -> None:
    """Two points of confidence 0.75, one of them right; two of 0.95, both right: gaps 0.25 and 0.05, half each."""
    p = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.05, 0.95], [0.05, 0.95]], dtype=torch.float64)
    assert of("calibration", [0, 1, 1, 1], p) == [pytest.approx((0.25 + 0.05) / 2)]
    assert of("calibration", [0, 1], torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == [0.0]  # certain and right


def test_being_certain_of_the_wrong_class_costs_much_but_not_everything() -> None:
    found = of("log_loss", [1], torch.tensor([[1.0, 0.0]]))
    assert 10 < found[0] < 40


# --- labels -----------------------------------------------------------------------------------------------------------


def test_metrics_of_labels_are_means_over_labels() -> None:
    rng = np.random.default_rng(3)
    owners = torch.from_numpy(rng.integers(0, 4, 200))
    y = torch.from_numpy(rng.integers(0, 2, (200, 3)))
    p = torch.from_numpy(rng.random((200, 3)) * 0.7 + 0.3 * y.numpy())
    known = {
        "accuracy": lambda y, p: (y == (p > 0.5)).mean(),
        "log_loss": lambda y, p: np.mean([sk.log_loss(y[:, j], p[:, j]) for j in range(3)]),
        "f1": lambda y, p: sk.f1_score(y, p > 0.5, average="macro"),
        "auc": lambda y, p: sk.roc_auc_score(y, p, average="macro"),
    }
    for name, f in known.items():
        assert of(name, y, p, owners) == pytest.approx(each(f, y, p, owners), abs=1e-12), name


def test_labels_of_one_kind_are_left_out_of_the_area() -> None:
    y = torch.tensor([[0, 1], [1, 1]])
    assert of("auc", y, torch.tensor([[0.1, 0.2], [0.9, 0.3]])) == [1.0]
    assert of("auc", y[:, 1:], torch.tensor([[0.2], [0.3]])) == pytest.approx([NAN], nan_ok=True)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [None, 3])
def test_metrics_of_values_are_those_of_scikit_learn(outputs: int | None) -> None:
    rng = np.random.default_rng(0)
    owners = torch.from_numpy(rng.integers(0, 5, 150))
    shape = (150,) if outputs is None else (150, outputs)
    y = torch.from_numpy(rng.standard_normal(shape) + 50)
    prediction = y + torch.from_numpy(rng.standard_normal(shape)) * 0.3
    known = {
        "mae": sk.mean_absolute_error,
        "r2": sk.r2_score,
        "mse": lambda y, p: (outputs or 1) * sk.mean_squared_error(y, p),  # summed over outputs, as the loss is
    }
    for name, f in known.items():
        assert of(name, y, prediction, owners) == pytest.approx(each(f, y, prediction, owners), rel=1e-9), name


def test_a_constant_target_explains_nothing() -> None:
    y = torch.tensor([0.1, 0.1, 0.1, 5.0], dtype=torch.float32)
    assert of("r2", y, y + 1, [0, 0, 0, 1]) == pytest.approx([NAN, NAN], nan_ok=True)  # nor does a single point


# --- what users give --------------------------------------------------------------------------------------------------

CLASSES = DataShape("classification", (2,), 2)


def test_metrics_are_given_by_name_as_functions_and_per_point() -> None:
    def share(y: np.ndarray, prediction: np.ndarray) -> float:
        assert prediction.shape == (len(y), 2)
        return float((prediction[:, 1] > 0.5).mean())

    given = {"area": "auc", "share": share, "cost": OwnMetric(share, higher_is_better=False),
             "sure": Metric("", True, lambda prediction, y: prediction.max(-1).values)}  # fmt: skip
    found = read_metrics(given, CLASSES)
    p = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8]])
    judged = Judged(torch.tensor([0, 1, 0]), p, torch.tensor([0, 0, 2]), 3)
    assert [(one.name, one.higher_is_better) for one in found] == [
        ("area", True), ("share", True), ("cost", False), ("sure", True),
    ]  # fmt: skip
    values = [pytest.approx(one, nan_ok=True) for one in ([1.0, NAN, NAN], [0.5, NAN, 1.0], [0.5, NAN, 1.0])]
    assert [one.values(judged).tolist() for one in found[:3]] == values
    assert found[3].values(judged).tolist() == pytest.approx([0.8, NAN, 0.8], nan_ok=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["acuracy"], "acuracy.*accuracy"),
        ("accuracy", "should be a list of names"),
        (["auc", "auc"], "name each metric once"),
        (["r2"], "'r2' is not for classification, which has accuracy"),
        ({"own": 3}, "'own' = 3 is not allowed: should be a function"),
        (7, "metrics = 7 is not allowed"),
    ],
)
def test_what_is_no_metric_is_said_in_one_sentence(given: Any, message: str) -> None:
    with pytest.raises(fs.InputError, match=message):
        read_metrics(given, CLASSES)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y, p: p, "gave ndarray, should be one number"),
        (lambda y, p: "x", "gave str, should be one number"),
        (lambda y, p: 1 / 0, "failed for the client in row 0"),
    ],
)
def test_functions_that_give_no_number_are_named(function: Any, message: str) -> None:
    (metric,) = read_metrics({"odd": function}, CLASSES)
    with pytest.raises(fs.InputError, match=f"metric 'odd' {message}"):
        metric.values(Judged(torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 0]), 1))
