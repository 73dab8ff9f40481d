"""A folder of files becomes a federation, and a bad file one sentence."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedsoft import plugins
from fedsoft.core.federation import Federation
from fedsoft.datasets.folder import folder
from fedsoft.errors import InputError

Columns = dict[str, Any]
FORMATS = ("npz", "csv", "parquet")


def npz(path: Path, columns: Columns, label: str) -> None:
    x = np.column_stack([np.asarray(values) for name, values in columns.items() if name != label])
    arrays = {"x": x, label: np.asarray(columns[label])}
    np.savez(path, allow_pickle=False, **arrays)


def csv(path: Path, columns: Columns, label: str = "y") -> None:
    rows = zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parquet(path: Path, columns: Columns, label: str = "y") -> None:
    pyarrow.parquet.write_table(pa.table(columns), path)


WRITERS: dict[str, Callable[[Path, Columns, str], None]] = {"npz": npz, "csv": csv, "parquet": parquet}


def write(path: Path, columns: Columns, label: str = "y") -> None:
    WRITERS[path.suffix[1:]](path, columns, label)


def points(seed: int, count: int = 10, classes: int = 0) -> Columns:
    """A table of random points with labels of either task."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes if classes else rng.standard_normal(count)
    return {"a": rng.standard_normal(count), "b": rng.standard_normal(count), "y": y}


def assert_equal(one: Federation, other: Federation) -> None:
    assert one.names == other.names
    assert one.shape == other.shape
    for left, right in ((one.train, other.train), (one.held_out, other.held_out)):
        for part in ("x", "y", "starts", "sizes"):
            torch.testing.assert_close(getattr(left, part), getattr(right, part), rtol=0, atol=0)


def message(path: Path, **settings: Any) -> str:
    """What is said about a folder that cannot be used, in one line."""
    with pytest.raises(InputError) as caught:
        folder(path, **settings)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


# What can be read


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("classes", [0, 3])
def test_equals_from_clients(tmp_path: Path, ending: str, classes: int) -> None:
    tables = [points(k, 8 + k, classes) for k in range(3)]
    for k, table in enumerate(tables):
        write(tmp_path / f"client-{k}.{ending}", table)
    pairs = [(np.column_stack([t["a"], t["b"]]), t["y"]) for t in tables]
    names = [f"client-{k}" for k in range(3)]
    expected = Federation.from_clients(pairs, names=names, held_out=0.25, seed=4)
    found = folder(tmp_path, held_out=0.25, seed=4)
    assert_equal(found, expected)
    assert found.shape.task == ("classification" if classes else "regression")


def test_formats_can_be_mixed(tmp_path: Path) -> None:
    for name in ("mixed", "npz"):
        (tmp_path / name).mkdir()
    for k, ending in enumerate(("parquet", "npz", "csv", "parquet")):
        write(tmp_path / "mixed" / f"{k}.{ending}", points(k))
        write(tmp_path / "npz" / f"{k}.npz", points(k))
    assert_equal(folder(tmp_path / "mixed"), folder(tmp_path / "npz"))


def test_found_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", points(0))
    found = plugins.build("datasets", "folder", {"path": str(tmp_path), "held_out": 0.5})
    assert_equal(found, folder(str(tmp_path), held_out=0.5))


def test_other_files_are_ignored_and_clients_sorted(tmp_path: Path) -> None:
    for name in ("b.csv", "a.b.npz", "C.PARQUET"):
        written = tmp_path / name.lower()
        write(written, points(0))
        written.rename(tmp_path / name)
    for name in ("README.md", ".hidden.csv", "._b.csv", ".csv", "notes"):
        (tmp_path / name).write_text("not a client")
    (tmp_path / "folder.csv").mkdir()
    assert folder(tmp_path).names == ("C", "a.b", "b")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_order_of_columns_is_that_of_the_first_file(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"1.{ending}", {"b": [1.0], "y": [0.5], "a": [2.0]})
    write(tmp_path / f"2.{ending}", {"y": [0.5], "a": [4.0], "b": [3.0]})
    assert folder(tmp_path, held_out=0).train.x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("ending", FORMATS)
def test_text_labels_are_numbered_over_all_clients(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"1.{ending}", {"a": [1.0, 2.0], "kind": ["dog", "ape"]}, "kind")
    write(tmp_path / f"2.{ending}", {"a": [3.0, 4.0], "kind": ["élan", "cat"]}, "kind")
    found = folder(tmp_path, label="kind", held_out=0)
    assert found.train.y.tolist() == [2, 0, 3, 1]
    assert found.shape.task == "classification"
    assert found.shape.outputs == 4


@pytest.mark.parametrize("ending", FORMATS)
def test_true_and_false_are_classes(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"1.{ending}", {"a": [1.0, 2.0], "y": [True, False]})
    found = folder(tmp_path, held_out=0)
    assert found.train.y.tolist() == [1, 0]
    assert found.shape.task == "classification"


def test_whole_and_broken_numbers_are_regression_together(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,y\n1,2\n")
    (tmp_path / "2.csv").write_text("a,y\n1.5,2.5\n")
    found = folder(tmp_path, held_out=0)
    assert found.shape.task == "regression"
    assert found.train.y.tolist() == [2, 2.5]


def test_task_is_passed_on(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", {"a": [1.0, 2.0], "y": [0, 1]})
    assert folder(tmp_path, task="regression").shape.task == "regression"


def test_types_of_parquet(tmp_path: Path) -> None:
    columns = {
        "decimal": pa.array([1, 2]).cast(pa.decimal128(22, 2)),
        "category": pa.array([3, 4]).dictionary_encode(),
        "yes": pa.array([True, False]),
        "y": pa.array(["b", "a"]).dictionary_encode(),
    }
    write(tmp_path / "1.parquet", columns)
    found = folder(tmp_path, held_out=0)
    assert found.train.x.tolist() == [[1, 3, 1], [2, 4, 0]]
    assert found.train.y.tolist() == [1, 0]


def test_names_of_folders_are_no_columns(tmp_path: Path) -> None:
    inside = tmp_path / "year=2020"
    inside.mkdir()
    write(inside / "1.parquet", points(0))
    assert folder(inside).shape.input == (2,)


def test_types_of_csv_come_from_the_whole_file(tmp_path: Path) -> None:
    """A column that starts with more than a megabyte of whole numbers may still have broken ones."""
    (tmp_path / "1.csv").write_text("a,y\n" + "1000000,1000000\n" * 80_000 + "0.5,0.25\n")
    found = folder(tmp_path, held_out=0, task="regression")
    assert found.train.x[-1].tolist() == [0.5]
    assert found.train.y[-1].item() == 0.25


def test_big_endian_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "1.npz", x=np.ones((2, 3), ">f4"), y=np.array([0, 1], ">i8"))
    assert folder(tmp_path, held_out=0).train.y.tolist() == [0, 1]


def test_images(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "1.npz", x=np.zeros((4, 1, 5, 6), np.uint8), y=np.arange(4))
    assert folder(tmp_path).shape.input == (1, 5, 6)


# What cannot


def text(content: str, name: str = "1.csv") -> dict[str, bytes]:
    return {name: content.encode()}


def arrays(**values: Any) -> dict[str, bytes]:
    buffer = io.BytesIO()
    np.savez(buffer, **values)
    return {"1.npz": buffer.getvalue()}


def table(**columns: Any) -> dict[str, bytes]:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), buffer)
    return {"1.parquet": buffer.getvalue()}


def raw_zip(content: bytes) -> dict[str, bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    return {"1.npz": buffer.getvalue()}


def cut(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content[: len(content) // 2] for name, content in files.items()}


def single_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 2)))
    return buffer.getvalue()


X = np.ones((2, 3))
GOOD_NPZ = arrays(x=X, y=np.ones(2))
GOOD_PARQUET = table(a=[1.0, 2.0], y=[1.0, 2.0])
GOOD_CSV = text("a,y\n1,2\n3,4.5\n")

BAD: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "no files": ({"README": b"x", ".a.csv": b"a,y\n1,2\n"}, ["holds no client", ".csv, .npz, .parquet"]),
    "same name": (GOOD_NPZ | GOOD_CSV, ["'1.npz'", "'1.csv'", "client '1'"]),
    "unprintable name": (text("a,y\n1,2\n", "1\n2.csv"), [r"'1\n2.csv'", "rename"]),
    "zero bytes csv": (text(""), ["'1.csv'", "zero bytes"]),
    "zero bytes npz": ({"1.npz": b""}, ["'1.npz'", "zero bytes"]),
    "zero bytes parquet": ({"1.parquet": b""}, ["'1.parquet'", "zero bytes"]),
    "cut npz": (cut(GOOD_NPZ), ["'1.npz'", "damaged"]),
    "cut parquet": (cut(GOOD_PARQUET), ["'1.parquet'", "damaged"]),
    "text as npz": ({"1.npz": b"hello"}, ["'1.npz'", "not an .npz archive"]),
    "array as npz": ({"1.npz": single_array()}, ["'1.npz'", "not an .npz archive", "numpy.savez"]),
    "empty npz": (arrays(), ["'1.npz'", "unknown array 'x'", "known: none"]),
    "no columns": (table(), ["'1.parquet'", "no points"]),
    "raw bytes in npz": (raw_zip(b"hello, here is no array"), ["'1.npz'", "raw bytes", "'x'", "numbers"]),
    "header that is no Python": (raw_zip(b"\x93NUMPY\x01\x00\x04\x00(((\n"), ["'1.npz'", "damaged"]),
    "text as parquet": ({"1.parquet": b"hello"}, ["'1.parquet'", "damaged"]),
    "ragged csv": (text("a,y\n1,2\n1,2,3\n"), ["'1.csv' has 3 values in line 3, should be 2"]),
    "Latin-1 in the header": (
        {"1.csv": "ä,y\n1,2\n".encode("latin-1")},
        ["'1.csv' is not UTF-8 text (line 1)", "Latin-1", "save it as UTF-8"],
    ),
    "Latin-1 in a label": (
        {"1.csv": "a,y\n1,dog\n2,Köter\n".encode("latin-1")},
        ["'1.csv' is not UTF-8 text (line 3)", "save it as UTF-8"],
    ),
    "semicolons": (text("a;b;y\n1,5;2;0\n"), ["'1.csv' seems to separate its columns by semicolons", "with commas"]),
    "semicolons and no decimals": (text("a;y\n1;0\n"), ["'1.csv' seems to separate its columns by semicolons"]),
    "tabs": (text("a\ty\n1\t0\n"), ["'1.csv' seems to separate its columns by tabs"]),
    "stray label": (
        text("a,y\n" + "1,0\n1,1\n" * 20) | text("a,y\n1,2\n1,3.5\n1,2\n", "2.csv"),
        ["'2.csv' has label 3.5 in line 3, column 'y'", "nearly all labels are whole", "task = 'regression'"],
    ),
    "no x": (arrays(X=X, xs=X, y=[1, 2]), ["'1.npz'", "unknown array 'x'", "did you mean 'xs'", "known: X, xs, y"]),
    "no label in npz": (arrays(x=X, ys=[1, 2]), ["'1.npz'", "unknown array 'y'", "did you mean 'ys'"]),
    "no label in csv": (text("a,ys\n1,2\n"), ["'1.csv'", "unknown column 'y'", "did you mean 'ys'", "known: a, ys"]),
    "no label in parquet": (table(a=[1], b=[2]), ["'1.parquet'", "unknown column 'y'", "known: a, b"]),
    "object array": (arrays(x=X, y=np.array([{}, {}])), ["'1.npz'", "Python objects", "never loaded"]),
    "text in x": (arrays(x=np.full((2, 2), "a"), y=[1, 2]), ["'1.npz' has text as array 'x'", "should be numbers"]),
    "dates in y": (arrays(x=X, y=np.zeros(2, "M8[D]")), ["'1.npz'", "array 'y'", "should be numbers or text"]),
    "one label": (arrays(x=X, y=1), ["'1.npz'", "array 'y'", "one for each point"]),
    "complex": (arrays(x=X * 1j, y=[1, 2]), ["'1.npz'", "complex", "should be numbers"]),
    "lengths": (arrays(x=X, y=[1, 2, 3]), ["client '1'", "[2, 3]", "[3]"]),
    "infinite": (arrays(x=X * np.inf, y=[1, 2]), ["client '1'", "infinite"]),
    "NaN in parquet": (table(a=[1.0, np.nan], y=[1, 1]), ["'1.parquet' has NaN in row 2, column 'a'", "finite"]),
    "no points in npz": (arrays(x=X[:0], y=X[:0, 0]), ["client '1'", "no points"]),
    "no points in csv": (text("a,y\n"), ["'1.csv'", "no points"]),
    "no points in parquet": (table(a=pa.array([], pa.float64()), y=pa.array([], pa.string())), ["no points"]),
    "no features": (text("y\n1\n"), ["'1.csv'", "no column besides 'y'"]),
    "twice the same column": (text("a,b,a,y\n1,2,3,4\n"), ["'1.csv'", "2 columns 'a'"]),
    "index in csv": (text(",a,y\n0,1,2\n"), ["'1.csv'", "without a name", "without its index"]),
    "index in parquet": (table(a=[1], y=[1], __index_level_0__=[0]), ["__index_level_0__", "without its index"]),
    "empty cell": (text("a,b,y\n1,,2\n3,4,5\n"), ["'1.csv' has 1 empty cell ", "column 'b', line 2: fill"]),
    "NA cells": (text("a,y\n1,NA\n3,nan\n1,2\n"), ["'1.csv'", "2 empty cells", "column 'y', the first in line 2"]),
    "empty text label": (text("a,y\n1,dog\n3,\n"), ["'1.csv'", "1 empty cell ", "column 'y', line 3"]),
    "only empty cells": (text("a,y\n,1\n,2\n"), ["'1.csv'", "2 empty cells", "column 'a', the first in line 2"]),
    "null in parquet": (table(a=[1, None], y=[1, 2]), ["'1.parquet'", "1 empty cell ", "column 'a', row 2"]),
    "text feature in csv": (
        text("a,b,y\n1,3,2\n\n1,x,2\n"),
        ["'1.csv' has text 'x' in line 4, column 'b', should be a number"],
    ),
    "cells of several lines": (
        text('a,b,y\n"1",3,"2\n3"\n1,x,2\n'),
        ["'1.csv' has text 'x' in line 4, column 'b', should be a number"],
    ),
    "infinite in csv": (text("a,y\n1,2\n-inf,2\n"), ["'1.csv' has -inf in line 3, column 'a'", "finite number"]),
    "infinite label": (text("a,y\n1,2\n2,inf\n"), ["'1.csv' has inf in line 3, column 'y'", "finite number"]),
    "text feature in parquet": (table(a=["7", "x"], y=[1, 1]), ["'1.parquet' has text 'x' in row 2, column 'a'"]),
    "numbers as text": (table(a=["7", "8"], y=[1, 1]), ["has text '7' in row 1, column 'a', should be a number"]),
    "long text": (text(f"a,y\n{'x' * 9999},2\n1,2\n"), ["line 2, column 'a'", "xxx ..."]),
    "dates in csv": (text("a,y\n1,2020-01-01\n"), ["'2020-01-01' (date", "line 2, column 'y'", "a number or text"]),
    "lists in parquet": (table(a=[[1, 2]], y=[1]), ["'1.parquet'", "list", "row 1, column 'a', should be a number"]),
    "broken name of a column": (text('a,"b\n\x1b[2J","b\n\x1b[2J",y\n1,2,3,4\n'), ["'1.csv'", "2 columns"]),
    "other columns": (
        GOOD_CSV | text("b,c,y\n1,2,3\n", "2.csv"),
        ["'2.csv'", "columns of '1.csv'", "lacks 'a'", "adds 'b', 'c'"],
    ),
    "missing column": (text("a,b,y\n1,2,3\n") | text("b,y\n1,2\n", "2.csv"), ["'2.csv'", "lacks 'a'"]),
    "other columns across formats": (GOOD_PARQUET | text("a,b,y\n1,2,3\n", "2.csv"), ["'2.csv'", "but adds 'b'"]),
    "other shape across formats": (GOOD_NPZ | text("a,y\n1,2\n", "2.csv"), ["client '2'", "client '1'"]),
    "text and numbers": (
        text("a,y\n1,dog\n") | text("a,y\n1,2\n", "2.csv"),
        ["'2.csv' has numbers", "'1.csv' has text ('dog' in line 2, column 'y')", "same in all files"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    files, words = BAD[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = message(tmp_path)
    for word in words:
        assert word in found
    assert len(found) < 600


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"held_out": 1.0}, ["folder.held_out = 1.0", "below 1"]),
        ({"task": "ranking"}, ["folder.task = 'ranking'", "'regression'"]),
        ({"task": "regression"}, ["'1.csv'", "text", "'regression'"]),
        ({"label": "x"}, ["unknown column 'x'"]),
        ({"lable": "x"}, ["unknown setting", "did you mean 'label'"]),
    ],
)
def test_bad_settings(tmp_path: Path, settings: dict[str, Any], words: list[str]) -> None:
    (tmp_path / "1.csv").write_text("a,y\n1,dog\n")
    found = message(tmp_path, **settings)
    for word in words:
        assert word in found


def test_inputs_cannot_be_labels(tmp_path: Path) -> None:
    (tmp_path / "1.npz").write_bytes(GOOD_NPZ["1.npz"])
    assert "target = 'x'" in message(tmp_path, label="x")


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", {f"pixel{i}": [0] for i in range(784)} | {"target": [0]})
    found = message(tmp_path, label="targets")
    assert "did you mean 'target'" in found
    assert len(found) <= 500


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", ["nowhere", "does not exist"]),
        ("file.csv", ["file.csv", "is not a folder"]),
        ("null\0byte", ["cannot be read"]),
        ("a\nb", [r"a\nb", "does not exist"]),
        ("long" * 1000, ["cannot be read"]),
    ],
)
def test_bad_folders(tmp_path: Path, name: str, words: list[str]) -> None:
    (tmp_path / "file.csv").write_text("a,y\n1,2\n")
    found = message(tmp_path / name)
    for word in words:
        assert word in found


def test_link_to_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", points(0))
    (tmp_path / "2.csv").symlink_to(tmp_path / "nowhere")
    assert "'2.csv' cannot be read (No such file" in message(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [".", "1.csv"])
def test_no_permission(tmp_path: Path, name: str) -> None:
    write(tmp_path / "1.csv", points(0))
    (tmp_path / name).chmod(0)
    try:
        assert "cannot be read (Permission denied)" in message(tmp_path)
    finally:
        (tmp_path / name).chmod(0o700)


@pytest.mark.parametrize(("owner", "method"), [(os, "open"), (Path, "iterdir")])
def test_refused_by_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "1.csv", points(0))
    monkeypatch.setattr(owner, method, refuse)
    assert "cannot be read (Permission denied)" in message(tmp_path)


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("where", ["x", "y"])
def test_pickles_are_never_executed(tmp_path: Path, where: str) -> None:
    sprung = tmp_path / "sprung"
    values: dict[str, Any] = {"x": X, "y": np.ones(2)} | {where: np.array([Trap(sprung), Trap(sprung)])}
    np.savez(tmp_path / "1.npz", **values)
    assert "never loaded" in message(tmp_path)
    assert not sprung.exists()
    with np.load(tmp_path / "1.npz", allow_pickle=True) as opened:  # the trap does work
        assert opened[where] is not None
    assert sprung.exists()


def test_bare_pickles_are_never_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    np.array([Trap(sprung)]).dump(tmp_path / "1.npz")
    assert "not an .npz archive" in message(tmp_path)
    assert not sprung.exists()


# Anything at all


def only_input_errors(path: Path) -> None:
    said = "nothing"
    try:
        folder(path)
    except InputError as error:
        said = str(error)
    assert len(said.splitlines()) == 1


FUZZ = hypothesis_settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # every example overwrites the file
)
MAGIC = {"npz": b"PK\x03\x04", "csv": b"a,y\n", "parquet": b"PAR1"}


@FUZZ
@given(content=st.binary(max_size=200), magic=st.booleans())
@pytest.mark.parametrize("ending", [*FORMATS[:2], pytest.param("parquet", marks=pytest.mark.slow)])
def test_random_bytes(tmp_path: Path, ending: str, content: bytes, magic: bool) -> None:
    start = MAGIC[ending] if magic else b""
    end = b"PAR1" if magic and ending == "parquet" else b""
    (tmp_path / f"1.{ending}").write_bytes(start + content + end)
    only_input_errors(tmp_path)


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("good", [GOOD_NPZ, GOOD_CSV, pytest.param(GOOD_PARQUET, marks=pytest.mark.slow)], ids=FORMATS)
def test_flipped_bytes(tmp_path: Path, good: dict[str, bytes], data: st.DataObject) -> None:
    ((name, content),) = good.items()
    damaged = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    (tmp_path / name).write_bytes(damaged[: data.draw(st.integers(1, len(content)))])
    only_input_errors(tmp_path)


@FUZZ
@given(header=st.text(st.sampled_from("{}()[]',:<f8i 0123456789\"\n\\") | st.characters(codec="latin-1"), max_size=60))
def test_random_headers_of_arrays(tmp_path: Path, header: str) -> None:
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1")
    ((name, archive),) = raw_zip(content).items()
    (tmp_path / name).write_bytes(archive)
    only_input_errors(tmp_path)
