from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsoft as fs
from fedsoft.core.class_weights import fixed_weights, trained_on
from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.local_solve import Work
from fedsoft.core.metrics import binary_cross_entropy, cross_entropy
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from tests.helpers import class_clients, federation, random_stack, regression_clients

CLASSES = DataShape("classification", (3,), 4)


def test_balanced_classes_weigh_the_same_over_all_clients() -> None:
    data = ClientData.concat(
        [(torch.zeros(6, 3), torch.tensor([0, 0, 0, 0, 1, 1])), (torch.zeros(2, 3), torch.tensor([3, 0]))]
    )
    found = fixed_weights("balanced", CLASSES, data, cross_entropy)
    assert found == pytest.approx(
        (8 / (3 * 5), 8 / (3 * 2), 1.0, 8 / (3 * 1))
    )  # as in scikit-learn; nobody has class 2
    _, weights = trained_on(found, data, torch.float64)
    assert weights is not None
    assert float(weights.sum()) == pytest.approx(8)
    assert float(weights[data.y == 0].sum()) == pytest.approx(float(weights[data.y == 3].sum()))


def test_local_weights_are_by_a_client_s_own_labels_whoever_else_is_there() -> None:
    many, few = torch.tensor([0] * 99 + [2]), torch.tensor([1, 3, 3, 3])
    pairs = [(torch.zeros(100, 3), many), (torch.zeros(4, 3), few)]
    _, both = trained_on("local", ClientData.concat(pairs), torch.float64)
    _, alone = trained_on("local", ClientData.concat(pairs[1:]), torch.float64)
    assert both is not None
    assert alone is not None
    assert alone.tolist() == pytest.approx([2.0, 2 / 3, 2 / 3, 2 / 3])
    assert torch.equal(both[100:], alone)
    assert float(both[99]) == 10.0  # 50 by its share: no single point decides


@pytest.mark.parametrize("algorithm", [fs.FedAvg(), fs.FedSoft(S=2), fs.FedEM(S=2), fs.APFL(), fs.IFCA(S=2)])
def test_a_point_of_a_class_of_weight_2_trains_like_two_points(algorithm: Any) -> None:
    # All points in one batch: its loss is the sum of weights times losses over the number of points.
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 3)), np.array([0, 1, 2] * 4)
    twice = np.concatenate([np.arange(12), np.flatnonzero(y == 1)])
    runs = []
    for (px, py), weights in (((x, y), [0.75, 1.5, 0.75]), ((x[twice], y[twice]), None)):
        fed = fs.Federation.from_clients([(px, py)] * 2, held_out=0.0, classes=3)
        solver = fs.SGD(lr=0.1, epochs=3, batch=100)
        options = fs.FitOptions(dtype="float64", class_weights=weights)
        runs.append(fs.fit(algorithm, fed, fs.models.linear(), rounds=1, solver=solver, options=options))
    one, two = (run.state.centers for run in runs)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def test_the_whole_gradient_is_weighted_too() -> None:
    fed = federation(class_clients())
    model = fs.models.linear()(fed.shape)
    w, weights = random_stack(model, len(fed)), (0.5, 2.0, 1.0, 3.0)
    site = Site(
        model, fed.train, fs.SGD(), fed.names, 0, 0, torch.float64, work=Work.none(len(fed)), class_weights=weights
    )
    found = site.gradient(w)
    for k in range(len(fed)):
        x, y = fed.train.client(k)
        own = w[k : k + 1].clone().requires_grad_()
        losses = nn.functional.cross_entropy(model.outputs(own, x[None])[0], y, reduction="none")
        (expected,) = torch.autograd.grad((torch.tensor(weights).double()[y] * losses).mean(), own)
        torch.testing.assert_close(found[k], expected[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([1.0, 2.0], r"class_weights = \[1.0, 2.0\] is not allowed: should be .* a list of 4 numbers"),
        ([1.0, -1.0, 1.0, 1.0], "should be 0 or more"),
        ([0.0] * 4, "not all of them 0"),
        ([1.0, float("nan"), 1.0, 1.0], "should be 0 or more"),
        ("even", "class_weights = 'even' is not allowed: should be 'balanced', 'local' or a list of 4 numbers"),
    ],
)
def test_weights_that_do_not_fit_are_said(given: Any, reason: str) -> None:
    options = fs.FitOptions(class_weights=given)
    with pytest.raises(InputError, match=reason):
        fs.fit(fs.FedAvg(), federation(class_clients()), fs.models.linear(), rounds=1, options=options)


def test_regression_has_no_classes() -> None:
    options = fs.FitOptions(class_weights="balanced")
    with pytest.raises(InputError, match="regression has no classes"):
        fs.fit(fs.FedAvg(), federation(regression_clients()), fs.models.linear(), rounds=1, options=options)


def test_a_rare_class_is_found_with_weights() -> None:
    rng = np.random.default_rng(1)
    pairs = []
    for _ in range(6):
        y = (rng.random(200) < 0.05).astype(int)
        pairs.append((rng.standard_normal((200, 2)) + 1.5 * y[:, None], y))
    fed = fs.Federation.from_clients(pairs)
    recall = {}
    for weights in (None, "balanced", "local"):
        options = fs.FitOptions(class_weights=weights)
        run = fs.fit(fs.FedAvg(), fed, fs.models.linear(bias=True), rounds=5, options=options)
        rare = [(one.guess[one.y == 1] == 1) for one in run.held_out_predictions()]
        recall[weights] = float(np.concatenate(rare).mean())
    assert recall["balanced"] > recall[None] + 0.2
    assert recall["local"] > recall[None] + 0.2


def test_new_clients_train_with_the_weights_of_the_run() -> None:
    x, y = class_clients()[2]
    found = []
    for weights in (None, [5.0, 1.0, 1.0, 1.0]):
        options = fs.FitOptions(class_weights=weights)
        run = fs.fit(fs.FedAvg(), federation(class_clients()), fs.models.linear(), rounds=0, options=options)
        found.append(run.adopt(x, y, how="personal").ensemble.w)
    assert not torch.allclose(found[0], found[1])


# --- labels that apply together ---------------------------------------------------------------------------------------

LABELS = DataShape("multilabel", (3,), 3)


def label_clients(sizes: Any = (9, 14, 6)) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [(rng.standard_normal((n, 3)), (rng.random((n, 3)) < (0.1, 0.5, 0.9)).astype(int)) for n in sizes]


def labelled() -> fs.Federation:
    return fs.Federation.from_clients(label_clients(), task="multilabel", held_out=0.0)


@pytest.mark.parametrize("backend", ["stacked", "loop"])
def test_labels_are_weighed_as_by_torch(backend: str) -> None:
    """One batch of all points and three steps of gradient descent, against torch's own loss with `pos_weight`."""
    fed, weights = labelled(), [0.5, 2.0, 7.0]

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    run = fs.fit(
        fs.Local(), fed, net, rounds=1, solver=fs.SGD(lr=0.3, epochs=3, batch=100, momentum=0.0),
        options=fs.FitOptions(dtype="float64", class_weights=weights, backend=backend),
    )  # fmt: skip
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights).double())
    for k, (x, y) in enumerate(label_clients()):
        own = net().double()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.3)
        for _ in range(3):
            optimizer.zero_grad()
            loss(own(torch.from_numpy(x)), torch.from_numpy(y).double()).backward()
            optimizer.step()
        for name, value in own.state_dict().items():
            torch.testing.assert_close(run.personal(k)[name], value, rtol=0, atol=1e-9)


def test_the_loss_of_plain_labels_has_the_bits_of_torch() -> None:
    output, y = torch.randn(2, 5, 3), (torch.rand(2, 5, 3) < 0.5).float()
    plain = nn.functional.binary_cross_entropy_with_logits(output, y, reduction="none").mean(-1)
    assert torch.equal(binary_cross_entropy(output, y), plain)


def test_weights_of_labels_by_their_counts() -> None:
    fed = labelled()
    y = np.concatenate([y for _, y in label_clients()])
    assert fixed_weights("balanced", LABELS, fed.train, binary_cross_entropy) == pytest.approx(
        [*((1 - y).sum(0) / y.sum(0))]
    )
    data = ClientData.concat(
        [(torch.zeros(40, 3), torch.zeros(40, 3).index_fill_(0, torch.tensor([0]), 1.0)),
         (torch.zeros(4, 3), torch.tensor([[1, 1, 0], [0, 1, 0], [0, 1, 0], [0, 1, 1.0]]))]
    )  # fmt: skip
    both, none = trained_on("local", data, torch.float64)
    assert none is None
    assert both.y[0].tolist() == [10.0] * 3  # 39 by their share: no single point decides
    assert both.y[40:].tolist() == [[3, 1, 0], [0, 1, 0], [0, 1, 0], [0, 1, 3]]  # a label that all have weighs 1
    alone, _ = trained_on("local", data.take([1]), torch.float64)
    assert torch.equal(alone.y[alone.points], both.y[40:])


def test_a_rare_label_is_found_and_mixtures_and_scores_see_labels_as_they_are() -> None:
    rng = np.random.default_rng(1)
    pairs = []
    for _ in range(5):
        y = (rng.random((150, 2)) < (0.06, 0.5)).astype(int)
        pairs.append((rng.standard_normal((150, 2)) + 1.5 * y, y))
    fed = fs.Federation.from_clients(pairs, task="multilabel")
    found = {}
    for weights in (None, "balanced", "local", [8.0, 1.0]):
        options = fs.FitOptions(class_weights=weights)
        run = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(bias=True), rounds=4, options=options)
        rare = [one.prediction[:, 0][one.y[:, 0] == 1] > 0.5 for one in run.held_out_predictions()]
        found[str(weights)] = float(np.concatenate(rare).mean())
        scored = run.scores().personal_train
        assert scored is not None
        assert 0 <= scored.mean <= 1
    plain = found.pop("None")
    assert all(recall > plain + 0.2 for recall in found.values())


@pytest.mark.parametrize(
    ("given", "model", "reason"),
    [
        ([1.0, 2.0], None, "a list of 3 numbers, one for each label"),
        ([1.0, 0.0, 2.0], None, "should be above 0, for labels"),
        ("local", fs.models.module(lambda: nn.Linear(3, 3), loss=lambda o, y: (o - y).square().mean(1)), "own, which"),
    ],
)
def test_weights_of_labels_that_do_not_fit_are_said(given: Any, model: Any, reason: str) -> None:
    options = fs.FitOptions(class_weights=given)
    with pytest.raises(InputError, match=reason):
        fs.fit(fs.FedAvg(), labelled(), model or fs.models.linear(), rounds=1, options=options)
