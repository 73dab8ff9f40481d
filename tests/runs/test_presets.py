"""The presets of images: the paper's settings, and data and networks that fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsoft.data import registry
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.presets import presets
from fedsoft.runs.run_options import RunOptions, build
from tests.pictures import write_cifar, write_letters

PAPER = {
    "letters": {"N": 100, "n": [100, 200], "K": 60, "lam": 0.1, "lr": 1e-5, "batch": 5, "epochs": 5},
    "cifar": {"N": 20, "n": [3000, 3500], "K": 15, "lam": 0.01, "lr": 5e-4, "batch": 64, "epochs": 10},
}
OTHERS = {
    "synthetic-8",
    "letters-4",
    "digits-2",
    "digits-4",
    "digits-conflict",
    "electricity",
    "train",
    "swissmetro",
    "writers",
}
IMAGES = [name for name in presets() if name.startswith(("letters", "cifar", "digits"))]


@pytest.fixture(autouse=True, scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A few images in the files of letters and photographs."""
    folder = tmp_path_factory.mktemp("data")
    write_letters(folder / "letters", 5, 1)
    write_cifar(folder / "cifar-10-batches-bin", 20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(registry.VARIABLE, str(folder))
        yield


def test_there_is_one_for_every_experiment_of_the_paper() -> None:
    parts = ("10-90", "30-70", "linear", "random")
    wanted = {f"{data}-{part}" for data in ("synthetic", "letters", "cifar") for part in parts}
    assert wanted | OTHERS == set(presets())


@pytest.mark.parametrize("name", [name for name in IMAGES if not name.startswith("digits")])
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    found, paper = spec.read(name), PAPER[name.split("-")[0]]
    data, local, method = found.dataset.settings, found.solver.settings, found.algorithm.settings
    assert found.rounds == 200
    assert (data["clients"], data["points"], data["held_out"]) == (paper["N"], paper["n"], 0.0)
    assert (method["K"], method["tau"], method["sigma"], method["lam"]) == (paper["K"], 2, 1e-4, paper["lam"])
    assert (local["lr"], local["batch"], local["epochs"]) == (paper["lr"], paper["batch"], paper["epochs"])
    assert found.partition is not None
    assert data.get("augment", True) is True
    shares = {"10-90": ("ratio", [10, 90]), "30-70": ("ratio", [30, 70])}.get(name.partition("-")[2])
    if shares is not None:
        assert found.partition.name == shares[0]
        a, b = found.partition.settings.values()
        assert b / a == shares[1][1] / shares[1][0]
    else:
        assert found.partition.name == ("random" if name.endswith("-4") else name.partition("-")[2])


# Partitions of the same data and network are not tried again.
@pytest.mark.parametrize("name", [name for name in IMAGES if not name.endswith(("30-70", "linear", "random"))])
@pytest.mark.parametrize("fast", [False, True])
def test_data_and_network_fit_and_every_source_has_a_center(name: str, fast: bool) -> None:
    if fast and presets()[name].fast is None:
        pytest.skip("has no fast variant")
    federation, _ = build(spec.read(name, ["points=[3, 6]"], fast=fast), RunOptions())
    assert federation.truth is not None
    assert len(federation.truth.names) == spec.read(name).algorithm.settings["S"]
    assert (federation.train.augment is not None) == (name.startswith("cifar") and not fast)


def test_the_digits_run_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.VARIABLE)
    folder, finished = execute(spec.read("digits-2", ["rounds=2"]), tmp_path / "run", RunOptions())
    assert finished
    scores = folder.scores()
    assert scores is not None
    assert scores.sources == ["0°", "90°"]


@pytest.mark.slow
def test_digits_show_the_effect(tmp_path: Path) -> None:
    """Each source has a center of its own, and clients give most weight to the center of their larger source."""
    folder, _ = execute(spec.read("digits-2", ["rounds=20"]), tmp_path / "run", RunOptions())
    scores = folder.scores()
    assert scores is not None
    assert sorted(scores.best or []) == [0, 1]
    assert (scores.recovery or 1) < 0.1
    assert min(max(column) for column in zip(*(scores.centers or []), strict=True)) > 0.85
    for j, row in enumerate(folder.records()[-1].weights):
        assert row[(scores.alignment or []).index(j)] > 0.7
