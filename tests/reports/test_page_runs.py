"""`fedsoft report`: what is on the page of a run, of several seeds, of a comparison, and of data without a truth."""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedsoft.cli import main
from fedsoft.errors import FedsoftError, InputError
from fedsoft.reports.clients import clients_of
from fedsoft.reports.clusters import evidence_of
from fedsoft.reports.comparison import ComparisonReport
from fedsoft.reports.page import Figure, Page, Table, Text, Verdict
from fedsoft.reports.run_loader import read
from fedsoft.reports.tables import run_view
from fedsoft.reports.web_page import page_of, report
from fedsoft.runs import spec
from fedsoft.runs.execute import execute, place
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.storage.atomic import write_folder
from fedsoft.studies.compare import compare
from fedsoft.studies.process_pool import ProcessPool

SMALL = ["clients=10", "points=[8, 20]", "K=4", "epochs=1", "test_points=20", "rounds=3"]


def run(root: Path, *changes: str, preset: str = "synthetic-10-90", seed: int = 0) -> Path:
    wanted = spec.read(preset, [*SMALL, *changes]).with_seed(seed)
    folder, finished = execute(wanted, place(wanted, root), RunOptions())
    assert finished
    return folder.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of FedSoft, one with another lambda, one run without centers."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        run(root, seed=seed)
    run(root, "lam=0.1")
    run(root, "algorithm=local", "K=all")
    return root


def named(root: Path, *parts: str) -> list[str]:
    found = [str(path) for path in sorted(root.iterdir()) if (path / "spec.toml").exists()]
    return [path for path in found if all(part in (Path(path) / "spec.toml").read_text() for part in parts)]


def seeds_of(root: Path) -> list[str]:
    return named(root, 'name = "fedsoft"', "lam = 1.0")


def page(root: Path, *names: str) -> Page:
    return page_of(read(names, root))


def blocks(page: Page, kind: type[Table] | type[Figure]) -> dict[str, Any]:
    return {block.id: block for section in page.sections for block in section.blocks if isinstance(block, kind)}


def scores(path: str) -> dict[str, Any]:
    return json.loads((Path(path) / "scores.json").read_text())


# --- one run ----------------------------------------------------------------------------------------------------------


def test_the_page_of_a_run_has_its_sections_and_numbers(runs: Path) -> None:
    name = seeds_of(runs)[0]
    found = page(runs, name)
    assert [section.id for section in found.sections] == [
        "in-short", "what", "centers", "clusters", "convergence", "mixtures", "personal", "cost", "settings",
        "environment",
    ]  # fmt: skip
    saved = scores(name)
    table = blocks(found, Table)["centers-table"]
    assert [column.title for column in table.columns] == ["source", "c0", "c1", "oracle", "noise floor"]
    for j, row in enumerate(table.rows):
        assert [cell.value for cell in row[1:3]] == [saved["centers"][0][j], saved["centers"][1][j]]
        assert [cell.best for cell in row[1:3]] == [saved["best"][j] == 0, saved["best"][j] == 1]
        assert row[3].value == saved["oracle"][j]
        assert row[4].value == saved["noise_floor"]
        assert row[1].runs[0].hash == Path(name).name.rsplit("-", 1)[1]
    personal = blocks(found, Table)["personal-table"]
    assert personal.rows[1][3].value == saved["personal_held_out"]["worst_decile"]


def test_clusters_are_told_with_their_inputs_and_where_differences_lie(tmp_path: Path) -> None:
    made = run(tmp_path, "algorithm=fedprior")
    found, saved = page(tmp_path, str(made)), scores(str(made))
    table = blocks(found, Table)["profiles-table"]
    assert [row[1].value for row in table.rows] == [one["clients"] for one in saved["clusters"]["profiles"]]
    assert saved["clusters"]["profiles"][0]["effects"][0]["name"] in table.rows[0][4].text
    panel = blocks(found, Figure)["profiles-figure"].panels[0]
    assert [len(series.x) for series in panel.series] == [10, 10, 2]  # the inputs of both centers, and their mean
    assert {*panel.y.names} == {one["name"] for one in saved["clusters"]["profiles"][0]["effects"]}
    variance = blocks(found, Table)["variance-table"]
    assert [row[0].text for row in variance.rows][-1] == "all"
    total = saved["prior"]["total"]
    assert variance.rows[-1][1].value == total["between"] + total["within"]
    assert sum(float(cell.value or 0) for cell in variance.rows[-1][2:]) == pytest.approx(1)
    texts = [b.text for section in found.sections for b in section.blocks if isinstance(b, Text)]
    assert any(text.startswith("Log evidence ") for text in texts)
    terminal = Console(width=150, record=True, file=io.StringIO())
    terminal.print(run_view(RunFolder(made)))
    told = terminal.export_text()
    assert "between sources" in told
    assert f"Log evidence {saved['prior']['evidence']['log'] / saved['prior']['evidence']['points']:.4f}" in told
    one = read([str(made)], tmp_path)[0]
    assert evidence_of([one]) == []
    assert evidence_of([one, replace(one, label="other")])[0].endswith("highest for fedprior")


def test_convergence_is_the_log_in_the_form_of_the_papers_figure(runs: Path) -> None:
    name = seeds_of(runs)[0]
    figure = blocks(page(runs, name), Figure)["convergence-figure"]
    assert [panel.title for panel in figure.panels] == [
        "Source θ0", "Source θ1", "Clients with mostly θ0", "Clients with mostly θ1"
    ]  # fmt: skip
    log = RunFolder(Path(name)).records()
    for j in (0, 1):
        for s in (0, 1):
            assert figure.panels[j].series[s].y == [record.centers[s][j] for record in log]
            assert figure.panels[2 + j].series[s].y == [record.weights[j][s] for record in log]
    assert figure.panels[0].series[0].x == [1, 2, 3]
    assert figure.panels[0].levels[0].at == scores(name)["oracle"][0]


def test_clients_are_those_of_the_run(runs: Path) -> None:
    """Means over the clients that are drawn are the saved scores; u is read off the source that a center stands for."""
    name = seeds_of(runs)[0]
    [group] = read([name], runs)
    clients, saved, loaded = clients_of(group.first), scores(name), load(name)
    assert statistics.mean(clients.train) == pytest.approx(saved["personal_train"]["mean"])
    known = [value for value in clients.held_out if not np.isnan(value)]
    assert statistics.mean(known) == pytest.approx(saved["personal_held_out"]["mean"])
    assert clients.u is not None
    assert clients.shares is not None
    error = np.abs(np.array(clients.u) - np.array(clients.shares)).mean()
    assert error == pytest.approx(saved["recovery"])
    assert loaded.weights is not None
    center = saved["alignment"].index(1)
    expected = (loaded.weights / loaded.weights.sum(1, keepdim=True))[:, center]
    assert [row[1] for row in clients.u] == pytest.approx(expected.tolist())
    assert clients.names == loaded.federation.names


def test_the_verdicts_are_computed(runs: Path) -> None:
    name = seeds_of(runs)[0]
    found = [b for b in page(runs, name).sections[0].blocks if isinstance(b, Verdict)]
    saved = scores(name)
    assert found[0].holds is (len(set(saved["best"])) == 2)
    ratio = statistics.mean(min(c[j] for c in saved["centers"]) / saved["oracle"][j] for j in (0, 1))
    assert f"{ratio:.1f} times" in found[1].sentence
    assert f"{saved['recovery']:.3f}" in found[2].sentence
    assert found[2].holds is (saved["recovery"] < 0.4)  # equal shares are off by 0.4 where all clients are 10:90


def test_a_method_without_centers_says_so(runs: Path) -> None:
    [name] = named(runs, 'name = "local"\nK')
    found = page(runs, name)
    assert any("no centers" in b.text for section in found.sections for b in section.blocks if isinstance(b, Text))
    assert "personal-table" in blocks(found, Table)


# --- several seeds ----------------------------------------------------------------------------------------------------


def test_seeds_become_means_and_deviations_of_matched_centers(runs: Path) -> None:
    names = seeds_of(runs)
    found = page(runs, *names)
    saved = [scores(name) for name in names]
    table = blocks(found, Table)["centers-table"]
    for j in (0, 1):
        for source in (0, 1):
            values = [s["centers"][s["alignment"].index(source)][j] for s in saved]
            cell = table.rows[j][1 + source]
            assert cell.value == pytest.approx(statistics.mean(values))
            assert cell.std == pytest.approx(statistics.stdev(values))
            assert {ref.seed for ref in cell.runs} == {0, 1, 2}
    figure = blocks(found, Figure)["convergence-figure"]
    last = [RunFolder(Path(name)).records()[-1] for name in names]
    values = [r.centers[s["alignment"].index(0)][1] for r, s in zip(last, saved, strict=True)]
    assert figure.panels[1].series[0].y[-1] == pytest.approx(statistics.mean(values))
    assert figure.panels[1].series[0].high[-1] == pytest.approx(statistics.mean(values) + statistics.stdev(values))
    by_seed = blocks(found, Table)["best-table"]
    assert [row[1].value for row in by_seed.rows] == [min(c[0] for c in s["centers"]) for s in saved]


def test_the_order_of_the_arguments_does_not_matter_and_repeats_count_once(runs: Path) -> None:
    names = seeds_of(runs)
    assert page(runs, *reversed(names), names[0]) == page(runs, *names)


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_different_settings_are_set_side_by_side_under_what_tells_them_apart(runs: Path) -> None:
    found = page(runs, *named(runs, 'name = "fedsoft"', "seed = 0"))
    table = blocks(found, Table)["methods-table"]
    assert {row[0].text for row in table.rows} == {
        "fedsoft(lam=1.0)", "fedsoft(lam=0.1)", "oracle", "noise floor", "overall mean alone", "own mean alone",
    }  # fmt: skip
    assert table.foot == 4


@pytest.mark.engine
def test_a_comparison_is_found_by_its_folder(tmp_path: Path) -> None:
    base = spec.read("synthetic-10-90", SMALL)
    made = compare(base, "fedsoft,fedavg,ifca(lr=0.5)", [0, 1], ProcessPool(tmp_path, 2), budget="work")
    assert made is not None
    write_folder(tmp_path / made.name, {"comparison.csv": ComparisonReport.of(made).to_csv().encode()})
    found = page(tmp_path, "compare")
    assert found == page(tmp_path, str(tmp_path / made.name)) == page(tmp_path, made.name)
    table = blocks(found, Table)["methods-table"]
    assert [row[0].text for row in table.rows] == [
        "fedsoft",
        "fedavg",
        "ifca(lr=0.5)",
        "oracle",
        "noise floor",
        "own mean alone",
        "overall mean alone",
    ]
    rows = ComparisonReport.of(made).measured
    heads = [column.title for column in table.columns]
    for row, expected in zip(table.rows, rows, strict=False):
        assert row[1].value == pytest.approx(statistics.mean(b[0] for b in expected.best_center or []))
        cell = row[heads.index("personal, held out")]
        assert cell.value == pytest.approx(statistics.mean(v for v in expected.personal_held_out if v is not None))
        assert cell.std == pytest.approx(statistics.stdev(v for v in expected.personal_held_out if v is not None))
    best = min(table.rows[:3], key=lambda row: row[1].value)
    assert [row[1].best for row in table.rows] == [row is best for row in table.rows]
    courses = blocks(found, Figure)["courses"]
    work, traffic = courses.panels
    cost = blocks(found, Table)["cost-table"]
    for series, expected in zip(work.series, rows, strict=True):
        assert series.x[-1] <= statistics.mean(expected.gradients_per_client) + 1e-9
        assert series.y[-1] > 0
    assert traffic.x.label.startswith("bytes")
    assert cost.rows[0][3].value == pytest.approx(statistics.mean(rows[0].gradients_per_client))
    assert any("gradients" in row[1].text and row[0].text == "budget" for row in blocks(found, Table)["facts"].rows)
    (tmp_path / made.name / "comparison.csv").write_text("algorithm,seed\nx,1\n")
    with pytest.raises(FedsoftError, match="is damaged"):
        read(["compare"], tmp_path)


# --- data without a truth ---------------------------------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs on a folder of files, one of which has a name that would be a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals").mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b", "<script>alert(1)<", "d"):
        x = rng.standard_normal((30, 4))
        np.savez(tmp_path / "hospitals" / f"{name}.npz", x=x, outcome=(x.sum(1) > 0).astype(int))
    (tmp_path / "own.toml").write_text(
        'rounds = 2\nalgorithm = { name = "fedsoft", S = 2, K = 2 }\nmodel = { name = "mlp", hidden = [4] }\n'
        'dataset = { name = "folder", path = "hospitals", label = "outcome" }\nsolver = { name = "sgd", epochs = 1 }\n'
    )
    wanted = spec.read("own.toml")
    execute(wanted, place(wanted, tmp_path / "runs"), RunOptions())
    return tmp_path


def test_data_without_a_truth_gives_a_sensible_page(hospitals: Path) -> None:
    found = page(hospitals / "runs", "own")
    assert [section.id for section in found.sections] == [
        "what", "centers", "clusters", "convergence", "mixtures", "personal", "cost", "settings", "environment"
    ]  # fmt: skip
    centers = blocks(found, Table)["served-table"]
    assert [row[0].text for row in centers.rows] == ["c0", "c1"]
    assert all(cell.text for row in centers.rows for cell in row[1:3])
    course = blocks(found, Figure)["convergence-figure"].panels[0]
    assert all(list(series.x) == [1, 2] for series in course.series)
    panel = blocks(found, Figure)["mixtures-figure"].panels[0]
    assert [series.name for series in panel.series] == ["c0", "c1"]
    assert [a + b for a, b in zip(panel.series[0].y, panel.series[1].y, strict=True)] == pytest.approx([1.0] * 4)
    assert "accuracy, %" in blocks(found, Table)["personal-table"].caption


def test_names_of_clients_are_escaped(hospitals: Path) -> None:
    report(["own"], hospitals / "runs", hospitals / "report.html")
    text = (hospitals / "report.html").read_text("utf-8")
    assert "<script>alert" not in text
    assert "client &lt;script&gt;alert(1)&lt;" in text
    assert "<script" not in (hospitals / "report.md").read_text("utf-8")


def test_a_run_is_reported_alike_without_its_data(hospitals: Path) -> None:
    with_data = page(hospitals / "runs", "own")
    shutil.rmtree(hospitals / "hospitals")
    assert repr(page(hospitals / "runs", "own")) == repr(with_data)


def test_without_its_outcome_a_run_is_reported_without_single_clients(hospitals: Path) -> None:
    (next((hospitals / "runs").glob("own*")) / "outcome.json").unlink()
    found = page(hospitals / "runs", "own")
    texts = [b.text for section in found.sections for b in section.blocks if isinstance(b, Text)]
    assert sum("Nothing is shown for single clients" in text for text in texts) == 2
    assert "personal-table" in blocks(found, Table)
    assert blocks(found, Figure).keys() == {"convergence-figure", "profiles-figure"}  # from log and scores


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def program(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedsoft", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return program


def test_the_command_writes_html_markdown_csv_and_pictures(call: Any, runs: Path, tmp_path: Path) -> None:
    code, out, err = call("report", *seeds_of(runs), "--out", "deep/seeds.html")
    assert code == 0, err
    assert "deep/seeds.html" in out
    folder = tmp_path / "deep"
    assert {path.name for path in folder.iterdir()} == {"seeds.html", "seeds.md", "seeds-data"}
    data = {path.name for path in (folder / "seeds-data").iterdir()}
    assert {"centers-table.csv", "convergence-figure.csv", "convergence-figure.svg", "runs-table.csv"} <= data
    with (folder / "seeds-data" / "runs-table.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [row["run"] for row in listed] == [Path(name).name for name in seeds_of(runs)]
    assert all(row["spec hash"] in row["run"] and row["version"] for row in listed)
    before = (folder / "seeds.html").read_bytes()
    call("report", *seeds_of(runs), "--out", "deep/seeds.html")
    assert (folder / "seeds.html").read_bytes() == before


def test_a_name_is_looked_up_among_the_runs(call: Any, runs: Path, tmp_path: Path) -> None:
    code, _, err = call("report", Path(seeds_of(runs)[1]).name[:24], "--runs", str(runs))
    assert code == 0, err
    assert (tmp_path / "report.html").exists()


def test_open_shows_the_file(call: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("typer.launch", shown.append)
    call("report", seeds_of(runs)[0], "--open")
    assert shown == [(tmp_path / "report.html").as_uri()]


def test_what_cannot_be_reported_is_refused_in_a_sentence(call: Any, runs: Path, tmp_path: Path) -> None:
    def broken(name: str, file: str, text: str | None) -> str:
        folder = tmp_path / name
        shutil.copytree(seeds_of(runs)[0], folder)
        (folder / file).unlink() if text is None else (folder / file).write_text(text)
        return str(folder)

    log = (Path(seeds_of(runs)[0]) / "rounds.jsonl").read_text().splitlines(keepends=True)
    cases = [
        (["nothing"], "there is no run 'nothing'"),
        ([broken("unfinished", "scores.json", None)], "is not finished (round 3 of 3): go on with 'fedsoft resume"),
        ([broken("torn", "scores.json", "{")], "is damaged"),
        ([broken("poor", "scores.json", "{}")], "is damaged"),
        ([broken("short", "rounds.jsonl", "".join(log[:-1]))], "holds 2 rounds, but 3 were saved"),
        ([broken("gone", "rounds.jsonl", None)], "holds 0 rounds, but 3 were saved"),
        ([broken("stateless", "state.safetensors", None)], "is missing"),
        ([broken("garbled", "state.safetensors", "x" * 99)], "is damaged"),
        ([broken("edited", "spec.toml", "rounds = 9\n")], "does not fit"),
        ([seeds_of(runs)[0], "--out", "report.pdf"], "ends in .html"),
        ([seeds_of(runs)[0], "--out", "/dev/null/report.html"], "cannot write to"),
    ]
    for arguments, words in cases:
        code, out, err = call("report", *arguments)
        assert code == 2, words
        assert out == ""
        assert words in err
        assert err.strip().count("\n") == 0
        assert "Traceback" not in err
    assert not list(tmp_path.glob("report*"))


def test_metrics_are_not_mixed(hospitals: Path, runs: Path) -> None:
    with pytest.raises(InputError, match="accuracy and mse"):
        read(["own", seeds_of(runs)[0]], hospitals / "runs")


def test_two_runs_of_one_name_are_refused(runs: Path, tmp_path: Path) -> None:
    name = Path(seeds_of(runs)[0])
    shutil.copytree(name, tmp_path / name.name)
    with pytest.raises(InputError, match="two different runs are called"):
        read([str(name), str(tmp_path / name.name)], runs)
