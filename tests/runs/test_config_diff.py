"""Runs are told apart by the settings that are not those of their preset."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsoft.runs import spec
from fedsoft.runs.config_diff import apart, in_short
from fedsoft.runs.presets import presets

PRESET = "synthetic-10-90"
CHANGES = [
    ([], {}, ""),
    (["lam=0.1", "K=20"], {"algorithm.K": 20, "algorithm.lam": 0.1}, "K=20 lam=0.1"),
    (["seed=3", "rounds=7", "lam=1.0"], {}, ""),  # these have places of their own, and 1.0 is that of the preset
    (["dataset.S=3", "solver.lr=0.01"], {"dataset.S": 3, "solver.lr": 0.01}, "dataset.S=3 lr=0.01"),  # two parts have S
    (["points=[5, 9]", "dropout=0.5"], {"dropout": 0.5, "dataset.points": [5, 9]}, "dropout=0.5 points=[5,9]"),
    (["aggregator=median"], {"aggregator": "median"}, "aggregator=median"),
    (["solver=sgd", "solver.lr=0.3"], {"solver": "sgd", "solver.lr": 0.3}, "solver=sgd lr=0.3"),
    (["privacy.floor=2"], {"privacy.floor": 2.0}, "privacy.floor=2"),
    (["algorithm.name=ifca"], {}, ""),  # in a column of its own; S and K are carried over from the preset
    (["algorithm.name=ifca", "algorithm.S=3"], {"algorithm.S": 3}, "algorithm.S=3"),
    (["partition=30:70"], {"partition.a": 30.0, "partition.b": 70.0}, "a=30 b=70"),
    (["reseed=true"], {"algorithm.reseed": True}, "reseed=true"),
]


@pytest.mark.parametrize(("changes", "expected", "text"), CHANGES)
def test_what_was_changed_is_named_as_it_is_typed(changes: list[str], expected: dict[str, object], text: str) -> None:
    run = spec.read(PRESET, changes)
    (found,) = apart([run])
    assert {key: found[key] for key in sorted(found)} == dict(sorted(expected.items()))
    assert sorted(in_short(found, run).split()) == sorted(text.split())


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("fast", [False, True])
def test_presets_differ_from_themselves_in_nothing(name: str, fast: bool) -> None:
    if fast and presets()[name].fast is None:
        pytest.skip("has no fast variant")
    assert apart([spec.read(name, fast=fast)]) == [{}]


@pytest.mark.parametrize("change", ["lam=0.1", "K=20", "solver.lr=0.1", "dataset.noise=2.5", "guard=5", "work=100"])
def test_what_is_shown_leads_back_to_the_run(change: str) -> None:
    run = spec.read(PRESET, [change])
    assert spec.read(PRESET, in_short(apart([run])[0], run).split()) == run


def test_runs_of_a_file_are_compared_with_each_other(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('algorithm = "fedavg"\nmodel = "linear"\n[dataset]\nname = "folder"\npath = "hospitals"\n')
    one, two, three = (spec.read(str(file), changes) for changes in ([], ["solver.lr=0.1"], ["path=clinics"]))
    assert [in_short(found, run) for found, run in zip(apart([one, two]), (one, two), strict=True)] == [
        "lr=0.005",
        "lr=0.1",
    ]
    assert apart([one]) == [{}]
    assert in_short(apart([one, three])[1], three) == "path=clinics"
