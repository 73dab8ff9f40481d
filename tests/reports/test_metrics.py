"""The metrics that a run asks for are wherever its other scores are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.runs.folder import RunFolder

SMALL = ["dataset.clients=5", "dataset.points=[20, 30]", "K=3", "solver.epochs=1", 'metrics=["f1", "auc"]']


def fedsoft(*words: str) -> str:
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of runs, and what `run` said of its run."""
    out = tmp_path_factory.mktemp("runs")
    sets = [word for change in SMALL for word in ("--set", change)]
    return out, fedsoft("run", "digits-2", "--rounds", "2", "--seeds", "0..1", "--out", str(out), *sets)


def first(out: Path) -> RunFolder:
    return RunFolder.open(next(path.parent for path in sorted(out.glob("*s0*/spec.toml"))))


def values(folder: RunFolder, name: str) -> tuple[float, float]:
    scores = folder.scores()
    assert scores is not None
    spread = scores.metrics[name].held_out
    assert spread is not None
    return spread.mean, spread.worst_decile


def test_show_has_mean_worst_decile_and_centers_of_every_metric(place: tuple[Path, str]) -> None:
    folder = first(place[0])
    said = fedsoft("show", str(folder.path))
    for name in ("f1", "auc"):
        line = next(line for line in said.splitlines() if f"{name}, held out" in line)
        mean, worst = values(folder, name)
        assert f"{mean:.2f}"[:3] in line
        assert f"{worst:.2f}"[:3] in line
        assert f"Cluster models: {name}" in said
    (told,) = json.loads(fedsoft("show", str(folder.path), "--json"))["runs"]
    assert "by_client_held_out" in json.dumps(told)


def test_several_seeds_have_means_of_metrics(place: tuple[Path, str]) -> None:
    assert "f1, held out" in place[1]
    assert "auc, worst decile" in place[1]


def test_a_report_has_metrics_on_its_page_in_markdown_and_in_csv(place: tuple[Path, str], tmp_path: Path) -> None:
    folder = first(place[0])
    fedsoft("report", str(folder.path), "--out", str(tmp_path / "page.html"))
    page, text = (tmp_path / "page.html").read_text("utf-8"), (tmp_path / "page.md").read_text("utf-8")
    for title in ("Metrics of personal models on the client's own points", "Metrics of every client's personal model"):
        assert title in text
        assert title.partition("'")[0] in page
    rows = (tmp_path / "page-data" / "metrics-clients.csv").read_text("utf-8").splitlines()
    assert rows[0].startswith("client,f1,auc")
    scores = folder.scores()
    assert scores is not None
    each = scores.metrics["f1"].by_client_held_out
    assert [float(row.split(",")[1]) for row in rows[1:]] == pytest.approx(each)
    mean, worst = values(folder, "auc")
    table = (tmp_path / "page-data" / "metrics-table.csv").read_text("utf-8")
    line: list[Any] = next(line.split('",')[1].split(",") for line in table.splitlines() if "auc, held out" in line)
    assert (float(line[0]), float(line[2])) == pytest.approx((mean, worst))


@pytest.mark.slow
def test_compare_has_columns_for_them(tmp_path: Path) -> None:
    sets = [word for change in SMALL for word in ("--set", change)]
    said = fedsoft(
        "compare", "digits-2", "-a", "fedsoft,fedavg", "--seeds", "0", "--rounds", "1", "--out", str(tmp_path), *sets
    )
    assert "f1," in said
    (file,) = tmp_path.glob("*/comparison.csv")
    head, *rows = file.read_text("utf-8").splitlines()
    for name in ("f1_held_out", "f1_worst_decile", "auc_held_out", "auc_worst_decile"):
        assert name in head.split(",")
    by_name = dict(zip(head.split(","), rows[0].split(","), strict=True))
    run = RunFolder.open(tmp_path / by_name["run"])
    assert float(by_name["f1_held_out"]) == pytest.approx(values(run, "f1")[0])
    assert float(by_name["f1_worst_decile"]) == pytest.approx(values(run, "f1")[1])
    fedsoft("report", str(file.parent), "--out", str(tmp_path / "page.html"))
    assert "f1, worst decile" in (tmp_path / "page.md").read_text("utf-8")


def test_a_card_and_a_session_have_them(place: tuple[Path, str], tmp_path: Path) -> None:
    run = fs.load(first(place[0]).path)
    assert "f1 of personal models on held-out points: mean" in str(run.scores())
    fedsoft("export", str(first(place[0]).path), "--out", str(tmp_path / "models"))
    card = next((tmp_path / "models").rglob("*.md")).read_text("utf-8")
    assert "f1 of 5 clients" in card
