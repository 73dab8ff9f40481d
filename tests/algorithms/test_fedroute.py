from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.algorithms.fedroute import SHARE, Phase
from fedsoft.clusters.posterior import TIED, draw_ties
from fedsoft.core.client_draws import Draws
from fedsoft.core.contract import State
from fedsoft.engine.local import LocalEngine
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.helpers import RAGGED, Pairs, class_clients, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)
SOFTMAX = fs.models.linear()  # on classes: no closed form


def at(algorithm: Any, pairs: Pairs, model: Any, **begun: Any) -> tuple[LocalEngine, State]:
    """An engine after the start, with some of its state set."""
    engine = engine_for(algorithm, federation(pairs), model, seed=0, solver=SGD, dtype="float64")
    with torch.no_grad():
        return engine, engine.start().update(**begun)


# --- routed rounds ----------------------------------------------------------------------------------------------------


def cross_entropy(w: np.ndarray, x: np.ndarray, y: int) -> float:
    logits = w.reshape(4, -1) @ x
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[y])


def local_sgd(w: np.ndarray, x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    for order in draws.permutations([len(y)], SGD.epochs):
        for begin in range(0, len(y), SGD.batch):
            batch, gradient = order[begin : begin + SGD.batch], np.zeros((4, x.shape[1]))
            for i in batch:
                p = np.exp(w.reshape(4, -1) @ x[i])
                p = p / p.sum()
                p[y[i]] -= 1
                gradient += np.outer(p, x[i]) / len(batch)
            w = w - SGD.lr * gradient.ravel()
    return w


def plain_rounds(
    pairs: Pairs, c: np.ndarray, rounds: int, eps: float, ties: int = 0
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Routed rounds as they are written: client by client, point by point, center by center."""
    S, u, losses = len(c), [np.full(len(c), 1 / len(c)) for _ in pairs], []
    for t in range(rounds):
        total, given, expected, points = np.zeros_like(c), np.zeros(S), 0.0, 0
        for k, (xs, ys) in enumerate(pairs):
            x, y = xs.numpy(), ys.numpy()
            prior = np.full(S, 1 / S) if t == 0 else (1 - eps) * u[k] + eps / S
            each = np.array([[cross_entropy(c[s], x[i], y[i]) for s in range(S)] for i in range(len(y))])
            q = prior * np.exp(-each)
            q = q / q.sum(1, keepdims=True)
            u[k] = q.mean(0)
            expected += float((q * each).sum())
            points += len(y)
            chosen, chance = q.argmax(1), Draws(0, "ties", t, names=[str(k)]).random(len(y), S)[0]
            for i in range(len(y)) if t < ties else ():
                alike = [s for s in range(S) if q[i, s] >= TIED * q[i].max()]
                chosen[i] = max(alike, key=lambda s: chance[i, s])
            for s in range(S):
                mine = chosen == s
                if mine.any():
                    total[s] += mine.sum() * local_sgd(c[s], x[mine], y[mine], Draws(0, "batches", t, names=[str(k)]))
                given[s] += mine.sum()
        c = np.array([total[s] / given[s] if given[s] else c[s] for s in range(S)])
        losses.append(expected / points)
    return c, np.array(u), losses


@pytest.mark.parametrize("ties", [0, 2, 9])
def test_routed_rounds_equal_the_plain_loop(ties: int) -> None:
    pairs = class_clients()
    run = fitted(fs.FedRoute(S=3, first="xavier", hard=0, trial=0, ties=ties), pairs, 4, SGD, model=SOFTMAX)
    first = torch.stack([run.model.draw(generator(0, "center", s)) for s in range(3)]).double().numpy()
    c, u, losses = plain_rounds(pairs, first, 4, 0.05, ties)
    assert run.state.centers.numpy() == pytest.approx(c, abs=1e-9)
    assert run.state.u.numpy() == pytest.approx(u, abs=1e-9)
    assert [record.notes["routed_loss"] for record in run.history] == pytest.approx(losses, abs=1e-9)
    assert np.abs(c - first).max() > 0.05


def test_points_that_several_centers_explain_go_to_any_of_them() -> None:
    engine, _ = at(fs.FedRoute(S=3), class_clients((500, 700)), SOFTMAX)
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    q = torch.tensor([[0.5, 0.4, 0.1], [0.8, 0.15, 0.05]]).repeat_interleave(torch.tensor([900, 300]), 0)
    parts = draw_ties(site, q)
    assert torch.equal(parts, draw_ties(site, q))  # named draws
    assert (torch.bincount(parts[:900], minlength=3) / 900).tolist() == pytest.approx([0.5, 0.5, 0.0], abs=0.06)
    assert parts[900:].tolist() == [0] * 300  # 0.15 is less than 0.3 of 0.8


def test_every_point_is_used_once_whatever_S_is() -> None:
    for S in (1, 2, 5):
        run = fitted(fs.FedRoute(S=S, first="xavier", hard=0, trial=0), class_clients(), 1, SGD, model=SOFTMAX)
        assert run.history[0].gradients == SGD.epochs * sum(RAGGED)
        assert run.history[0].evaluations == S * sum(RAGGED)
    sent = 5 * (12 + 1 + 1) + 1  # of the last: S models, counts and shares; the loss
    assert run.history[0].bytes_up == 8 * len(RAGGED) * sent


def test_hard_rounds_are_those_of_ifca_where_clients_are_equally_large() -> None:
    pairs = class_clients((9,) * 6)
    one = fitted(fs.FedRoute(S=2, first="xavier", hard=9), pairs, 4, SGD, model=SOFTMAX)
    other = fitted(fs.IFCA(S=2), pairs, 4, SGD, model=SOFTMAX)
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)
    assert torch.equal(one.state.u, other.state.u)
    assert [record.phase for record in one.history] == ["hard"] * 4


def test_priors_are_open_in_the_first_routed_round_of_everybody() -> None:
    """A client that was hard in round 0 and dropouts in round 1 has an even prior in round 2."""
    pairs = class_clients()
    engine, state = at(fs.FedRoute(S=2, first="xavier", hard=1, trial=0), pairs, SOFTMAX)
    engine.dropouts = lambda job, t, names: np.array([t == 1 and name == "3" for name in names])
    with torch.no_grad():
        for t in range(2):
            state, _ = engine.round(state, t)
        assert engine.client_states["open"].tolist() == [False, False, False, True, False, False, False, False]
        assert sorted(engine.client_states["u"][3].tolist()) == [0.0, 1.0]
        c = state.centers.numpy()
        engine.round(state, 2)
    x, y = (part.numpy() for part in pairs[3])
    likelihood = np.exp([[-cross_entropy(c[s], x[i], y[i]) for s in range(2)] for i in range(len(y))])
    expected = (likelihood / likelihood.sum(1, keepdims=True)).mean(0)
    assert engine.client_states["u"][3].tolist() == pytest.approx(expected.tolist(), abs=1e-9)


@pytest.mark.parametrize("model", [SOFTMAX, fs.models.mlp(hidden=[4])], ids=["softmax", "mlp"])
def test_neither_chunks_nor_workers_nor_the_order_of_clients_matter(model: Any) -> None:
    pairs, names, order = class_clients(), [f"client {k}" for k in range(8)], [3, 7, 0, 2, 6, 1, 5, 4]
    algorithm = fs.FedRoute(S=2, K=6, warm=1, hard=1, trial=0)

    def run(ks: Sequence[int] = range(8), **options: Any) -> Run:
        fed = federation([pairs[k] for k in ks], [names[k] for k in ks])
        return fitted(algorithm, fed, 6, SGD, model=model, **options)

    one = run(chunk=3, workers=1)
    assert [record.phase for record in one.history] == ["pooled", "split", "hard", *["routed"] * 3]
    three = run(chunk=3, workers=3, memory=0)
    assert all(torch.equal(value, three.state.tensors()[name]) for name, value in one.state.tensors().items())
    for other, rows in ((run(), range(8)), (run(order), order)):
        assert torch.allclose(one.state.centers, other.state.centers, atol=1e-8)
        assert torch.allclose(one.state.u[list(rows)], other.state.u, atol=1e-8)


# --- least squares ----------------------------------------------------------------------------------------------------


def test_linear_regression_is_em_with_pooled_least_squares() -> None:
    pairs, S = regression_clients(), 2
    run = fitted(fs.FedRoute(S=S, first="xavier", eps=0.0), pairs, 5, SGD)
    c = torch.stack([run.model.draw(generator(0, "center", s)) for s in range(S)]).double().numpy()
    u, s2 = np.full((8, S), 1 / S), None
    for _ in range(5):
        gram, moment, squares, new = np.zeros((S, 3, 3)), np.zeros((S, 3)), 0.0, u.copy()
        for k, (xs, ys) in enumerate(pairs):
            x, y = xs.numpy(), ys.numpy()
            r = np.array([(y - x @ c[s]) ** 2 for s in range(S)]).T
            scale = r.min(1).mean() if s2 is None else s2
            q = u[k] * np.exp(-(r - r.min(1, keepdims=True)) / (2 * scale))
            q = q / q.sum(1, keepdims=True)
            new[k] = q.mean(0)
            squares += float((q * r).sum())
            for s in range(S):
                gram[s] += (x.T * q[:, s]) @ x
                moment[s] += (x.T * q[:, s]) @ y
        u, s2 = new, squares / sum(RAGGED)
        c = np.array([np.linalg.solve(gram[s], moment[s]) for s in range(S)])
    assert run.state.centers.numpy() == pytest.approx(c, abs=1e-8)
    assert run.state.u.numpy() == pytest.approx(u, abs=1e-8)
    assert float(run.state.extra["s2"]) == pytest.approx(s2, abs=1e-8)
    assert run.history[0].gradients == -(-S * 5 // 2) * sum(RAGGED)  # S (P + 2) / 2 of every point


def test_one_center_is_least_squares_of_all_points() -> None:
    pairs = regression_clients()
    run = fitted(fs.FedRoute(S=1), pairs, 1, SGD)
    x, y = (torch.cat(parts).numpy() for parts in zip(*pairs, strict=True))
    assert run.state.centers[0].numpy() == pytest.approx(np.linalg.lstsq(x, y)[0], abs=1e-9)


def test_a_center_without_points_stays() -> None:
    pairs = [(torch.tensor([[1.0], [2.0]]).double(), torch.tensor([1e3, 2e3]).double())]
    far = torch.tensor([[1e3], [-7.0]]).double()
    engine, state = at(fs.FedRoute(S=2, first="xavier"), pairs, fs.models.linear(), centers=far)
    with torch.no_grad():
        state, _ = engine.round(state.update(extra={"s2": torch.tensor(1e-9).double()}), 0)
    assert state.centers.flatten().tolist() == pytest.approx([1e3, -7.0])


@pytest.mark.parametrize("S", [2, 4])
def test_sources_are_found_to_the_noise(S: int) -> None:
    fed = fs.datasets.synthetic(partition="random", S=S, clients=40, seed=1, test_points=500)
    run = fs.fit(fs.FedRoute(S=S, K=30), fed, fs.models.linear(), rounds=25, seed=1)
    scores = run.scores()
    assert scores.oracle is not None
    assert scores.recovery is not None
    ratio = np.min(scores.centers or [], axis=0) / np.array(scores.oracle)
    assert ratio.max() < 1.1
    assert scores.recovery < 0.03


# --- the trial --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routed", "hard", "left", "phase"),
    [
        (0.66, 1.0, 4, "routed"),
        (0.68, 1.0, 4, "trial"),
        (0.68, 1.0, 1, "hard"),  # the last round of it
        (0.66, 1.0, 1, "routed"),
        (None, 1.0, 2, "trial"),  # none of its clients was drawn, or answered
        (0.1, None, 2, "trial"),
    ],
)
def test_routing_has_to_show_its_worth(routed: float | None, hard: float | None, left: int, phase: str) -> None:
    notes = {"routed_loss": routed, "hard_loss": hard}
    state = State(torch.ones(2, 3), extra={"tried": torch.zeros(2, 3), "trial_left": torch.tensor(left)})
    found = fs.FedRoute(S=2)._judge_trial(state, {name: value for name, value in notes.items() if value is not None})
    assert Phase(int(found.extra["phase"])).name.lower() == phase
    assert torch.equal(found.centers, state.centers)  # those of the trial are made by few


def test_the_trial_leaves_hard_centers_to_the_others() -> None:
    """Its clients, a part of all that was drawn once, route with centers of their own."""
    pairs = class_clients((9,) * 10)
    engine, state = at(fs.FedRoute(S=2, first="xavier", hard=1, gain=1e-9), pairs, SOFTMAX)
    asked: list[tuple[str, list[int]]] = []

    def dropouts(job: str, t: int, names: list[str]) -> np.ndarray:
        asked.append((job, [int(name) for name in names]))
        return np.zeros(len(names), dtype=bool)

    engine.dropouts = dropouts
    phases = []
    with torch.no_grad():
        for t in range(6):
            state, notes = engine.round(state, t)
            phases.append(notes["phase"])
    tries = torch.nonzero(state.per_client["trial"])[:, 0].tolist()
    others = [k for k in range(10) if k not in tries]
    assert len(tries) == math.ceil(SHARE * 10)
    assert asked == [("choose", [*range(10)]), *[("choose", others), ("route", tries)] * 4, ("choose", [*range(10)])]
    assert phases == ["hard", *["trial"] * 4, "hard"]


def conflicting(conflict: bool) -> fs.Federation:
    """Two ways of labelling the same points, 30:70 at every client, or one way."""
    rng = np.random.default_rng(0)
    theta, pairs = rng.standard_normal((5, 4)), []
    for k in range(20):
        x = rng.standard_normal((60, 5))
        y = (x @ theta).argmax(1)
        other = rng.random(60) < (0.3 if k % 2 else 0.7)
        pairs.append((x, np.where(other & conflict, 3 - y, y)))
    return fs.Federation.from_clients(pairs, held_out=0.0, classes=4)


def test_labels_that_conflict_are_taken_apart_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    theta, x = rng.standard_normal((5, 4)), np.random.default_rng(1).standard_normal((500, 5))
    y = torch.from_numpy((x @ theta).argmax(1))
    local = fs.SGD(lr=0.2, epochs=3, batch=10)
    algorithm = fs.FedRoute(S=2, warm=3, hard=4)
    run, alike = (
        fs.fit(algorithm, conflicting(conflict), fs.models.linear(), rounds=30, solver=local)
        for conflict in (True, False)
    )
    hits = [
        [float((run.predict(x, center=s).argmax(1) == label).double().mean()) for label in (y, 3 - y)] for s in (0, 1)
    ]
    assert np.max(hits, axis=0).min() > 0.9
    assert [record.phase for record in run.history][-1] == "routed"
    assert [record.phase for record in alike.history][-1] == "hard"
    assert "trial" in [record.phase for record in alike.history]
    hits = [float((alike.predict(x, center=s).argmax(1) == y).double().mean()) for s in (0, 1)]
    assert min(hits) > 0.9


# --- other settings ---------------------------------------------------------------------------------------------------


def test_a_center_that_nobody_uses_is_replaced_when_asked() -> None:
    pairs = [(x, y if k % 2 else 3 - y) for k, (x, y) in enumerate(class_clients())]  # one way of labelling
    good = fitted(fs.FedRoute(S=1), pairs, 20, SGD, model=SOFTMAX).state.centers[0]
    useless = torch.stack([good, -50 * good])
    ends = {}
    for reseed in (False, True):
        algorithm = fs.FedRoute(S=2, first="xavier", hard=0, trial=0, reseed=reseed)
        engine, state = at(algorithm, pairs, SOFTMAX, centers=useless)
        with torch.no_grad():
            state, _ = engine.round(state, 0)
        ends[reseed] = state.centers[1], engine.client_states["open"].tolist()
    assert ends[False][1] == [False] * 8
    assert ends[True][1] == [True] * 8
    assert float((ends[True][0] - good).norm()) < 0.2 * float((ends[False][0] - good).norm())


def test_predictions_are_mixtures_or_the_main_center() -> None:
    pairs = class_clients()
    run, main = (
        fitted(fs.FedRoute(S=2, first="xavier", hard=0, trial=0, predict_with=how), pairs, 2, SGD, model=SOFTMAX)
        for how in ("mixture", "largest")
    )
    x, u = pairs[1][0], run.engine.client_states["u"][1]
    expected = sum(u[s] * run.predict(x, center=s) for s in range(2))
    assert torch.allclose(run.predict(x, client=1), torch.as_tensor(expected), atol=1e-12)
    assert torch.allclose(main.predict(x, client=1), run.predict(x, center=int(u.argmax())), atol=1e-12)


def test_parts_of_a_client_are_solved_as_clients_of_their_own() -> None:
    pairs = class_clients()
    engine = engine_for(fs.FedAvg(), federation(pairs), SOFTMAX, seed=0, solver=SGD, dtype="float64")
    site = engine.host._site(engine.host.data, engine.everyone, 0)
    w = torch.stack([engine.model.draw(generator(0, s)) for s in range(3)]).double().expand(8, 3, -1)
    part = torch.arange(len(site.data.points)) % 2  # nothing for the third
    solved = site.solve_parts(w, part)
    assert torch.equal(solved[:, 2], w[:, 2])
    for k, (x, y) in enumerate(pairs):
        for s in range(2):
            mine = part[site.data.owners == k] == s
            one = fs.Federation.from_clients([(x[mine], y[mine])], names=[str(k)], held_out=0.0, classes=4)
            alone = replace(site, data=one.train.to("cpu", torch.float64), names=[str(k)], work=site.work.none(1))
            assert torch.allclose(solved[k, s], alone.solve(w[k, s : s + 1])[0][0], atol=1e-12)
    assert site.work.gradients.tolist() == [SGD.epochs * n for n in RAGGED]


@pytest.mark.parametrize("setting", [{"S": 0}, {"eps": 1.0}, {"first": "cold"}, {"gain": 0.0}, {"trial": -1}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedRoute\.{next(iter(setting))} = "):
        fs.FedRoute(**setting)
