"""Files as people export them: empty cells, spaces around names, a column that only one file has."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import fedsoft as fs
from fedsoft.algorithms.fedavg import FedAvg
from fedsoft.core.federation import Federation
from fedsoft.data.new_points import read_new_clients, seen_inputs
from fedsoft.datasets.folder import folder
from fedsoft.datasets.table import table
from fedsoft.errors import InputError
from fedsoft.models.linear import linear
from fedsoft.runs.run import fit
from fedsoft.runs.spec import read

A = "age,sex,stay\n50,m,1.5\n,f,2.5\n60,f,\n70,m,4.5\n"
B = "age,sex,stay\n40,m,2.5\n30,f,3.5\n"


def write(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.csv").write_text(text, "utf-8")
    return path


def points(fed: Federation) -> list[int]:
    return fed.train.sizes.tolist()


def test_rows_with_empty_cells_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a=A, b=B)
    with pytest.raises(InputError, match=r"1 empty cell .* column 'stay', line 4: fill it, or .* 'fill' or .* 'drop'"):
        folder(path, target="stay", held_out=0)
    fed = folder(path, target="stay", held_out=0, missing="drop")
    assert points(fed) == [2, 2]
    assert fed.train.x[:2, 0].tolist() == [50.0, 70.0]
    assert fed.notices == (
        "2 of 6 rows have an empty cell and are left out, in a.csv: 1 in column 'age', 1 in column 'stay'",
    )


def test_empty_cells_of_columns_that_are_not_used_cost_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a=A, b=B)
    assert points(folder(path, target="stay", held_out=0, missing="drop", drop=["age"])) == [3, 2]


def test_a_table_leaves_out_rows_whose_client_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("who,x,y\nann,1,1.5\n,2,2.5\nbob,3,3.5\nbob,NA,1.5\n")
    fed = table(tmp_path / "all.csv", client="who", target="y", held_out=0, missing="drop")
    assert fed.names == ("ann", "bob")
    assert points(fed) == [1, 1]
    assert fed.notices[0].startswith("2 of 4 rows have an empty cell and are left out, in all.csv: ")


def test_a_file_without_a_complete_row_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,stay\n,1.5\n50,\n", b="age,stay\n50,1.5\n")
    with pytest.raises(InputError, match=r"'a\.csv' has an empty cell in every row"):
        folder(path, target="stay", missing="drop")


def test_lines_are_those_of_the_file_after_rows_were_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a=A.replace("70,m", "x,m"), b=B)
    with pytest.raises(InputError, match="has text 'x' in line 5, column 'age'"):
        folder(path, target="stay", missing="drop")


def test_new_clients_lose_rows_as_in_training_but_a_file_to_predict_on_must_be_filled(tmp_path: Path) -> None:
    fed = folder(write(tmp_path / "in", a=A, b=B), target="stay", held_out=0, missing="drop")
    late, said = write(tmp_path / "late", new=A), list[str]()
    ((x, y),) = read_new_clients(late / "new.csv", fed, say=said.append).values()
    assert y is not None
    assert (len(x), y.tolist()) == (2, [1.5, 4.5])
    assert said == ["new.csv: 2 rows with an empty cell are left out, as in training"]
    with pytest.raises(InputError, match="empty cell"):
        seen_inputs(fed, late / "new.csv")
    saved = fit(FedAvg(), fed, linear(), rounds=1)
    with pytest.raises(InputError, match="empty cell"):
        saved.predict(late / "new.csv", center=0)


GAPS = "age,sex,bmi,stay\n50,m,20,1.5\n,f,,2.5\n70,,24,3.5\n"
MORE = "age,sex,bmi,stay\n30,m,,2.5\n50,NA,,\n"


def test_empty_cells_are_filled_where_that_is_asked_for(tmp_path: Path) -> None:
    """Numbers by the mean of their column over all clients, text by no category; a row without a label is left out."""
    fed = folder(write(tmp_path / "in", a=GAPS, b=MORE), target="stay", held_out=0, missing="fill")
    assert fed.columns.elements == ("age", "sex=f", "sex=m", "bmi")
    assert fed.columns.fills == {"age": 50.0, "bmi": 22.0}  # the row without a label does not count
    assert fed.train.x.tolist() == [[50, 0, 1, 20], [50, 1, 0, 22], [70, 0, 0, 24], [30, 0, 1, 22]]
    assert fed.notices == (
        "1 of 5 rows has an empty cell and is left out, in b.csv: 1 in column 'stay'",
        "4 empty cells of 4 rows are filled by missing = 'fill': 2 in column 'bmi', 1 in column 'age', 1 in column "
        "'sex'",
    )


def test_a_column_without_a_value_in_one_file_is_filled_and_in_all_files_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,sex,y\n50,m,1.5\n60,f,2.5\n", b="age,sex,y\n,,1.5\n,,2.5\n")
    fed = folder(path, target="y", held_out=0, missing="fill")
    assert fed.train.x.tolist() == [[50, 0, 1], [60, 1, 0], [55, 0, 0], [55, 0, 0]]
    (path / "a.csv").write_text("age,sex,y\n,m,1.5\n")
    with pytest.raises(InputError, match=r"has no value in column 'age', nor has any other: drop = \['age'\]"):
        folder(path, target="y", missing="fill")


def test_numbers_that_are_categories_stay_so_beside_empty_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="code,y\n7,1.5\n,2.5\n9,1.5\n", b="code,y\n7,1.5\n9,2.5\n")
    fed = folder(path, target="y", held_out=0, missing="fill", categorical=["code"])
    assert fed.columns.elements == ("code=7", "code=9")
    assert fed.train.x.tolist() == [[1, 0], [0, 0], [0, 1], [1, 0], [0, 1]]


def test_later_files_are_filled_by_what_the_run_knows(tmp_path: Path) -> None:
    """New clients and files to predict on, which keep all their rows, with or without labels."""
    fed = folder(write(tmp_path / "in", a=GAPS, b=MORE), target="stay", held_out=0, missing="fill")
    late, said = write(tmp_path / "late", new="age,sex,bmi,stay\n90,f,99,1.5\n,x,,\n"), list[str]()
    ((x, y),) = read_new_clients(late / "new.csv", fed, say=said.append).values()
    assert y is not None
    assert (x.tolist(), y.tolist()) == ([[90, 1, 0, 99]], [1.5])
    assert said == ["new.csv: 1 rows with an empty cell are left out, as in training"]
    assert seen_inputs(fed, late / "new.csv").tolist() == [[90, 1, 0, 99], [50, 0, 0, 22]]
    run = fs.fit(FedAvg(), fed, linear(), rounds=1)
    run.save(tmp_path / "saved")
    assert fs.load(tmp_path / "saved").predict(late / "new.csv", center=0).tolist() == (
        run.predict(late / "new.csv", center=0).tolist()
    )


def test_text_among_numbers_is_pointed_out_beside_cells_that_are_filled(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,y\n,1.5\n50,2.5\n", b="age,y\n60,1.5\n")
    fed = folder(path, target="y", held_out=0, missing="fill")
    (path / "a.csv").write_text("age,y\n,1.5\n5o,2.5\n")
    with pytest.raises(InputError, match=r"'a\.csv' has text '5o' in line 3, column 'age'"):
        folder(path, target="y", missing="fill")
    with pytest.raises(InputError, match=r"'a\.csv' has text '5o' in line 3, column 'age'"):
        seen_inputs(fed, path / "a.csv")


@pytest.mark.parametrize("missing", [None, "fill"])
def test_dates_are_named_as_such_even_where_some_are_empty(missing: Literal["fill"] | None, tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,seen,y\n50,,1.5\n60,2024-03-01,2.5\n")
    with pytest.raises(InputError, match=r"has '2024-03-01' .* in line 3, column 'seen', .* drop = \['seen'\]"):
        folder(path, target="y", missing=missing)


def test_a_file_to_predict_on_may_have_an_empty_column_of_labels(tmp_path: Path) -> None:
    fed = folder(write(tmp_path / "in", a=A, b=B), target="stay", held_out=0, missing="drop")
    late = write(tmp_path / "late", new="age,sex,stay\n50,m,\n60,f,\n")
    assert len(seen_inputs(fed, late / "new.csv")) == 2


def test_columns_that_look_like_ids_or_dates_are_pointed_out(tmp_path: Path) -> None:
    """Also numbers of patients that do not count on, and text that every point has of its own; no measurements."""
    lines = [f"{(k * 7919) % 90000},{k + 20},{k}.3.2024,{k % 2}.5" for k in range(40)]
    lines[1] = f"{(2 * 7919) % 90000},3,1.3.2024,1.5"  # twice, by a mistake
    head = "Patient ID,pulse,seen,y\n"
    path = write(tmp_path / "in", a=head + "\n".join(lines[:20]), b=head + "\n".join(lines[20:]))
    said = folder(path, target="y").notices
    assert said == (
        "Column 'Patient ID' numbers the points, as an id does: leave it out by drop = ['Patient ID'] if it is one",
        "Column 'seen' has 40 categories for 40 points, as names, dates and notes have: leave it out by "
        "drop = ['seen'] if it is of that kind",
    )


def test_a_column_that_one_file_has_can_be_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,stay\n50,1.5\n60,2.5\n", b="age,note,stay\n50,ok,1.5\n60,ok,2.5\n")
    with pytest.raises(InputError, match=r"adds 'note': leave out what is not in all files by drop = \['note'\]"):
        folder(path, target="stay")
    fed = folder(path, target="stay", drop=["note"], held_out=0)
    assert fed.columns.features == ("age",)
    ((x, _),) = read_new_clients(path / "b.csv", fed).values()  # has the column, too
    assert len(x) == 2
    with pytest.raises(InputError, match="unknown column 'remark'"):
        folder(path, target="stay", drop=["note", "remark"])


def test_spaces_around_names_and_text_mean_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,sex,ill\n50,m,yes\n60,f,no\n", b="age , sex , ill\n 50, m ,yes \n60 , f, no\n")
    fed = folder(path, target="ill", held_out=0)
    assert fed.columns.features == ("age", "sex")
    assert fed.columns.categories == {"sex": ("f", "m")}
    assert fed.columns.classes == ("no", "yes")
    assert fed.train.x[:2].tolist() == fed.train.x[2:].tolist()


def test_a_cell_of_spaces_is_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a="age,sex,stay\n50,  ,1.5\n60,f,2.5\n", b=B)
    with pytest.raises(InputError, match=r"1 empty cell .* column 'sex', line 2"):
        folder(path, target="stay")


def test_the_default_is_no_part_of_a_run_file(tmp_path: Path) -> None:
    """So runs keep the name that they had before there was this setting."""
    write(tmp_path / "in", a=A, b=B)
    file = tmp_path / "run.toml"
    text = (
        'rounds = 1\nalgorithm = "fedavg"\nmodel = "linear"\n[dataset]\nname = "folder"\npath = "in"\ntarget = "stay"\n'
    )
    file.write_text(text)
    assert "missing" not in read(str(file)).to_dict()["dataset"]
    file.write_text(text + 'missing = "drop"\n')
    assert read(str(file)).to_dict()["dataset"]["missing"] == "drop"
