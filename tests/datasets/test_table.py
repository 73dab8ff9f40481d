"""One long table becomes a federation: whose row it is, which columns are inputs, and how text is coded."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fedsoft as fs
from fedsoft.data.new_points import read_new_clients
from fedsoft.errors import InputError
from fedsoft.runs import spec

ROWS = "id,age,color,fold,out\n2,10,red,1,yes\n10,20,blue,1,no\n2,30,blue,2,no\n10,40,green,1,yes\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.csv"
    path.write_text(ROWS)
    return path


def table(path: Any, **settings: Any) -> fs.Federation:
    return fs.datasets.table(path, client="id", target="out", **{"held_out": 0.0, **settings})


def message(path: Any, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        table(path, **settings)
    return str(caught.value)


def test_rows_go_to_their_clients_and_text_is_one_input_per_category(file: Path) -> None:
    fed = table(file, drop=["fold"])
    assert fed.names == ("2", "10")  # in the order of numbers
    assert fed.columns.elements == ("age", "color=blue", "color=green", "color=red")
    assert fed.train.x.tolist() == [[10, 0, 0, 1], [30, 1, 0, 0], [20, 1, 0, 0], [40, 0, 1, 0]]
    assert (fed.train.y.tolist(), fed.columns.classes) == ([1, 0, 0, 1], ("no", "yes"))


def test_csv_parquet_data_frame_and_arrow_are_the_same(file: Path, tmp_path: Path) -> None:
    rows = pa.table({
        "id": [2, 10, 2, 10], "age": [10, 20, 30, 40], "color": ["red", "blue", "blue", "green"], "fold": [1, 1, 2, 1],
        "out": ["yes", "no", "no", "yes"],
    })  # fmt: skip
    pyarrow.parquet.write_table(rows, tmp_path / "all.parquet")
    given = [file, tmp_path / "all.parquet", rows]
    with contextlib.suppress(ImportError):  # pandas need not be there
        given.append(rows.to_pandas())
    first, *others = [table(one) for one in given]
    for other in others:
        assert (other.fingerprint, other.names, other.columns) == (first.fingerprint, first.names, first.columns)


def test_features_may_be_patterns(file: Path) -> None:
    assert table(file, features=["a*"]).columns.features == ("age",)
    assert table(file, features=["color", "fold"]).columns.features == ("color", "fold")
    assert table(file, drop=["*o*"]).columns.features == ("age",)


def test_numbers_can_be_categories(file: Path) -> None:
    fed = table(file, features=["fold"], categorical=["fold"])
    assert fed.train.x.tolist() == [[1, 0], [0, 1], [1, 0], [1, 0]]


def test_new_clients_are_coded_alike(file: Path, tmp_path: Path) -> None:
    fed, said = table(file, drop=["fold"]), []
    (tmp_path / "new.csv").write_text("color,age,id,out\nred,1,7,no\nviolet,2,8,yes\n")
    found = read_new_clients(tmp_path / "new.csv", fed, say=said.append)
    assert {name: x.tolist() for name, (x, _) in found.items()} == {"7": [[1, 0, 0, 1]], "8": [[2, 0, 0, 0]]}
    assert said == [
        "new.csv: 1 of 2 points have a value of column 'color' that no client had in training (the first is 'violet' "
        "in line 3): they are coded as none of its categories"
    ]
    alone = read_new_clients(tmp_path / "new.csv", fed, labelled=False, say=said.append)
    assert [*alone] == ["new"]


@pytest.mark.parametrize("ending", ["csv", "folder"])
def test_a_test_set_of_files(file: Path, tmp_path: Path, ending: str) -> None:
    if ending == "csv":
        (tmp_path / "test.csv").write_text("id,age,color,fold,out\n10,5,red,1,yes\n")
        fed = table(file, split={"test": str(tmp_path / "test.csv")}, held_out=0.5)  # nothing more is held out
        assert (fed.train.sizes.tolist(), fed.held_out.sizes.tolist()) == ([2, 2], [0, 1])
    else:
        for part, names in (("train", "ab"), ("test", "b")):
            (tmp_path / part).mkdir()
            for name in names:
                (tmp_path / part / f"{name}.csv").write_text("u,y\n1,0.5\n2,1.5\n")
        fed = fs.datasets.folder(
            tmp_path / "train", split={"test": str(tmp_path / "test")}, standardize=True, held_out=0.5
        )
        assert (fed.train.sizes.tolist(), fed.held_out.sizes.tolist()) == ([2, 2], [0, 2])
        assert fed.held_out.x.flatten().tolist() == [-1, 1]
        assert fed.notices == ("2 of 2 held-out points are training points of the same client, too",)


def test_splits_by_columns_which_are_no_inputs(file: Path) -> None:
    fed = table(file, split={"column": "fold", "test": ["2"]})
    assert "fold" not in (fed.columns.features or ())
    assert fed.held_out.sizes.tolist() == [1, 0]
    assert table(file, split={"time": "fold"}, held_out=0.5).held_out.x[0].tolist() == [30, 1, 0, 0]


def test_ids_among_inputs_are_pointed_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"c{k},{k},{k % 2},{10 * k + i},{rng.normal()},{rng.normal()}" for k in range(4) for i in range(10)]
    (tmp_path / "all.csv").write_text("\n".join(["id,site,region,row,u,out", *lines]) + "\n")
    fed = table(tmp_path / "all.csv")
    assert len(fed.notices) == 3
    assert "Column 'site' has one value in each client, another one in each" in fed.notices[0]
    assert "drop = ['site']" in fed.notices[0]
    assert "Column 'region' has one value in each client, 2 over all" in fed.notices[1]
    assert "Column 'row' numbers the points" in fed.notices[2]
    assert fed.notices[0] in repr(fed)
    assert not table(tmp_path / "all.csv", features=["u"]).notices


def test_other_forms_of_csv(tmp_path: Path) -> None:
    text = "id;größe;out\nä;1,5;2,5\nb;2;3\n"
    (tmp_path / "all.csv").write_bytes(text.encode("latin-1"))
    fed = table(tmp_path / "all.csv", delimiter=";", decimal=",", encoding="latin-1")
    assert (fed.names, fed.train.x.flatten().tolist()) == (("b", "ä"), [2, 1.5])
    assert "encoding = 'latin-1'" in message(tmp_path / "all.csv")
    (tmp_path / "all.csv").write_text(text)
    assert 'delimiter = ";"' in message(tmp_path / "all.csv")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client": "ids"}, ["lacks a column", "did you mean 'id'"]),
        ({"client": "ID"}, ["unknown column 'ID': did you mean 'id'?"]),
        ({"split": {"column": "color", "test": ["gren"]}}, ["unknown value of the column 'gren'", "mean 'green'?"]),
        ({"drop": "fold"}, ["drop = 'fold' is not allowed: should be a list, such as ['fold']"]),
        ({"drop": ["colour"]}, ["lacks a column", "did you mean 'color'"]),
        ({"features": ["z*"]}, ["unknown column 'z*'"]),
        ({"split": {"time": "when"}}, ["unknown column 'when'"]),
        ({"split": {"time": 3}}, ["split.time = 3", "name of a column"]),
        ({"categories": 2}, ["3 different values in column 'color'", "drop = ['color']"]),
        ({"categories": 0}, ["text 'red' in line 2, column 'color', should be a number"]),
        ({"drop": ["age", "color", "fold"]}, ["at least one feature"]),
        ({"delimiter": ";"}, ["seems to separate its columns by commas"]),
    ],
)
def test_bad_settings_are_one_sentence(file: Path, settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        fs.datasets.table(**{"path": file, "client": "id", "target": "out"} | settings)
    for word in words:
        assert word in str(caught.value)


def test_several_targets(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,u,a,b\n1,1,0,1\n1,2,1,1\n")
    both = {"client": "id", "target": ["a", "b"], "held_out": 0.0}
    assert fs.datasets.table(tmp_path / "all.csv", task="multilabel", **both).train.y.tolist() == [[0, 1], [1, 1]]
    assert fs.datasets.table(tmp_path / "all.csv", task="regression", **both).shape.outputs == 2


def test_a_run_of_toml(file: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'rounds = 2\nmodel = "linear"\nalgorithm = {name = "fedavg"}\n'
        '[dataset]\nname = "table"\npath = "all.csv"\nclient = "id"\ntarget = "out"\ndrop = ["fold"]\n'
        'split = {test = "all.csv"}\n'
    )
    found = spec.read(str(tmp_path / "run.toml"))
    assert found.dataset.settings["path"] == str(file)
    assert found.dataset.settings["split"] == {"test": str(file)}
    assert spec.RunSpec.from_dict(found.to_dict()) == found
    federation = fs.datasets.table(**found.dataset.settings)
    assert federation.held_out.sizes.tolist() == [2, 2]


def test_label_is_another_name_of_the_target(file: Path) -> None:
    fed = fs.datasets.table(file, client="id", label="out", held_out=0)
    assert (fed.fingerprint, fed.columns) == (table(file).fingerprint, table(file).columns)


def test_a_column_of_dates_says_what_it_may_be_used_for(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,day,u,out\na,2024-01-01,1,2.5\nb,2024-01-02,2,3.5\n")
    said = message(tmp_path / "all.csv")
    assert "'2024-01-01' (date32[day]) in line 2, column 'day'" in said
    assert "drop = ['day'], or hold the last points out by split = {time = 'day'}" in said


def test_files_that_are_no_table_are_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "nope.csv"
    assert message(gone) == f"table: path = '{gone}' does not exist, should be a .csv or .parquet file"
    assert "is a folder, should be a .csv or .parquet file (one file for each client" in message(tmp_path)
    assert "should be a .csv or .parquet file" in message(tmp_path / "all.npz")


def test_integers_from_1_are_as_many_classes_as_there_are(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,u,out\na,1,1\na,2,3\nb,3,2\nb,4,3\n")
    (tmp_path / "test.csv").write_text("id,u,out\nb,5,2\n")
    fed = table(tmp_path / "all.csv", split={"test": str(tmp_path / "test.csv")})
    assert (fed.shape.outputs, fed.columns.classes) == (3, ("1", "2", "3"))
    assert (fed.train.y.tolist(), fed.held_out.y.tolist()) == ([0, 2, 1, 2], [1])
    (tmp_path / "test.csv").write_text("id,u,out\nb,5,4\n")
    with pytest.raises(InputError, match="a label in line 2, column 'out' that the run does not know"):
        table(tmp_path / "all.csv", split={"test": str(tmp_path / "test.csv")})
