from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import batches, drawn
from tests.helpers import RAGGED, Pairs, class_clients, engine_for, federation, fitted, regression_clients

CLASSES, SGD = 4, fs.SGD(lr=0.05, epochs=2, batch=5)
LINEAR = fs.models.linear(bias=True)


def logits(w: Tensor, x: Tensor) -> Tensor:
    inputs = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    return inputs @ w.view(CLASSES, -1).T


def responsibilities(x: Tensor, y: Tensor, pi: Tensor, c: Tensor, share: Tensor) -> Tensor:
    """q_i(s), point by point, as it is written: a product and a quotient of probabilities."""
    q = torch.empty(len(y), len(c), dtype=torch.float64)
    for i in range(len(y)):
        for s in range(len(c)):
            q[i, s] = pi[s] * logits(c[s], x[i : i + 1]).softmax(1)[0, y[i]] / share[s, y[i]]
        q[i] /= q[i].sum()
    return q


def local_sgd(w: Tensor, pair: tuple[Tensor, Tensor], q: Tensor, k: int, t: int, seed: int) -> Tensor:
    x, y = pair
    for i in batches(k, t, len(y), SGD, seed):
        w = w.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits(w, x[i]), y[i], reduction="none")
        w = w - SGD.lr * torch.autograd.grad((q[i] * loss).mean(), w)[0]
    return w.detach()


def plain_loop(pairs: Pairs, c: Tensor, K: int, rounds: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    N, S, n = len(pairs), len(c), sum(len(y) for _, y in pairs)
    pi = torch.full((N, S), 1 / S, dtype=torch.float64)
    labels = torch.full((S, CLASSES), 1 / (S * CLASSES), dtype=torch.float64)
    for t in range(rounds):
        share = labels / labels.sum(1, keepdim=True)
        c_new, labels_new = c.clone(), labels.clone()
        for k in drawn(t, K, N, seed):
            x, y = pairs[k]
            q = responsibilities(x, y, pi[k], c, share)
            pi[k] = q.mean(0)
            for s in range(S):
                c_new[s] += len(y) / n * (local_sgd(c[s], pairs[k], q[:, s], k, t, seed) - c[s])
                for label in range(CLASSES):
                    labels_new[s, label] += len(y) / n * (q[y == label, s].sum() / len(y) - labels[s, label])
        c, labels = c_new, labels_new
    return c, pi, labels


@pytest.mark.parametrize("K", [3, 8])
def test_rounds_equal_the_plain_loop(K: int) -> None:
    pairs, rounds, seed = class_clients(), 3, 3
    run = fitted(fs.FedRC(S=3, K=K), pairs, rounds, SGD, model=LINEAR, seed=seed)
    first = torch.stack([run.model.draw(generator(seed, "center", s)) for s in range(3)]).double()
    c, pi, labels = plain_loop(pairs, first, K, rounds, seed)
    assert torch.allclose(run.state.centers, c, atol=1e-10)
    assert torch.allclose(run.state.u, pi, atol=1e-10)
    assert torch.equal(run.state.u, run.engine.client_states["pi"])
    assert torch.allclose(run.state.extra["labels"], labels, atol=1e-12)
    assert float((c - first).abs().max()) > 0.01


def one_step(pairs: Pairs, labels: list[list[float]]) -> Any:
    """One round of two centers that predict the same for everything, with given shares of two labels within them."""
    fed = fs.Federation.from_clients(pairs, held_out=0.0, classes=2)
    engine = engine_for(fs.FedRC(S=2), fed, LINEAR, solver=fs.SGD(lr=1e-9, epochs=1), dtype="float64")
    with torch.no_grad():
        state = engine.start()
        state = state.update(
            centers=torch.zeros_like(state.centers), extra={"labels": torch.tensor(labels, dtype=torch.float64)}
        )
        return engine.round(state, 0)[0]


HAND = [(torch.zeros(4, 1).double(), torch.tensor([0, 0, 0, 1]))]


def test_two_centers_by_hand() -> None:
    """Equal losses and priors leave 1 / P_s(y): label 0 has shares 3/4 and 1/4, so it goes 1:3; label 1 goes 3:1."""
    state = one_step(HAND, [[0.6, 0.2], [0.05, 0.15]])
    assert state.u[0].tolist() == pytest.approx([(3 * 0.25 + 0.75) / 4, (3 * 0.75 + 0.25) / 4])
    q = torch.tensor([[0.25 * 3, 0.75], [0.75 * 3, 0.25]]).double() / 4  # of center and label
    assert torch.allclose(state.extra["labels"], q, atol=1e-12)


def test_a_label_that_a_center_never_had_counts_as_very_rare() -> None:
    state = one_step(HAND, [[0.5, 0.0], [0.25, 0.25]])
    # P_0(0) = 1, P_1(0) = 1/2: label 0 goes 1:2. P_0(1) = 0: label 1 goes to center 0 for all but 2e-8 of it.
    assert state.u[0].tolist() == pytest.approx([(3 / 3 + 1) / 4, (3 * 2 / 3) / 4], abs=1e-7)


def test_shares_of_labels_of_all_centers_are_those_of_all_points() -> None:
    pairs = class_clients()
    run = fitted(fs.FedRC(S=3), pairs, 3, SGD, model=fs.models.mlp(hidden=[4]))
    counts = torch.bincount(torch.cat([y for _, y in pairs]), minlength=CLASSES) / sum(RAGGED)
    assert torch.allclose(run.state.extra["labels"].sum(0), counts.double(), atol=1e-12)
    mixture = (run.state.u * torch.tensor(RAGGED)[:, None]).sum(0) / sum(RAGGED)
    assert torch.allclose(run.state.extra["labels"].sum(1), mixture, atol=1e-12)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_first_round_and_regression_are_fedem() -> None:
    for pairs, rounds, model in ((class_clients(), 1, LINEAR), (regression_clients(), 4, fs.models.linear())):
        one, other = (fitted(a, pairs, rounds, SGD, model=model) for a in (fs.FedRC(S=2), fs.FedEM(S=2, scale="fixed")))
        assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)
        assert torch.allclose(one.state.u, other.state.u, atol=1e-12)


def test_with_one_center_it_is_fedavg() -> None:
    one, other = (fitted(a, class_clients(), 4, SGD, model=LINEAR) for a in (fs.FedRC(S=1), fs.FedAvg()))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)


def test_clients_that_differ_in_labels_alone_share_a_center_where_fedem_parts_them() -> None:
    """Inputs say nothing. Half of the clients have label 0 mostly, half label 1: no conflict, only other labels."""
    rng, pairs = np.random.default_rng(0), []
    for k in range(8):
        y = (rng.random(60) < (0.1 if k % 2 else 0.9)).astype(np.int64)
        pairs.append((torch.from_numpy(rng.standard_normal((60, 2))), torch.from_numpy(y)))
    fed = fs.Federation.from_clients(pairs, held_out=0.0, classes=2)
    local = fs.SGD(lr=0.5, epochs=2, batch=20)
    parted, shared = (
        fitted(a, fed, 15, local, model=LINEAR).state.u for a in (fs.FedEM(S=2, scale="fixed"), fs.FedRC(S=2))
    )
    gap = [float((u[::2].mean(0) - u[1::2].mean(0)).abs().max()) for u in (parted, shared)]
    assert gap[0] > 0.6
    assert gap[1] < 0.1


def test_sources_with_conflicting_labels_are_told_apart() -> None:
    rng, pairs = np.random.default_rng(1), []
    for k in range(12):
        x = rng.standard_normal((60, 2))
        pairs.append((torch.from_numpy(x), torch.from_numpy(((x[:, 0] > 0) ^ bool(k % 2)).astype(np.int64))))
    fed = fs.Federation.from_clients(pairs, held_out=0.0, classes=2)
    run = fitted(fs.FedRC(S=2), fed, 30, fs.SGD(lr=0.5, epochs=2, batch=20), model=LINEAR, seed=1)
    main = run.state.u.argmax(1)
    assert float(run.state.u.amax(1).min()) > 0.9
    assert len(set(main[::2].tolist())) == len(set(main[1::2].tolist())) == 1
    assert main[0] != main[1]


def test_labels_of_few_points_do_not_leave_a_client_where_sums_need_more() -> None:
    fed = federation([(torch.zeros(9, 1).double(), torch.tensor([0] * 6 + [1] * 3))])
    engine = engine_for(fs.FedRC(S=2), fed, LINEAR, solver=SGD, dtype="float64")
    engine.host.least_points = 4
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0)
    assert state.extra["labels"].sum(0).tolist() == pytest.approx([6 / 9, 0.0])


def test_networks_work_too_and_every_center_is_a_task() -> None:
    run = fitted(fs.FedRC(S=3, first="warm", warm=1), class_clients(), 4, SGD, model=fs.models.mlp(hidden=[4]))
    assert run.history[3].gradients == 3 * SGD.epochs * sum(RAGGED)
    assert run.history[3].evaluations == 3 * sum(RAGGED)
    x, pi = class_clients()[1][0], run.engine.client_states["pi"][1]
    expected = sum(pi[s] * run.predict(x, center=s) for s in range(3))
    assert torch.allclose(run.predict(x, client=1), torch.as_tensor(expected), atol=1e-12)


@pytest.mark.parametrize("setting", [{"S": 0}, {"K": 0}, {"predict_with": "smallest"}, {"first": "free"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedRC\.{next(iter(setting))} = "):
        fs.FedRC(**setting)
