"""More rounds, and other clients: a run goes on from its end in a folder of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.callbacks import EarlyStopping
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.origin import Origin
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from tests.cli.test_cli import run as run
from tests.helpers import logged, same_models
from tests.runs.test_alone import write
from tests.test_conformance import algorithm, clients

ONE = RunOptions(workers=1)
NAMES = [f"c{k}" for k in range(9)]


def federation(names: list[str] | None = None) -> fs.Federation:
    """Clients by name: each has the same points in every federation."""
    pairs = dict(zip([*NAMES, "new", "newer"], clients((7, 12, 5, 9, 16, 6, 11, 8, 10, 9, 12)), strict=True))
    chosen = names or NAMES
    return fs.Federation.from_clients([pairs[name] for name in chosen], names=chosen)


def closes(name: str) -> bool:
    """Whether an algorithm ends linear models with tasks of its own."""
    return algorithm(name).closing_tasks(fs.models.linear()(federation().shape)) > 0


OPEN = [name for name in plugins.names("algorithms") if not closes(name)]


def fitted(name: str, rounds: int, fed: fs.Federation | None = None) -> fs.Run:
    return fs.fit(
        algorithm(name), fed or federation(), fs.models.linear(), rounds=rounds, solver=fs.SGD(lr=0.05, epochs=2),
        options=fs.FitOptions(workers=1),
    )  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_more_rounds_are_those_of_a_longer_run(name: str) -> None:
    short, whole = fitted(name, 3), fitted(name, 6)
    before = fitted(name, 3)
    longer = short.extend(6)
    assert same_models(longer, whole)
    # What knnper's clients kept after the third round, they did: the record stays.
    parts = (slice(2), slice(3, None)) if name == "knnper" else (slice(None),)
    for part in parts:
        assert logged(longer.history[part], "seconds") == logged(whole.history[part], "seconds")
    assert same_models(short, before)
    assert short.rounds == 3


@pytest.mark.parametrize("name", [name for name in plugins.names("algorithms") if name not in OPEN])
def test_an_algorithm_that_closes_says_so(name: str) -> None:
    with pytest.raises(fs.InputError, match=r"closes a run with a last round of its own.* rounds = 6"):
        fitted(name, 3).extend(6)


def test_which_algorithms_close() -> None:
    assert {"fedrep", "fedspd", "finetune"} == {*plugins.names("algorithms")} - {*OPEN}


def test_rounds_must_be_more() -> None:
    short = fitted("fedavg", 3)
    for rounds in (3, 0):
        with pytest.raises(fs.InputError, match=f"rounds = {rounds} is not allowed: the run has 3 rounds"):
            short.extend(rounds)
    with pytest.raises(fs.InputError, match="rounds = '9' is not allowed"):
        short.extend("9")  # pyright: ignore[reportArgumentType]


def test_a_loaded_run_goes_on_with_its_data(tmp_path: Path) -> None:
    fed = federation()
    loaded = fs.load(fitted("fedsoft", 3).save(tmp_path / "kept"))
    with pytest.raises(fs.InputError, match=r"needs the points of the run's clients: .*extend\(rounds, federation"):
        loaded.extend(6)
    with pytest.raises(fs.InputError, match=r"data = True is not allowed for run 'kept': its data was made in Python"):
        fs.load(tmp_path / "kept", data=True)
    assert same_models(loaded.extend(6, federation=fed), fitted("fedsoft", 6))


@pytest.mark.parametrize("name", OPEN)
def test_clients_join_and_leave(name: str) -> None:
    """Old ones keep what they know, wherever their rows are now; new ones begin as in the first round."""
    short = fitted(name, 3)
    names = ["new", *NAMES[::-1][1:], "newer"]  # c8 left
    longer = short.extend(4, federation=federation(names))
    assert longer.history[3].joined == ["new", "newer"]
    assert longer.history[3].left == ["c8"]
    assert not longer.history[2].joined
    assert longer.federation.names == tuple(names)
    assert all(bool(torch.isfinite(value.double()).all()) for value in longer.state.tensors().values())
    if longer.weights is not None:
        assert longer.weights.shape == (10, len(longer.state.centers))
    longer.scores()
    assert short.federation.names == tuple(NAMES)


def test_what_clients_know_goes_along() -> None:
    """A round in which nobody is asked shows the states as they were moved."""
    from fedsoft.training.snapshot import Snapshot

    names = ["new", "c4", "c1"]
    short = fitted("fedsoft", 3)
    fresh = fs.fit(fs.FedSoft(S=2), federation(names), fs.models.linear(), rounds=0, solver=fs.SGD(lr=0.05, epochs=2))
    moved = Snapshot.of(short).moved(short.federation.names, fresh.engine, fresh.federation)
    assert moved.clients is not None
    for name, rows in moved.clients.items():
        assert torch.equal(rows[1], short.engine.client_states[name][4])
        assert torch.equal(rows[2], short.engine.client_states[name][1])
        assert torch.equal(rows[0], fresh.engine.client_states[name][0])
    assert torch.equal(moved.state.u[[1, 2]], short.state.u[[4, 1]])
    assert moved.state.u[0].tolist() == [0.5, 0.5]
    assert torch.equal(moved.state.centers, short.state.centers)


def test_new_clients_get_a_mixture_at_the_next_estimation() -> None:
    made = fs.fit(
        fs.FedSoft(S=2, tau=2), federation(), fs.models.linear(), rounds=3, solver=fs.SGD(lr=0.05),
        options=fs.FitOptions(workers=1),
    )  # fmt: skip
    names = [*NAMES, "new"]
    one, two = (made.extend(rounds, federation=federation(names)) for rounds in (4, 5))
    assert one.weights is not None
    assert two.weights is not None
    assert one.weights[-1].tolist() == [0.5, 0.5]  # round 4 estimates nothing
    assert two.weights[-1].tolist() != [0.5, 0.5]


def test_a_federation_of_another_kind_is_refused() -> None:
    short = fitted("fedavg", 2)
    rng = np.random.default_rng(0)
    wide = fs.Federation.from_clients([(rng.standard_normal((5, 4)), rng.standard_normal(5))], names=["c0"])
    with pytest.raises(fs.InputError, match="the shape of this federation should be those of the run"):
        short.extend(4, federation=wide)
    with pytest.raises(fs.InputError, match="none of the clients of the run is in this federation"):
        short.extend(4, federation=federation(["new", "newer"]))
    with pytest.raises(
        fs.InputError, match=r"scaled by its own points, but the run .*: make it with standardize=False"
    ):
        short.extend(4, federation=federation().standardized())


def test_new_clients_are_scaled_as_the_run_is() -> None:
    made = fs.fit(
        fs.FedAvg(), federation(NAMES[:4]).standardized(), fs.models.linear(), rounds=2,
        options=fs.FitOptions(workers=1),
    )  # fmt: skip
    raw = federation([*NAMES[:4], "new"])
    longer = made.extend(3, federation=raw)
    scale = made.federation.scale
    assert scale is not None
    assert torch.equal(longer.federation.train.x, scale(raw.train.x))


# --- in folders -------------------------------------------------------------------------------------------------------


def spec(rounds: int, **changes: Any) -> RunSpec:
    raw: dict[str, Any] = {
        "rounds": rounds, "algorithm": {"name": "fedsoft", "S": 2, "K": 5}, "model": "linear", "partition": "10:90",
        "solver": {"name": "sgd", "lr": 0.05, "epochs": 2},
        "dataset": {"name": "synthetic", "clients": 9, "points": [8, 16], "dimension": 3, "test_points": 20},
    }  # fmt: skip
    return RunSpec.from_dict(raw | changes, "short")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_finished_run_gets_more_rounds_in_a_folder_of_its_own(run: Any, tmp_path: Path) -> None:
    short, whole = tmp_path / "runs" / spec(3).id, tmp_path / "whole"
    execute(spec(3), short, ONE)
    execute(spec(7), whole, ONE)
    before = content(short)
    code, out, err = run("resume", short.name, "--rounds", "7", "--json")
    assert code == 0, err
    found = json.loads(out)["runs"][0]
    assert found["run"] == spec(7).id  # the very name that it has with seven rounds from the start
    assert found["parent"] | {"hash": ""} == {
        "run": short.name, "hash": "", "rounds": 3, "joined": [], "left": []
    }  # fmt: skip
    longer = RunFolder.open(tmp_path / "runs" / found["run"])
    assert (longer.path / "state.safetensors").read_bytes() == (whole / "state.safetensors").read_bytes()
    assert longer.scores() == RunFolder.open(whole).scores()
    assert logged(longer.records(), "seconds") == logged(RunFolder.open(whole).records(), "seconds")
    assert {name: text for name, text in content(short).items() if name in before} == before
    code, _, err = run("resume", short.name, "--rounds", "7")
    assert "was finished before" in err


def test_a_stopped_longer_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    short, _ = execute(spec(3), tmp_path / "short", ONE)
    whole, _ = execute(spec(7), tmp_path / "whole", ONE)
    stops = iter([False, True])
    origin = Origin(short)
    longer = origin.spec(7)
    options = RunOptions(workers=1, should_stop=lambda: next(stops))
    folder, finished = execute(longer, tmp_path / "longer", options, origin=origin)
    assert not finished
    assert len(folder.records()) == 5
    folder, finished = execute(longer, tmp_path / "longer", ONE)
    assert finished
    assert (folder.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()


@pytest.mark.parametrize("keep", [None, 2])
def test_an_algorithm_that_closes_goes_back(keep: int | None, tmp_path: Path) -> None:
    """To the last state that is kept before its last round, or to the first one."""
    chosen = {"algorithm": "finetune"}
    short, _ = execute(spec(3, **chosen), tmp_path / "short", RunOptions(workers=1, keep=keep))
    whole, _ = execute(spec(6, **chosen), tmp_path / "whole", ONE)
    said: list[str] = []
    origin = Origin(short)
    options = RunOptions(workers=1, say=said.append)
    longer, _ = execute(origin.spec(6), tmp_path / "longer", options, origin=origin)
    assert (longer.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()
    assert any(f"going on from {'round 2' if keep else 'the first round'}" in text for text in said)


def test_what_cannot_go_on_leaves_nothing_behind(run: Any, tmp_path: Path) -> None:
    short = tmp_path / "runs" / spec(3).id
    execute(spec(3), short, ONE)
    code, _, err = run("resume", short.name, "--rounds", "2")
    assert code == 2
    assert "rounds = 2 is not allowed" in err
    assert "has played 3, should be more" in err
    code, _, err = run("resume", short.name, "--join")
    assert code == 2
    assert "has played 3, should be more (--rounds)" in err
    code, _, err = run("resume", short.name, "--join", "--rounds", "5", "--data", "nowhere")
    assert code == 2
    assert "reads no files" in err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [short.name]


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    for seed, name in enumerate("abcd"):
        write(tmp_path / "hospitals", name, seed)
    dataset = {"name": "folder", "path": str(tmp_path / "hospitals"), "label": "outcome", "standardize": True}
    raw: dict[str, Any] = {
        "rounds": 3, "algorithm": {"name": "fedsoft", "S": 2}, "model": {"name": "mlp", "hidden": [3]},
        "dataset": dataset, "solver": {"name": "adam", "lr": 0.05, "epochs": 3},
    }  # fmt: skip
    chosen = RunSpec.from_dict(raw, "hospitals")
    execute(chosen, tmp_path / "runs" / chosen.id, ONE)
    return tmp_path / "runs" / chosen.id


def test_clients_join_on_the_command_line(run: Any, tmp_path: Path, hospitals: Path) -> None:
    before = content(hospitals)
    write(tmp_path / "hospitals", "e", 4)
    write(tmp_path / "hospitals", "f", 5)
    (tmp_path / "hospitals" / "a.csv").unlink()
    code, out, err = run("resume", hospitals.name, "--join", "--rounds", "6", "--json")
    assert code == 0, err
    assert "before round 4 2 clients joined (e, f) and 1 client left (a)" in err
    found = json.loads(out)["runs"][0]
    assert found["parent"]["joined"] == ["e", "f"]
    assert found["parent"]["left"] == ["a"]
    child = RunFolder.open(tmp_path / "runs" / found["run"])
    assert [bool(record.joined) for record in child.records()] == [False, False, False, True, False, False]
    assert child.data.names == ["b", "c", "d", "e", "f"]
    assert child.data.mean == RunFolder.open(hospitals).data.mean  # models know no other scale
    assert {name: text for name, text in content(hospitals).items() if name in before} == before
    for command in (("show", found["run"]), ("report", found["run"], "--out", "page.html"), ("ls",)):
        code, out, err = run(*command)
        assert code == 0, err
    code, out, _ = run("show", found["run"])
    assert "Clients: before round 4 2 clients joined (e, f)" in out
    assert f"Goes on from {hospitals.name} after round 3" in out
    whole = fs.load(child.path, data=True)
    assert whole.scores() == fs.load(child.path).scores()


def test_a_run_with_new_clients_resumes_to_the_same_bits(tmp_path: Path, hospitals: Path) -> None:
    write(tmp_path / "hospitals", "e", 4)
    origin = Origin(RunFolder.open(hospitals), joins=True)
    chosen = origin.spec(6)
    whole, _ = execute(chosen, tmp_path / "whole", ONE, origin=origin)
    stops = iter([True])
    options = RunOptions(workers=1, should_stop=lambda: next(stops))
    execute(chosen, tmp_path / "stopped", options, origin=origin)
    resumed, finished = execute(chosen, tmp_path / "stopped", ONE)
    assert finished
    assert (resumed.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()
    assert chosen.hash != RunFolder.open(hospitals).spec().hash
    assert chosen.parent == f"{RunFolder.open(hospitals).info.hash} after round 3"


def test_a_client_with_another_class_is_refused(run: Any, tmp_path: Path, hospitals: Path) -> None:
    path = tmp_path / "hospitals" / "e.csv"
    shutil.copy(tmp_path / "hospitals" / "a.csv", path)
    path.write_text(path.read_text().replace("yes", "maybe"))
    code, _, err = run("resume", hospitals.name, "--join", "--rounds", "6")
    assert code == 2
    assert "should be those of the run" in err
    assert [one.name for one in hospitals.parent.iterdir()] == [hospitals.name]


def test_a_file_cannot_name_a_parent(run: Any, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('parent = "abc"\n' + spec(3).to_toml())
    code, _, err = run("run", "own.toml")
    assert code == 2
    assert "fedsoft resume RUN --join" in err


# --- early stopping in folders ----------------------------------------------------------------------------------------

STOPPING = {"patience": 2, "restore": True}
WILD = {"name": "sgd", "lr": 0.35, "epochs": 4}


def test_early_stopping_by_name_resumes_to_the_same_bits(tmp_path: Path) -> None:
    chosen = spec(30, early_stopping=STOPPING, solver=WILD)
    assert RunSpec.from_dict(chosen.to_dict(), "short").hash == chosen.hash
    whole, _ = execute(chosen, tmp_path / "whole", ONE)
    records, outcome = whole.records(), whole.outcome()
    assert outcome is not None
    assert 3 <= len(records) < 30
    assert outcome.ended_by == "EarlyStopping"
    values = [record.held_out["mse"] for record in records]
    assert outcome.rounds == 1 + int(np.argmin(values)) == len(records) - 2
    assert whole.states.kept == [outcome.rounds]
    fit = fs.fit(
        fs.FedSoft(S=2, K=5), fs.load(whole.path, data=True).federation, fs.models.linear(), rounds=30,
        solver=fs.SGD(lr=0.35, epochs=4),
        options=fs.FitOptions(workers=1, callbacks=[EarlyStopping(patience=2, restore=True)]),
    )  # fmt: skip
    loaded = fs.load(whole.path)
    assert same_models(fit, loaded)
    assert (loaded.at, loaded.rounds, loaded.ended_by) == (fit.at, fit.rounds, fit.ended_by)
    assert loaded.scores() == fit.scores()
    stop, finished = True, False
    for _ in range(len(records) + 1):
        _, finished = execute(chosen, tmp_path / "stopped", RunOptions(workers=1, should_stop=lambda: stop))
    resumed = RunFolder.open(tmp_path / "stopped")
    assert finished
    assert content(resumed.path)["state.safetensors"] == content(whole.path)["state.safetensors"]
    assert resumed.states.kept == whole.states.kept
    assert resumed.scores() == whole.scores()
    with pytest.raises(fs.InputError, match="EarlyStopping ended run 'whole' after round"):
        Origin(whole).spec(40)


def test_early_stopping_and_logs_on_the_command_line(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "own.toml").write_text(spec(30, solver=WILD).to_toml())
    code, out, err = run("run", "own.toml", "--set", "early_stopping.patience=2", "--log", "tensorboard", "--json")
    assert code == 0, err
    found = json.loads(out)["runs"][0]
    assert found["state"] == "finished (early)"
    assert list(Path(found["path"]).glob("tensorboard/events*"))
    code, out, _ = run("show", found["run"])
    assert f"Ended by EarlyStopping after round {found['rounds']}" in out
    for change, words in (("patience=0", "early_stopping.patience = 0"), ("metric=f1", "f1"), ("wait=3", "wait")):
        code, _, err = run("run", "own.toml", "--set", f"early_stopping.{change}")
        assert code == 2
        assert words in err
    code, _, err = run("run", "own.toml", "--log", "tensorbord")
    assert code == 2
    assert "did you mean 'tensorboard'" in err
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_clients_at_nodes_are_not_watched(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    (tmp_path / "own.toml").write_text(spec(3).to_toml())
    for options, words in (
        (("--set", "early_stopping.patience=2"), "early_stopping is not possible where clients are at nodes"),
        (("--log", "mlflow"), "callbacks such as MLflow look at the run itself"),
    ):
        code, _, err = run("run", "own.toml", "--engine", "flower", *options)
        assert code == 2
        assert words in err
    assert not (tmp_path / "runs").exists()


def test_a_callback_that_raises_leaves_a_run_to_resume(tmp_path: Path) -> None:
    whole, _ = execute(spec(5), tmp_path / "whole", ONE)

    def broken(record: Any) -> None:
        if record.round == 3:
            raise OSError("disk full")

    with pytest.raises(fs.CallbackError, match=r"broken failed after round 3: OSError: disk full \(the run is saved"):
        execute(spec(5), tmp_path / "stopped", RunOptions(workers=1, callbacks=[broken]))
    folder = RunFolder.open(tmp_path / "stopped")
    assert folder.states.saved_rounds() == len(folder.records()) == 3
    execute(spec(5), tmp_path / "stopped", ONE)
    assert content(folder.path)["state.safetensors"] == content(whole.path)["state.safetensors"]
