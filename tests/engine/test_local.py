from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State, Training, job
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.replies import NUMBER, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.engine.client_store import ClientStore
from fedsoft.engine.local import LocalEngine
from fedsoft.engine.resources import Resources
from fedsoft.errors import DivergedError, InputError
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.dropouts import Dropouts, at_random
from tests.helpers import federation, regression_clients, silent


@dataclass(frozen=True)
class Probe(Algorithm):
    """An algorithm whose clients count how often they were asked, and reply with what they see."""

    seen: list[Any] = field(default_factory=list)

    def check(self, clients: int) -> None: ...

    def init(self, site: Site, clients: int) -> State:
        return State(site.draw("center", 0)[None])

    def init_client(self, site: Site) -> ClientState:
        return {"asked": torch.zeros(len(site), 1)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        self.seen.append(ask)
        ask("report", ask.everyone, centers=state.centers)
        return state, {}

    @job(mean=NUMBER, names=NUMBER)
    def report(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        self.seen.append(site)
        mean = site.data.mean_by_client(site.data.y[site.data.points])[:, None]
        return {"asked": mine["asked"] + 1}, {"mean": mean, "names": torch.tensor([[int(n)] for n in site.names])}

    @job(w=NUMBER)
    def fail(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        bad = torch.tensor([[float("nan")] if name in "3567" else [1.0] for name in site.names])
        return {"asked": mine["asked"] + 1}, {"w": bad}

    @job()
    def who(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        self.seen.append((threading.get_ident(), torch.is_grad_enabled(), torch.get_num_threads()))
        return mine, {}

    @job(n=NUMBER)
    def count(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return mine, {"n": site.data.sizes}

    @job(own=NUMBER, both=NUMBER)
    def echo(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return mine, {"own": shared["own"], "both": shared["own"] + shared["common"]}

    @job(w=NUMBER)
    def forget_a_row(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return mine, {"w": torch.ones(len(site) - 1, 2)}

    @job(w=NUMBER)
    def tell_more(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return mine, {"w": torch.ones(len(site), 2), "y": torch.ones(len(site))}

    def secret(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        return mine, {}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(state.centers.expand(len(site), -1))


def engine(fed: Federation | None = None, dropout: float | Dropouts = 0.0, **resources: Any) -> LocalEngine:
    fed = federation(regression_clients()) if fed is None else fed
    training = Training(Probe(), fs.models.linear()(fed.shape), fs.Adam(), seed=0, dtype=torch.float64)
    made = LocalEngine(training, fed, Conditions(dropout=dropout), Resources(**resources))
    made.start()
    return made


@pytest.mark.parametrize("memory", ["1G", 0])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_replies_and_memory_belong_to_the_clients_asked_whatever_the_chunk(
    chunk: int, workers: int, memory: int | str
) -> None:
    sim = engine(chunk=chunk, workers=workers, memory=memory)
    answer = sim("report", np.array([1, 4, 5, 7]))
    means = [float(y.mean()) for _, y in regression_clients()]
    assert answer.ids.tolist() == [1, 4, 5, 7]
    assert answer["names"].gather().flatten().tolist() == [1, 4, 5, 7]
    assert answer["mean"].gather().flatten().tolist() == pytest.approx([means[k] for k in (1, 4, 5, 7)])
    assert sim.client_states["asked"].flatten().tolist() == [0, 1, 0, 0, 1, 1, 0, 1]


def test_clients_that_do_not_answer_neither_reply_nor_remember() -> None:
    sim = engine(dropout=silent(lambda job, t, name: name in "14"))
    answer = sim("report", sim.everyone)
    assert answer.ids.tolist() == [0, 2, 3, 5, 6, 7]
    assert answer["names"].gather().flatten().tolist() == [0, 2, 3, 5, 6, 7]
    assert sim.client_states["asked"].flatten().tolist() == [1, 0, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_what_is_sent_to_each_reaches_that_client_beside_what_is_sent_to_all(chunk: int) -> None:
    sim = engine(chunk=chunk, dropout=silent(lambda job, t, name: name == "4"))
    answer = sim(
        "echo", np.array([1, 4, 5, 7]), each={"own": torch.tensor([[1], [4], [5], [7]])}, common=torch.tensor(10)
    )
    assert answer.ids.tolist() == [1, 5, 7]
    assert answer["own"].gather().flatten().tolist() == [1, 5, 7]
    assert answer["both"].gather().flatten().tolist() == [11, 15, 17]


def test_an_answer_replaces_only_the_rows_of_those_who_answered() -> None:
    sim = engine(dropout=silent(lambda job, t, name: name != "2"))
    old = torch.zeros(8, 1, dtype=torch.float64)
    new = sim("report", sim.everyone).update("mean", old)
    assert torch.nonzero(new)[:, 0].tolist() == [2]
    assert float(old.abs().sum()) == 0


def test_an_answer_of_nobody_has_no_rows() -> None:
    sim = engine(dropout=1.0)
    answer, like = sim("report", sim.everyone), torch.zeros(8, 3)
    assert answer.rows("anything", like=like).shape == (0, 3)
    assert torch.equal(answer.update("anything", like), like)


def test_values_that_are_not_finite_name_the_client_and_are_not_kept() -> None:
    sim = engine()
    with pytest.raises(DivergedError, match=r"client '3' .*job 'fail'.*lower the learning rate"):
        sim("fail", sim.everyone)
    assert float(sim.client_states["asked"].sum()) == 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_error_is_that_of_the_first_chunk_that_fails(workers: int) -> None:
    sim = engine(chunk=1, workers=workers)
    before = threading.active_count()
    with pytest.raises(DivergedError, match=r"client '3' .*job 'fail'"):
        sim("fail", sim.everyone)
    assert threading.active_count() == before
    assert sim("report", sim.everyone).ids.tolist() == list(range(8))  # and it is not spoilt


@pytest.mark.parametrize("workers", [1, 3])
def test_jobs_run_without_gradients_on_as_many_threads_as_asked_for(workers: int) -> None:
    sim = engine(chunk=1, workers=workers)
    sim("who", sim.everyone)
    seen = sim.algorithm.seen  # pyright: ignore[reportAttributeAccessIssue]
    assert {grad for _, grad, _ in seen} == {False}
    assert {threads for _, _, threads in seen} == {1}
    assert len({thread for thread, _, _ in seen}) <= workers
    assert (threading.get_ident() in {thread for thread, _, _ in seen}) == (workers == 1)


@pytest.mark.parametrize("memory", ["1G", 0])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_weighted_sum_of_replies_is_that_of_their_rows(chunk: int, memory: int | str) -> None:
    sim = engine(chunk=chunk, memory=memory)
    answer = sim("report", np.array([1, 4, 5, 7]))
    weights = torch.tensor([[1.0, 2.0, 0.0, 4.0], [0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    for name in ("mean", "names"):
        rows = answer.rows(name, like=torch.zeros(8, 1)).double()
        assert torch.allclose(answer[name].weighted(weights), weights @ rows, rtol=1e-14)
    assert "mean" in answer
    assert "w" not in answer


def test_rows_of_clients_that_were_not_asked_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = engine(chunk=2, memory=0)
    read: list[int] = []
    take = ClientStore.take

    def spy(self: ClientStore, rows: np.ndarray, names: Any = None) -> dict[str, Tensor]:
        read.extend(rows.tolist())
        return take(self, rows, names)

    monkeypatch.setattr(ClientStore, "take", spy)
    monkeypatch.setattr(ClientStore, "__getitem__", None)  # nobody asks for all rows
    sim("report", np.array([1, 4, 5]))
    assert sorted(read) == [1, 4, 5]


def test_a_reply_may_be_a_single_number_for_each_client() -> None:
    sim = engine()
    assert sim("count", np.array([0, 2]))["n"].gather().tolist() == [5, 23]


def test_a_reply_must_have_one_row_for_each_client() -> None:
    sim = engine()
    with pytest.raises(InputError, match="7 rows of 'w' for 8 clients"):
        sim("forget_a_row", sim.everyone)


def test_a_reply_has_no_entry_that_its_job_does_not_declare() -> None:
    sim = engine()
    with pytest.raises(
        InputError, match=r"job 'tell_more' replies 'y', which its @job does not declare: it has \['w'\]"
    ):
        sim("tell_more", sim.everyone)


@pytest.mark.parametrize("name", ["secret", "predict", "rport"])
def test_only_what_is_marked_as_a_job_can_be_asked_for(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown job of Probe '{name}'"):
        engine()(name, np.array([0]))


def test_cost_counts_what_was_sent_and_what_was_evaluated() -> None:
    fed = federation(regression_clients())
    run = fs.fit(fs.FedSoft(S=2, K="all"), fed, fs.models.linear(), rounds=2, solver=fs.SGD(epochs=3, batch=4))
    points, clients, model, u = int(fed.train.sizes.sum()), len(fed), 3 * 4, 2 * 4  # bytes in float32
    first, second = run.history
    assert (first.gradients, second.gradients) == (3 * points, 3 * points)
    assert (first.evaluations, second.evaluations) == (2 * points, 0)  # u is estimated every second round
    assert first.bytes_down == 2 * clients * 2 * model  # both centers, to estimate and to train
    assert first.bytes_up == clients * (u + model)
    assert second.bytes_up == clients * model


def test_personal_scores_are_the_mean_over_each_clients_points_and_nan_without_any() -> None:
    pairs = regression_clients((4, 1, 6))
    fed = Federation.from_clients(pairs, held_out=0.3)  # the client of one point keeps it for training
    sim = engine(fed, chunk=2)
    state = sim.start()
    scores = sim.personal_scores(state, fed.held_out)
    assert scores.isnan().tolist() == [False, True, False]
    for k in (0, 2):
        x, y = fed.held_out.client(k)
        assert float(scores[k]) == pytest.approx(float(((x @ state.centers[0] - y) ** 2).mean()))


def test_chunks_must_have_a_client() -> None:
    with pytest.raises(InputError, match="chunk"):
        engine(chunk=-1)


# --- dropouts ---------------------------------------------------------------------------------------------------------


def test_dropouts_come_at_the_rate_asked_for_and_depend_on_the_name() -> None:
    dropouts = at_random(0.3, seed=0)
    assert dropouts is not None
    names = [str(k) for k in range(4000)]
    mask = dropouts("train", 2, names)
    assert float(mask.mean()) == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / 4000))
    assert np.array_equal(dropouts("train", 2, names[::-1]), mask[::-1])
    for other in (dropouts("estimate", 2, names), dropouts("train", 3, names)):
        assert float((other == mask).mean()) == pytest.approx(0.3**2 + 0.7**2, abs=0.05)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_dropout_that_is_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(InputError, match="dropout = "):
        at_random(probability, seed=0)


# --- who may see what -------------------------------------------------------------------------------------------------


def reachable(thing: object) -> Iterator[object]:
    """Everything that can be reached from a thing by attributes, items and closures."""
    todo, known = [thing], set()
    while todo:
        current = todo.pop()
        if id(current) in known:
            continue
        known.add(id(current))
        yield current
        if isinstance(current, dict):
            todo += [*current.keys(), *current.values()]
        elif isinstance(current, (list, tuple, set, frozenset)):
            todo += list(current)
        elif isinstance(current, MethodType):
            todo += [current.__self__, current.__func__]
        elif isinstance(current, FunctionType):
            todo += [cell.cell_contents for cell in current.__closure__ or ()] + list(current.__defaults__ or ())
        elif is_dataclass(current) and not isinstance(current, type):
            todo += [getattr(current, f.name) for f in fields(current)] + list(vars(current).values())
        elif type(current).__module__.startswith("fedsoft"):
            todo += list(vars(current).values())


def secrets(truth: Truth) -> list[Tensor]:
    return [
        truth.mixture,
        truth.train_sources,
        truth.held_out_sources,
        *(part for test in truth.tests for part in test),
    ]


@pytest.fixture(name="made")
def _made() -> tuple[Federation, list[Any]]:
    """A federation whose truth is known, and what an algorithm saw of it in a round."""
    fed = fs.datasets.synthetic(clients=6, points=(8, 12), test_points=7, seed=0)
    probe = Probe()
    fs.fit(probe, fed, fs.models.linear(), rounds=1, options=fs.FitOptions(dtype="float64"))
    return fed, probe.seen


def test_neither_the_server_nor_a_job_can_reach_the_truth(made: tuple[Federation, list[Any]]) -> None:
    fed, seen = made
    assert fed.truth is not None
    found = [thing for start in seen for thing in reachable(start)]
    assert sum(isinstance(thing, Tensor) for thing in found) >= 4  # the search does find tensors
    assert not [thing for thing in found if isinstance(thing, (Truth, Federation))]
    for tensor in (thing for thing in found if isinstance(thing, Tensor)):
        for secret in secrets(fed.truth):
            assert tensor.shape != secret.shape or not torch.allclose(tensor.double(), secret.double())


def test_the_search_for_the_truth_would_find_it(made: tuple[Federation, list[Any]]) -> None:
    fed, _ = made

    def outer(inside: Federation) -> Callable[[], int]:
        return lambda: len(inside)

    assert any(isinstance(thing, Truth) for thing in reachable({"a": [outer(fed)]}))


def test_a_job_cannot_reach_held_out_points(made: tuple[Federation, list[Any]]) -> None:
    fed, seen = made
    held = fed.held_out.x.double()
    for site in (thing for thing in seen if isinstance(thing, Site)):
        for tensor in (thing for thing in reachable(site) if isinstance(thing, Tensor)):
            assert tensor.shape != held.shape or not torch.equal(tensor.double(), held)
