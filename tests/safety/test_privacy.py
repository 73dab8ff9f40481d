"""Noise that hides points and clients: its scale, its draws, and what is stated about it, by other means."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, signal, stats
from torch import Tensor

import fedsoft as fs
from fedsoft.clusters.importance_weights import aggregation_weights, importance_weights
from fedsoft.clusters.selection import select
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.contract import Means
from fedsoft.runs import spec
from fedsoft.runs.execute import execute, resume
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.safety.accountant import centers_epsilon, gaussian_epsilon
from fedsoft.safety.noise import HiddenRows, hidden_shares
from fedsoft.safety.privacy import Privacy, noise_for, statements
from fedsoft.seeds import generator
from fedsoft.training import Run
from tests.helpers import Held, trained

pytest.importorskip("dp_accounting", reason='needs an accountant: pip install "fedsoft[privacy]"')

DELTA = 1e-5


# --- accounting, by other means ---------------------------------------------------------------------------------------


def root(excess: Callable[[float], float], most: float) -> float:
    """Where a falling function is 0; 0 where it is below that from the beginning."""
    found: Any = optimize.brentq(excess, 0, most, xtol=1e-12) if excess(0) > 0 else 0.0
    return float(found)


def analytic(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism with the exact formula of Balle and Wang (ICML 2018)."""

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        second = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(first - math.exp(second) - delta)

    return root(excess, 1e4)


def composed(loss: np.ndarray, step: float, start: float, times: int, delta: float) -> float:
    """Epsilon of this many mechanisms whose privacy loss has the masses `loss` at start, start + step, ..."""
    whole, begin = loss, start
    for _ in range(times - 1):
        whole, begin = signal.fftconvolve(whole, loss), begin + start  # exact to 1e-16: delta is 1e-5
    at = begin + step * np.arange(len(whole))

    def excess(epsilon: float) -> float:
        return float((whole * np.maximum(0, -np.expm1(epsilon - at)))[at > epsilon].sum() - delta)

    return root(excess, float(at[-1]))


@pytest.mark.parametrize(("noise", "times"), [(0.5, 1), (1.0, 1), (1.0, 50), (3.0, 10), (20.0, 200)])
def test_gaussian_noise_composes_as_the_exact_formula_says(noise: float, times: int) -> None:
    assert gaussian_epsilon(noise, DELTA, times) == pytest.approx(analytic(math.sqrt(times) / noise, DELTA), rel=1e-6)
    assert gaussian_epsilon(noise, DELTA, 0) == 0


@pytest.mark.parametrize("times", [1, 2, 4])
def test_gaussian_noise_composes_as_its_privacy_loss_does(times: int) -> None:
    mu, step = 1 / 1.5, 2e-3
    at = np.arange(-8.0, 10.0, step)
    mass = stats.norm.cdf(at + step / 2, mu**2 / 2, mu) - stats.norm.cdf(at - step / 2, mu**2 / 2, mu)
    assert gaussian_epsilon(1.5, DELTA, times) == pytest.approx(composed(mass, step, at[0], times, DELTA), rel=2e-3)


def wang(q: float, noise: float, times: int, delta: float) -> float:
    """Draws without replacement by hand: Theorem 9 of Wang, Balle, Kasiviswanathan (AISTATS 2019), integer orders."""

    def renyi(order: int) -> float:
        return order / (2 * noise**2)

    best = math.inf
    for order in range(2, 65):
        terms = [0.0]
        two = renyi(2)
        least = min(math.log(4) + math.log(math.expm1(two)), math.log(2) + two)
        terms.append(2 * math.log(q) + math.log(math.comb(order, 2)) + least)
        for j in range(3, order + 1):
            terms.append(j * math.log(q) + math.log(math.comb(order, j)) + math.log(2) + (j - 1) * renyi(j))
        value = float(np.logaddexp.reduce(terms)) / (order - 1)
        best = min(best, times * value + math.log(1 / delta) / (order - 1))
    return best


@pytest.mark.parametrize(
    ("members", "clients", "noise", "times"), [(10, 100, 2.0, 3), (20, 100, 1.0, 3), (5, 100, 1.5, 60)]
)
def test_drawing_clients_helps_no_more_than_it_can(members: int, clients: int, noise: float, times: int) -> None:
    """Between a bound by hand and what an attack on one client really achieves."""
    means, q = Means(members, uniform=True), members / clients
    found = centers_epsilon(noise, DELTA, times, means, clients)
    assert found <= wang(q, noise, times, DELTA) * (1 + 1e-9)
    assert found < gaussian_epsilon(noise, DELTA, times)
    if times > 3:
        return
    # One client adds +1/2 or -1/2 of the sensitivity where it is drawn, all others nothing.
    x = np.arange(-14 * noise, 14 * noise, noise / 400)
    up, down = ((1 - q) * stats.norm.pdf(x, 0, noise) + q * stats.norm.pdf(x, at, noise) for at in (0.5, -0.5))
    step = 2e-4
    loss = np.log(up / down)
    index = np.floor(loss / step).astype(int)  # rounded down: a lower bound
    mass = np.bincount(index - index.min(), weights=up * (noise / 400))
    assert found >= composed(mass, step, index.min() * step, times, DELTA)


def test_draws_that_depend_on_data_gain_nothing() -> None:
    means = Means(10, uniform=False)
    assert centers_epsilon(2.0, DELTA, 7, means, 1000) == gaussian_epsilon(2.0, DELTA, 7)
    assert centers_epsilon(2.0, DELTA, 7, Means(10, uniform=True), 10) == gaussian_epsilon(2.0, DELTA, 7)


def test_noise_for_an_epsilon_gives_it() -> None:
    assert gaussian_epsilon(noise_for(2.0, DELTA, 25), DELTA, 25) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(fs.InputError, match="epsilon = 0"):
        noise_for(0, DELTA, 1)


# --- counts -----------------------------------------------------------------------------------------------------------


def draws(m: int) -> list[np.random.Generator]:
    return [generator(0, "test", k) for k in range(m)]


def test_noise_on_counts_has_the_stated_scale() -> None:
    """With half of many points each, n u_1 moves by (e_1 - e_2) / 2."""
    m, n = 4000, 10**7
    shares = hidden_shares(torch.full((m, 2), 0.5).double(), torch.full((m,), n), 3.0, draws(m))
    moved = (shares[:, 0] - 0.5) * n
    assert float(moved.std()) == pytest.approx(3.0 / math.sqrt(2), rel=0.04)
    assert abs(float(moved.mean())) < 4 * 3.0 / math.sqrt(2 * m)


@given(st.integers(1, 5), st.integers(1, 50), st.floats(0.01, 100))
def test_hidden_shares_are_shares(S: int, n: int, deviation: float) -> None:
    shares = hidden_shares(torch.eye(S)[[0]].repeat(6, 1), torch.full((6,), n), deviation, draws(6))
    assert bool((shares >= 0).all())
    torch.testing.assert_close(shares.sum(1), torch.ones(6))


@given(st.data())
def test_one_point_changes_two_counts_by_one_each(data: st.DataObject) -> None:
    n, S = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 5))
    losses = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 99))).random((n, S)))
    other = losses.clone()
    other[data.draw(st.integers(0, n - 1))] = torch.from_numpy(np.random.default_rng(1).random(S))
    clients = ClientData.concat([(torch.zeros(n, 1), torch.zeros(n))])
    counts = [importance_weights(table, clients, 0.0) * n for table in (losses, other)]
    assert float((counts[0] - counts[1]).norm()) <= math.sqrt(2) + 1e-9


def deviation_of(algorithm: Any, privacy: Privacy, model: Any, federation: fs.Federation) -> float:
    """Of what the first estimation adds to n u, where counts stay away from 0."""
    options: dict[str, Any] = {"rounds": 1, "solver": fs.SGD(lr=1e-6, epochs=1), "dtype": "float64"}
    plain = trained(algorithm, federation, model, **options)
    noisy = trained(algorithm, federation, model, **options, privacy=privacy)
    u = plain.state.u
    inside = (u.min(1).values > 0.2).nonzero().flatten()
    assert len(inside) > 30
    n, p = federation.train.sizes[inside, None], u[inside]
    scaled = (noisy.state.u[inside] - p) * n / (p.square() + (1 - p).square()).sqrt()
    return float(scaled[:, 0].std())


def test_clients_add_the_noise_that_the_setting_says() -> None:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(400):
        x = rng.standard_normal((400, 2))
        pairs.append((x, 10 * rng.standard_normal(400)))  # so far away that either center may be the nearer
    federation = fs.Federation.from_clients(pairs, held_out=0)
    found = deviation_of(fs.FedSoft(S=2, sigma=1e-6), Privacy(counts=2.0), fs.models.linear(), federation)
    assert found == pytest.approx(2.0 * math.sqrt(2), rel=0.15)


def synthetic(**options: Any) -> fs.Federation:
    return fs.datasets.synthetic(partition="10:90", clients=20, points=(20, 40), seed=0, **options)


def fit(algorithm: Any, privacy: Privacy | None, **options: Any) -> Run:
    options = {"rounds": 4, "solver": fs.SGD(lr=0.02, epochs=2, batch=10), **options}
    return trained(algorithm, synthetic(), fs.models.linear(), **options, privacy=privacy)


BOTH = Privacy(counts=2.0, clip=1.0, noise=3.0)


def test_noise_is_named_so_that_bits_do_not_depend_on_workers_or_chunks() -> None:
    runs = [fit(fs.FedSoft(S=2, K=8), BOTH, **o) for o in ({}, {"workers": 2, "chunk": 3}, {"seed": 1})]
    assert torch.equal(runs[0].state.u, runs[1].state.u)
    torch.testing.assert_close(runs[0].state.centers, runs[1].state.centers)
    assert not torch.equal(runs[0].state.u, runs[2].state.u)
    again = fit(fs.FedSoft(S=2, K=8), BOTH, workers=2)
    assert torch.equal(runs[0].state.centers, again.state.centers)


def test_records_tell_what_was_spent_so_far() -> None:
    run = fit(fs.FedSoft(S=2, K=8, tau=2), BOTH)
    told = [record.privacy for record in run.history if record.privacy is not None]
    assert [one.estimations for one in told] == [1, 1, 2, 2]
    assert [one.releases for one in told] == [1, 2, 3, 4]
    assert told[-1].counts_each == pytest.approx(analytic(1 / 2, DELTA))
    assert told[-1].counts_epsilon == pytest.approx(analytic(math.sqrt(2) / 2, DELTA))
    assert told[-1].epsilon == pytest.approx(analytic(2 / 3, DELTA))
    assert (told[0].epsilon or 0) < (told[-1].epsilon or 0)
    assert len(statements(told[-1])) == 2


# --- centers ----------------------------------------------------------------------------------------------------------


def mean_of(w: Tensor, drawn: Tensor, old: Tensor, members: int, clip: float = 1.0, noise: float = 0.0) -> Tensor:
    rows = HiddenRows(Held(w), clip, noise, members, lambda: lambda s: generator(0, "center", s))
    return rows.average(drawn, old)


def test_updates_are_clipped_and_those_who_are_missing_change_nothing() -> None:
    w = torch.tensor([[3.0, 4.0], [0.5, 0.0], [9.0, 9.0]])
    drawn, old = torch.tensor([[1.0, 1.0, 0.0]]), torch.zeros(1, 2)
    # (0.6, 0.8) for the first, as it is for the second; the third was not drawn, and a fourth did not answer.
    torch.testing.assert_close(mean_of(w, drawn, old, 3), torch.tensor([[(0.6 + 0.5) / 3, 0.8 / 3]]))


def test_noise_on_centers_has_the_stated_scale() -> None:
    P, K = 20_000, 25
    moved = mean_of(torch.zeros(1, P), torch.ones(3, 1), torch.zeros(3, P), K, clip=0.5, noise=4.0)
    expected = 4.0 * 2 * 0.5 * math.sqrt(3) / K
    assert float(moved.std()) == pytest.approx(expected, rel=0.02)
    assert abs(float(torch.corrcoef(moved)[0, 1])) < 0.05


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(4, 12), st.integers(1, 4))
def test_another_client_in_place_of_one_changes_centers_by_no_more_than_stated(seed: int, N: int, S: int) -> None:
    """Its mixture, its number of points and its model may be anything; so who is drawn changes, too."""
    rng = np.random.default_rng(seed)
    K, k = int(rng.integers(1, N)), int(rng.integers(N))
    u, n = torch.from_numpy(rng.dirichlet(np.ones(S), N)).clamp(min=1e-4), torch.from_numpy(rng.integers(1, 50, N))
    w, old = torch.from_numpy(3 * rng.standard_normal((N, 4))), torch.from_numpy(rng.standard_normal((S, 4)))
    u2, n2, w2 = u.clone(), n.clone(), w.clone()
    u2[k], n2[k] = torch.from_numpy(rng.dirichlet(np.ones(S))).clamp(min=1e-4), 10**4
    w2[k] = torch.from_numpy(50 * rng.standard_normal(4))
    found = []
    for one, points, models in ((u, n, w), (u2, n2, w2)):
        race = Draws(seed, "select", names=[str(j) for j in range(N)])
        drawn = select(aggregation_weights(one, points), K, race, replacement=False)
        found.append((drawn, mean_of(models, drawn, old, K)))
    others = [j for j in range(N) if j != k]
    assert float((found[0][0] - found[1][0])[:, others].abs().sum(1).max()) <= 1  # one other at most, for each center
    assert float((found[0][1] - found[1][1]).norm()) <= 2 * math.sqrt(S) / K + 1e-9


def test_fedavg_gains_from_uniform_draws() -> None:
    run = fit(fs.FedAvg(K=5), Privacy(clip=1.0, noise=2.0))
    told = run.history[-1].privacy
    assert told is not None
    assert told.sampled
    assert (told.epsilon or math.inf) < analytic(2 / 2, DELTA)
    assert "uniformly" in statements(told)[0]


def test_centers_get_noise_even_when_nobody_answers() -> None:
    run = fit(fs.FedAvg(), Privacy(clip=1.0, noise=2.0), rounds=1, dropout=1.0)
    start = fit(fs.FedAvg(), None, rounds=0)
    moved = run.state.centers - start.state.centers
    assert bool((moved != 0).all())


def test_without_noise_nothing_changes() -> None:
    plain, floor = fit(fs.FedSoft(S=2, K=8), None), fit(fs.FedSoft(S=2, K=8), Privacy(floor=1))
    assert torch.equal(plain.state.centers, floor.state.centers)
    assert floor.history[-1].privacy is None


# --- what cannot be stated --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "privacy", "told"),
    [
        (fs.FedSoft(S=2, K=8), Privacy(clip=1.0), r"privacy\.clip = 1\.0 and privacy\.noise = 0\.0"),
        (fs.FedSoft(S=2), Privacy(clip=1.0, noise=1.0), "means over a fixed number of clients"),
        (fs.FedSoft(S=2, K=8, sigma=0), Privacy(clip=1.0, noise=1.0), "means over a fixed number of clients"),
        (fs.IFCA(S=2), Privacy(clip=1.0, noise=1.0), "means over a fixed number of clients"),
        (fs.FedEM(S=2), Privacy(counts=1.0), "clients that count points"),
        (fs.FedSoft(S=2, weights="soft"), Privacy(counts=1.0), "clients that count points"),
    ],
)
def test_what_cannot_be_stated_is_refused(algorithm: Any, privacy: Privacy, told: str) -> None:
    with pytest.raises(fs.InputError, match=told):
        fit(algorithm, privacy)


@pytest.mark.parametrize("options", [{"aggregator": fs.aggregators.median()}, {"guard": 5.0}])
def test_rules_that_look_at_others_do_not_go_with_clipping(options: dict[str, Any]) -> None:
    with pytest.raises(fs.InputError, match="goes with the plain mean"):
        fit(fs.FedAvg(), Privacy(clip=1.0, noise=1.0), **options)


def test_soft_counts_are_hidden_in_every_sweep_where_losses_have_no_scale_of_their_own() -> None:
    federation = fs.datasets.digits(clients=8, points=(20, 30), seed=0)
    options: dict[str, Any] = {"rounds": 1, "solver": fs.SGD(epochs=1)}
    runs = [
        trained(fs.FedSoft(S=2, weights="soft"), federation, fs.models.linear(), **options, privacy=p)
        for p in (None, Privacy(counts=1.0))
    ]
    assert not torch.equal(runs[0].state.u, runs[1].state.u)
    spent = runs[1].history[0].privacy
    assert spent is not None
    assert spent.counts_each == pytest.approx(analytic(1.0, DELTA))


# --- specs, folders, reports ------------------------------------------------------------------------------------------

CHANGES = ["dataset.clients=20", "K=8", "rounds=4", "privacy.counts=2", "privacy.clip=1", "privacy.noise=3"]


def test_a_run_that_was_stopped_goes_on_with_the_same_noise_and_account(tmp_path: Path) -> None:
    run = spec.read("synthetic-10-90", CHANGES)
    whole, _ = execute(run, tmp_path / "whole", RunOptions())
    told = itertools.count()
    _, finished = execute(run, tmp_path / "part", RunOptions(should_stop=lambda: next(told) == 1))
    assert not finished
    part, finished = resume(RunFolder.open(tmp_path / "part"), RunOptions())
    assert finished
    one, other = (folder.checkpoint() for folder in (whole, part))
    assert one is not None
    assert other is not None
    found = other.state.tensors()
    assert all(torch.equal(value, found[name]) for name, value in one.state.tensors().items())
    assert whole.records()[-1].privacy == part.records()[-1].privacy


def test_privacy_is_shown_and_stands_on_the_model_card(tmp_path: Path) -> None:
    from rich.console import Console

    from fedsoft.exports.export import export
    from fedsoft.reports.tables import run_view
    from fedsoft.runs.load import load

    folder, _ = execute(spec.read("synthetic-10-90", CHANGES), tmp_path / "run", RunOptions())
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(run_view(folder))
    shown = console.export_text()
    assert "Privacy: counts of points: epsilon = " in shown
    assert "Privacy: centers: epsilon = " in shown
    export(load(folder.path), tmp_path / "model")
    card = (tmp_path / "model" / "model-card.md").read_text("utf-8")
    assert "privacy of centers: epsilon = " in card
    assert " seed " not in card.partition("## Training")[2].partition("##")[0]


@pytest.mark.parametrize("change", ["privacy=3", "privacy.clip=-1", "privacy.delta=0", "privacy.epsilon=1"])
def test_other_settings_are_refused(change: str) -> None:
    with pytest.raises(fs.InputError, match=r"privacy|Privacy"):
        spec.read("synthetic-10-90", [change])


def test_privacy_is_part_of_the_hash_only_where_it_is_there() -> None:
    run = spec.read("synthetic-10-90", ["privacy.floor=3"])
    assert run.hash != spec.read("synthetic-10-90").hash
    assert spec.RunSpec.from_dict(run.to_dict()).hash == run.hash


# --- the floor --------------------------------------------------------------------------------------------------------


def test_a_center_of_too_few_clients_is_not_published(tmp_path: Path) -> None:
    from fedsoft.exports.export import export

    run = fit(fs.FedSoft(S=2, K=8), Privacy(floor=3))
    assert not run.withheld
    # Center 1 is that of the first client alone.
    run.state = run.state.update(u=torch.tensor([[0.0, 1.0]] + [[1.0, 0.0]] * 19))
    assert run.withheld == {1: 1.0}
    x = synthetic().train.client(0)
    sentence = r"center 1 is not published: 1\.0 clients use it, privacy\.floor asks for 3"
    with pytest.raises(fs.InputError, match=sentence):
        run.predict(x[0], center=1)
    with pytest.raises(fs.InputError, match=sentence):
        run.adopt(x)
    run.predict(x[0], center=0)
    assert export(run, tmp_path / "model").models == ("center-0",)
    run.state = run.state.update(u=torch.tensor([[0.0, 1.0]] + [[0.0, 0.0]] * 19))
    with pytest.raises(fs.InputError, match="center 0 is not published"):
        export(run, tmp_path / "none")


def test_show_withholds_it(tmp_path: Path) -> None:
    from rich.console import Console

    from fedsoft.reports.tables import run_view

    changes = ["dataset.clients=20", "K=8", "rounds=1", "privacy.floor=19.5"]
    folder, _ = execute(spec.read("synthetic-10-90", changes), tmp_path / "run", RunOptions())
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(run_view(folder))
    assert "Withheld: center 0 is not published: " in console.export_text()


def test_a_report_says_so_and_has_no_numbers_for_it(tmp_path: Path) -> None:
    from fedsoft.reports.run_loader import finished

    changes = ["dataset.clients=20", "K=8", "rounds=1", "privacy.floor=19.5"]
    folder, _ = execute(spec.read("synthetic-10-90", changes), tmp_path / "run", RunOptions())
    assert all(math.isnan(value) for row in finished(folder).scores.centers or [[0.0]] for value in row)


def test_a_report_has_no_courses_of_it(tmp_path: Path) -> None:
    from fedsoft.reports.web_page import report

    changes = ["dataset.clients=20", "K=8", "rounds=3"]
    for name, floor in (("open", 0), ("closed", 19.5)):
        wanted = spec.read("synthetic-10-90", [*changes, *([f"privacy.floor={floor}"] if floor else [])])
        execute(wanted, tmp_path / "runs" / name, RunOptions())
        report([str(tmp_path / "runs" / name)], tmp_path / "runs", tmp_path / f"{name}.html")
    pages = {name: (tmp_path / f"{name}.html").read_text("utf-8") for name in ("open", "closed")}
    assert "convergence-figure" in pages["open"]
    assert "convergence-figure" not in pages["closed"]
    assert "Courses are left out" in pages["closed"]
