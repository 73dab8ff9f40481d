"""Callbacks: what they see, when they end a run, and that one that raises loses nothing."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import fedsoft as fs
from fedsoft.callbacks import BestRound, Callback, EarlyStopping, MLflow, Progress, TensorBoard
from fedsoft.training.held_out import best_round
from fedsoft.training.records import RoundRecord
from tests.helpers import same_models


def clients(count: int = 6, points: int = 30) -> fs.Federation:
    """Clients of two rules."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(count):
        x = rng.standard_normal((points, 3))
        made.append((x, x @ ([1.0, 2, 0] if k % 2 else [0.0, -1, 1]) + rng.standard_normal(points)))
    return fs.Federation.from_clients(made, held_out=0.3)


def fitted(*callbacks: Any, rounds: int = 6, algorithm: Any = None, **options: Any) -> fs.Run:
    solver = fs.SGD(lr=0.05, epochs=1)
    return fs.fit(
        algorithm or fs.FedSoft(S=2), clients(), fs.models.linear(), rounds=rounds, solver=solver,
        options=fs.FitOptions(callbacks=callbacks, workers=1, **options),
    )  # fmt: skip


def record(number: int, value: float | None) -> RoundRecord:
    held_out = {} if value is None else {"mse": value}
    return RoundRecord(
        round=number, last=False, seconds=0, gradients=0, bytes_down=0, bytes_up=0, held_out=held_out
    )  # fmt: skip


class Told(Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, run: fs.Run, rounds: int) -> None:
        self.heard.append(("start", run.rounds, rounds))

    def on_round(self, run: fs.Run, record: RoundRecord) -> None:
        assert run.history[-1] is record
        self.heard.append(record.round)

    def on_end(self, run: fs.Run) -> None:
        self.heard.append("end")

    def close(self) -> None:
        self.heard.append("closed")


def test_callbacks_are_called_in_order_and_change_nothing() -> None:
    told, numbers = Told(), []
    run = fitted(told, lambda record: numbers.append(record.round), rounds=3)
    assert told.heard == [("start", 0, 3), 1, 2, 3, "end", "closed"]
    assert numbers == [1, 2, 3]
    assert same_models(run, fitted(rounds=3))
    assert run.is_over
    assert not run.ended_by


def test_callbacks_have_gradients_and_the_caller_has_them_after_a_run_that_was_left() -> None:
    """A round computes none; what a user does between rounds, or after leaving in the middle, is his own."""
    slopes = []

    def trains_something(record: RoundRecord) -> None:
        w = torch.ones(2, requires_grad=True)
        w.square().sum().backward()
        slopes.append(w.grad)

    fitted(trains_something, rounds=2)
    assert len(slopes) == 2
    with pytest.raises(fs.CallbackError) as left:
        fitted(lambda record: 1 // 0, rounds=2)
    assert torch.is_grad_enabled(), left


class Stops(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_round(self, run: fs.Run, record: RoundRecord) -> bool:
        return record.round == self.at


def test_a_callback_ends_a_run() -> None:
    run = fitted(Stops(2))
    assert (run.rounds, run.ended_by, run.is_over) == (2, "Stops", True)
    assert same_models(run, fitted(rounds=2))


def test_an_algorithm_that_closes_still_does() -> None:
    """FineTune trains personal models in the last round: it plays one more as such."""
    run = fitted(Stops(2), algorithm=fs.FineTune())
    assert [one.last for one in run.history] == [False, False, True]
    assert same_models(run, fitted(rounds=3, algorithm=fs.FineTune()))


class Breaks(Callback):
    def __init__(self, when: str) -> None:
        self.when = when

    def on_round(self, run: fs.Run, record: RoundRecord) -> None:
        if self.when == "round" and record.round == 3:
            raise OSError("disk full")

    def on_end(self, run: fs.Run) -> None:
        if self.when == "end":
            raise OSError("disk full")


@pytest.mark.parametrize(("when", "words", "rounds"), [("round", "after round 3", 3), ("end", "at the end", 6)])
def test_a_callback_that_raises_loses_nothing(when: str, words: str, rounds: int) -> None:
    told = Told()
    with pytest.raises(fs.CallbackError) as caught:
        fitted(told, Breaks(when))
    assert str(caught.value) == (
        f"callback Breaks failed {words}: OSError: disk full (the run up to there is in the error's attribute 'run')"
    )
    assert isinstance(caught.value.__cause__, OSError)
    run = caught.value.run
    assert run.rounds == rounds
    assert same_models(run, fitted(rounds=rounds))
    assert told.heard[-1] == "closed"


class Keeps(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_round(self, run: fs.Run, record: RoundRecord) -> None:
        run.save(self.folder / str(record.round))


def test_a_callback_may_save_the_run(tmp_path: Path) -> None:
    run = fitted(Keeps(tmp_path), rounds=3)
    assert same_models(fs.load(tmp_path / "2"), fitted(rounds=2))
    assert same_models(fs.load(tmp_path / "3"), run)


class Stuck(Callback):
    def close(self) -> None:
        raise OSError("disk full")


def test_a_callback_that_cannot_be_closed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    run = fitted(Stuck(), rounds=2)
    assert run.is_over
    assert "callback Stuck failed while it was closed: OSError: disk full" in caplog.text


def test_a_function_that_raises_is_named() -> None:
    def broken(record: RoundRecord) -> None:
        raise ValueError("no")

    with pytest.raises(fs.CallbackError, match=r"callback .*broken failed after round 1: ValueError: no"):
        fitted(broken)


# --- held-out points --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "least", "best"), [
    ([3.0, 2.0, 1.0], 0.0, 3), ([3.0, 1.0, 2.0], 0.0, 2), ([3.0, 1.0, 1.0], 0.0, 2), ([None, None], 0.0, None),
    ([3.0, 2.9, 2.8], 0.5, 1), ([3.0, 2.9, 2.4], 0.5, 3), ([None, 2.0, 3.0], 0.5, 2),
])  # fmt: skip
def test_the_best_round(values: list[float | None], least: float, best: int | None) -> None:
    records = [record(t + 1, value) for t, value in enumerate(values)]
    assert best_round(records, "mse", higher=False, least=least) == best
    turned = [record(t + 1, None if value is None else -value) for t, value in enumerate(values)]
    assert best_round(turned, "mse", higher=True, least=least) == best


def test_what_is_measured_is_the_mean_over_clients_of_held_out_errors() -> None:
    run = fitted(EarlyStopping(patience=99), TensorBoardless("mae"), rounds=2)
    held, own, absolute = run.federation.held_out, [], []
    for k in range(len(run.federation)):
        x, y = held.client(k)
        error = run.predict(x, client=k) - y
        own.append(float(error.square().mean()))
        absolute.append(float(error.abs().mean()))
    assert run.history[-1].held_out == pytest.approx({"mse": np.mean(own), "mae": np.mean(absolute)}, rel=1e-5)


class TensorBoardless(Callback):
    def __init__(self, metric: str) -> None:
        self.metric = metric

    @property
    def held_out(self) -> tuple[str | None, ...]:
        return (self.metric,)


def test_the_truth_is_not_looked_at() -> None:
    """With other test sets and other sources, the same rounds are played."""
    fed = fs.datasets.synthetic(partition="10:90", clients=8, points=[20, 30], dimension=3, test_points=20, seed=0)
    assert fed.truth is not None
    from dataclasses import replace

    false = replace(
        fed.truth, tests=tuple((x * 100, y - 7) for x, y in fed.truth.tests), mixture=fed.truth.mixture.flip(1),
        train_sources=1 - fed.truth.train_sources,
    )  # fmt: skip
    runs = [
        fs.fit(
            fs.FedSoft(S=2), one, fs.models.linear(), rounds=30, solver=fs.SGD(lr=0.2, epochs=3),
            options=fs.FitOptions(callbacks=[EarlyStopping(patience=2)], workers=1),
        )
        for one in (fed, replace(fed, truth=false), replace(fed, truth=None))
    ]  # fmt: skip
    assert 3 <= runs[0].rounds < 30
    assert [run.rounds for run in runs] == [runs[0].rounds] * 3
    assert [one.held_out for one in runs[0].history] == [one.held_out for one in runs[1].history]


def test_early_stopping_ends_after_patience_and_gives_the_best_round_back() -> None:
    """A metric of our own that is best in round 3."""
    values = iter([5.0, 4.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0])
    now: dict[str, float] = {}

    def fake(y: np.ndarray, prediction: np.ndarray) -> float:
        return now["value"]

    def advance(record: RoundRecord) -> None:
        now["value"] = next(values)

    now["value"] = next(values)
    metrics = {"mine": fs_metric(fake)}
    rule = EarlyStopping(metric="mine", patience=2, restore=True)
    run = fitted(rule, advance, rounds=8, metrics=metrics)
    assert [one.held_out["mine"] for one in run.history] == [5.0, 4.0, 1.0, 2.0, 3.0]
    assert (run.rounds, run.at, run.at_round, run.ended_by) == (5, 3, 3, "EarlyStopping")
    assert same_models(run, fitted(rounds=3))
    assert run.outcome().rounds == 3
    assert "as it was after round 3" in repr(run)


def fs_metric(function: Any) -> Any:
    from fedsoft.core.client_metrics import OwnMetric

    return OwnMetric(function, higher_is_better=False)


def test_the_best_round_without_early_stopping() -> None:
    kept = BestRound()
    run = fitted(kept, rounds=12, algorithm=fs.FedSoft(S=2, lam=0.0))
    scores = [one.held_out["mse"] for one in run.history]
    assert run.rounds == 12
    assert run.at_round == 1 + int(np.argmin(scores)) == kept.round
    again = fitted(rounds=run.at_round, algorithm=fs.FedSoft(S=2, lam=0.0))
    assert same_models(run, again)


@pytest.mark.parametrize(("settings", "words"), [
    ({"patience": 0}, "EarlyStopping.patience = 0 is not allowed: should be at least 1"),
    ({"least": -1.0}, "EarlyStopping.least = -1.0 is not allowed: should be at least 0"),
])  # fmt: skip
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InputError, match=words):
        EarlyStopping(**settings)


def test_a_metric_that_does_not_exist_is_said_before_the_first_round() -> None:
    told = Told()
    with pytest.raises(fs.InputError, match="accuracy"):
        fitted(told, EarlyStopping(metric="accuracy"))
    assert told.heard == ["closed"]
    x = np.ones((4, 2))
    bare = fs.Federation.from_clients([(x, x[:, 0])] * 2, held_out=0.0)
    with pytest.raises(fs.InputError, match="only where clients have some: held_out > 0"):
        fs.fit(fs.FedAvg(), bare, fs.models.linear(), rounds=1, options=fs.FitOptions(callbacks=[EarlyStopping()]))


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_in_a_terminal_after_a_while() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    fitted(Progress(after=0.0, console=console), Slow(), rounds=3)
    assert "3 of 3 rounds" in out.getvalue()
    assert "FedSoft" in out.getvalue()
    quiet = io.StringIO()
    fitted(Progress(after=60.0, console=Console(file=quiet, force_terminal=True)), rounds=3)
    assert not quiet.getvalue()


class Slow(Callback):
    def on_start(self, run: fs.Run, rounds: int) -> None:
        import time

        time.sleep(0.2)


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for IPython, which is not installed here: one display that is replaced."""
    shown: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            shown.append(page)

    def display(page: Any, display_id: bool) -> Handle:
        shown.append(page)
        return Handle()

    shell = types.ModuleType("IPython")
    shell.__dict__["get_ipython"] = lambda: types.SimpleNamespace(kernel=True)
    screen = types.ModuleType("IPython.display")
    screen.__dict__.update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    assert Progress.is_wanted()
    fitted(Progress(after=0.0), Slow(), rounds=2, progress=False)
    assert '<progress value="2" max="2">' in shown[-1]
    fitted(rounds=2)  # by itself, but it is too short to be shown
    assert len(shown) == 2


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert not Progress.is_wanted()
    fitted(rounds=2)
    assert capsys.readouterr() == ("", "")


# --- logs -------------------------------------------------------------------------------------------------------------


def test_tensorboard_has_scores_mixtures_and_cost(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = fitted(TensorBoard(tmp_path / "log", held_out=("mse",)), rounds=3)
    values = scalars_in(tmp_path / "log")
    assert values["cost/gradients"] == {r.round: r.gradients for r in run.history}
    for s in range(2):
        assert values[f"mixture/share of points, center {s}"][3] == pytest.approx(run.history[-1].use[s])
        assert values[f"centers/center {s}, all clients"][3] == pytest.approx(run.history[-1].served[s].on_all)
    assert values["held out/mse"][2] == pytest.approx(run.history[1].held_out["mse"])
    longer = run.extend(5, options=fs.FitOptions(callbacks=[TensorBoard(tmp_path / "log")], workers=1))
    assert set(scalars_in(tmp_path / "log")["cost/gradients"]) == {1, 2, 3, 4, 5}
    assert longer.rounds == 5


def scalars_in(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder))
    log.Reload()
    return {tag: {one.step: one.value for one in log.Scalars(tag)} for tag in log.Tags()["scalars"]}


def test_mlflow_has_them_too_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    run = fitted(MLflow("first", uri=uri), rounds=2)
    with pytest.raises(fs.CallbackError):
        run.extend(4, options=fs.FitOptions(callbacks=[MLflow("first", uri=uri), Breaks("round")], workers=1))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedsoft")
    assert experiment is not None
    (only,) = client.search_runs([experiment.experiment_id])
    steps = {one.step: one.value for one in client.get_metric_history(only.info.run_id, "cost/gradients")}
    assert steps == dict.fromkeys((1, 2, 3), run.history[0].gradients)
    assert only.data.params["algorithm.S"] == "2"
    assert only.info.status == "KILLED"
    with pytest.raises(fs.InputError, match="should have no quotes"):
        fitted(MLflow("it's", uri=uri))


def test_centers_stay_tensors() -> None:
    """What a snapshot gives back is as usable as what was trained."""
    run = fitted(BestRound(), rounds=3)
    assert all(isinstance(value, torch.Tensor) for center in run.centers for value in center.values())


class Misspelled(Callback):
    def on_rounds(self, run: fs.Run, record: RoundRecord) -> None: ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (EarlyStopping, "callback EarlyStopping is a class: give an object, such as EarlyStopping()"),
        (3, "callback 3 is not allowed: should be a Callback, or a function of a RoundRecord"),
        (Misspelled(), "unknown method of callback Misspelled 'on_rounds': did you mean 'on_round'?"),
    ],
)
def test_what_would_never_be_called_is_said_before_the_first_round(given: Any, words: str) -> None:
    with pytest.raises(fs.InputError, match=re.escape(words)):
        fitted(given)
