"""What to ship: whole studies on tiny federations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.reports.recommendation import RecommendationReport
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions
from fedsoft.seeds import generator
from fedsoft.studies.recommend import study
from fedsoft.studies.recommend.measured import Measured

FEW = ["constant", "fedavg", "local"]  # no rate, no centers: a trial each with exact solves


def people(kind: str, clients: int = 16, points: int = 16, seed: int = 0) -> fs.Federation:
    """Clients with a linear function each: all the same one, one of two, or none at all."""
    rng = generator(seed, "people", kind)
    theta = rng.standard_normal((2, 3)) * 2
    pairs = []
    for k in range(clients):
        x = rng.standard_normal((points, 3))
        signal = x @ theta[k % 2 if kind == "two" else 0]
        pairs.append((x, (0 if kind == "none" else signal) + 0.5 * rng.standard_normal(points)))
    return fs.Federation.from_clients(pairs, held_out=0.25, seed=seed)


def small(kind: str, folder: Path, **more: Any) -> RecommendationReport:
    options = fs.StudyOptions(progress=False, folder=folder, workers=1, only=more.pop("only", FEW))
    given: dict[str, Any] = {"rounds": 2, "solver": fs.Exact()}
    return fs.recommend(people(kind), fs.models.linear(), options=options, **given | more)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RecommendationReport:
    return small("two", tmp_path_factory.mktemp("two"))


def test_one_source_gets_one_model_and_noise_a_constant(tmp_path: Path) -> None:
    found = small("one", tmp_path)
    assert found.recommended == "fedavg"
    assert found.sentences[0].startswith("Ship one model for all: ")
    assert "against" in found.sentences[0]
    assert "95 % interval" in found.sentences[0]
    assert found.sentences[-1].startswith("Export it: fedsoft export ")
    assert "--what centers" in found.sentences[-1]
    noise = small("none", tmp_path)
    assert noise.recommended == "constant"
    assert noise.run is None
    assert "Export it" not in str(noise)


def test_two_kinds_of_clients_do_not_get_one_model(two: RecommendationReport) -> None:
    found, folder = two, two.found.folder
    assert found.recommended == "local"
    rows = {row["candidate"]: row for row in found.rows()}
    assert rows["local"]["test"] < rows["fedavg"]["test"] < 2 * rows["constant"]["test"]
    behind = rows["fedavg"]["behind"]
    assert behind["low"] > 0  # clearly behind what is recommended
    assert rows["local"]["cost"]["bytes_up"] == 0 < rows["fedavg"]["cost"]["bytes_up"]
    assert rows["fedavg"]["newcomers_5"] > rows["local"]["newcomers_5"]
    saved = json.loads((folder / "recommendation.json").read_text())
    assert saved["recommended"] == "local"
    assert saved["candidates"][1]["test"] == rows["fedavg"]["test"]
    page = (folder / "recommendation.html").read_text()
    assert found.sentences[0] in page.replace("&#39;", "'")


def test_the_numbers_are_those_of_a_run_on_all_training_points(two: RecommendationReport) -> None:
    """The exported run is the one that was measured: test points of clients that took part."""
    found, run = two, fs.load(two.run or "")
    outcome = run.scores()
    assert outcome.personal_held_out is not None
    row = next(row for row in found.rows() if row["candidate"] == "local")
    assert outcome.personal_held_out.mean == pytest.approx(row["test"], rel=1e-5)
    assert len(run.federation) == found.found.clients == 11
    assert found.found.newcomers == 5


def test_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, pair = list[str](), ["constant", "fedavg"]
    measure = study.Trainer.measure

    def counted(*given: Any) -> Any:
        done.append(given[1].key)
        if len(done) == 3:
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(study.Trainer, "measure", counted)
    with pytest.raises(KeyboardInterrupt):
        small("two", tmp_path, only=pair)
    before = len(done) - 1
    found = small("two", tmp_path, only=pair)
    whole = len(done) - before - 1
    again = small("two", tmp_path, only=pair)
    assert len(done) == before + 1 + whole  # nothing is trained twice
    assert again.to_dict() == found.to_dict()
    monkeypatch.undo()
    other = small("two", tmp_path / "other", only=pair).to_dict()
    for key in ("recommended", "decision", "candidates"):
        assert other[key] == found.to_dict()[key]  # as if it had not been stopped


def test_a_budget_leaves_out_what_does_not_fit_and_says_so(tmp_path: Path) -> None:
    found = small("one", tmp_path, budget=1e-3)
    assert found.found.left_out == ("local",)  # what is needed for an answer is tried however short the time is
    assert found.found.folds == 1
    text = "\n".join(found.sentences)
    assert "Left out within 0 s: not tried: local" in text
    assert "decided on one fold" in text
    whole = small("one", tmp_path)
    assert whole.found.left_out == ()
    assert whole.found.folds == 3


@pytest.mark.parametrize("fails", ["fold", "final"])
def test_settings_that_fail_on_other_points_give_way_to_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """They did best on the first fold, but training fails where they are needed: nobody could ship that."""
    plain = small("none", tmp_path / "plain", only=["constant", "fedavg"])
    assert plain.recommended == "constant"
    [best] = plain.found.recommended.settings
    measured, final, folds = study.Trainer.measure, study.Trainer.final, list[Any]()

    def on_fold(self: Any, candidate: Any, settings: Any, *given: Any) -> Measured:
        folds.append((candidate.key, settings) == ("constant", best))
        broken = fails == "fold" and sum(folds) > 1 and folds[-1]
        return Measured(problem="no") if broken else measured(self, candidate, settings, *given)

    def on_all(self: Any, candidate: Any, settings: Any, *given: Any) -> Measured:
        broken = (candidate.key, settings) == ("constant", best)
        return Measured(problem="no") if broken else final(self, candidate, settings, *given)

    monkeypatch.setattr(study.Trainer, "measure", on_fold)
    monkeypatch.setattr(study.Trainer, "final", on_all)
    found = small("none", tmp_path / "broken", only=["constant", "fedavg"]).found
    constant = found.row("constant")
    assert [*constant.settings] == [{"own": 1 - best["own"]}]
    assert constant.problem == ""
    assert found.recommended.test


def test_metrics_are_named(tmp_path: Path) -> None:
    found = small("two", tmp_path, metric="mae")
    assert (found.found.metric, found.found.beside) == ("mae", {"mse": False})
    assert found.rows()[1]["test"] != found.rows()[1]["test_mse"]
    with pytest.raises(InputError, match="'accuracy' is not for regression"):
        small("two", tmp_path, metric="accuracy")
    with pytest.raises(InputError, match="at least two candidates"):
        small("two", tmp_path, only=["fedavg"])


@pytest.mark.slow
def test_several_seeds_are_several_splits(tmp_path: Path) -> None:
    found = small("two", tmp_path, seeds=[0, 1]).found
    assert found.recommended.key == "local"
    values = found.recommended.test["mse"]
    assert values.shape == (2, 16)
    assert np.isfinite(values).sum(1).tolist() == [11, 11]
    assert (np.isfinite(values[0]) != np.isfinite(values[1])).any()  # other newcomers


@pytest.mark.slow
def test_random_labels_and_clients_without_clusters(tmp_path: Path) -> None:
    """No clusters are found where there are none, and nothing where there is nothing."""
    only = ["constant", "fedavg", "ifca", "fedprior-1", "fedprior"]
    options = fs.StudyOptions(progress=False, folder=tmp_path, workers=1, only=only)
    given: dict[str, Any] = {"rounds": 8, "solver": fs.SGD(lr=0.3, epochs=1, batch=8), "options": options}
    found = {}
    for kind in ("one", "none"):
        rng, pairs = generator(0, kind), []
        for _ in range(24):
            x = rng.standard_normal((24, 3))
            logit = x @ np.array([2.0, -1.0, 0.5]) if kind == "one" else np.zeros(24)
            pairs.append((x, (logit + rng.logistic(size=24) > 0).astype(int)))
        fed = fs.Federation.from_clients(pairs, held_out=0.25)
        found[kind] = fs.recommend(fed, fs.models.linear(), **given)
    assert found["one"].recommended == "fedavg"
    assert found["none"].recommended in ("constant", "fedavg")
    for one in found.values():
        assert any(text.startswith("Clusters add nothing: ") for text in one.sentences)
        assert {row["candidate"] for row in one.rows()} == set(only)


@pytest.mark.slow
def test_a_preset_whose_clients_are_of_several_sources(tmp_path: Path) -> None:
    """Sources of points: a mixture of models is found to be what they need, and the answer can be exported."""
    change = ["clients=24", "points=[40, 60]", "K=all", "rounds=6", "test_points=20", "dimension=4", "solver=exact"]
    base = spec.read("synthetic-10-90", change)
    only = ["constant", "fedavg", "fedem", "local", "fedprior-1", "fedprior"]
    found = study.recommend(base, [0], tmp_path, RunOptions(workers=1), only=only)
    report = RecommendationReport(found)
    assert found.decision.clusters is not None
    assert found.decision.clusters.is_clear
    assert found.recommended.candidate.is_clustered
    assert any(text.startswith("Clusters add ") and "nothing" not in text for text in report.sentences)
    run = fs.load(report.run or "")
    assert fs.export(run, tmp_path / "exported").models


@pytest.mark.slow
@pytest.mark.engine
def test_the_command(tmp_path: Path) -> None:
    """A table, the answer and the files; the same command again trains nothing, and prints JSON."""
    command = [
        sys.executable, "-c", "from fedsoft.cli import main; main()", "recommend", "synthetic-10-90", "--rounds", "2",
        "--set", "clients=16", "--set", "points=[12, 16]", "--set", "dimension=3", "--set", "K=all", "--set",
        "solver=exact", "--set", "test_points=10", "--only", "constant,fedavg,local", "--out", str(tmp_path / "runs"),
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert "Ship " in first.stdout
    assert "fedsoft export " in first.stdout
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=200)
    told = json.loads(again.stdout)
    assert told["sentences"][0] in first.stdout
    [folder] = (tmp_path / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "candidates.csv", "recommendation.html", "recommendation.json", "runs", "trials"
    }  # fmt: skip


@pytest.mark.slow
def test_the_example_of_the_page_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recommend.md").read_text("utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, "recommend.md", "exec"), names)
    assert names["found"].recommended in ("fedavg", "local")
