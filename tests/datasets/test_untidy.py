"""Files as people export them: empty cells, spaces around names, a column that only one file has."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    with pytest.raises(InputError, match=r"1 empty cell .* column 'stay', line 4: fill it, or .* missing = 'drop'"):
        folder(path, target="stay", held_out=0)
    fed = folder(path, target="stay", held_out=0, missing="drop")
    assert points(fed) == [2, 2]
    assert fed.train.x[:2, 0].tolist() == [50.0, 70.0]
    assert fed.notices == ("2 of 6 rows have an empty cell and are left out by missing = 'drop', in a.csv",)


def test_empty_cells_of_columns_that_are_not_used_cost_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a=A, b=B)
    assert points(folder(path, target="stay", held_out=0, missing="drop", drop=["age"])) == [3, 2]


def test_a_table_leaves_out_rows_whose_client_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("who,x,y\nann,1,1.5\n,2,2.5\nbob,3,3.5\nbob,NA,1.5\n")
    fed = table(tmp_path / "all.csv", client="who", target="y", held_out=0, missing="drop")
    assert fed.names == ("ann", "bob")
    assert points(fed) == [1, 1]
    assert fed.notices[0] == "2 of 4 rows have an empty cell and are left out by missing = 'drop', in all.csv"


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
