"""A run that was made in Python is saved, loaded and served like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsoft as fs
from fedsoft import plugins
from fedsoft.callbacks import BestRound
from fedsoft.runs.folder import RunFolder
from tests.cli.test_cli import run as run
from tests.helpers import same_models
from tests.test_conformance import algorithm

HERE = "tests.runs.test_saved"


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class OwnAverage(fs.FedAvg):
    """An algorithm of one's own."""


def clients(count: int = 6) -> fs.Federation:
    rng = np.random.default_rng(1)
    made = []
    for k in range(count):
        x = rng.standard_normal((24, 3))
        made.append((x, np.where(x[:, 0] * (1 if k % 2 else -1) > 0, "yes", "no")))
    return fs.Federation.from_clients(made, names=[f"c{k}" for k in range(count)]).standardized()


def fitted(model: Any = None, algorithm: Any = None, **more: Any) -> fs.Run:
    return fs.fit(
        algorithm or fs.FedSoft(S=2), clients(), model or fs.models.mlp([4]), rounds=3, solver=fs.Adam(epochs=2),
        **{"options": fs.FitOptions(workers=1), **more},
    )  # fmt: skip


MODELS = {
    "mlp": (lambda: fs.models.mlp([4]), "mlp", {}),
    "linear": (lambda: fs.models.linear(bias=True), "linear", {}),
    "factory": (lambda: small_net, "module", {"allow": [f"{HERE}:small_net"]}),
    "named factory": (lambda: fs.models.module(f"{HERE}:small_net"), "module", {"allow": [f"{HERE}:small_net"]}),
    "object": (small_net, "python:object", {"model": small_net()}),
    "lambda": (lambda: lambda: small_net(), "python:object", {"model": small_net}),
    "built of an object": (lambda: fs.models.module(small_net()), "python:object", {"model": small_net()}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_loaded_predicts_the_same(kind: str, tmp_path: Path) -> None:
    make, name, given = MODELS[kind]
    made = fitted(make())
    assert made.save(tmp_path / "kept") == tmp_path / "kept"
    spec = RunFolder.open(tmp_path / "kept").spec()
    assert (spec.model.name, spec.dataset.name, spec.algorithm.name) == (name, "python:object", "fedsoft")
    assert spec.dataset.settings == {"fingerprint": made.federation.fingerprint}
    loaded = fs.load(tmp_path / "kept", **given)
    x, y = np.linspace(-2, 2, 15).reshape(5, 3), ["yes", "no", "no", "yes", "yes"]
    whose: list[dict[str, Any]] = [{"center": 0}, {"center": 1}, {"client": "c3"}]
    for who in whose:
        assert torch.equal(made.predict(x, **who), loaded.predict(x, **who))
    assert loaded.scores() == made.scores()
    assert loaded.history == made.history
    assert same_models(loaded, made)
    for how in ("mixture", "personal"):
        assert made.adopt(x, y, how=how).to_dict() == loaded.adopt(x, y, how=how).to_dict()
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} <= {".toml", ".json", ".jsonl", ".safetensors"}


@pytest.mark.parametrize("name", plugins.names("algorithms"))
def test_every_algorithm_is_saved(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fed = fs.Federation.from_clients([(x := rng.standard_normal((9, 3)), x.sum(1)) for _ in range(6)])
    made = fs.fit(
        algorithm(name, 6), fed, fs.models.linear(), rounds=3, options=fs.FitOptions(workers=1),
        conditions=fs.Conditions(dropout=0.1),
    )  # fmt: skip
    loaded = fs.load(made.save(tmp_path / "kept"))
    assert loaded.engine.algorithm == made.engine.algorithm
    assert same_models(loaded, made)


def test_conditions_are_in_the_spec(tmp_path: Path) -> None:
    conditions = fs.Conditions(
        dropout=0.2, aggregator=fs.aggregators.trimmed(), attack=fs.attacks.sign_flip(share=0.2), guard=5.0
    )
    fitted(conditions=conditions).save(tmp_path / "kept")
    spec = RunFolder.open(tmp_path / "kept").spec()
    assert spec.aggregator is not None
    assert spec.attack is not None
    assert (spec.aggregator.name, spec.attack.name, spec.attack.settings["share"]) == ("trimmed", "sign_flip", 0.2)
    assert (spec.dropout, spec.guard, spec.rounds, spec.dtype) == (0.2, 5.0, 3, "float32")
    assert fs.load(tmp_path / "kept").engine.conditions.guard == 5.0


def test_an_object_without_a_name_is_asked_for(tmp_path: Path) -> None:
    fitted(small_net()).save(tmp_path / "kept")
    with pytest.raises(fs.InputError, match=r"passed as an object in Python.*fs.load\(path, model=...\)"):
        fs.load(tmp_path / "kept")
    with pytest.raises(fs.InputError, match="passed as an object in Python"):  # consent changes nothing
        fs.load(tmp_path / "kept", allow=["python:object"])
    with pytest.raises(fs.StoreError, match="the saved centers do not fit this run"):
        fs.load(tmp_path / "kept", model=nn.Linear(3, 2))
    with pytest.raises(fs.InputError, match="parts: 'net' is not allowed"):
        fs.load(tmp_path / "kept", parts={"net": small_net()})


def test_code_of_ones_own_is_imported_with_consent_only(tmp_path: Path) -> None:
    made = fitted(algorithm=OwnAverage())
    made.save(tmp_path / "kept")
    assert RunFolder.open(tmp_path / "kept").spec().algorithm.name == f"{HERE}:OwnAverage"
    with pytest.raises(fs.InputError, match="nothing was imported"):
        fs.load(tmp_path / "kept")
    assert same_models(fs.load(tmp_path / "kept", allow=[f"{HERE}:OwnAverage"]), made)

    class Hidden(fs.FedAvg):
        pass

    made = fitted(algorithm=Hidden())
    made.save(tmp_path / "hidden")
    assert same_models(fs.load(tmp_path / "hidden", parts={"algorithm": Hidden()}), made)


def test_a_folder_is_never_overwritten_nor_left_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fitted()
    made.save(tmp_path / "kept")
    before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    with pytest.raises(fs.StoreError, match="exists: save a run to a new folder"):
        made.save(tmp_path / "kept")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsoft.runs.folder.write_state", full)
    with pytest.raises(fs.StoreError, match="No space left"):
        made.save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before


def test_the_best_round_is_what_is_saved(tmp_path: Path) -> None:
    made = fs.fit(
        fs.FedSoft(S=2), clients(), fs.models.mlp([4]), rounds=8, solver=fs.SGD(lr=0.7),
        options=fs.FitOptions(workers=1, callbacks=[BestRound()]),
    )  # fmt: skip
    assert made.at_round < 8
    loaded = fs.load(made.save(tmp_path / "kept"))
    assert loaded.rounds == made.at_round
    assert same_models(loaded, made)


def test_a_loaded_run_is_saved_again(tmp_path: Path) -> None:
    made = fitted()
    loaded = fs.load(made.save(tmp_path / "kept"))
    again = fs.load(loaded.save(tmp_path / "again"))
    assert same_models(again, made)
    assert again.scores() == made.scores()


def test_what_the_error_of_a_callback_holds_can_be_saved(tmp_path: Path) -> None:
    def broken(record: Any) -> None:
        raise OSError("disk full")

    with pytest.raises(fs.CallbackError) as caught:
        fitted(options=fs.FitOptions(workers=1, callbacks=[broken]))
    run = caught.value.run
    again = fs.load(run.save(tmp_path / "kept"))
    assert again.rounds == 1
    assert same_models(run.extend(3), fitted())


# --- on the command line ----------------------------------------------------------------------------------------------


def test_the_commands_work_on_it(run: Any, tmp_path: Path) -> None:
    fitted().save(tmp_path / "runs" / "mine")
    rows = ["0,1,2,target", "100.0,1,-1,yes", "-3,0.5,2,no", "1,0.1,0.1,no"]
    (tmp_path / "new.csv").write_text("\n".join(rows) + "\n")
    code, out, err = run("show", "mine", "--json")
    assert code == 0, err
    assert json.loads(out)["runs"][0]["state"] == "finished"
    for command in (
        ("ls",), ("show", "mine"), ("report", "mine", "--out", "page.html"), ("export", "mine", "--format", "torch"),
        ("adopt", "mine", "--data", "new.csv", "--label", "target"),
        ("predict", "mine", "--client", "c2", "--data", "new.csv", "--label", "target"),
    ):  # fmt: skip
        code, _, err = run(*command)
        assert code == 0, (command, err)


def test_the_commands_say_what_they_cannot_do(run: Any, tmp_path: Path) -> None:
    fitted(small_net()).save(tmp_path / "runs" / "mine")
    (tmp_path / "new.csv").write_text("0,1,2,y\n1,1,-1,yes\n")
    for command in (("ls",), ("show", "mine"), ("report", "mine", "--out", "page.html")):
        code, _, err = run(*command)
        assert code == 0, (command, err)
    for command in (
        ("adopt", "mine", "--data", "new.csv"), ("predict", "mine", "--center", "0", "--data", "new.csv"),
        ("export", "mine"), ("resume", "mine", "--rounds", "9"),
        ("export", "mine", "--allow", "python:object"),
    ):  # fmt: skip
        code, _, err = run(*command)
        assert code == 2, command
        assert "passed as an object in Python" in err, err
        assert "Traceback" not in err
