"""compare, tune and choose for data and models that were made in Python."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsoft as fs
from fedsoft.callbacks import EarlyStopping
from fedsoft.errors import InputError
from fedsoft.plugins import OBJECT
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.given import content_of, spec_of
from fedsoft.runs.run_options import RunOptions, build
from fedsoft.safety.dropouts import never
from fedsoft.seeds import generator
from fedsoft.studies.process_pool import ProcessPool
from fedsoft.training import Plan

SMALL = ["clients=6", "points=[20, 30]", "K=all", "epochs=1", "test_points=20", "rounds=3"]
QUIET = fs.StudyOptions(progress=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x).squeeze(1)


def two_sources(seed: int = 0) -> fs.Federation:
    """Clients with 10:90 or 90:10 points of two linear functions."""
    rng = generator(seed, "two sources")
    theta = rng.standard_normal((2, 4)) * 3
    clients = []
    for k in range(8):
        x = rng.standard_normal((60, 4))
        source = (rng.random(60) < (0.1 if k % 2 else 0.9)).astype(int)
        clients.append((x, (x * theta[source]).sum(1) + 0.1 * rng.standard_normal(60)))
    return fs.Federation.from_clients(clients, held_out=0.25)


def small(algorithms: Any, model: Any = Net, **more: Any) -> Any:
    given = {"rounds": 3, "seeds": [0, 1], "solver": fs.SGD(lr=0.05, epochs=1), "options": QUIET}
    return fs.compare(algorithms, two_sources(), model, **given | more)


def test_a_run_of_a_comparison_is_the_run_that_fit_makes() -> None:
    found = small([fs.FedSoft(S=2), "fedavg"])
    for row in found.rows():
        algorithm = fs.FedSoft(S=2) if row["algorithm"] == "fedsoft" else fs.FedAvg()
        solver = fs.SGD(lr=0.05, epochs=1)
        run = fs.fit(algorithm, two_sources(), Net, rounds=3, solver=solver, seed=row["seed"])
        scores = run.scores()
        assert scores.personal_held_out is not None
        assert row["personal_held_out"] == scores.personal_held_out.mean


def test_centers_that_have_no_sources_to_part_have_not_failed() -> None:
    """Each of two centers learns from a part of the clients, and is worse than one model for all, as it must be."""
    fed = fs.datasets.synthetic(clients=6, points=(10, 12), test_points=200, S=1, partition="random", seed=0)
    options = {"rounds": 30, "seeds": [0, 1], "solver": fs.SGD(lr=0.05, epochs=2), "options": QUIET}
    found = fs.compare(["fedavg", "ifca(S=2)"], fed, fs.models.linear(), **options)
    one, two = (row["best_center_0"] for row in found.rows() if row["seed"] == 0)
    assert two > one
    assert "failed" not in str(found)


def test_results_are_tables_rows_csv_and_a_figure(tmp_path: Path) -> None:
    found = small(["fedsoft(S=2)", fs.Local()])
    assert "fedsoft(S=2)" in str(found)
    assert "own mean alone" in str(found)  # what anybody could predict
    assert "<pre" in found._repr_html_()
    lines = list(csv.DictReader(found.to_csv(tmp_path / "rows.csv").splitlines()))
    assert [line["algorithm"] for line in lines] == ["fedsoft(S=2)"] * 2 + ["local"] * 2
    assert (tmp_path / "rows.csv").read_text() == found.to_csv()
    assert found.figure(tmp_path / "figure.png") == (tmp_path / "figure.png").read_bytes()
    saved = found.save(tmp_path)
    assert {path.name for path in saved.iterdir()} == {"comparison.csv", "figure.png"}
    assert found.to_dict()["algorithms"][0]["seeds"] == [0, 1]


def test_a_data_frame_has_the_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = small(["fedavg"]).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["seed"]) == [0, 1]


def test_what_is_saved_is_not_run_again(tmp_path: Path) -> None:
    options = fs.StudyOptions(folder=tmp_path, progress=False)
    found = small([fs.FedAvg()], options=options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")}
    assert len(before) == 2
    assert small([fs.FedAvg()], options=options).rows() == found.rows()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")} == before
    small([fs.FedAvg()], fs.models.linear(), options=options)  # another model is another run
    assert len([*tmp_path.rglob("rounds.jsonl")]) == 4


def test_budgets_are_those_of_the_first() -> None:
    found = small([fs.FedAvg(), "ditto"], budget="bytes")
    spent = {row["algorithm"]: row["bytes_down_per_client"] + row["bytes_up_per_client"] for row in found.rows()}
    assert spent["ditto"] <= spent["fedavg"]
    with pytest.raises(InputError, match="unknown budget 'time'"):
        small([fs.FedAvg()], budget="time")


def test_a_function_makes_the_federation_of_each_seed() -> None:
    found = fs.compare(["fedavg"], two_sources, Net, rounds=1, seeds=[0, 3], options=QUIET)
    alone = fs.fit(fs.FedAvg(), two_sources(3), Net, rounds=1, seed=3).scores()
    assert alone.personal_train is not None
    assert found.rows()[1]["personal_train"] == alone.personal_train.mean


def test_presets_and_files_are_compared_too(tmp_path: Path) -> None:
    from fedsoft.runs import spec

    base = spec.read("synthetic-10-90", SMALL)
    (tmp_path / "mine.toml").write_text(base.to_toml())
    by_name = fs.compare("fedsoft,fedavg", tmp_path / "mine.toml", seeds=[0], options=QUIET)
    by_spec = fs.compare("fedsoft,fedavg", base, seeds=[0], options=QUIET)
    assert [row["personal_held_out"] for row in by_name.rows()] == [row["personal_held_out"] for row in by_spec.rows()]
    with pytest.raises(InputError, match="has a model, conditions and metrics of its own"):
        fs.compare("fedsoft", base, Net, options=QUIET)


def test_conditions_and_metrics_are_part_of_the_run(tmp_path: Path) -> None:
    plain = fs.StudyOptions(folder=tmp_path, progress=False)
    dropped = fs.StudyOptions(folder=tmp_path, progress=False, conditions=fs.Conditions(dropout=0.5))
    one, other = small(["fedavg"], options=plain), small(["fedavg"], options=dropped)
    assert one.rows()[0]["run"] != other.rows()[0]["run"]
    assert one.rows()[0]["bytes_up_per_client"] > other.rows()[0]["bytes_up_per_client"]


def test_a_spec_has_all_that_has_a_name(tmp_path: Path) -> None:
    """What is saved is the same as a run of fit has: it is loaded without the objects where all have names."""
    conditions = fs.Conditions(dropout=0.1, aggregator=fs.aggregators.trimmed(), guard=4.0)
    stop = EarlyStopping(patience=1, least=1e9)
    options = fs.StudyOptions(folder=tmp_path, progress=False, conditions=conditions, metrics=["mae"], callbacks=[stop])
    found = small([fs.FedSoft(S=2)], fs.models.linear(), seeds=[0], options=options)
    folder = RunFolder.open(next(tmp_path.iterdir()))
    spec = folder.spec()
    assert spec.aggregator is not None
    assert (spec.dropout, spec.guard, spec.aggregator.name, spec.metrics) == (0.1, 4.0, "trimmed", ["mae"])
    assert (spec.model.name, spec.dataset.name, spec.early_stopping) == ("linear", OBJECT, stop)
    assert len(folder.records()) == 2  # no round is better by that much
    alone = fs.fit(
        fs.FedSoft(S=2), two_sources(), fs.models.linear(), rounds=3, solver=fs.SGD(lr=0.05, epochs=1),
        conditions=conditions, options=fs.FitOptions(metrics=["mae"], callbacks=[stop]),
    )  # fmt: skip
    saved = RunFolder.open(alone.save(tmp_path / "alone")).spec()
    assert saved.to_dict() == spec.to_dict()
    assert torch.equal(fs.load(folder.path).state.centers, alone.state.centers)
    scores = alone.scores().personal_held_out
    assert scores is not None
    assert found.rows()[0]["personal_held_out"] == scores.mean


def test_class_weights_and_functions_are_part_of_the_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fed = fs.Federation.from_clients([(rng.standard_normal((20, 2)), np.arange(20) % 4 // 3) for _ in range(3)])

    def spec(**more: Any) -> Any:
        options = fs.StudyOptions(progress=False, **more)
        plan = Plan.of(fs.FedAvg(), fs.models.linear(), rounds=1, conditions=options.conditions, options=options)
        return spec_of(plan, fed, "run", of_study=True)

    assert spec(class_weights=[1.0, 3.0])[0].class_weights == [1.0, 3.0]
    away = fs.Conditions(dropout=never(["0"]))
    odd = {"odd": lambda y, p: 1.0}
    specs = [spec()[0], spec(class_weights="balanced")[0], spec(conditions=away)[0], spec(metrics=odd)[0]]
    assert len({one.hash for one in specs}) == 4
    assert (spec(conditions=away)[1].dropout, spec(metrics=odd)[1].metrics) == (away.dropout, odd)
    weighted = fs.StudyOptions(folder=tmp_path, progress=False, class_weights=[1.0, 9.0], conditions=away)
    fs.compare(["fedavg"], fed, fs.models.linear(), rounds=1, seeds=[0], options=weighted)
    alone = fs.fit(
        fs.FedAvg(), fed, fs.models.linear(), rounds=1, conditions=away,
        options=fs.FitOptions(class_weights=[1.0, 9.0]),
    )  # fmt: skip
    assert torch.equal(fs.load(next(tmp_path.iterdir())).state.centers, alone.state.centers)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": []}, "seeds: none is given"),
        ({"rounds": None}, "rounds is missing"),
        ({"model": None}, "model is missing"),
        ({"algorithms": []}, "none is given"),
        ({"algorithms": [fs.FedAvg]}, "should be a name or one such as FedSoft"),
        ({"algorithms": [fs.FedAvg(), "fedavg"]}, "names the same thing twice"),
        ({"solver": fs.SGD}, "should be one with its settings"),
    ],
)
def test_bad_input_is_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        small(**{"algorithms": ["fedavg"]} | given)


def test_a_class_that_a_function_makes_has_no_name() -> None:
    class Mine(fs.FedAvg):
        pass

    with pytest.raises(InputError, match="should be a class of a module"):
        small([Mine()])


def test_what_cannot_travel_stays_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fedsoft"):
        found = small(["fedavg"], lambda: Net(), options=fs.StudyOptions(jobs=2, progress=False))
    assert "model cannot be sent to another one" in caplog.text
    assert len(found.rows()) == 2


@pytest.mark.slow
@pytest.mark.engine
def test_processes_give_the_same_bits() -> None:
    here = small([fs.FedSoft(S=2), "fedavg"])
    there = small([fs.FedSoft(S=2), "fedavg"], options=fs.StudyOptions(jobs=2, progress=False))

    def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    assert without_time(here.rows()) == without_time(there.rows())


@pytest.mark.slow
def test_tuning_finds_rate_and_lambda(tmp_path: Path) -> None:
    options = fs.StudyOptions(folder=tmp_path, progress=False)
    found = fs.tune(
        [fs.FedSoft(S=2), "fedavg"], two_sources(), Net, rounds=3, solver=fs.SGD(lr=1e-5, epochs=1), seeds=[7],
        grid={"lr": [1e-5, 0.1], "epochs": [1], "lam": [0.1, 10.0]}, options=options,
    )  # fmt: skip
    assert {trial.lr for trial in found.best.values()} == {0.1}
    assert {row["lam"] for row in found.rows() if "lam" in row} == {0.1, 10.0}
    assert found.figure().startswith(b"\x89PNG")
    assert found.tuned[1] == "fedavg(solver.lr=0.1, solver.epochs=1)"
    again = fs.compare(found.tuned, two_sources(), Net, rounds=2, solver=fs.SGD(lr=1e-5), options=options)
    assert len(again.rows()) == 6
    with pytest.raises(InputError, match="no points are held out"):
        fs.tune("fedavg", fs.Federation.from_clients([(np.ones((4, 2)), np.ones(4))]), fs.models.linear(), rounds=1,
                options=QUIET)  # fmt: skip


@pytest.mark.slow
def test_the_number_of_sources_is_found() -> None:
    found = fs.choose(
        [2, 3], two_sources(), fs.models.linear(), rounds=30, solver=fs.SGD(lr=0.05, epochs=2), seeds=[0, 1],
        options=QUIET,
    )  # fmt: skip
    assert [row["S"] for row in found.rows()] == [1, 2, 3]  # one center is always tried
    assert (found.recommended, found.structure) == (2, True)
    assert "Recommended: S = 2" in str(found)


def test_a_folder_of_such_a_run_is_shown_but_not_made_without_python(tmp_path: Path) -> None:
    small(["fedavg"], options=fs.StudyOptions(folder=tmp_path, progress=False))
    from fedsoft.reports.tables import run_view

    folder = RunFolder.open(next(tmp_path.iterdir()))
    assert (folder.spec().dataset.name, folder.spec().model.name) == (OBJECT, OBJECT)
    assert run_view(folder) is not None
    with pytest.raises(InputError, match="passed as an object in Python"):
        build(folder.spec(), RunOptions())


def test_models_are_told_apart_by_what_they_compute() -> None:
    def content(model: Any) -> str:
        return content_of(model, two_sources())

    assert content(Net) == content(Net)
    assert content(Net) != content(fs.models.linear())
    assert content(fs.models.mlp(hidden=[3])) != content(fs.models.mlp(hidden=[4]))


def test_runs_in_this_process_stop_and_go_on(tmp_path: Path) -> None:
    from fedsoft.runs import spec

    base, seen = spec.read("synthetic-10-90", SMALL), []
    stopped = ProcessPool(tmp_path, None, RunOptions(should_stop=lambda: len(seen) > 0, callbacks=[seen.append]))
    assert stopped.run([base]) is None
    done = ProcessPool(tmp_path, None).run([base])
    assert done is not None
    assert done[0].folder is not None
    assert len(done[0].folder.records()) == 3
