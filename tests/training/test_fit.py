"""Runs as a whole: what they depend on, what they do not depend on, and what they offer in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.model import Builder
from fedsoft.core.replies import Answer
from fedsoft.engine.local import LocalEngine
from fedsoft.errors import DivergedError, InputError
from fedsoft.training import Limit, Run, play
from fedsoft.training.records import RoundRecord
from tests.helpers import Pairs, class_clients, engine_for, federation, logged, record, regression_clients, trained

CASES: dict[str, tuple[Builder, Pairs]] = {
    "linear": (fs.models.linear(), regression_clients()),
    "mlp": (fs.models.mlp(hidden=[5]), class_clients()),
    "module": (fs.models.module(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))), class_clients()),
}


def fitted(
    case: str = "linear", *, names: Sequence[str] | None = None, order: Sequence[int] | None = None, **options: Any
) -> Run:
    model, pairs = CASES[case]
    names = [str(k) for k in range(len(pairs))] if names is None else list(names)
    if order is not None:
        pairs, names = [pairs[k] for k in order], [names[k] for k in order]
    algorithm = options.pop("algorithm", fs.FedSoft(S=2, K=3))
    options = {"rounds": 5, "seed": 0, "solver": fs.Adam(lr=0.02, epochs=2, batch=5), "dtype": "float64"} | options
    return trained(algorithm, federation(pairs, names), model, **options)


def results(run: Run) -> dict[str, Tensor]:
    return {**run.state.tensors(), **{f"mine.{name}": value for name, value in run.engine.client_states.items()}}


def same_bits(one: Run, other: Run) -> bool:
    a, b = results(one), results(other)
    return all(torch.equal(a[name], b[name]) for name in a)


def assert_close(one: Run, other: Run, tolerance: float = 1e-9) -> None:
    a, b = results(one), results(other)
    for name in a:
        assert float((a[name].double() - b[name].double()).abs().max()) <= tolerance, name


# --- same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_elsewhere(case: str, dtype: str) -> None:
    one = fitted(case, dtype=dtype)
    torch.manual_seed(99)
    torch.rand(7)
    assert same_bits(one, fitted(case, dtype=dtype))


def test_the_same_seed_gives_the_same_bits_with_any_number_of_threads() -> None:
    one = fitted("mlp")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert same_bits(one, fitted("mlp"))
        assert torch.get_num_threads() == 2  # a run gives back what it found
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 3}, {"workers": 3, "memory": 0}], ids=str)
def test_neither_workers_nor_memory_change_a_bit(case: str, options: dict[str, Any]) -> None:
    assert same_bits(fitted(case, chunk=1, workers=1), fitted(case, chunk=1, **options))


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_another_run(case: str) -> None:
    assert not same_bits(fitted(case), fitted(case, seed=1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_how_many_clients_are_stacked_together_does_not_matter(case: str, chunk: int) -> None:
    assert_close(fitted(case, chunk=chunk), fitted(case))


@pytest.fixture(name="asked")
def _asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, frozenset[str]]]:
    """Which clients were asked for what in which round."""
    calls: list[tuple[int, str, frozenset[str]]] = []
    original = LocalEngine.__call__

    def record(self: LocalEngine, job: str, ids: np.ndarray, **shared: Any) -> Answer:
        calls.append((self.t, job, frozenset(self.names[k] for k in ids)))
        return original(self, job, ids, **shared)

    monkeypatch.setattr(LocalEngine, "__call__", record)
    return calls


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("replacement", [False, True])
def test_the_order_of_clients_does_not_matter(
    case: str, replacement: bool, asked: list[tuple[int, str, frozenset[str]]]
) -> None:
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    algorithm = fs.FedSoft(S=2, K=3, replacement=replacement)
    one = fitted(case, algorithm=algorithm, dropout=0.2)
    first = asked.copy()
    asked.clear()
    other = fitted(case, algorithm=algorithm, order=order, dropout=0.2)
    assert asked == first
    assert len({names for _, job, names in asked if job == "train"}) > 1  # others in other rounds
    a, b = results(one), results(other)
    assert torch.allclose(a["centers"], b["centers"], rtol=0, atol=1e-9)
    assert {name for name in a if name.startswith("extra.")} <= {"extra.quiet"}
    for name in a.keys() - {"centers", "extra.quiet"}:  # all others have a row for each client
        assert torch.allclose(a[name][order].double(), b[name].double(), rtol=0, atol=1e-9), name


def test_draws_belong_to_names_not_to_places() -> None:
    assert not same_bits(fitted(), fitted(names=[f"clinic {k}" for k in range(8)]))


def test_rounds_go_on_where_the_last_one_stopped() -> None:
    # The first rounds of a longer run are those of a shorter one.
    short, long = fitted(rounds=3), fitted(rounds=5)
    assert logged(short.history, "last") == logged(long.history, "last")[:3]


# --- dropouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [3, "all"])
def test_when_nobody_answers_everything_stays_as_it_was(K: Any) -> None:
    algorithm = fs.FedSoft(S=2, K=K)
    run = fitted(algorithm=algorithm, dropout=1.0)
    first, last = results(fitted(algorithm=algorithm, rounds=0)), results(run)
    assert all(torch.equal(last[name], value) for name, value in first.items())
    assert all(bool(torch.isfinite(value).all()) for value in results(run).values())
    assert [record.answered for record in run.history] == [0] * 5


@pytest.mark.parametrize("K", [3, "all"])
@pytest.mark.parametrize("case", CASES)
def test_runs_with_dropouts_go_on_with_those_who_answer(case: str, K: int | str) -> None:
    algorithm = fs.FedSoft(S=3, K=K)  # type: ignore[arg-type]
    run = fitted(case, algorithm=algorithm, dropout=0.3, rounds=8)
    assert all(bool(torch.isfinite(value).all()) for value in results(run).values())
    answered = [record.answered or 0 for record in run.history]
    selected = [record.selected or 0 for record in run.history]
    assert all(a <= s for a, s in zip(answered, selected, strict=True))
    assert 0 < sum(answered) < sum(selected)


# --- what a run offers ------------------------------------------------------------------------------------------------


def test_centers_and_personal_models_come_as_named_tensors() -> None:
    run = fitted("mlp")
    assert [{name: tuple(p.shape) for name, p in c.items()} for c in run.centers] == [
        {"0.weight": (5, 3), "0.bias": (5,), "1.weight": (4, 5), "1.bias": (4,)}
    ] * 2
    assert torch.equal(run.model.layout.flatten(run.personal("6")), run.engine.client_states["w"][6])
    assert torch.equal(run.personal(6)["0.bias"], run.personal("6")["0.bias"])


def test_a_name_that_is_a_number_means_the_name() -> None:
    run = fitted(names=[str(10 - k) for k in range(8)])
    assert torch.equal(run.personal("9")["weight"], run.personal(1)["weight"])


@pytest.mark.parametrize("client", ["nobody", 8, -1])
def test_a_client_that_does_not_exist_is_refused(client: int | str) -> None:
    with pytest.raises(InputError, match="does not exist: there are 8"):
        fitted(rounds=0).personal(client)


def test_predictions_are_those_of_the_model_asked_for() -> None:
    run = fitted("mlp")
    x = np.random.default_rng(0).standard_normal((6, 3))

    def by_hand(p: dict[str, Tensor]) -> Tensor:
        hidden = (torch.from_numpy(x) @ p["0.weight"].T + p["0.bias"]).relu()
        return (hidden @ p["1.weight"].T + p["1.bias"]).softmax(1)

    for s in range(2):
        assert torch.allclose(run.predict(x, center=s), by_hand(run.centers[s]), atol=1e-12)
    for k in (0, 7):
        assert torch.allclose(run.predict(x, client=k), by_hand(run.personal(k)), atol=1e-12)


@pytest.mark.parametrize("which", [{}, {"center": 0, "client": 0}, {"center": 2}, {"center": -1}])
def test_predict_needs_one_model_that_exists(which: dict[str, int]) -> None:
    with pytest.raises(InputError, match="center"):
        fitted(rounds=0).predict(np.zeros((1, 3)), **which)  # type: ignore[arg-type]


def test_every_round_is_reported_as_it_ends() -> None:
    heard: list[RoundRecord] = []
    run = fitted(callbacks=[heard.append])
    assert [record.round for record in heard] == [1, 2, 3, 4, 5]
    assert heard == run.history


@pytest.mark.parametrize(("rounds", "every", "scored"), [(7, 3, [1, 4, 7]), (6, 4, [1, 5, 6]), (3, 99, [1, 3])])
def test_centers_are_scored_every_so_often_and_after_the_last_round(rounds: int, every: int, scored: list[int]) -> None:
    """What is not scored is not logged; what is, is the same as when every round is scored."""
    fed = fs.datasets.synthetic(clients=8, points=(5, 9), test_points=20)

    def records(score_every: int) -> list[dict[str, Any]]:
        run = fs.fit(
            fs.FedSoft(K=3), fed, fs.models.linear(), rounds=rounds, options=fs.FitOptions(score_every=score_every)
        )
        return logged(run.history)

    some, all_of_them = records(every), records(1)
    keys = {"centers", "weights", "best"}
    assert [record["round"] for record in some if keys <= record.keys()] == scored
    for t, (one, other) in enumerate(zip(some, all_of_them, strict=True), 1):
        assert one == (other if t in scored else {k: v for k, v in other.items() if k not in keys})


def test_training_lowers_the_loss_of_the_personal_models() -> None:
    before, after = (fitted("mlp", rounds=rounds).scores().personal_train for rounds in (0, 20))
    assert before is not None
    assert after is not None
    assert after.mean > before.mean + 0.2  # accuracy


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": -1}, "rounds = -1 is not allowed"),
        ({"dtype": "float16"}, "dtype = 'float16' is not allowed"),
        ({"device": "tpu"}, "device = 'tpu' is not available"),
        ({"dropout": 2.0}, "dropout = 2.0 is not allowed"),
        ({"workers": 0}, "workers = 0 is not allowed"),
        ({"memory": "4 apples"}, "memory = '4 apples' is not allowed"),
        ({"algorithm": fs.FedSoft(K=9)}, "K = 9"),
    ],
)
def test_settings_of_a_run_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fitted(**options)


def test_a_matrix_that_cannot_be_inverted_any_more_says_that_training_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_inverse(*_: Any) -> Any:
        return torch.linalg.inv(torch.zeros(2, 2))

    monkeypatch.setattr(fs.FedAvg, "round", without_inverse)
    with pytest.raises(DivergedError, match=r"a matrix of round 1 cannot be inverted .* lower the learning rate"):
        fs.fit(fs.FedAvg(), federation(regression_clients()), fs.models.linear(), rounds=1)


def test_a_run_that_diverges_says_so() -> None:
    with pytest.raises(DivergedError, match="lower the learning rate"):
        fitted(solver=fs.SGD(lr=1e6, epochs=50), rounds=20)


def test_a_solver_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(InputError, match="needs the model 'linear'"):
        fitted("mlp", solver=fs.Exact())


# --- when a run ends --------------------------------------------------------------------------------------------------


def spent(*gradients: int) -> list[RoundRecord]:
    return [record(t, gradients=g, bytes_down=g, bytes_up=g) for t, g in enumerate(gradients)]


def test_a_round_is_played_only_when_it_fits() -> None:
    assert Limit(50, work=90).fits(spent(30, 30))
    assert not Limit(50, work=89).fits(spent(30, 30))
    assert not Limit(50, work=119).fits(spent(30, 30), more=2)
    assert not Limit(50, work=90).fits(spent(30, 30), closing=1)
    assert not Limit(50, bytes=179).fits(spent(30, 30))
    assert Limit(3).fits(spent(30, 30))
    assert not Limit(2).fits(spent(30, 30))
    assert Limit(50, work=1).fits([])  # of the first round nothing is known


def test_a_dear_first_round_is_not_held_against_the_others() -> None:
    assert Limit(50, work=300).fits(spent(200, 10, 10, 10))


@pytest.mark.parametrize("budget", [1, 700, 1500, 4000])
@pytest.mark.parametrize("name", ["FedAvg", "FedEM", "FineTune"])
def test_no_run_spends_more_work_than_allowed_but_for_a_first_round(name: str, budget: int) -> None:
    fed = federation(regression_clients())
    engine = engine_for(getattr(fs, name)(), fed, fs.models.linear(), seed=0, solver=fs.SGD(lr=0.01, epochs=2))
    with torch.no_grad():
        state = engine.start()
    history = [record for _, record in play(engine, fed, state, [], Limit(99, work=budget))]
    total = sum(record.gradients for record in history)
    assert total <= budget or len(history) == 1
    assert history[-1].last or len(history) == 1


# --- what people trip over --------------------------------------------------------------------------------------------


def test_bytes_are_predicted_as_they_were_trained() -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 256, (n, 4), dtype=np.uint8), rng.integers(2, size=n)) for n in (9, 12)]
    run = fs.fit(fs.FedAvg(), fs.Federation.from_clients(pairs, held_out=0), fs.models.linear(), rounds=2)
    numbers = pairs[0][0].astype(np.float32) / 255
    assert torch.allclose(run.predict(pairs[0][0], client=0), run.predict(numbers, client=0), atol=1e-6)


def test_inputs_and_targets_of_different_precision_are_taken() -> None:
    rng = np.random.default_rng(0)
    for width in (3, 60):
        pairs = [(rng.standard_normal((9, width)).astype(np.float32), rng.standard_normal(9)) for _ in range(2)]
        run = fs.fit(fs.FedSoft(S=2), fs.Federation.from_clients(pairs), fs.models.linear(), rounds=1)
        assert run.state.centers.dtype == torch.float32
        assert bool(run.state.centers.isfinite().all())


@pytest.mark.parametrize("memory", ["1G", 0])
def test_what_is_handed_out_is_not_the_run_itself(memory: int | str) -> None:
    run = fitted(rounds=1, memory=memory)
    run.personal(0)["weight"].zero_()
    run.centers[0]["weight"].zero_()
    assert float(run.personal(np.int64(0))["weight"].abs().sum()) > 0
    assert float(run.state.centers[0].abs().sum()) > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": fs.FedSoft}, "with its settings"),
        ({"algorithm": "fedsoft"}, "with its settings"),
        ({"solver": fs.Adam}, "with its settings"),
        ({"rounds": 2.5}, "whole number"),
        ({"rounds": -1}, "whole number"),
        ({"score_every": 0}, "score_every = 0 is not allowed: should be a whole number of at least 1"),
    ],
)
def test_bad_arguments_of_fit_are_named(change: dict[str, Any], words: str) -> None:
    usual = {"algorithm": fs.FedSoft(S=2), "rounds": 1, "solver": fs.Adam()}
    options: dict[str, Any] = {**usual, **change}
    with pytest.raises(InputError, match=words):
        trained(federation=federation(regression_clients()), model=fs.models.linear(), **options)


def test_inputs_of_another_width_are_named() -> None:
    with pytest.raises(InputError, match=r"x has shape \[4, 9\], should be \[points, 3\]"):
        fitted(rounds=0).predict(torch.zeros(4, 9), center=0)


def test_a_function_that_makes_a_network_is_a_model() -> None:
    fed = federation(class_clients((9, 6), dimension=3, classes=3))
    run = fs.fit(fs.FedAvg(), fed, lambda: torch.nn.Linear(3, 3), rounds=1)  # pyright: ignore[reportArgumentType]
    assert run.rounds == 1


def test_what_is_no_model_is_refused_in_a_sentence() -> None:
    fed = federation(class_clients((9, 6), dimension=3, classes=3))
    with pytest.raises(fs.InputError, match=r"model = .mlp. is not allowed: should be one of fedsoft\.models"):
        fs.fit(fs.FedAvg(), fed, "mlp", rounds=1)  # pyright: ignore[reportArgumentType]

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.head(x), x

    with pytest.raises(fs.InputError, match="the network's output is a tuple, should be one tensor"):
        fs.fit(fs.FedAvg(), fed, Two(), rounds=1)


def test_runs_and_federations_say_what_they_are_and_print_no_data() -> None:
    fed = fs.datasets.synthetic(clients=4, seed=1)
    run = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=1)
    assert "4 clients" in repr(fed)
    assert "1 target" in repr(fed)
    assert "after 1 rounds" in repr(run)
    assert "tensor" not in repr(run)


def test_equal_shares_are_the_yardstick_of_the_mixtures() -> None:
    fed = fs.datasets.synthetic(clients=4, partition="10:90", seed=1)
    scores = fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(), rounds=1).scores()
    assert scores.recovery_uniform == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("algorithm", "told"), [(fs.FedSoft(S=9), True), (fs.FedSoft(S=8), False), (fs.FedAvg(), False)]
)
def test_more_centers_than_clients_are_worth_a_word(
    algorithm: Any, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(algorithm=algorithm, rounds=1)
    sentence = "S = 9 centers for 8 clients: some will have hardly any data to learn from"
    assert caplog.messages == [sentence] * told


def test_a_run_that_ends_in_its_start_says_that_its_centers_are_one(caplog: pytest.LogCaptureFixture) -> None:
    early = fitted("mlp", algorithm=fs.FedRoute(S=3, warm=4), rounds=4)
    assert torch.equal(early.state.centers[0], early.state.centers[2])
    (sentence,) = caplog.messages
    assert sentence.startswith("after round 4 all 3 centers are one: the run was over after 4 rounds, all of them")
    caplog.clear()
    fitted("mlp", algorithm=fs.FedRoute(S=3, warm=4), rounds=5)
    assert caplog.messages == []


class Copies(fs.FedSoft):
    """FedSoft whose centers start as one."""

    def init(self, site: Any, clients: int) -> Any:
        state = super().init(site, clients)
        return state.update(centers=state.centers[:1].repeat(self.S, 1))


def test_python_tells_of_copied_centers_as_the_command_line_does(caplog: pytest.LogCaptureFixture) -> None:
    fitted(algorithm=Copies(S=2), rounds=6, solver=fs.SGD(lr=1e-9, epochs=1))
    assert caplog.messages == [f"after round 5 center {s} is a copy of another one" for s in range(2)]
