from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.algorithms.fedlevels import NARROW
from fedsoft.clusters import learned_prior
from fedsoft.clusters.both_levels import FLOOR
from fedsoft.clusters.learned_prior import FIRM, HALF_CLIENT, ONE_CLIENT
from fedsoft.clusters.one_prior import STEPS
from fedsoft.training import Run
from tests.helpers import Pairs, fitted, regression_clients

WAYS = np.array([[3.0, -2.0, 0.0], [-2.0, 3.0, 1.0]])


def clients(mixed: list[bool], points: int = 15, seed: int = 0, spread: float = 0.5) -> Pairs:
    """Clients with one taste near one of two ways, or with points of both ways as they are."""
    rng = np.random.default_rng(seed)
    pairs = []
    for both in mixed:
        taste = WAYS[rng.integers(2)] + spread * rng.standard_normal(3)
        source = rng.random(points) < rng.uniform(0.2, 0.8)
        x = rng.standard_normal((points, 3))
        own = WAYS[source.astype(int)] if both else taste
        pairs.append((torch.from_numpy(x), torch.from_numpy((x * own).sum(1) + rng.standard_normal(points))))
    return pairs


def kinds(run: Run) -> Tensor:
    return run.engine.client_states["p"]


def begun(**extra: Tensor) -> dict[str, dict[str, Tensor]]:
    """The first state without the rounds in which sources find their start."""
    return {"extra": {"age": torch.tensor(0), "settled": torch.tensor(True), **extra}}


# --- a loop that reads like the maths ---------------------------------------------------------------------------------


def test_rounds_of_a_naive_loop() -> None:
    """Two tastes and two sources, known noise of two sizes, full covariances, every round an estimation."""
    pairs, S, rounds = regression_clients((6, 9, 14, 7)), 2, 3
    s2, rho = [0.5, 0.3], 0.5
    first = fitted(fs.FedLevels(S=S), pairs, 0).state
    start = begun(s2=torch.tensor(s2).double(), models=first.extra["models"] + 0.1 * torch.arange(4).double()[:, None])
    run = fitted(fs.FedLevels(S=S, tau=1), pairs, rounds, begun=start)

    c = list(start["extra"]["models"].clone())
    size, S2 = len(c[0]), 2 * S
    eye = torch.eye(size).double()
    assumed = [1.0] * S + [NARROW**2] * S
    sigma, pi = [v * eye for v in assumed], [1 / S] * S2
    u, own = [torch.full((S,), 1 / S).double()] * len(pairs), [list(c[S:]) for _ in pairs]
    opened, chance = [True, True], []
    for _ in range(rounds):
        zero = torch.zeros(())
        sums = [[zero, torch.zeros(size), torch.zeros(size, size), torch.zeros(size, size)] for _ in range(S2)]
        totals, errors, counted, gains, chance = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], []
        for k, (x, y) in enumerate(pairs):
            n, noise = len(y), [s2[j // S] for j in range(S2)]
            # which source every point has, by the client's models of the last round
            logs = [torch.digamma(u[k][s] * (n + S)) - (x @ own[k][s] - y) ** 2 / (2 * s2[1]) for s in range(S)]
            q = torch.stack(logs, 1).softmax(1)
            models, spreads, evidence = [], [], []
            for j in range(S2):
                weight = torch.ones(n).double() if j < S else q[:, j - S]
                precision = torch.linalg.inv(sigma[j])
                curvature = (x * weight[:, None]).T @ x / noise[j] + precision
                w = torch.linalg.solve(curvature, (x * weight[:, None]).T @ y / noise[j] + precision @ c[j])
                d = w - c[j]
                lik = -(weight * (x @ w - y) ** 2).sum() / (2 * noise[j])
                lik = lik - weight.sum() / 2 * math.log(2 * math.pi * noise[j])
                volume = (torch.logdet(sigma[j]) + torch.logdet(curvature)) / 2
                evidence.append(lik - d @ precision @ d / 2 - volume)
                models.append(w)
                spreads.append(torch.linalg.inv(curvature))
            tastes = torch.stack([evidence[s] + math.log(pi[s]) for s in range(S)])
            counts = q.sum(0)
            of_counts = math.lgamma(S) - math.lgamma(S + n) + torch.lgamma(counts + 1).sum()
            sources = evidence[S] + evidence[S + 1] - (q * q.log()).sum() + of_counts
            p = float(torch.sigmoid(sources - tastes.logsumexp(0) + math.log(rho / (1 - rho))))
            u[k], own[k] = (counts + 1) / (n + S), models[S:]
            least = [max(0.0, FLOOR - (1 - rho)), max(0.0, FLOOR - rho)]
            level = [(1 - p) * (1 - sum(least)) + least[0], p * (1 - sum(least)) + least[1]]
            level = [1.0 if opened[i] and not all(opened) else level[i] for i in (0, 1)]
            totals = [totals[i] + level[i] for i in (0, 1)]
            both = float(torch.logaddexp(math.log(1 - rho) + tastes.logsumexp(0), math.log(rho) + sources))
            gains = [gains[0] + both - float(sources), gains[1] + both - float(tastes.logsumexp(0))]
            chance.append(p)
            for j in range(S2):
                share = level[0] * tastes.softmax(0)[j] if j < S else torch.tensor(level[1])
                weight = torch.ones(n).double() if j < S else q[:, j - S]
                d, decided = models[j] - c[j], size - torch.trace(spreads[j] @ torch.linalg.inv(sigma[j]))
                for i, one in enumerate((torch.ones(()), d, torch.outer(d, d), spreads[j])):
                    sums[j][i] = sums[j][i] + share * one
                errors[j // S] += float(share * (weight * (x @ models[j] - y) ** 2).sum())
                counted[j // S] += float(share * (weight.sum() - decided))
        s2 = [min(errors[level] / counted[level] for level in (0, 1))] * 2
        charge = S * size / 2 * math.log(sum(len(y) for _, y in pairs))
        opened = [gain == max(gains) or gain > charge for gain in gains]
        rho = (sum(chance) + HALF_CLIENT) / (len(pairs) + 2 * HALF_CLIENT)
        scale = [len(pairs) / totals[j // S] for j in range(S2)]
        weights = [float(sums[j][0]) * scale[j] for j in range(S2)]
        for j in range(S2):
            weight, one, two, spread = (scale[j] * value for value in sums[j])
            kept = weight * eye - spread @ torch.linalg.inv(sigma[j])
            c[j] = c[j] + torch.linalg.solve(kept + FIRM * weight * eye, one)
            two = two - torch.outer(one, one) / weight + ONE_CLIENT * assumed[j] * eye
            known = torch.linalg.inv(sigma[j]) @ (kept + ONE_CLIENT * eye)
            root = torch.linalg.cholesky(known)  # X A X = C by another way than the library's
            values, vectors = torch.linalg.eigh(root.T @ two @ root)
            back = torch.linalg.inv(root)
            sigma[j] = back.T @ (vectors * values.sqrt()) @ vectors.T @ back
        of_level = [sum(weights[:S]) + S * HALF_CLIENT, sum(weights[S:]) + S * HALF_CLIENT]
        pi = [(weights[j] + HALF_CLIENT) / of_level[j // S] for j in range(S2)]

    found = run.state.extra
    assert torch.allclose(found["models"], torch.stack(c), atol=1e-8)
    assert torch.allclose(found["covariance"], torch.stack(sigma), atol=1e-8)
    assert found["shares"].tolist() == pytest.approx(pi)
    assert found["s2"].tolist() == pytest.approx(s2)
    assert float(found["rho"]) == pytest.approx(rho)
    assert found["open"].tolist() == opened
    assert kinds(run).tolist() == pytest.approx(chance)


# --- limiting cases ---------------------------------------------------------------------------------------------------


def test_where_nobody_has_sources_it_is_fedprior() -> None:
    pairs, nobody = regression_clients(), torch.tensor(0.0).double()
    for rounds in (1, 2):
        before = fitted(fs.FedPrior(S=2, tau=1), pairs, rounds - 1).state
        wanted = fitted(fs.FedPrior(S=2, tau=1), pairs, rounds)
        first = fitted(fs.FedLevels(S=2), pairs, 0).state.extra
        start = begun(
            rho=nobody,
            models=torch.cat([before.centers, first["models"][2:]]),
            covariance=torch.cat([before.extra["covariance"], first["covariance"][2:]]),
            shares=torch.cat([before.extra["shares"], first["shares"][2:]]),
            s2=before.extra["s2"].repeat(2),
        )
        run = fitted(fs.FedLevels(S=2, tau=1), pairs, 1, begun=start)
        assert torch.allclose(run.state.centers, wanted.state.centers, atol=1e-10)
        assert run.weights is not None
        assert wanted.weights is not None
        assert torch.allclose(run.weights, wanted.weights, atol=1e-10)
        for name in ("covariance", "shares"):
            assert torch.allclose(run.state.extra[name][:2], wanted.state.extra[name], atol=1e-10)
        assert float(run.state.extra["s2"][0]) == pytest.approx(float(wanted.state.extra["s2"]))
        mine, theirs = run.engine.client_states, wanted.engine.client_states
        assert torch.allclose(mine["w"][:, :2], theirs["w"], atol=1e-10)
        assert torch.allclose(kinds(run), torch.zeros(len(pairs)).double())


def test_sources_without_width_take_fedems_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Least squares over all points, weighted by q: expectation maximization for a mixture of regressions."""
    monkeypatch.setattr(learned_prior, "FIRM", 0.0)
    pairs, s2, S = regression_clients(), 0.4, 2
    first = fitted(fs.FedLevels(S=S), pairs, 0).state.extra
    width = first["covariance"].clone()
    width[S:] = 1e-9 * torch.eye(3).double()
    start = begun(rho=torch.tensor(1.0).double(), covariance=width, s2=torch.tensor([s2, s2]).double())
    run = fitted(fs.FedLevels(S=S, tau=1), pairs, 1, begun=start)
    c = first["models"][S:]
    gram, moment = torch.zeros(S, 3, 3).double(), torch.zeros(S, 3).double()
    for x, y in pairs:
        q = (-((x @ c.T - y[:, None]) ** 2) / (2 * s2)).softmax(1)  # even shares before the first estimation
        gram += torch.einsum("is,ia,ib->sab", q, x, x)
        moment += torch.einsum("is,ia,i->sa", q, x, y)
    wanted = torch.linalg.solve(gram, moment[:, :, None])[:, :, 0]
    assert torch.allclose(run.state.extra["models"][S:], wanted, atol=1e-4)
    assert torch.allclose(run.engine.client_states["w"][:, S:], c.expand(len(pairs), -1, -1), atol=1e-5)
    fedem = fitted(fs.FedEM(S=S), pairs, 1, begun={"extra": {"s2": torch.tensor(s2).double()}})
    q = fedem.engine.client_states["pi"]
    n = torch.tensor([len(y) for _, y in pairs])[:, None]
    assert torch.allclose(run.engine.client_states["u"], (n * q + 1) / (n + S), atol=1e-8)


# --- what kind clients are --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_tells_who_has_a_taste_and_whose_points_have_sources() -> None:
    mixed = [k % 2 == 0 for k in range(60)]
    run = fitted(fs.FedLevels(S=2), clients(mixed, points=30), 16)
    right = (kinds(run) > 0.5).numpy() == np.array(mixed)
    assert right.mean() >= 0.9
    assert float(run.state.extra["rho"]) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("mixed", [True, False])
def test_it_finds_the_level_that_all_clients_are_of(mixed: bool) -> None:
    run = fitted(fs.FedLevels(S=2), clients([mixed] * 40, points=25), 14)
    assert bool(((kinds(run) > 0.5) == mixed).all())
    order = [0, 1] if run.state.centers[0, 0] > 0 else [1, 0]
    assert run.state.centers[order].numpy() == pytest.approx(WAYS, abs=0.3 if mixed else 0.6)
    width = run.state.extra["covariance"].diagonal(dim1=1, dim2=2).mean(1).sqrt()[2:] if mixed else None
    assert width is None or float(width.max()) < 0.2  # the same for everybody


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_one_source_costs_next_to_nothing(seed: int) -> None:
    """Clients of one source, with few points: two centers of either kind explain chance, and are charged for it."""
    rng = np.random.default_rng(seed)
    x = [torch.from_numpy(rng.standard_normal((20, 3))) for _ in range(40)]
    y = [one @ torch.tensor([1.0, -1.0, 2.0]).double() + torch.from_numpy(rng.standard_normal(20)) for one in x]
    fed = fs.Federation.from_clients(list(zip(x, y, strict=True)), held_out=0.5, seed=1)
    runs = [fitted(a, fed, 30) for a in (fs.FedLevels(S=2), fs.FedPrior(S=2))]
    ours, theirs = (run.scores().personal_held_out for run in runs)
    assert runs[0].state.extra["open"].tolist() == [1, 0]
    assert ours is not None
    assert theirs is not None
    assert ours.mean <= 1.03 * theirs.mean


def test_sources_settle_from_twins_before_they_widen() -> None:
    """Three sources; two centers begin at the same one, the third between the others."""
    rng, theta = np.random.default_rng(0), np.array([[3.0, 0.0, 0.0], [-3.0, 3.0, 0.0], [-3.0, -3.0, 0.0]])
    pairs = []
    for _ in range(20):
        x, source = rng.standard_normal((60, 3)), rng.choice(3, 60, p=rng.dirichlet(np.ones(3)))
        pairs.append(
            (torch.from_numpy(x), torch.from_numpy((x * theta[source]).sum(1) + 0.1 * rng.standard_normal(60)))
        )
    twins = torch.tensor([[3.0, 0.05, 0.0], [3.0, -0.05, 0.0], [-3.0, 0.0, 0.0]]).double()
    first = fitted(fs.FedLevels(S=3), pairs, 0).state.extra["models"]
    ends = {}
    for settled in (False, True):
        start = begun(models=torch.cat([first[:3], twins]), settled=torch.tensor(settled))
        run = fitted(fs.FedLevels(S=3), pairs, 20, begun=start)
        far = torch.cdist(torch.from_numpy(theta), run.state.extra["models"][3:]).amin(1).max()
        ends[settled] = float(far)
        assert bool(run.state.extra["settled"])
    assert ends[False] < 0.05
    assert ends[True] > 1  # widths from the first round on hide that one is missing


def test_one_task_between_estimations() -> None:
    settled = {"extra": {"settled": torch.tensor(True)}}
    run = fitted(fs.FedLevels(S=3, tau=2), regression_clients(), 4, begun=settled)
    _, due, between, _ = (record.gradients for record in run.history)
    assert due == 2 * 3 * between + STEPS * between / 2  # and the gradients for one prior for everybody
    assert run.history[2].bytes_up < run.history[1].bytes_up * 0.6


def test_small_steps_are_not_thrown_off_by_narrow_sources() -> None:
    run = fitted(fs.FedLevels(S=2, spread=0.01), regression_clients(), 5, fs.SGD(lr=0.1, epochs=3, batch=4))
    assert bool(torch.isfinite(run.state.centers).all())
    assert float((run.engine.client_states["w"][:, 2:] - run.state.extra["models"][2:]).abs().max()) < 0.05


def test_clients_keep_a_share_for_each_of_their_models() -> None:
    run = fitted(fs.FedLevels(S=3), clients([True, False] * 10), 4)
    kept, opened = run.engine.client_states, run.state.extra["open"]
    with torch.no_grad():
        scores = run.engine.personal_scores(run.state, run.federation.train)
    p = kept["p"] if bool(opened.all()) else opened[1].expand(20)
    shares = torch.cat([(1 - p)[:, None] * kept["r"], p[:, None] * kept["u"]], 1)
    assert torch.allclose(shares.sum(1), torch.ones(20).double())
    x, y = run.federation.train.client(3)
    found = ((x.double() @ kept["w"][3].T) @ shares[3] - y).square().mean()
    assert float(scores[3]) == pytest.approx(float(found))
