"""Files and names from elsewhere: nothing in them is run, leaves its folder, or is more than text where it is shown."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from rich.text import Text
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.cli.common import Terminal, print_json
from fedsoft.data import image_formats, numpy_files
from fedsoft.data.parquet import read_columns
from fedsoft.datasets.folder import folder
from fedsoft.errors import FedsoftError, InputError, StoreError
from fedsoft.escape import plain, shown
from fedsoft.reports.run_list import runs_table
from fedsoft.reports.tables import run_view
from fedsoft.reports.web_page import report
from fedsoft.runs import spec
from fedsoft.runs.execute import execute, place
from fedsoft.runs.find import list_runs
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.storage.atomic import write_folder
from fedsoft.storage.tensorfile import open_tensors
from tests import helpers

SMALL = [*helpers.SMALL, "rounds=1"]


# --- pickles ----------------------------------------------------------------------------------------------------------


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def bare(trap: Trap) -> bytes:
    return pickle.dumps({"data": trap, b"labels": trap})  # as CIFAR-10's batches for Python, or a .pt file of old


def as_torch(trap: Trap) -> bytes:
    with io.BytesIO() as buffer:
        torch.save({"w": trap}, buffer)
        return buffer.getvalue()


def as_npy(trap: Trap) -> bytes:
    with io.BytesIO() as buffer:
        np.save(buffer, np.array([trap, trap]), allow_pickle=True)
        return buffer.getvalue()


def as_npz(trap: Trap) -> bytes:
    with io.BytesIO() as buffer:
        np.savez(buffer, x=np.array([trap]), y=np.array([trap]), images=np.array([trap]), labels=np.array([trap]))
        return buffer.getvalue()


def as_parquet(trap: Trap) -> bytes:
    with io.BytesIO() as buffer:
        parquet.write_table(pa.table({"images": [pickle.dumps(trap)], "labels": [1]}), buffer)
        return buffer.getvalue()


def of_clients(name: str) -> Callable[[Path], object]:
    def read(file: Path) -> object:
        place = file.parent / "clients"
        place.mkdir()
        shutil.copy(file, place / name)
        return folder(place)

    return read


READERS: dict[str, Callable[[Path], object]] = {
    "a.npz": of_clients("a.npz"),
    "a.csv": of_clients("a.csv"),
    "a.parquet": of_clients("a.parquet"),
    "arrays": lambda file: numpy_files.read_arrays(file, ["images", "labels"]),
    "cifar": image_formats.read_cifar,
    "images": lambda file: image_formats.read_images(file, 28, 28),
    "labels": lambda file: image_formats.read_labels(file, 10),
    "columns": lambda file: read_columns(file, ["images", "labels"]),
    "tensors": open_tensors,
    "state": lambda file: fs.load(file.parent / "run"),
}


@pytest.mark.parametrize("write", [bare, as_torch, as_npy, as_npz, as_parquet])
@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_in_any_file_is_refused_and_does_nothing(
    tmp_path: Path, reader: str, write: Callable[[Trap], bytes]
) -> None:
    sprung = tmp_path / "sprung"
    content = write(Trap(sprung))
    (tmp_path / "file").write_bytes(content)
    if reader == "state":
        made, _ = execute(spec.read("synthetic-10-90", SMALL), tmp_path / "run", RunOptions())
        (made.path / "state.safetensors").write_bytes(content)
    with pytest.raises((FedsoftError, ValueError)):
        READERS[reader](tmp_path / "file")
    assert not sprung.exists()


def test_the_trap_does_work(tmp_path: Path) -> None:
    pickle.loads(bare(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


# --- paths and names of modules ---------------------------------------------------------------------------------------


def run_of(tmp_path: Path) -> RunFolder:
    return execute(spec.read("synthetic-10-90", SMALL), tmp_path / "runs" / "run", RunOptions())[0]


@pytest.mark.parametrize("name", ["rounds.jsonl", "state.safetensors", "lock", "scores.json", "spec.toml"])
def test_a_link_in_a_run_folder_leads_nowhere(tmp_path: Path, name: str) -> None:
    made = run_of(tmp_path)
    outside = tmp_path / "outside"
    outside.write_bytes((made.path / name).read_bytes())
    before = outside.read_bytes()
    (made.path / name).unlink()
    (made.path / name).symlink_to(outside)
    with pytest.raises(StoreError, match="is a link: the files of a run should be in its own folder"):
        RunFolder.open(made.path)
    with pytest.raises(StoreError, match="is a link"):
        execute(spec.read("synthetic-10-90", SMALL), made.path, RunOptions())
    assert outside.read_bytes() == before


@pytest.mark.parametrize("name", ["../out", "a/b", "/tmp/x", "..", ".", "", "a\0b"])
def test_files_are_written_into_their_folder_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="should be the name of a file in it"):
        write_folder(tmp_path / "here", {name: b"x"})
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_members_of_an_archive_stay_in_it(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    with io.BytesIO() as buffer:
        np.save(buffer, np.ones((4, 2)))
        array = buffer.getvalue()
    with zipfile.ZipFile(place / "a.npz", "w") as archive:
        for name in ("../x.npy", "/x.npy", "x.npy", "y.npy"):
            archive.writestr(name, array if "x" in name else array[:-32].replace(b"(4, 2)", b"(4,)  "))
    fs.datasets.folder(place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.npz", "data"]


def test_names_of_clients_are_names_of_files(tmp_path: Path) -> None:
    clients = [(torch.randn(9, 3), torch.randn(9)) for _ in range(2)]
    fed = fs.Federation.from_clients(clients, names=["../../escaped", "b"])
    run = fs.fit(fs.FedAvg(), fed, fs.models.linear(), rounds=1)
    written = fs.export(run, tmp_path / "out", client="../../escaped")
    assert all((tmp_path / "out" / name).is_file() for name in written.files)
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "out"}


# --- text from data ---------------------------------------------------------------------------------------------------

NASTY = [
    "<script>alert(1)<", "<img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "'><svg>",
    "[red]markup[", "[link=x]", "`code` *bold* |cell| [a](javascript:x)", "{{ 7*7 }}", "$\\frac", "&lt;", "%s%n",
]  # fmt: skip


class Elements(HTMLParser):
    """The names of elements and of attributes in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients, columns and classes have names that would be scripts, tables and colours."""
    root = tmp_path_factory.mktemp("nasty")
    (root / "data").mkdir()
    rng = np.random.default_rng(0)
    for name in NASTY:
        x = rng.standard_normal((12, 2))
        labels = [f"</script><b>{'|' if v > 0 else '[red]'}" for v in x[:, 0]]
        table = pa.table({"<i>a</i>": x[:, 0], "[bold]b": x[:, 1], "y": labels})
        parquet.write_table(table, root / "data" / f"{name}.parquet")
    wanted = spec.RunSpec.from_dict({
        "rounds": 1, "algorithm": {"name": "fedsoft", "S": 2, "K": 2}, "model": "linear",
        "dataset": {"name": "folder", "path": str(root / "data")}, "solver": {"name": "sgd", "epochs": 1},
    })  # fmt: skip
    execute(wanted, place(wanted, root / "runs"), RunOptions())
    return root


def test_names_from_data_are_text_in_a_page(nasty: Path) -> None:
    plain_names = nasty / "plain"
    shutil.copytree(nasty / "data", plain_names)
    for k, file in enumerate(sorted(plain_names.iterdir())):
        table = parquet.read_table(file).rename_columns(["a", "b", "y"])
        file.unlink()
        labels = ["one" if "|" in str(v) else "two" for v in table.column("y")]
        parquet.write_table(table.set_column(2, "y", [labels]), plain_names / f"client-{k}.parquet")
    (run,) = list_runs(nasty / "runs")
    wanted = run.spec().to_dict()
    wanted["dataset"] |= {"path": str(plain_names)}
    execute(spec.RunSpec.from_dict(wanted), nasty / "others" / "run", RunOptions())
    found = {}
    for name, source in (("nasty", run.path), ("plain", nasty / "others" / "run")):
        report([str(source)], nasty, nasty / f"{name}.html")
        found[name] = Elements()
        found[name].feed((nasty / f"{name}.html").read_text("utf-8"))
    # A value that is missing is no link: which ones are depends on draws, and these on names.
    nasty_page, plain_page = (
        [e for e in found[name].elements if e not in ("a", "span")] for name in ("nasty", "plain")
    )
    assert not set(nasty_page) - set(plain_page)  # no name made one of its own
    assert found["nasty"].attributes == found["plain"].attributes
    text = (nasty / "nasty.html").read_text("utf-8")
    assert "alert(1)" in text
    for markdown in nasty.glob("nasty.md"):
        assert not [line for line in markdown.read_text("utf-8").splitlines() if "<" in line and "`" not in line]


def test_names_from_data_are_text_in_a_model_card(nasty: Path) -> None:
    (run,) = list_runs(nasty / "runs")
    loaded = fs.load(run.path)
    fs.export(loaded, nasty / "card", spec=run.spec(), name="<script>|*x*", client=NASTY[0])
    card = (nasty / "card" / "model-card.md").read_text("utf-8")
    assert "<script" not in card
    assert "</script>" not in card
    assert "<i>" not in card
    assert "\\[red\\]" in card


ANSI = "evil\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.\u2066\x00\r\n[red]x[/red][/]"


def test_text_for_terminals_has_no_signs_that_act() -> None:
    assert shown("plain Ünïcode θ0 😀") == "plain Ünïcode θ0 😀"
    text = shown(ANSI)
    assert text.isprintable()
    assert "\\x1b[2J" in text
    assert "\\u202e" in text
    assert shown("a\tb\n\x1b", lines=True) == "a\tb\n\\x1b"
    assert shown(os.fsdecode(b"\xff")) == "\\udcff"
    assert str(InputError(ANSI)).isprintable()
    assert len(str(StoreError("x" * 10**6))) < 2100
    assert plain("a\x1b|<b>\n# c") == "a\\\\x1b\\|&lt;b&gt; \\# c"


def test_a_terminal_shows_names_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, width=300, force_terminal=True, color_system="truecolor")
    terminal.print(Text(ANSI, style="red"))
    terminal.print(ANSI, markup=False)
    printed = file.getvalue()
    assert "\x1b[2J" not in printed
    assert "\x1b]0" not in printed
    assert "\x9b" not in printed
    assert "\u202e" not in printed
    assert "\x1b[31m" in printed  # our own colours stay
    print_json({"name": ANSI})
    said = capsys.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert json.loads(said) == {"name": ANSI}


def test_names_of_runs_and_sources_are_no_markup(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    scores = made.scores()
    assert scores is not None
    made.finish(replace(scores, sources=["[/] [red]one", "\x1b[31mtwo"], metric="mse"))
    odd = made.path.with_name("[bold]odd\x1b[31m")
    made.path.rename(odd)
    file = io.StringIO()
    terminal = Terminal(file=file, width=300)
    terminal.print(run_view(RunFolder(odd)))
    terminal.print(runs_table(list_runs(tmp_path / "runs")))
    said = file.getvalue()
    assert "[/] [red]one" in said
    assert "[bold]odd\\x1b[31m" in said
    assert "\x1b" not in said


def test_adopted_and_predicted_classes_are_text(nasty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nasty)
    (run,) = list_runs(nasty / "runs")
    new = nasty / "[red]new[.parquet"
    shutil.copy(next(iter((nasty / "data").iterdir())), new)
    for words in (
        ["adopt", str(run.path), "--data", str(new)],
        ["predict", str(run.path), "--center", "0", "--data", str(new)],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
    assert "[red]" in done.output
