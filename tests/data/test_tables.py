"""Where a point is in its file, as people count."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsoft.data.tables import Table
from fedsoft.errors import InputError

CELLS = st.sampled_from(["1", "2.5", "a, b", 'say "no"', "two\nlines", "three\n\nlines"])


@given(rows=st.lists(st.tuples(CELLS, st.integers(0, 2)), min_size=1, max_size=8), head=st.integers(0, 2))
def test_the_line_is_that_of_an_editor(
    rows: list[tuple[str, int]], head: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Empty lines are counted, and lines inside of quotes."""
    file = tmp_path_factory.mktemp("lines") / "a.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        stream.write("\n" * head)
        writer.writerow(["note", "row"])
        for k, (cell, empty) in enumerate(rows):
            stream.write("\n" * empty)
            writer.writerow([cell, f"here{k}"])
    lines = file.read_text().split("\n")
    table = Table.read(file)
    assert table.rows.column("row").to_pylist() == [
        f"here{k}" for k in range(len(rows))
    ]  # pyarrow counts the same points
    for k, (cell, _) in enumerate(rows):
        end = next(i for i, line in enumerate(lines, 1) if line.endswith(f"here{k}"))
        assert table.place(k) == f"line {end - cell.count(chr(10))}"


def test_a_value_is_named_by_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("age,y\n41,1\n\nforty,0\n")
    with pytest.raises(InputError) as told:
        Table.read(file).numbers("age")
    assert str(told.value) == "file 'a.csv' has text 'forty' in line 4, column 'age', should be a number"
