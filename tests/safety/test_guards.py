"""Guards on every reply, what becomes of clients whose training diverges, and clients that are dropouts."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedsoft as fs
from fedsoft.cli.progress import Progress
from fedsoft.core.contract import job
from fedsoft.core.replies import CHOICE, COUNTS, MIXTURE, MODEL, STEP
from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.flower.server.expected_replies import forms_of
from fedsoft.flower.server.reply_validator import ReplyValidator, Rows
from fedsoft.reports.page import Verdict
from fedsoft.reports.run_list import runs_list
from fedsoft.reports.run_loader import read
from fedsoft.reports.tables import run_view
from fedsoft.reports.web_page import page_of
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.safety import dropouts
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.exclusions import Exclusion, Reason, Refusal
from fedsoft.safety.guards import Facts, Guards, without
from fedsoft.safety.malicious import malicious_clients
from fedsoft.training import Run
from fedsoft.training.notices import Kind, exclusions, silence, unheard
from fedsoft.training.rounds import MOST_NAMED
from tests.helpers import record, silent, trained

GUARDS = Guards(size=3, norm=5.0, smallest_share=0.01)
KINDS = {"w": MODEL, "u": MIXTURE, "pi": MIXTURE, "s": CHOICE, "n": COUNTS}


def models(*norms: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([[norm, 0.0, 0.0] for norm in norms])}


def told(reply: dict[str, Tensor], guards: Guards = GUARDS, **known: Any) -> dict[int, str]:
    found = guards.judge(guards.look(reply, KINDS, **known), None if "n" not in known else known["n"].numpy())
    return {row: why.text for row, why in found.items()}


# --- what one reply tells about itself --------------------------------------------------------------------------------


TOO_MANY = "the counts 'n' are negative, or sum to more than the number of its points"


@pytest.mark.parametrize(
    ("reply", "row", "why"),
    [
        ({"w": torch.tensor([[1.0, 2, 3], [1, math.nan, 3]])}, 1, "'w' holds values that are not finite"),
        ({"w": torch.tensor([[1.0, math.inf, 3], [1, 2, 3]])}, 0, "'w' holds values that are not finite"),
        ({"u": torch.tensor([[0.5, 0.5], [1.2, -0.2]])}, 1, "'u' holds shares outside of 0 to 1"),
        ({"u": torch.tensor([[0.5, 0.5], [0.3, 0.3]])}, 1, "the shares of 'u' do not sum to 1"),
        ({"pi": torch.tensor([[1.0, 1.0], [0.3, 0.7]])}, 0, "the shares of 'pi' do not sum to 1"),
        ({"s": torch.tensor([0, 2])}, 1, "'s' names a center that does not exist"),
        ({"s": torch.tensor([-1, 1])}, 0, "'s' names a center that does not exist"),
        ({"n": torch.tensor([[4.0, 6.0], [10.0, 20.0]])}, 1, TOO_MANY),
        ({"n": torch.tensor([[-5.0, 15.0], [10.0, 0.0]])}, 0, TOO_MANY),
    ],
)
def test_a_reply_that_cannot_be_is_refused(reply: dict[str, Tensor], row: int, why: str) -> None:
    assert told(reply, n=torch.tensor([10, 10]), centers=2) == {row: why}


def test_shares_that_the_floor_lifts_above_one_are_believed() -> None:
    assert not told({"u": torch.tensor([[1.0, 0.01], [0.995, 0.01]])})
    assert told({"u": torch.tensor([[1.0, 0.1], [0.995, 0.01]])}) == {0: "the shares of 'u' do not sum to 1"}


# --- what only a comparison tells -------------------------------------------------------------------------------------


def test_a_model_far_longer_than_the_median_is_not_believed() -> None:
    assert told(models(1, 2, 3, 15)) == {3: "the norm of 'w' is 7.5 times the median"}
    assert not told(models(1, 2, 3, 9.9))
    assert not told(models(1, 2, 3, 1e30), Guards(size=3))
    assert not told(models(1e30))


def test_how_far_models_are_from_a_center_may_differ_more_than_models_do() -> None:
    far = {"first": models(1, 2, 3, 15)["w"]}
    kinds = {"first": STEP}
    assert GUARDS.judge(GUARDS.look(models(1, 2, 3, 15), KINDS))
    assert not GUARDS.judge(GUARDS.look(far, kinds))
    facts = GUARDS.look({"first": models(1, 2, 3, 51)["w"]}, kinds)
    assert set(GUARDS.judge(facts)) == {3}
    assert set(GUARDS.judge(Facts.join([(4, facts)]))) == {3}


def test_clusters_have_medians_of_their_own() -> None:
    far = {**models(1, 1, 1, 20, 20, 20, 21), "s": torch.tensor([0, 0, 0, 1, 1, 1, 1])}
    assert not told(far)
    assert set(told({"w": far["w"]})) == set()  # most are long: nobody is far above the median
    assert set(told(models(1, 1, 1, 1, 20, 20, 20))) == {4, 5, 6}
    known = np.array([0, 0, 0, 0, 1, 1, 1])
    facts = GUARDS.look(models(1, 1, 1, 1, 20, 20, 20), KINDS)
    assert not GUARDS.judge(facts, known=known)
    assert set(GUARDS.judge(GUARDS.look(models(1, 1, 1, 20, 20, 200), KINDS), known=np.array([0, 0, 0, 1, 1, 1]))) == {
        5
    }


def test_a_sum_over_many_points_is_not_an_outlier() -> None:
    n = torch.tensor([10, 10, 10, 200])
    assert not told(models(1, 1, 1, 20), n=n)
    assert set(told(models(1, 1, 1, 2000), n=n)) == {3}


def test_a_refused_reply_does_not_move_the_median() -> None:
    reply = models(1, 1, 9, 1e20, 1e20)
    reply["u"] = torch.tensor([[1.0, 0], [1.0, 0], [1.0, 0], [5.0, 0], [5.0, 0]])
    assert set(told(reply)) == {2, 3, 4}


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=20), st.data())
def test_facts_joined_from_parts_are_those_of_the_whole(norms: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(norms)))
    reply = models(*norms)
    parts = [{name: value[a:b] for name, value in reply.items()} for a, b in ((0, cut), (cut, len(norms)))]
    looks = [(len(part["w"]), GUARDS.look(part, KINDS)) for part in parts if len(part["w"])]
    assert {row: why.text for row, why in GUARDS.judge(Facts.join(looks)).items()} == told(reply)
    assert Facts.join(looks).bytes == 8 * len(norms)  # only norms are sent


@given(st.integers(2, 12), st.data())
def test_an_answer_without_some_is_that_of_the_others(m: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, m - 1)))
    values = torch.from_numpy(np.random.default_rng(m).standard_normal((m, 4)))
    store = ClientStore(m, Budget(10**6))
    store.put(np.arange(m), {"w": values})
    ids = np.arange(m) * 3
    answer = without(ids, {"w": store.column("w")}, dict.fromkeys(bad, Refusal(Reason.NORM, "why")))
    kept = [row for row in range(m) if row not in bad]
    assert answer.ids.tolist() == ids[kept].tolist()
    if kept:
        assert torch.equal(answer["w"].gather(), values[kept])
        weights = torch.rand(2, len(kept), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(answer["w"].weighted(weights), weights @ values[kept])


def test_federations_sift_by_the_same_guards() -> None:
    replies = [Rows("a", ["0", "1"], models(1, 2)), Rows("b", ["2", "3"], models(3, 30))]
    right = forms_of(replies[0].tensors)
    good, bad = ReplyValidator(GUARDS).sift(replies, right, KINDS, dict.fromkeys("0123", 10))
    assert [*good] == ["0", "1", "2"]
    assert bad == {"3": Refusal(Reason.NORM, "the norm of 'w' is 15.0 times the median")}
    _, bad = ReplyValidator(GUARDS).sift(replies, right, KINDS, clusters={"0": 0, "1": 0, "2": 0, "3": 0})
    assert bad == {"3": Refusal(Reason.NORM, "the norm of 'w' is 15.0 times the median of its cluster")}
    choices = [Rows("a", ["0", "1"], {"s": torch.tensor([0, 7])})]
    assert [*ReplyValidator(GUARDS).sift(choices, forms_of(choices[0].tensors), KINDS, centers=2)[1]] == ["1"]


# --- runs -------------------------------------------------------------------------------------------------------------


def fit(algorithm: Any, **options: Any) -> Run:
    fed = fs.datasets.synthetic(partition="10:90", clients=12, points=(20, 30), seed=0)
    options = {"rounds": 3, "solver": fs.SGD(lr=0.02, epochs=2, batch=10), **options}
    return trained(algorithm, fed, fs.models.linear(), **options)


@pytest.mark.parametrize("algorithm", [fs.FedSoft(S=2, K=6), fs.IFCA(S=2), fs.FedEM(S=2), fs.FedAvg()], ids=str)
def test_guards_that_exclude_nobody_do_not_change_a_bit(algorithm: Any) -> None:
    plain, watched = fit(algorithm), fit(algorithm, guard=50.0, diverged="drop")
    one, other = plain.state.tensors(), watched.state.tensors()
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert not any(one.excluded for one in watched.history)


def test_who_sends_too_much_is_left_out_and_named() -> None:
    attack = fs.attacks.scaled(share=0.2, factor=1e4)
    run = fit(fs.IFCA(S=2), attack=attack, guard=5.0)
    names = {entry.client for record in run.history for entry in record.excluded}
    assert names == malicious_clients(run.federation.names, 0.2, 0)
    assert "times the median" in run.history[0].excluded[0].text
    assert run.history[0].answered == 10
    honest, plain = fit(fs.IFCA(S=2)), fit(fs.IFCA(S=2), attack=attack)
    errors = [max(one.history[-1].best) for one in (honest, run, plain)]
    assert errors[1] < 2 * errors[0] < errors[2]


def test_the_bits_of_a_guarded_run_do_not_depend_on_workers_or_memory() -> None:
    attack = fs.attacks.scaled(share=0.2, factor=1e4)
    runs = [fit(fs.FedSoft(S=2), attack=attack, guard=3.0, chunk=5, **o) for o in ({}, {"workers": 2, "memory": 0})]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)
    assert runs[0].history[-1].excluded == runs[1].history[-1].excluded


class Fragile(fs.FedAvg):
    """FedAvg in which some clients' training diverges in some rounds."""

    bad: tuple[str, ...] = ()
    since: int = 1

    @job(w=MODEL)
    def train(self, site: Any, mine: Any, shared: Any) -> Any:
        mine, reply = super().train(site, mine, shared)
        lost = [k for k, name in enumerate(site.names) if name in self.bad and site.t >= self.since]
        reply["w"][lost] = math.inf
        return mine, reply


def fragile(*bad: str, since: int = 1) -> Fragile:
    made = Fragile()
    object.__setattr__(made, "bad", bad)
    object.__setattr__(made, "since", since)
    return made


def test_a_client_that_diverges_stops_the_run_or_is_dropped() -> None:
    with pytest.raises(fs.DivergedError, match=r"client '3' answered job 'train' of round 2 .*solver\.lr"):
        fit(fragile("3"))
    run = fit(fragile("3"), diverged="drop")
    assert run.history[0].excluded == []
    why = "its training diverged in job 'train': 'w' is not finite"
    assert run.history[1].excluded == [Exclusion("3", Reason.NOT_FINITE, why)]
    # The same as if it had not answered.
    gone = fit(fs.FedAvg(), dropout=silent(lambda job, t, name: name == "3" and t >= 1))
    torch.testing.assert_close(run.state.centers, gone.state.centers)


def test_what_a_dropped_client_keeps_stays_as_it_was() -> None:
    """FedSoft's clients keep their model: one whose points are absurd has its first one for ever."""
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((10, 2)), rng.standard_normal(10)) for _ in range(4)]
    pairs[2] = (pairs[2][0] * 1e30, pairs[2][1])
    fed = fs.Federation.from_clients(pairs, held_out=0)
    solver = fs.SGD(lr=0.1, epochs=2)
    run = trained(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=3, solver=solver, diverged="drop")
    assert {entry.client for record in run.history for entry in record.excluded} == {"2"}
    first = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=0, solver=solver)
    assert torch.equal(run.engine.client_states["w"][2], first.engine.client_states["w"][2])
    assert bool(torch.isfinite(run.state.centers).all())


def test_when_everybody_is_dropped_centers_stay_and_it_is_said() -> None:
    everyone = [str(k) for k in range(12)]
    run = fit(fragile(*everyone, since=1), rounds=4, diverged="drop")
    alone = fit(fs.FedAvg(), rounds=1)
    assert torch.equal(run.state.centers, alone.state.centers)
    (notice,) = silence(run.history)
    assert notice.text == "nobody answered in the last 3 rounds: all centers stayed as they were"
    assert not silence(run.history[:3])
    told = [notice.text for notice in exclusions(run.history)]
    assert told[0].startswith("12 clients were excluded, such as 0, 1, 10: ")
    assert "lower the learning rate" in told[0]
    assert len(told) == 1


@pytest.mark.parametrize(("rounds", "told"), [(1, "its only round"), (2, "any of its 2 rounds"), (6, "any of its 6")])
def test_a_run_in_which_nobody_answered_says_so(rounds: int, told: str, caplog: pytest.LogCaptureFixture) -> None:
    run = fit(fs.FedAvg(), rounds=rounds, dropout=1.0)
    (notice,) = silence(run.history)
    assert notice.text.startswith(f"nobody answered in {told}")
    assert caplog.messages == [notice.text]
    assert not exclusions(run.history)


def test_a_run_with_a_single_answer_was_heard(caplog: pytest.LogCaptureFixture) -> None:
    run = fit(fragile(*[str(k) for k in range(12)], since=1), rounds=2, diverged="drop")
    assert [record.answered for record in run.history] == [12, 0]
    assert not unheard(run.history)
    assert not unheard(fit(fs.FedAvg(), rounds=2, dropout=1.0).history[:1])  # it is not over
    assert not unheard([])


def test_silence_is_in_the_terminal_the_list_and_the_report(tmp_path: Path) -> None:
    from rich.console import Console

    run = spec.read("synthetic-10-90", ["dataset.clients=6", "K=all", "rounds=2", "dropout=1.0"])
    folder, finished = execute(run, tmp_path / "runs" / "run", RunOptions())
    assert finished
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_view(folder))
    assert "Warning: nobody answered in any of its 2 rounds: nothing was learned" in console.export_text()
    assert runs_list([folder])[0]["state"] == "finished (nobody answered)"
    console = Console(width=200, record=True, file=io.StringIO())
    progress = Progress(console, run, 0)
    for one in folder.records():
        progress.update(one)
    assert console.export_text().count("warning: after round 2 nobody answered in any") == 1
    page = page_of(read([str(folder.path)], tmp_path))
    told = [block for section in page.sections for block in section.blocks if isinstance(block, Verdict)]
    assert [v.holds for v in told if v.sentence.startswith("Nobody answered in any of its 2 rounds")] == [False]


def test_a_record_names_only_so_many() -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=MOST_NAMED + 7, points=(20, 30), seed=0)
    everyone = [str(k) for k in range(len(fed))]
    run = fs.fit(
        fragile(*everyone, since=0),
        fed,
        fs.models.linear(),
        rounds=1,
        solver=fs.SGD(),
        conditions=fs.Conditions(diverged="drop"),
    )
    (first,) = run.history
    assert (len(first.excluded), first.excluded_more) == (MOST_NAMED, 7)
    (notice,) = exclusions(run.history)
    assert notice.text.startswith("at least 20 clients were excluded, such as 0, 1, 10: its training diverged")
    assert notice.kind is Kind.EXCLUDED


def test_few_exclusions_are_told_client_by_client() -> None:
    long, odd = Exclusion("a", Reason.NORM, "too long"), Exclusion("b", Reason.NOT_FINITE, "odd")
    records = [record(t, excluded=[odd, long] if t == 2 else [odd]) for t in range(3)]
    found = exclusions(records)
    assert [notice.text for notice in found] == [
        "client 'b' was excluded in 3 rounds, last in round 3: odd (lower the learning rate, or scale the data)",
        "client 'a' was excluded in 1 round, last in round 3: too long",
    ]
    assert [notice.key for notice in found] == [(Kind.EXCLUDED, "client b"), (Kind.EXCLUDED, "client a")]


def test_exclusions_are_in_the_log_and_shown(tmp_path: Path) -> None:
    from rich.console import Console

    changes = ["dataset.clients=10", "K=all", "rounds=2", "attack=scaled", "attack.factor=1e5", "guard=5"]
    run = spec.read("synthetic-10-90", changes)
    folder, finished = execute(run, tmp_path / "run", RunOptions())
    assert finished
    assert folder.records()[0].excluded
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_view(RunFolder.open(folder.path)))
    assert "Excluded: client '" in console.export_text()


# --- options ----------------------------------------------------------------------------------------------------------


def test_the_hash_changes_with_guard_and_diverged() -> None:
    base = spec.read("synthetic-10-90")
    assert spec.read("synthetic-10-90", ["diverged=stop", "guard=0"]).hash == base.hash
    changed = spec.read("synthetic-10-90", ["diverged=drop", "guard=5"])
    assert changed.hash != base.hash
    assert spec.RunSpec.from_dict(changed.to_dict()).hash == changed.hash


@pytest.mark.parametrize("change", ["diverged=ignore", "guard=0.5", "guard=-1", "guard=true", "guard=many"])
def test_other_values_are_refused(change: str) -> None:
    with pytest.raises(fs.InputError, match=change.partition("=")[0]):
        spec.read("synthetic-10-90", [change])


@pytest.mark.parametrize("change", [{"guard": 0.5}, {"guard": math.inf}, {"diverged": "no"}, {"dropout": 1.5}])
def test_conditions_refuse_them_too(change: dict[str, Any]) -> None:
    ((key, value),) = change.items()
    with pytest.raises(fs.InputError, match=f"^{key} = {value!r} is not allowed"):
        Conditions(**change)


def test_the_advice_names_the_rate_of_the_method() -> None:
    with pytest.raises(fs.DivergedError, match=r"algorithm\.personal_lr or algorithm\.eta"):
        fit(fs.pFedMe(personal_lr=1e30, eta=1e30))
    with pytest.raises(fs.DivergedError, match=r"algorithm\.lr\)"):
        fit(fs.IFCA(S=2, average="gradient", lr=1e25))
    with pytest.raises(fs.DivergedError, match=r"solver\.lr\)"):
        fit(fs.IFCA(S=2), solver=fs.SGD(lr=1e25, epochs=2))


# --- dropouts -------------------------------------------------------------------------------------------------------


def test_stragglers_are_always_the_same_and_late_as_often_as_told() -> None:
    names = [str(k) for k in range(400)]
    late = dropouts.stragglers(0.25, late=0.5, seed=1)
    seen = np.array([late("train", t, names) for t in range(40)])
    slow = seen.any(0)
    assert 70 < slow.sum() < 130
    assert 0.45 < seen[:, slow].mean() < 0.55
    assert dropouts.stragglers(0.25, seed=1)("train", 7, names).tolist() == slow.tolist()


def test_clients_join_and_leave() -> None:
    joined = dropouts.spans({"a": (2, None), "b": (0, 3), "c": (1, 2)})
    seen = [joined("train", t, ["a", "b", "c", "d"]).tolist() for t in range(4)]
    assert seen == [[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    with pytest.raises(fs.InputError, match=r"spans\['a'\]"):
        dropouts.spans({"a": (3, 2)})


def test_a_client_that_never_answers_is_as_good_as_not_there() -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=12, points=(20, 30), seed=0)
    options: dict[str, Any] = {"rounds": 3, "solver": fs.SGD(lr=0.02, epochs=2, batch=10)}
    without_it = trained(fs.FedAvg(), fed, fs.models.linear(), **options, dropout=dropouts.never(["11"]))
    pairs = [fed.train.client(k) for k in range(11)]
    alone = trained(fs.FedAvg(), fs.Federation.from_clients(pairs, held_out=0), fs.models.linear(), **options)
    torch.testing.assert_close(without_it.state.centers, alone.state.centers)


def test_who_joins_late_starts_from_the_first_values_and_is_served_in_the_end() -> None:
    late = dropouts.spans({"0": (2, None)})
    run = fit(fs.FedSoft(S=2), rounds=2, dropout=late)
    first = fit(fs.FedSoft(S=2), rounds=0)
    assert torch.equal(run.engine.client_states["w"][0], first.engine.client_states["w"][0])
    assert run.state.u[0].tolist() == [0.5, 0.5]
    joined = fit(fs.FedSoft(S=2), rounds=4, dropout=late)
    assert not torch.equal(joined.engine.client_states["w"][0], first.engine.client_states["w"][0])
    assert joined.state.u[0].tolist() != [0.5, 0.5]


def test_kinds_of_dropout_go_together() -> None:
    both = dropouts.together(dropouts.never(["a"]), dropouts.spans({"b": (1, None)}))
    assert both("train", 0, ["a", "b", "c"]).tolist() == [True, True, False]
