from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedsoft.cli import app, main
from fedsoft.data import registry
from tests.pictures import numbered, write_cifar, write_letters

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in an empty folder: exit code and both outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "data"))
    monkeypatch.setattr(registry, "cache", lambda: tmp_path / "cache")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedsoft", "data", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


def size_of(picture: Path) -> tuple[int, int]:
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    return struct.unpack(">2I", content[16:24])


def test_every_command_has_an_example() -> None:
    group: Any = typer.main.get_command(app)
    commands = group.commands["data"].commands
    assert set(commands) == {"ls", "fetch", "check", "show"}
    for name in commands:
        shown = CliRunner().invoke(app, ["data", name, "--help"])
        assert f"fedsoft data {name}" in shown.output.split("Example:")[1]
    assert "Example:" in CliRunner().invoke(app, ["data", "--help"]).output


def test_ls_tells_where_files_are(run: Run, tmp_path: Path) -> None:
    write_letters(tmp_path / "data" / "letters", 1, 1)
    code, out, _ = run("ls")
    assert code == 0
    assert "fedsoft data fetch letters" not in out
    assert "fedsoft data fetch cifar10" in out
    code, out, _ = run("ls", "--json")
    folders = {row["name"]: row["folder"] for row in json.loads(out)}
    assert folders == dict.fromkeys(registry.COLLECTIONS) | {"letters": str(tmp_path / "data" / "letters")}


def test_check_tells_what_is_there(run: Run, tmp_path: Path) -> None:
    write_cifar(tmp_path / "mine", 10)
    code, out, _ = run("check", "cifar10", "--data-dir", "mine")
    assert code == 0
    assert "50 training and 10 test images in mine: readable, but fewer images than were published" in out
    _, out, _ = run("check", "cifar10", "--data-dir", "mine", "--json")
    found = json.loads(out)
    assert (found["train"], found["test"], found["complete"]) == (50, 10, False)


def test_check_of_missing_and_of_damaged_files_is_one_sentence(run: Run, tmp_path: Path) -> None:
    code, out, told = run("check", "letters")
    assert (code, out) == (2, "")
    assert told.startswith("error: letters: file 'emnist-byclass-train-images-idx3-ubyte.gz' is missing")
    write_letters(tmp_path / "data" / "letters", 1, 1)
    (tmp_path / "data" / "letters" / "emnist-byclass-test-labels-idx1-ubyte.gz").write_bytes(b"junk and more junk")
    code, _, told = run("check", "letters")
    assert code == 2
    assert "is damaged or not an idx file" in told


def test_fetch_uses_what_is_there_and_says_when_there_is_no_network(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_letters(tmp_path / "data" / "letters", 1, 1)
    code, out, told = run("fetch", "letters", "--json")
    assert (code, told) == (0, "")
    assert json.loads(out)["folder"] == str(tmp_path / "data" / "letters")

    wanted = registry.collection("cifar10")
    part = registry.Download("http://127.0.0.1:1/c.tar.gz", "0" * 32, "c", wanted.files)
    monkeypatch.setitem(registry.COLLECTIONS, "cifar10", replace(wanted, downloads=(part,)))
    code, _, told = run("fetch", "cifar10")
    assert code == 2
    assert "Downloading http://127.0.0.1:1/c.tar.gz ..." in told
    assert "http://127.0.0.1:1/c.tar.gz cannot be downloaded (" in told
    assert "Traceback" not in told


def test_an_unknown_name_gets_the_nearest_one(run: Run) -> None:
    for command in (["fetch", "leters"], ["check", "leters"], ["show", "leters", "--out", "a.png"]):
        code, _, told = run(*command)
        assert code == 2
        assert "did you mean 'letters'" in told


def test_show_draws_every_source(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("show", "digits", "--set", "permutations=2", "--out", "pictures/digits.png")
    assert code == 0
    assert "Saved pictures/digits.png" in out
    width, height = size_of(tmp_path / "pictures" / "digits.png")
    run("show", "digits", "--set", "rotations=[0]", "--out", "small.png")
    smaller = size_of(tmp_path / "small.png")
    assert width > 800
    assert height > 2 * smaller[1]
    code, out, _ = run("show", "digits", "--out", "a.png", "--json")
    assert json.loads(out) == {"name": "digits", "file": "a.png", "sources": ["0°", "90°"]}


def test_show_draws_clients_where_sources_are_unknown(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "n.npz", images=numbered(6, 3, 5, 5), labels=np.arange(6), clients=np.arange(6) % 2)
    code, out, _ = run("show", "natural", "--set", "path=n.npz", "--out", "n.png", "--json")
    assert code == 0
    assert json.loads(out)["sources"] is None
    assert size_of(tmp_path / "n.png")[0] > 100


def test_show_takes_the_folder_of_the_files(run: Run, tmp_path: Path) -> None:
    write_letters(tmp_path / "mine", 1, 1)
    code, out, _ = run(
        "show", "letters", "--data-dir", "mine", "--set", "rotations=[0, 90]", "--out", "l.png", "--json"
    )
    assert code == 0
    assert json.loads(out)["sources"] == ["lower 0°", "lower 90°", "upper 0°", "upper 90°"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["synthetic", "--out", "a.png"], "only images can be drawn"),
        (["digits", "--out", "a.pdf"], "should end in .png"),
        (["digits", "--out", "a.png", "--set", "rotations"], "should be key=value"),
        (["digits", "--out", "a.png", "--set", "rotations=[45]"], "should be 0, 90, 180 or 270"),
        (["digits", "--out", "a.png", "--set", "colour=red"], "unknown setting of digits 'colour'"),
        (["digits", "--out", "a.png", "--data-dir", "x"], "unknown setting of digits 'data_dir'"),
    ],
)
def test_what_cannot_be_drawn_is_said(run: Run, arguments: list[str], words: str) -> None:
    code, _, told = run("show", *arguments)
    assert code == 2
    assert words in told
