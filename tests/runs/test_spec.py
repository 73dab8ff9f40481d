from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.errors import InputError
from fedsoft.runs import spec
from fedsoft.runs.presets import presets
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.compare import entries


def test_every_preset_reads_and_says_what_it_is_about() -> None:
    assert "synthetic-10-90" in presets()
    for name, preset in presets().items():
        assert preset.about, name
        assert spec.read(name).rounds > 0


@pytest.mark.parametrize(("given", "name"), [("plants", "folder"), ("all.csv", "table"), ("all.parquet", "table")])
def test_data_in_place_of_a_run_file_is_told_from_it(given: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "plants").mkdir()
    source = str(tmp_path / given)
    with pytest.raises(
        InputError, match=rf"'{source}' holds data: give a TOML file with dataset = \{{name = '{name}',"
    ):
        spec.read(source)


def test_defaults_are_written_out() -> None:
    """A later version with other defaults must still run what was meant."""
    text = tomllib.loads(spec.read("synthetic-10-90").to_toml())
    assert text["solver"]["beta2"] == 0.999
    assert text["algorithm"]["replacement"] is False


def test_a_spec_survives_the_way_through_toml() -> None:
    first = spec.read("synthetic-8", ["lam=0.3"])
    second = RunSpec.from_dict(tomllib.loads(first.to_toml()), first.label)
    assert second == first
    assert second.hash == first.hash


@pytest.mark.parametrize("change", ["lam=0.5", "seed=1", "rounds=3", "partition=30:70", "solver.lr=0.1", "dropout=0.5",
                                    "score_every=2", "source=0"])  # fmt: skip
def test_the_hash_changes_with_every_setting(change: str) -> None:
    assert spec.read("synthetic-10-90", [change]).hash != spec.read("synthetic-10-90").hash


@pytest.mark.parametrize("change", ["about=other", "lam=1", "algorithm.lam=1.0", "partition=1:9", "K=60"])
def test_the_hash_does_not_change_with_how_it_is_written(change: str) -> None:
    same = "partition=1.0:9.0" if change.startswith("partition") else "rounds=50"
    assert spec.read("synthetic-10-90", [change]).hash == spec.read("synthetic-10-90", [same]).hash


def test_a_short_key_finds_its_part() -> None:
    assert spec.read("synthetic-10-90", ["lam=0.25"]).algorithm.settings["lam"] == 0.25
    assert spec.read("synthetic-10-90", ["lr=0.25"]).solver.settings["lr"] == 0.25
    assert spec.read("synthetic-10-90", ["noise=2"]).dataset.settings["noise"] == 2.0


def test_another_name_drops_the_settings_of_the_old_one() -> None:
    changed = spec.read("synthetic-10-90", ["solver=sgd", "solver.momentum=0.9"])
    assert changed.solver.name == "sgd"
    assert changed.solver.settings["momentum"] == 0.9
    assert "beta1" not in changed.solver.settings


def test_the_order_of_changes_does_not_matter() -> None:
    one = spec.read("synthetic-10-90", ["K=10", "lr=0.1", "algorithm=fedavg", "solver=sgd"])
    other = spec.read("synthetic-10-90", ["algorithm=fedavg", "solver=sgd", "K=10", "lr=0.1"])
    assert one.hash == other.hash
    assert one.algorithm.settings["K"] == 10
    assert one.solver.settings["lr"] == 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("partition.name=5", "should be a name"),
        ("lamb=2", "did you mean 'lam'"),
        ("algorithm.lm=2", "did you mean 'lam'"),
        ("lam=-1", "algorithm.lam = -1 is not allowed: should be at least 0"),
        ("lam=nan", "finite"),
        ("algorithm.S=0", "algorithm.S = 0"),
        ("K=none", "algorithm.K = 'none' is not allowed: should be a whole number or 'all'"),
        ("solver.lr=0", "solver.lr = 0"),
        ("privacy.counts=-1", "privacy.counts = -1"),
        ("privacy.count=1", "unknown setting of privacy 'count': did you mean 'counts'?"),
        ("model.name=module", "model.factory is missing: 'module' needs a value for it"),
        ("K=true", "true or false"),
        ("S=3", "algorithm.S or dataset.S"),
        ("solver=adm", "did you mean 'adam'"),
        ("algorithm=fedsof", "did you mean 'fedsoft'"),
        ("model=liner", "did you mean 'linear'"),
        ("partition=10:9x", "unknown partition '10:9x'"),
        ("partition=dirichlet(1,2)", "takes 1"),
        ("partition=dirichlet(-1)", "above 0"),
        ("points=[1,2,3]", "dataset.points"),
        ("dataset.seed=3", "set 'seed' of the run"),
        ("rounds=-2", "rounds = -2"),
        ("rounds=1.5", "whole number"),
        ("seed=-1", "seed = -1 is not allowed: should be at least 0"),
        ("dtype=float16", "dtype = 'float16' is not allowed: should be 'float32' or 'float64'"),
        ("dropout=2", "dropout = 2 is not allowed: should be at most 1"),
        ("guard=0.5", "guard = 0.5 is not allowed: should be at least 1, or 0 for none"),
        ("seed=true", "seed = true is not allowed: should be a whole number"),
        ("diverged=go", "should be 'stop' or 'drop'"),
        ("nonsense", "key=value"),
        ("foo.bar=1", "unknown key"),
        ("model.bias=[1]", "model.bias"),
    ],
)
def test_a_bad_change_is_named_in_one_sentence(change: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        spec.read("synthetic-10-90", [change])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", "not valid TOML"),
        ('round = 3\nalgorithm = "fedsoft"', "did you mean 'rounds'"),
        ('algorithm = "fedsoft"\nmodel = "linear"', 'dataset is missing: give it a name, for instance dataset = "'),
        ('algorithm = 3\nmodel = "linear"\ndataset = "synthetic"', "should be a name or a table"),
        (
            'algorithm = "fedsoft"\nmodel = "linear"\npartition = "10:90"\n[dataset]\nname = "folder"\npath = "x"',
            "takes no",
        ),
        ('algorithm = "fedsoft"\nmodel = "linear"\n[dataset]\nname = "folder"', "dataset.path is missing"),
    ],
)
def test_a_bad_file_is_named_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=None) as caught:
        spec.read(str(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        spec.read(str(tmp_path / "a.toml"))


@given(st.text(max_size=40))
def test_no_change_makes_anything_but_a_sentence(change: str) -> None:
    try:
        spec.read("synthetic-10-90", [change])
    except InputError as error:
        assert "\n" not in str(error).replace(change, "")  # noqa: PT017


# Fast variants

OWN = """
about = "own data"
rounds = 100
partition = "10:90"
dataset = { name = "synthetic", clients = 30 }
algorithm = { name = "fedsoft", S = 2 }
model = "linear"
solver = { name = "adam", lr = 1e-3, batch = 7 }

[fast]
about = "a tenth of the rounds"
rounds = 10
partition = "30:70"
dataset = { clients = 20 }
model = { bias = true }
solver = { name = "sgd", lr = 0.1 }
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.toml").write_text(OWN)
    return str(tmp_path / "own.toml")


def test_the_fast_variant_changes_what_its_table_names(own: str) -> None:
    whole, fast = spec.read(own), spec.read(own, fast=True)
    assert (whole.rounds, fast.rounds) == (100, 10)
    assert fast.partition is not None
    assert fast.partition.settings == {"a": 30.0, "b": 70.0}
    assert fast.dataset.settings == whole.dataset.settings | {"clients": 20}
    assert fast.model.settings["bias"] is True
    assert fast.solver.name == "sgd"
    assert "beta1" not in fast.solver.settings  # another name drops the settings of the old one
    assert fast.solver.settings["batch"] != 7
    assert fast.algorithm == whole.algorithm


def test_the_fast_variant_is_labelled_everywhere(own: str) -> None:
    whole, fast = spec.read(own), spec.read(own, fast=True)
    assert fast.id.startswith("own-fast-s0-")
    assert fast.title.endswith(", seed 0, fast variant")
    assert fast.about == "own data (fast variant: a tenth of the rounds)"
    assert fast.to_dict()["variant"] == "fast"
    again = RunSpec.from_dict(tomllib.loads(fast.to_toml()), fast.label)
    assert again == fast
    assert again.hash == fast.hash
    for text in (whole.id, whole.title, whole.about, whole.to_toml()):
        assert "fast" not in text


def test_changes_are_made_to_the_fast_variant(own: str) -> None:
    assert spec.read(own, ["rounds=3", "lr=0.5"], fast=True).rounds == 3
    assert spec.read(own, ["lr=0.5"], fast=True).solver.settings["lr"] == 0.5


@pytest.mark.parametrize("fast", [False, True])
def test_what_has_no_fast_variant_says_so(tmp_path: Path, fast: bool) -> None:
    (tmp_path / "own.toml").write_text(OWN.partition("[fast]")[0])
    if not fast:
        assert spec.read(str(tmp_path / "own.toml")).rounds == 100
        return
    with pytest.raises(InputError, match=r"has no table \[fast\], so no fast variant \(presets with one: .*letters-10"):
        spec.read(str(tmp_path / "own.toml"), fast=True)
    with pytest.raises(InputError, match=r"--fast: 'synthetic-8' has no table \[fast\]"):
        spec.read("synthetic-8", fast=True)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("fast = 3", "fast = 3 is not allowed: should be a table of changes"),
        ("[fast]\nround = 3", "unknown key of a run 'round': did you mean 'rounds'"),
        ("[fast.solver]\nspeed = 3", "unknown setting of adam 'speed'"),
    ],
)
def test_a_bad_fast_table_is_one_sentence(tmp_path: Path, table: str, words: str) -> None:
    text = OWN.partition("[fast]")[0]
    (tmp_path / "own.toml").write_text(f"{table}\n{text}" if table.startswith("fast") else f"{text}\n{table}")
    with pytest.raises(InputError, match=words):
        spec.read(str(tmp_path / "own.toml"), fast=True)


def test_every_fast_variant_reads_and_is_smaller() -> None:
    found = {name: preset for name, preset in presets().items() if preset.fast is not None}
    assert {name for name in presets() if name.startswith(("letters", "cifar"))} <= found.keys()
    for name, preset in found.items():
        assert preset.fast, name
        assert spec.read(name, fast=True).rounds < spec.read(name).rounds


# Paths


@pytest.mark.parametrize("key", ["path", "data_dir"])
def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    dataset = {"path": 'name = "folder"', "data_dir": 'name = "mnist"'}[key]
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "own.toml").write_text(
        f'algorithm = "fedavg"\nmodel = "linear"\ndataset = {{ {dataset}, {key} = "data/here" }}\n'
        f'[fast.dataset]\n{key} = "data/small"\n'
    )
    monkeypatch.chdir(tmp_path)
    for source in ("study/own.toml", str(tmp_path / "study" / "own.toml")):
        assert spec.read(source).dataset.settings[key] == str(tmp_path / "study" / "data" / "here")
        assert spec.read(source, fast=True).dataset.settings[key] == str(tmp_path / "study" / "data" / "small")
    changed = spec.read("study/own.toml", [f"dataset.{key}=elsewhere"])
    assert changed.dataset.settings[key] == str(
        tmp_path / "elsewhere"
    )  # what is typed is relative to where it is typed


def test_full_paths_and_those_of_the_home_folder_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for text, wanted in (("/srv/data", "/srv/data"), ("~/data", "/home/somebody/data")):
        (tmp_path / "own.toml").write_text(
            f'algorithm = "fedavg"\nmodel = "linear"\ndataset = {{ name = "folder", path = "{text}" }}\n'
        )
        assert spec.read(str(tmp_path / "own.toml")).dataset.settings["path"] == wanted


def test_another_algorithm_keeps_centers_and_clients_and_is_named() -> None:
    """So that a run is the one that `compare` would make."""
    run = spec.read("synthetic-8", ["algorithm.name=fedroute"])
    assert (run.algorithm.settings["S"], run.algorithm.settings["K"]) == (8, 60)
    assert run.label == "synthetic-8-fedroute"
    assert run.id == entries(spec.read("synthetic-8"), "fedroute", [0])[0].spec.id
    assert "S" not in spec.read("synthetic-8", ["algorithm.name=local"]).algorithm.settings  # it has none
    assert spec.read("synthetic-8", ["algorithm.S=3", "algorithm.name=ifca"]).algorithm.settings["S"] == 3
    assert spec.read("synthetic-8", ["algorithm.name=fedsoft"]).label == "synthetic-8"
