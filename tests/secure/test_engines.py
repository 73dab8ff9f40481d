"""`secure = true` where clients are simulated: the sums that come out of the masks, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.contract import Algorithm, Needs
from fedsoft.errors import InputError
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec, read
from fedsoft.safety.conditions import Conditions
from fedsoft.secure.coding import MODELS
from fedsoft.secure.leverage import visible
from fedsoft.secure.protection import Secure
from tests.helpers import SMALL
from tests.test_conformance import algorithm, federation, fitted

ALL = {name: algorithm(name, K="all") for name in plugins.names("algorithms")}
SUMS = [name for name, made in ALL.items() if made.needs is Needs.SUMS]
OTHERS = [name for name in ALL if name not in SUMS]


def test_what_the_page_promises_is_there() -> None:
    assert {"fedavg", "fedprox", "fedem", "ifca", "fedsoft", "fedprior"} <= set(SUMS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "fedprior" else name for name in SUMS]
)
def test_a_run_is_the_plain_one_within_the_error_of_coding(name: str) -> None:
    plain, secure = fitted(name, made=ALL[name]), fitted(name, made=ALL[name], secure=True)
    few = any("reaches" in record.notes for record in secure.history)  # bits, where clients weigh their own models
    rtol, atol = (1e-4, 2e-4) if few else (1e-5, 1e-6)
    assert torch.allclose(secure.state.centers, plain.state.centers, rtol=rtol, atol=atol)
    assert secure.state.mixture is None
    assert all("clipped_values" not in record.notes for record in secure.history)


def test_a_sum_is_that_of_integers() -> None:
    """One round of FedAvg, against whole numbers without a limit."""
    plain = fitted("fedavg", made=fs.FedAvg(), rounds=1)
    engine = plain.engine
    with torch.no_grad():
        engine.begin_round(engine.initial_state(), 0)
        w = engine("train", engine.everyone, centers=engine.initial_state().centers)["w"].gather()
    n = engine.sizes.double()
    shares = (n / n.sum() / (n / n.sum()).sum()).tolist()  # divided twice: by `average`, and by `SummedRows`
    means = []
    for j in range(w.shape[1]):
        counts = [round(Fraction(float(w[k, j]) * (shares[k] / MODELS.unit))) for k in range(len(n))]
        means.append(float(sum(counts) * Fraction(MODELS.unit)))
    found = fitted("fedavg", made=fs.FedAvg(), rounds=1, secure=True).state.centers[0]
    assert found.tolist() == pytest.approx(means, abs=MODELS.unit / 4, rel=0)


@pytest.mark.parametrize("other", [{"workers": 3, "chunk": 2}, {"memory": 0, "chunk": 2}], ids=str)
def test_neither_workers_nor_memory_change_a_bit(other: dict[str, Any]) -> None:
    one = fitted("fedsoft", made=fs.FedSoft(), secure=True, workers=1, chunk=2, dropout=0.2)
    two = fitted("fedsoft", made=fs.FedSoft(), secure=True, dropout=0.2, **other)
    assert torch.equal(one.state.centers, two.state.centers)


def test_bytes_are_those_of_coded_sums() -> None:
    plain, secure = (fitted("fedavg", made=fs.FedAvg(), rounds=1, secure=yes).history[0] for yes in (False, True))
    numbers = 9 * 3  # clients and parameters
    assert (plain.bytes_up, secure.bytes_up) == (8 * numbers, MODELS.bytes * numbers)  # the run is in float64
    assert secure.bytes_down == plain.bytes_down


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_algorithms_that_need_single_clients_are_refused_before_the_first_round(name: str) -> None:
    with pytest.raises(InputError, match=r"secure = true is not allowed for this \w+: .* it needs single m"):
        fitted(name, made=ALL[name], secure=True)


@pytest.mark.parametrize(("key", "other"), [
    ("aggregator", {"aggregator": fs.aggregators.median()}),
    ("guard", {"guard": 5.0}),
    ("attack", {"attack": fs.attacks.sign_flip(share=0.2)}),
    ("privacy.floor", {"privacy": fs.Privacy(floor=2.0)}),
], ids=str)  # fmt: skip
def test_what_looks_at_single_clients_is_refused(key: str, other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"{key} is not allowed with secure = true: .* only sums over clients"):
        fitted("fedavg", made=fs.FedAvg(), secure=True, **other)


class Peeks(fs.FedAvg):
    """Says nothing of what it needs."""

    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        answer["w"].gather()
        return state, {}


class PicksOne(fs.FedAvg):
    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        answer["w"].weighted(torch.eye(len(answer.ids))[:1])
        return state, {}


class PicksByTwo(fs.FedAvg):
    """Two sums that differ by one client."""

    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        weights = torch.ones(1, len(answer.ids))
        answer["w"].weighted(weights)
        answer["w"].weighted(weights - torch.eye(len(answer.ids))[:1])
        return state, {}


class PicksBySlightlyMore(fs.FedAvg):
    """Two sums of which one has a little more of a client: sums are exact, so that can be read."""

    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        weights = torch.ones(2, len(answer.ids), dtype=torch.float64)
        weights[1, 0] += 1e-5
        answer["w"].weighted(weights)
        return state, {}


class SumsWhatWeighs(fs.IFCA):
    """The numbers of centers, by which clients weigh, over fewer clients."""

    def round(self, state: Any, t: int, ask: Any) -> Any:
        answer = ask("train", ask.everyone, centers=state.centers)
        answer.sums("w", "s", self.S)
        answer["s"].weighted(1 - torch.eye(len(answer.ids))[:1])
        return state, {}


@pytest.mark.parametrize(("made", "told"), [
    (PicksBySlightlyMore(), "should be the same for all"), (SumsWhatWeighs(), "'s', by which clients weigh, is not"),
    (Peeks(), "looks at 'w' of single clients"), (PicksOne(), "would show 1.000 of what one"),
    (PicksByTwo(), "would show 1.000 of what one"),
], ids=["a little more", "what weighs", "gathers", "picks", "subtracts"])  # fmt: skip
def test_an_algorithm_that_says_nothing_still_sees_nothing(made: Algorithm, told: str) -> None:
    with pytest.raises(InputError, match=told):
        fitted("fedavg", made=made, secure=True)


def test_one_client_that_counts_for_all_is_refused() -> None:
    rng = np.random.default_rng(0)
    pairs = [(torch.from_numpy(rng.standard_normal((n, 3))), torch.from_numpy(rng.standard_normal(n)))
             for n in (400, 5, 5, 5)]  # fmt: skip
    with pytest.raises(InputError, match=r"would show 1\.000 of what one of them sent, more than secure.share = 0.9"):
        fitted("fedavg", federation(pairs), made=fs.FedAvg(), secure=True)


def test_leverage_is_what_sums_explain() -> None:
    """As the variance that is left of one reply, given the sums, by the formula for Gaussians."""
    weights = torch.from_numpy(np.random.default_rng(1).random((2, 5)))
    left = [1 - (weights[:, k] @ torch.linalg.inv(weights @ weights.T) @ weights[:, k]) for k in range(5)]
    assert torch.allclose(visible(weights), 1 - torch.stack(left))
    assert torch.allclose(visible(torch.cat([weights, 2 * weights])), visible(weights))
    assert visible(torch.zeros(1, 3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("more", [1e-3, 1e-9, 1e-13, 2.0**-50])
def test_rows_that_are_nearly_the_same_show_where_they_differ(more: float) -> None:
    """By whatever little: with 64 bits four digits of a reply can be read off two sums that differ by 1e-12 of it."""
    weights = torch.ones(2, 6, dtype=torch.float64)
    weights[1, 2] += more
    assert visible(weights).tolist() == pytest.approx([0.2, 0.2, 1, 0.2, 0.2, 0.2])
    three = torch.cat([weights, weights.sum(0, keepdim=True) + more])  # of which no two are nearly the same
    assert float(visible(three)[2]) == pytest.approx(1)


def test_the_sum_of_a_node_is_shown_by_two_sums_that_differ_by_it() -> None:
    """Though no client of it is."""
    homes = ["a", "a", "b", "b", "c"]
    whole, less = torch.ones(1, 5), torch.tensor([[1.0, 1, 0, 0, 1]])
    assert visible(whole, homes).tolist() == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.2])
    assert visible(torch.cat([whole, less]), homes)[2:4].tolist() == pytest.approx([1, 1])
    assert visible(torch.cat([whole, less])).max() < 0.9


# --- dropouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missing", "enough"), [(3, True), (4, False)])
def test_below_the_threshold_a_sum_is_not_made(missing: int, enough: bool) -> None:
    """Nine clients, of which six are two thirds."""
    away = np.arange(9) < missing
    run = fitted("fedavg", made=fs.FedAvg(), secure=True, rounds=1, dropout=lambda job, t, names: away)
    record, first = run.history[0], run.engine.initial_state().centers
    assert (record.notes.get("failed_sums", 0), record.answered) == ((0, 6) if enough else (1, 0))
    assert torch.equal(run.state.centers, first) is not enough


def test_values_beyond_the_reach_are_told() -> None:
    pairs = [(x, 1e6 * y) for x, y in [federation().train.client(k) for k in range(9)]]
    run = fitted("fedavg", federation(pairs), made=fs.FedAvg(), rounds=1, secure=True)
    assert run.history[0].notes["clipped_values"] > 0


# --- other engines ----------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("name", ["fedsoft", "ifca", "fedem"])
def test_workers_of_ray_add_up_the_same_integers(name: str) -> None:
    ray = pytest.importorskip("ray", reason='needs Ray: pip install "fedsoft[ray]"')
    about: dict[str, Any] = {"made": ALL[name], "secure": True, "dropout": 0.2, "chunk": 2}
    run = fitted(name, engine="ray", workers=2, **about)
    try:
        assert torch.equal(run.state.centers, fitted(name, **about).state.centers)
        assert run.state.mixture is None
    finally:
        run.engine.close()
        ray.shutdown()


# --- specs, commands and saved runs -----------------------------------------------------------------------------------


def test_a_run_in_toml() -> None:
    plain = read("synthetic-10-90", ["K=all"])
    assert "secure" not in plain.to_dict()
    assert plain.hash == read("synthetic-10-90", ["K=all", "secure=false"]).hash
    spec = read("synthetic-10-90", ["K=all", "secure=true"])
    assert spec.secure == Secure()
    assert spec.hash != plain.hash
    assert RunSpec.from_dict(spec.to_dict(), spec.label) == spec
    assert read("synthetic-10-90", ["secure.threshold=0.8"]).secure == Secure(threshold=0.8)


@pytest.mark.parametrize(("change", "told"), [
    ("secure=1", r"secure = 1 is not allowed: should be true, false, or a table"),
    ("secure.threshold=0.5", r"secure.threshold = 0.5 is not allowed: should be above 0.5"),
    ("secure.bits=3", "unknown setting of secure 'bits'"),
])  # fmt: skip
def test_bad_settings_get_one_sentence(change: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read("synthetic-10-90", [change])


@pytest.mark.slow
def test_a_run_is_saved_and_loaded_without_mixtures(tmp_path: Path) -> None:
    spec = read(
        "synthetic-10-90", [*[one for one in SMALL if not one.startswith("K=")], "K=all", "secure=true", "rounds=2"]
    )
    execute(spec, tmp_path / "run", RunOptions(signals=False))
    run = fs.load(tmp_path / "run")
    assert run.state.mixture is None
    assert run.engine.conditions.protection == Secure()


def test_conditions_take_true_or_settings() -> None:
    assert Conditions(secure=True).protection == Secure()
    assert Conditions(secure=Secure(threshold=0.9)).protection == Secure(threshold=0.9)
    assert Conditions(secure=False).protection is None
    assert Conditions().protection is None
