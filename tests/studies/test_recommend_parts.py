"""The parts of a recommendation, on their own: splits, searches, the clock, and the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError
from fedsoft.runs import spec
from fedsoft.studies.recommend.candidates import BY_KEY, CANDIDATES, chosen, rank
from fedsoft.studies.recommend.clock import Clock, seconds_of
from fedsoft.studies.recommend.measured import Journal, Measured, Task
from fedsoft.studies.recommend.newcomers import serve
from fedsoft.studies.recommend.rule import Refusal, Standing, decide
from fedsoft.studies.recommend.search import Range, Search, Searches, Settings
from fedsoft.studies.recommend.split import COUNTS, FOLDS, LEAST_LEFT, Split, newcomers_among
from tests.helpers import federation
from tests.test_conformance import clients


def numbered_points(sizes: list[int], held_out: float = 0.3, seed: int = 0) -> Federation:
    """Clients whose every point is a number of its own."""
    starts = np.cumsum([0, *sizes])
    pairs = [(np.arange(a, a + n, dtype=np.float64)[:, None], np.zeros(n)) for a, n in zip(starts, sizes, strict=False)]
    return Federation.from_clients(pairs, held_out=held_out, task="regression", seed=seed)


def points(data: Any) -> set[int]:
    return {int(value) for value in data.x[data.points][:, 0].tolist()}


# --- splits -----------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(4, 30), min_size=15, max_size=30), st.integers(0, 5))
def test_no_test_point_and_no_newcomer_is_ever_seen_in_tuning(sizes: list[int], seed: int) -> None:
    fed = numbered_points(sizes, seed=seed)
    split = Split.of(fed, seed)
    test, joining = points(split.final.held_out), points(split.newcomers.train)
    everything, covered = points(fed.train) | points(fed.held_out), set[int]()
    for fold in range(FOLDS):
        part = split.tuning(fold)
        train, tuned = points(part.train), points(part.held_out)
        assert part.names == split.final.names
        assert not (train | tuned) & (test | joining)
        assert not train & tuned
        assert train | tuned == points(split.final.train)
        assert not covered & tuned
        covered |= tuned
    assert covered == points(split.final.train)  # every point is tuned on once
    assert covered | test | joining == everything
    assert not set(split.newcomers.names) & set(split.final.names)


def test_newcomers_are_scored_on_points_that_they_did_not_give() -> None:
    split = Split.of(numbered_points([9, 60, 60] * 20), 0)
    for count in COUNTS:
        part = split.joining(count)
        assert part is not None
        assert set(part.train.sizes.tolist()) == {count}
        assert min(part.held_out.sizes.tolist()) >= LEAST_LEFT
        assert not points(part.train) & points(part.held_out)
    small, large = split.joining(5), split.joining(20)
    assert small is not None
    assert large is not None
    assert points(large.train) & points(small.train) == points(small.train.take(
        [small.names.index(name) for name in large.names]))  # more points are the same and others  # fmt: skip


def test_few_clients_are_all_needed_in_training() -> None:
    assert len(newcomers_among(tuple("abcdefgh"), 0)) == 0
    assert Split.of(numbered_points([8] * 8), 0).joining(5) is None
    with pytest.raises(InputError, match="at least 4 clients"):
        Split.of(numbered_points([8] * 3), 0)
    with pytest.raises(InputError, match="held-out points"):
        Split.of(numbered_points([8] * 8, held_out=0.0), 0)


def test_the_number_of_newcomers_can_be_given() -> None:
    found = Split.of(numbered_points([8] * 20), 0, newcomers=7)
    assert (len(found.newcomers), len(found.final)) == (7, 13)
    assert not set(found.newcomers.names) & set(found.final.names)


def test_a_client_with_one_point_trains_on_it() -> None:
    split = Split.of(numbered_points([1, 8, 8, 8], held_out=0.25), 0)
    assert [int(split.tuning(fold).train.sizes[0]) for fold in range(FOLDS)] == [1] * FOLDS


# --- searches ---------------------------------------------------------------------------------------------------------


def carried_out(search: Search | Searches, score: Callable[[Settings], float]) -> list[Settings]:
    """Run a search to its end; return what it tried."""
    tried, trials = [], search.trials()
    wanted = next(trials)
    while True:
        tried.append(wanted)
        try:
            wanted = trials.send(score(wanted))
        except StopIteration:
            return tried


def peak(**at: float) -> Callable[[Settings], float]:
    """Return a score whose best is there, on a scale of factors."""
    return lambda given: -sum(abs(math.log(given[key] / value)) for key, value in at.items())


def test_a_range_is_widened_until_the_best_is_inside() -> None:
    search = Search({"lr": Range((0.03, 0.1, 0.3), 3.0)})
    tried = carried_out(search, peak(lr=2.7))
    assert search.best == {"lr": 2.7}
    assert sorted(one["lr"] for one in tried) == [0.03, 0.1, 0.3, 0.9, 2.7, 8.1]  # one beyond the best, on its side
    assert search.done
    assert search.edges == ()


def test_the_cap_on_widening_is_said() -> None:
    search = Search({"lr": Range((0.03, 0.1, 0.3), 3.0)})
    carried_out(search, lambda given: given["lr"])
    assert search.edges == ("lr",)
    down = Search({"lr": Range((0.03, 0.1, 0.3), 3.0)})
    carried_out(down, lambda given: -given["lr"])
    assert down.edges == ("lr",)
    assert down.best["lr"] < 0.03 / 3**3


def test_settings_are_found_together() -> None:
    ranges = {"lr": Range((0.1, 0.3, 0.9), 3.0), "lam": Range((0.1, 1.0, 10.0), 10.0)}

    def score(given: Settings) -> float:  # the best rate depends on lam
        rate = 0.9 if given["lam"] >= 10 else 0.3
        return -3 * abs(math.log(given["lam"] / 10)) - abs(math.log(given["lr"] / rate))

    search = Search(ranges)
    tried = carried_out(search, score)
    assert search.best == {"lr": 0.9, "lam": 10.0}
    assert len(tried) == len(search.tried)  # nothing twice


def test_a_number_of_centers_stays_whole_and_within_its_limits() -> None:
    search = Search({"S": Range((2, 4), 2.0, least=2, most=12, whole=True)})
    tried = carried_out(search, lambda given: given["S"])
    assert [one["S"] for one in tried] == [2, 4, 8, 12]
    assert search.edges == ("S",)  # more could be tried
    few = Search({"S": Range((2, 4), 2.0, least=2, most=12, whole=True)})
    carried_out(few, lambda given: -given["S"])
    assert few.best == {"S": 2}
    assert few.edges == ()  # one center is another candidate


def test_a_trial_that_fails_is_no_best() -> None:
    search = Search({"lr": Range((0.1, 0.3, 0.9), 3.0)})
    carried_out(search, lambda given: -math.inf if given["lr"] > 0.2 else 1.0)
    assert search.best["lr"] <= 0.1
    hopeless = Search({"lr": Range((0.1, 0.3, 0.9), 3.0)})
    carried_out(hopeless, lambda given: -math.inf)
    assert not math.isfinite(hopeless.score)


def test_settings_that_fail_elsewhere_give_way_to_the_next_best() -> None:
    found = Searches([Search({"lr": Range((0.1, 0.3, 0.9), 3.0)}), Search({}, {"solver.name": "newton"})])
    carried_out(found, lambda settings: {0.1: 3.0, 0.3: 1.0, None: 2.0}.get(settings.get("lr"), 0.0))
    order = []
    for _ in range(3):
        order.append(found.best)
        found.discard()
    assert order == [{"lr": 0.1}, {"solver.name": "newton"}, {"lr": 0.3}]
    one = Search({}, {"solver.name": "newton"})
    carried_out(one, lambda _: 1.0)
    one.discard()
    assert one.score == -math.inf  # nothing is left


def test_each_solver_is_searched_and_the_best_of_both_is_found() -> None:
    def search() -> Searches:
        lam = Range((0.1, 1.0), 10.0)
        return Searches([Search({"lr": Range((0.1, 0.3), 3.0), "lam": lam}), Search({"lam": lam}, {"newton": 1})])

    exact = search()
    tried = carried_out(exact, lambda given: 1.0 * ("newton" in given) - abs(math.log(given["lam"] / 10)))
    assert exact.best == {"newton": 1, "lam": 10.0}
    assert tried[:2] == [{"lr": 0.1, "lam": 0.1}, {"newton": 1, "lam": 0.1}]  # both begin, then the better one goes on
    assert "newton" in tried[2]
    assert len(tried) == len(exact.tried)
    assert any("lr" in one for one in tried[2:])  # the other one is searched with the same care
    assert exact.done
    rates = search()
    carried_out(rates, peak(lam=1.0))
    assert "newton" not in rates.best  # of equals the first


def test_newton_is_tried_for_models_of_few_parameters() -> None:
    people, own = spec.read("electricity"), spec.read("electricity", ["solver.name=newton"])
    fixed = [dict(one.fixed) for one in BY_KEY["ditto"].searches(people, 300, 6).searches]
    assert fixed == [{}, {"solver.name": "newton"}]
    assert [set(one.ranges) for one in BY_KEY["finetune"].searches(people, 300, 6).searches] == [
        {"solver.lr", "tasks", "own_rate"}, {"tasks"}
    ]  # fmt: skip
    for base, parameters in ((people, 200), (own, 6)):
        assert len(BY_KEY["ditto"].searches(base, 300, parameters).searches) == 1
    assert len(BY_KEY["constant"].searches(people, 300, 6).searches) == 1


def test_candidates_have_what_they_declare() -> None:
    base = spec.read("synthetic-10-90")
    assert set(BY_KEY["ditto"].ranges(base, 100)) == {"solver.lr", "lam"}
    assert set(BY_KEY["fedsoft"].ranges(base, 100)) == {"solver.lr", "lam", "S"}
    assert set(BY_KEY["fedprior-1"].ranges(base, 100)) == {"solver.lr"}
    assert BY_KEY["fedprior"].ranges(base, 12)["S"].most == 2
    exact = spec.read("synthetic-10-90", ["solver.name=exact"])
    assert BY_KEY["fedavg"].ranges(exact, 100) == {}
    assert set(BY_KEY["finetune"].ranges(base, 100)) == {"solver.lr", "tasks", "own_rate"}
    assert set(BY_KEY["finetune"].ranges(exact, 100)) == {"tasks"}  # a rate of its own is none where there is no rate
    assert [rank(one.key) for one in CANDIDATES] == [*range(len(CANDIDATES))]
    assert [one.key for one in chosen(["finetune", "fedavg"])] == ["fedavg", "finetune"]
    with pytest.raises(InputError, match="did you mean 'fedavg'"):
        chosen(["fedavgg", "local"])


# --- the clock --------------------------------------------------------------------------------------------------------


def test_a_budget_leaves_time_for_what_has_to_follow() -> None:
    clock = Clock(100.0)
    a, b = (0, "fedavg"), (0, "ditto")
    assert clock.allows(a)
    clock.count(a, 20.0)
    assert clock.allows(a)  # 20 spent, 20 for this one, 40 to follow
    clock.count(a, 20.0)
    assert not clock.allows(b)  # 40 + 20 + 40 + 40
    assert Clock(None).allows(a, 1e9)
    assert clock.expected(b) == 20.0


def test_times_are_read() -> None:
    assert seconds_of(" 2.5h ") == 9000.0
    for text in ("10", "0m", "m", "-5m", "10 days", "1e3s"):
        with pytest.raises(InputError, match="--budget"):
            seconds_of(text)


# --- what is saved ----------------------------------------------------------------------------------------------------


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    task = Task(candidate="ditto", seed=0, part="0", settings={"lam": 0.1}, rounds=5)
    found = Measured(
        values={"accuracy": (0.5, None)}, course={"accuracy": (0.1, 0.2)}, newcomers={5: {"accuracy": (1.0,)}}
    )
    journal = Journal(tmp_path / "trials")
    assert journal.read(task, "accuracy") is None
    journal.write(task, found)
    assert journal.read(task, "accuracy") == found
    assert journal.read(task, "f1") is None  # another metric, which was not measured
    other = Task(candidate="ditto", seed=0, part="0", settings={"lam": 0.2}, rounds=5)
    assert journal.read(other, "accuracy") is None
    (tmp_path / "trials" / f"{task.name}.json").write_text('{"values": 3}')
    assert journal.read(task, "accuracy") is None  # damaged: it is measured again


# --- the rule ---------------------------------------------------------------------------------------------------------


def standing(key: str, mean: float, *, settled: bool = True, noise: float = 0.02) -> Standing:
    values = mean + noise * np.random.default_rng(rank(key)).standard_normal(60)
    return Standing(key, (values - values.mean() + mean)[None], settled)


def recommended(*standings: Standing) -> str:
    found = decide(standings, higher_is_better=True)
    assert found is not None
    return found.recommended


def test_the_simplest_that_is_not_clearly_beaten() -> None:
    close = [standing("fedavg", 0.5), standing("finetune", 0.7), standing("fedprior-1", 0.701)]
    assert recommended(*close) == "finetune"
    assert recommended(*close[:2], standing("fedprior-1", 0.75)) == "fedprior-1"
    assert recommended(standing("constant", 0.5), standing("fedavg", 0.501)) == "constant"


def test_several_centers_have_to_beat_one() -> None:
    one, more = standing("fedprior-1", 0.75), standing("fedprior", 0.74)
    found = decide([standing("fedavg", 0.5), one, more], higher_is_better=True)
    assert found is not None
    assert found.recommended == "fedprior-1"
    assert found.refused == {"fedprior": Refusal.BELOW_ONE}
    assert found.clusters is not None
    assert not found.clusters.is_clear
    clear = decide([standing("fedavg", 0.5), one, standing("fedprior", 0.8)], higher_is_better=True)
    assert clear is not None
    assert clear.recommended == "fedprior"
    assert clear.clusters is not None
    assert clear.clusters.low == pytest.approx(0.05, abs=0.01)
    # A cluster model below one model for all is not recommended, however simple it is.
    noisy = standing("ifca", 0.49, noise=5.0)
    assert recommended(standing("fedavg", 0.5), noisy, standing("finetune", 0.7)) == "finetune"


def test_clusters_that_are_recommended_are_compared_with_the_same_with_one_center() -> None:
    """A simple clustered model may be as good as a personal one with one center: clusters then add what they add."""
    found = decide([standing("fedavg", 0.5), standing("ifca", 0.7), standing("fedprior-1", 0.701)], True)
    assert found is not None
    assert (found.recommended, found.several, found.one) == ("ifca", "ifca", "fedavg")
    assert found.clusters is not None
    assert found.clusters.is_clear


def test_what_had_not_converged_is_not_recommended_over_what_had() -> None:
    found = decide([standing("fedavg", 0.5), standing("fedprior", 0.9, settled=False)], higher_is_better=True)
    assert found is not None
    assert (found.recommended, found.top) == ("fedavg", "fedprior")
    assert found.refused == {"fedprior": Refusal.RESTLESS}
    none = decide([standing("fedavg", 0.5, settled=False), standing("local", 0.9, settled=False)], True)
    assert none is not None
    assert none.recommended == "local"  # none had: the best is named, and it is said


def test_lower_may_be_better() -> None:
    found = decide([standing("fedavg", 1.2), standing("finetune", 0.8)], higher_is_better=False)
    assert found is not None
    assert found.recommended == "finetune"
    assert found.gains["fedavg"].mean == pytest.approx(0.4)


def test_what_cannot_be_trained_on_all_points_is_not_recommended() -> None:
    best = replace(standing("fedprior-1", 0.9), failed=True)
    found = decide([standing("fedavg", 0.5), standing("finetune", 0.7), best], higher_is_better=True)
    assert found is not None
    assert (found.recommended, found.top) == ("finetune", "finetune")
    assert found.refused == {"fedprior-1": Refusal.FAILED}
    assert decide([best], higher_is_better=True) is None


def test_nothing_to_decide_on() -> None:
    assert decide([Standing("fedavg", np.full((1, 3), math.nan))], True) is None


@pytest.mark.parametrize("rounds", [4, 5])
def test_newcomers_begin_whatever_round_the_run_has_reached(rounds: int) -> None:
    """fedlevels estimates every second round, counted from its start: a newcomer's kind is not left at its guess."""
    run = fs.fit(
        fs.FedLevels(S=2), federation(clients()), fs.models.linear(), rounds=rounds,
        solver=fs.SGD(lr=0.05), options=fs.FitOptions(workers=1),
    )  # fmt: skip
    known = {}

    def look(engine: Engine, state: State, data: ClientData) -> dict[str, np.ndarray]:
        known.update(engine.client_states)
        return {}

    new = federation(clients((9, 12), seed=3))
    serve(run, new, look, BY_KEY["fedlevels"])
    assert not known["fresh"].any()
    assert (known["p"] != 0.5).all()
