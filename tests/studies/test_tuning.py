from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.values import Scores
from fedsoft.reports.trials import table
from fedsoft.runs import spec
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.studies import tuning as tuning_room
from fedsoft.studies.compare import entries, total
from fedsoft.studies.methods import read_methods, variant
from fedsoft.studies.process_pool import Outcome, ProcessPool
from fedsoft.studies.trials import Grid, Point, Trial, Tuning
from fedsoft.studies.tuning import first_runs, judge, trial_runs, tune

SMALL = ["clients=8", "points=[20, 30]", "K=4", "epochs=2", "test_points=20", "rounds=4"]


def small(*changes: str) -> RunSpec:
    return spec.read("synthetic-10-90", [*SMALL, *changes])


def test_settings_of_the_solver_and_the_source_go_where_they_belong() -> None:
    made = entries(small(), "fedsoft,ifca(solver.lr=0.1, average=gradient),fedavg(source=1, solver.epochs=7)", [0])
    soft, ifca, oracle = (entry.spec for entry in made)
    assert ifca.solver.settings == soft.solver.settings | {"lr": 0.1}
    assert ifca.algorithm.settings["average"] == "gradient"
    assert (oracle.source, oracle.solver.settings["epochs"]) == (1, 7)
    assert oracle.algorithm.settings == {"K": 4}
    assert made[2].label == "fedavg(source=1, solver.epochs=7)"
    with pytest.raises(InputError, match="unknown setting of adam 'lrr'"):
        entries(small(), "ifca(solver.lrr=1)", [0])
    with pytest.raises(InputError, match="source = -1 is not allowed"):
        entries(small(), "ifca(source=-1)", [0])


def test_the_grid_is_around_the_preset() -> None:
    grid = Grid.around(small(), factors=(0.5, 1, 2))
    assert grid == Grid((0.0025, 0.005, 0.01), (1, 2), widen=True)
    assert Grid.around(small("epochs=1")).epochs == (1,)
    assert Grid.around(small(), [0.1], [3, 4]).points == [(0.1, 3), (0.1, 4)]
    with pytest.raises(InputError, match="'exact' has no 'lr'"):
        Grid.around(spec.read("synthetic-10-90", ["solver.name=exact"]))
    with pytest.raises(InputError, match=r"held_out = 0"):
        first_runs(small("held_out=0"), [0])


def trial(label: str, lr: float, *scores: float) -> Trial:
    return Trial(label, lr, 2, scores, (4,) * len(scores), ("r",) * len(scores))


def tuning(*trials: Trial, higher: bool = False) -> Tuning:
    return Tuning(small(), "mse", higher, (1, 2), trials)


def test_the_best_is_that_of_the_smallest_mean_and_failures_never_are() -> None:
    nan = float("nan")
    a, b, c = trial("ifca", 0.1, 3.0, 5.0), trial("ifca", 0.2, 3.5, 4.0), trial("ifca", 0.3, 1.0, nan)
    assert tuning(a, b, c).best == {"ifca": b}
    assert tuning(a, b, c, higher=True).best == {"ifca": a}
    assert tuning(c).best == {}
    assert not tuning(a, b, c).at_the_edge("ifca")
    assert tuning(a, b, c, higher=True).at_the_edge("ifca")
    assert tuning(a, b, higher=True).at_the_edge("ifca")  # of two rates the better one is at the edge, too
    assert "failed" in str([list(column.cells) for column in table(tuning(a, b, c)).columns])
    assert tuning(c).to_dict()["trials"][0]["held_out"] == [1.0, None]


def test_the_file_ends_with_the_untuned_preset_and_is_read_by_compare(tmp_path: Path) -> None:
    same, other = trial("fedsoft", 0.005, 1.0), trial("fedavg(source=1)", 0.25, 1.0)
    path = tmp_path / "tuned.toml"
    path.write_text(tuning(same, other).to_toml())
    assert tomllib.loads(path.read_text())["algorithms"] == [
        "fedsoft",
        "fedavg(source=1, solver.lr=0.25, solver.epochs=2)",
    ]
    made = entries(small(), read_methods(str(path)), [0])
    assert [entry.spec.solver.settings["lr"] for entry in made] == [0.005, 0.25]
    path.write_text(tuning(trial("fedsoft", 0.5, 1.0), other).to_toml())
    listed = read_methods(str(path))
    assert [method.settings.get("solver.lr") for method in listed.listed] == [0.5, 0.25, None]
    assert listed.budget_of == "fedsoft"  # whose work is the budget, though it is no yardstick
    path.write_text('algorithms = ["fedsoft"]\nbudget_of = "ifca"')
    with pytest.raises(InputError, match="budget_of = 'ifca' is none of its algorithms"):
        read_methods(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        read_methods(str(tmp_path / "none.toml"))


def test_scores_are_those_of_held_out_points_and_nothing_else(tmp_path: Path) -> None:
    wanted = trial_runs(small(), ["fedavg"], Grid((0.1, 0.2), (1,)), {7: 500})
    assert [spec.work for specs in wanted.values() for spec in specs] == [500, 500]
    assert [spec.seed for specs in wanted.values() for spec in specs] == [7, 7]
    required = [field.name for field in fields(Scores) if field.default is field.default_factory is MISSING]

    def ended(spec: RunSpec) -> Outcome:
        folder = RunFolder.create(tmp_path / spec.id, spec)
        good = spec.solver.settings["lr"] == 0.1
        known: dict[str, Any] = dict.fromkeys(required) | {"metric": "mse", "higher_is_better": False, "sources": []}
        # The truth says the opposite of the held-out points.
        error = 1.0 if good else 2.0
        known |= {"centers": [[9.0 if good else 0.0] * 2], "personal_held_out": Spread(error, error, error, 1)}
        folder.finish(Scores(**known))
        return Outcome(spec, folder)

    assert judge(small(), wanted, ended).best["fedavg"].lr == 0.1


@pytest.mark.engine
def test_tuning_finds_a_rate_that_is_not_absurd_under_the_same_work(tmp_path: Path) -> None:
    grid = Grid((1e-6, 0.05), (1, 2))
    found = tune(small("rounds=20"), "fedsoft,fedavg(source=0)", [5], grid, ProcessPool(tmp_path, 2))
    assert found is not None
    assert len([one for one in found.trials if not one.further]) == 8
    lam = [one.further["lam"] for one in found.trials if one.further]
    assert set(lam) >= {0.01, 0.1, 1.0, 10.0}  # more where the best was at the edge
    assert {trial.lr for trial in found.best.values()} == {0.05}
    allowed = total(RunFolder.open(tmp_path / first_runs(small("rounds=20"), [5])[0].id), "work")
    for one in found.trials:
        spent = total(RunFolder.open(tmp_path / one.runs[0]), "work")
        assert allowed * 0.5 < spent <= allowed * 1.1
    assert variant(small(), "fedavg", {"source": 0}).source == 0


@pytest.mark.engine
def test_the_command(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedsoft"
    options = [part for change in SMALL for part in ("--set", change)]
    command = [program, "tune", "synthetic-10-90", "-a", "fedsoft,local", "--lr", "0.01,0.1", "--epochs", "2", *options]
    done = subprocess.run([*command, "--seeds", "9"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "held out" in done.stdout
    folder = next(tmp_path.glob("runs/tune-*"))
    assert len([t for t in json.loads((folder / "trials.json").read_text())["trials"] if not t["further"]]) == 4
    assert "fedsoft compare synthetic-10-90 -a" in done.stdout
    bad = subprocess.run([*command, "--lr", "0,x"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: --lr '0,x' is not allowed")


def test_settings_that_an_algorithm_declares_are_tuned() -> None:
    grid = Grid.around(small())
    (plain, given, other) = read_methods("fedsoft,fedsoft(lam=0.3),fedavg").listed
    assert grid.ranges(plain) == {"lam": (0.01, 0.1, 1.0, 10.0)}
    assert grid.ranges(given) == grid.ranges(other) == {}
    assert Grid.around(small(), further={"lam": [2, 1]}).ranges(plain) == {"lam": (1, 2)}
    (made,) = read_methods(fs.FedSoft(S=3)).listed  # all its settings are there, but one was chosen
    assert (made.label, grid.ranges(made)) == ("fedsoft(S=3)", {"lam": (0.01, 0.1, 1.0, 10.0)})


def test_a_grid_is_widened_beyond_its_edge() -> None:
    found = tuning(trial("ifca", 0.1, 3.0), trial("ifca", 0.2, 2.0), trial("ifca", 0.4, 1.0))
    assert found.edge("ifca", "lr") == 1
    assert tuning_room.beyond(found, "ifca", "lr") == ("ifca", 0.8, 2, ())
    inside = tuning(trial("ifca", 0.1, 3.0), trial("ifca", 0.2, 1.0), trial("ifca", 0.4, 2.0))
    assert tuning_room.beyond(inside, "ifca", "lr") is None
    two = tuning(trial("ifca", 0.1, 3.0), trial("ifca", 0.2, 2.0))  # of two rates the better one is at the edge, too
    assert tuning_room.beyond(two, "ifca", "lr") == ("ifca", 0.4, 2, ())


def test_a_range_ends_where_the_algorithm_takes_no_more() -> None:
    (apfl, prox) = read_methods("apfl,fedprox").listed
    assert tuning_room.is_allowed(small(), apfl, Point("apfl", 0.1, 2, (("alpha", 1.0),)))
    assert not tuning_room.is_allowed(small(), apfl, Point("apfl", 0.1, 2, (("alpha", 1.12),)))
    assert tuning_room.is_allowed(small(), prox, Point("fedprox", 0.1, 2, (("mu", 1.12),)))


def test_a_setting_that_nobody_has_is_refused(tmp_path: Path) -> None:
    grid = Grid.around(small(), further={"lamb": [1.0]})
    with pytest.raises(InputError, match="--grid lamb: none of the algorithms has such a setting"):
        tune(small(), "fedsoft", [1], grid, ProcessPool(tmp_path))
