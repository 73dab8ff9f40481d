from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsoft import spec
from fedsoft.errors import InputError
from fedsoft.spec import RunSpec


def test_every_preset_reads_and_says_what_it_is_about() -> None:
    assert "synthetic-10-90" in spec.presets()
    for name, about in spec.presets().items():
        assert about, name
        assert spec.read(name).rounds > 0


def test_defaults_are_written_out() -> None:
    """A later version with other defaults must still run what was meant."""
    text = tomllib.loads(spec.read("synthetic-10-90").to_toml())
    assert text["local"]["beta2"] == 0.999
    assert text["algorithm"]["replacement"] is False


def test_a_spec_survives_the_way_through_toml() -> None:
    first = spec.read("synthetic-8", ["lam=0.3"])
    second = RunSpec.from_dict(tomllib.loads(first.to_toml()), first.label)
    assert second == first
    assert second.hash == first.hash


@pytest.mark.parametrize("change", ["lam=0.5", "seed=1", "rounds=3", "partition=30:70", "local.lr=0.1", "dropout=0.5",
                                    "score_every=2", "source=0"])  # fmt: skip
def test_the_hash_changes_with_every_setting(change: str) -> None:
    assert spec.read("synthetic-10-90", [change]).hash != spec.read("synthetic-10-90").hash


@pytest.mark.parametrize("change", ["about=other", "lam=1", "algorithm.lam=1.0", "partition=1:9", "K=60"])
def test_the_hash_does_not_change_with_how_it_is_written(change: str) -> None:
    same = "partition=1.0:9.0" if change.startswith("partition") else "rounds=50"
    assert spec.read("synthetic-10-90", [change]).hash == spec.read("synthetic-10-90", [same]).hash


def test_a_short_key_finds_its_part() -> None:
    assert spec.read("synthetic-10-90", ["lam=0.25"]).algorithm.settings["lam"] == 0.25
    assert spec.read("synthetic-10-90", ["lr=0.25"]).local.settings["lr"] == 0.25
    assert spec.read("synthetic-10-90", ["noise=2"]).dataset.settings["noise"] == 2.0


def test_another_name_drops_the_settings_of_the_old_one() -> None:
    changed = spec.read("synthetic-10-90", ["local=sgd", "local.momentum=0.9"])
    assert changed.local.name == "sgd"
    assert changed.local.settings["momentum"] == 0.9
    assert "beta1" not in changed.local.settings


def test_the_order_of_changes_does_not_matter() -> None:
    one = spec.read("synthetic-10-90", ["K=10", "lr=0.1", "algorithm=fedavg", "local=sgd"])
    other = spec.read("synthetic-10-90", ["algorithm=fedavg", "local=sgd", "K=10", "lr=0.1"])
    assert one.hash == other.hash
    assert one.algorithm.settings["K"] == 10
    assert one.local.settings["lr"] == 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("partition.name=5", "should be a name"),
        ("lamb=2", "did you mean 'lam'"),
        ("algorithm.lm=2", "did you mean 'lam'"),
        ("lam=-1", "fedsoft.lam = -1 is not allowed: should be greater than or equal to 0"),
        ("lam=nan", "finite"),
        ("algorithm.S=0", "fedsoft.S = 0"),
        ("K=none", "or 'all'"),
        ("K=true", "true or false"),
        ("S=3", "algorithm.S or dataset.S"),
        ("local=adm", "did you mean 'adam'"),
        ("algorithm=fedsof", "did you mean 'fedsoft'"),
        ("model=liner", "did you mean 'linear'"),
        ("partition=10:9x", "unknown partition '10:9x'"),
        ("partition=dirichlet(1,2)", "takes 1"),
        ("partition=dirichlet(-1)", "greater than 0"),
        ("points=[1,2,3]", "synthetic.points"),
        ("dataset.seed=3", "set 'seed' of the run"),
        ("rounds=-2", "rounds = -2"),
        ("rounds=1.5", "whole number"),
        ("seed=-1", "seed = -1"),
        ("dtype=float16", "float32, float64"),
        ("dropout=2", "from 0 to 1"),
        ("nonsense", "key=value"),
        ("foo.bar=1", "unknown key"),
        ("model.bias=[1]", "linear.bias"),
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
        ('algorithm = "fedsoft"\nmodel = "linear"', "no [dataset]"),
        ('algorithm = 3\nmodel = "linear"\ndataset = "synthetic"', "should be a name or a table"),
        (
            'algorithm = "fedsoft"\nmodel = "linear"\npartition = "10:90"\n[dataset]\nname = "folder"\npath = "x"',
            "takes no",
        ),
        ('algorithm = "fedsoft"\nmodel = "linear"\n[dataset]\nname = "folder"', "folder needs a value for 'path'"),
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
