"""The choice of an engine, and what happens when a place with clients is lost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsoft as fs
from fedsoft.engine import registry as engines
from fedsoft.engine.local import LocalEngine
from fedsoft.errors import WorkerLost
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.launch import launch
from fedsoft.training import Run
from fedsoft.training.rounds import PATIENCE
from tests.helpers import trained

SPEC = RunSpec.from_dict({
    "rounds": 4, "algorithm": {"name": "ditto", "K": 3}, "model": "linear", "solver": {"name": "sgd", "lr": 0.01},
    "partition": "10:90",
    "dataset": {"name": "synthetic", "clients": 5, "points": [5, 16], "dimension": 3, "test_points": 20},
})  # fmt: skip


class Fragile(LocalEngine):
    """Loses all its clients in some rounds, once each time that is said, as a worker on another machine may."""

    losses: list[int]
    restarted = 0

    def round_notes(self) -> dict[str, Any]:
        if self.t in self.losses:
            self.losses.remove(self.t)
            self.host.client_states["w"] = torch.full_like(self.host.client_states["w"], torch.nan)
            raise WorkerLost("worker 1 is lost")
        return super().round_notes()

    def restart_workers(self) -> None:
        self.restarted += 1


def fragile(*losses: int) -> engines.Factory:
    def make(*parts: Any, **options: Any) -> Fragile:
        made = Fragile(*parts, **options)
        made.losses = list(losses)
        return made

    return make


def fitted(**options: Any) -> Run:
    fed = fs.datasets.synthetic(clients=5, points=(5, 16), dimension=3, test_points=20)
    return trained(fs.Ditto(K=3), fed, fs.models.linear(), rounds=4, solver=fs.SGD(lr=0.01), **options)


def test_local_is_this_process_and_a_factory_is_taken_as_it_is() -> None:
    assert engines.find() is LocalEngine
    assert engines.find("local") is LocalEngine
    mine = fragile()
    assert engines.find(mine) is mine
    assert isinstance(fitted(engine=mine).engine, Fragile)


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(fs.InputError, match=r"unknown engine 'rya': did you mean 'ray'\? \(known: flower, local"):
        engines.find("rya")


def test_local_has_no_address() -> None:
    with pytest.raises(fs.InputError, match=r"address = 'x:1' is not allowed: engine 'local' takes none"):
        fitted(engine="local", address="x:1")


def test_an_engine_whose_extra_is_not_installed_says_how_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedsoft.studies.launch.find_spec", lambda name: None)
    with pytest.raises(fs.InputError, match=r"engine 'flower' needs .* pip install \"fedsoft\[flower\]\""):
        launch(SPEC, tmp_path / "run", RunOptions(engine="flower"))
    for name in ("fedsoft.engine.ray", "fedsoft.engine.ray_cluster"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("fedsoft.engine.ray", raising=False)
    monkeypatch.setitem(
        sys.modules, "fedsoft.engine.shard", None
    )  # an error of our own is not said to be a missing extra
    with pytest.raises(ModuleNotFoundError):
        engines.find("ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fs.InputError, match=r"engine 'ray' needs .* pip install \"fedsoft\[ray\]\""):
        engines.find("ray")


def test_fit_goes_on_after_a_loss_to_the_same_bits_and_tells_each_round_once() -> None:
    told: list[int] = []
    run = fitted(engine=fragile(1, 3, 3), callbacks=[lambda record: told.append(record.round)])
    plain = fitted()
    assert isinstance(run.engine, Fragile)
    assert run.engine.restarted == 3
    assert told == [1, 2, 3, 4]
    assert torch.equal(run.state.centers, plain.state.centers)
    assert torch.equal(run.engine.client_states["w"], plain.engine.client_states["w"])


def test_a_saved_run_goes_on_after_a_loss_to_the_same_bits(tmp_path: Path) -> None:
    plain, _ = execute(SPEC, tmp_path / "plain", RunOptions())
    other, finished = execute(SPEC, tmp_path / "other", RunOptions(engine=fragile(0, 2)))
    assert finished
    assert (plain.path / "state.safetensors").read_bytes() == (other.path / "state.safetensors").read_bytes()
    assert plain.scores() == other.scores()
    assert [record.round for record in other.records()] == [1, 2, 3, 4]


def test_what_is_lost_again_and_again_ends_in_a_sentence() -> None:
    with pytest.raises(fs.FedsoftError, match=r"worker 1 is lost; it was brought back 3 times"):
        fitted(engine=fragile(*[2] * (PATIENCE + 1)))
