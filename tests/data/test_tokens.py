"""Tokens in tables and arrays reach a network as integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.inputs import InputField, unpack
from fedsoft.errors import InputError


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        found = self.embedding(x)
        return self.head(found.mean(1) if mask is None else (found * mask[..., None]).sum(1))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = Words(), nn.Linear(1, 2)

    def forward(self, tokens: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        return self.words(tokens, mask) + self.numbers(numbers)


def long_table(cells: list[str], *, age: bool = False) -> str:
    head = "who,text,age,y\n" if age else "who,text,y\n"
    return head + "".join(
        f"{'ab'[i % 2]},{cell},{f'{i / 2},' if age else ''}{'no' if i % 3 else 'yes'}\n" for i, cell in enumerate(cells)
    )


def test_text_of_tokens_in_a_csv(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(long_table(["3 1 2", "4", "5 6", "7 7 7 7", "1 2", "19"]))
    fed = fs.datasets.table(tmp_path / "all.csv", client="who", tokens=["text"], held_out=0)
    assert fed.shape.fields == (InputField("0", "int32", (4,), ragged=True),)
    part = unpack(fed.shape.fields, fed.train.client(0)[0])["0"]
    assert part.values.tolist() == [[3, 1, 2, 0], [5, 6, 0, 0], [1, 2, 0, 0]]
    run = fs.fit(fs.FedAvg(), fed, Words, rounds=1)
    assert run.predict([[3, 1], [4]], client="b").shape == (2, 2)


def test_tokens_beside_numbers_are_given_by_name(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(long_table(["3 1 2", "4", "5 6", "7 7 7 7", "1 2", "19"], age=True))
    fed = fs.datasets.table(tmp_path / "all.csv", client="who", tokens=["text"], length=9, held_out=0)
    assert [(one.name, one.kind, one.shape) for one in fed.shape.fields] == [
        ("tokens", "int32", (9,)), ("numbers", "float64", (1,)),
    ]  # fmt: skip
    part = unpack(fed.shape.fields, fed.train.client(1)[0])
    assert part["numbers"].values[:, 0].tolist() == [0.5, 1.5, 2.5]
    fs.fit(fs.FedAvg(), fed, Both, rounds=1)


def test_one_token_in_each_of_several_columns(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("w0,w1,y\n" + "".join(f"{i},{i + 1},{i % 2}\n" for i in range(8)))
    fed = fs.datasets.folder(tmp_path, tokens=["w*"], held_out=0)
    assert (fed.train.x.dtype, fed.shape.input, fed.shape.fields) == (torch.int32, (2,), ())
    assert fed.train.client(0)[0].tolist() == [[i, i + 1] for i in range(8)]
    fs.fit(fs.FedAvg(), fed, Words, rounds=1)
    plain = fs.datasets.folder(tmp_path, held_out=0)
    assert plain.train.x.dtype == torch.float32


def test_lists_in_parquet(tmp_path: Path) -> None:
    for name in "ab":
        table = pa.table({"words": [[1, 2, 3], [4], [5, 5]], "y": [0, 1, 0]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    fed = fs.datasets.folder(tmp_path, tokens=["words"], held_out=0)
    part = unpack(fed.shape.fields, fed.train.client(0)[0])["0"]
    assert part.values.tolist() == [[1, 2, 3], [4, 0, 0], [5, 5, 0]]


def test_arrays_of_integers_and_arrays_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        tokens, mask = rng.integers(0, 20, (6, 4)), rng.random((6, 4)) < 0.5
        np.savez(tmp_path / f"{name}.npz", x=tokens, mask=mask, y=np.arange(6) % 2)
    fed = fs.datasets.folder(tmp_path, held_out=0)
    assert fed.train.x.dtype == torch.int32
    fs.fit(fs.FedAvg(), fed, Words, rounds=1)
    both = fs.datasets.folder(tmp_path, features=["x", "mask"], held_out=0)
    assert [(one.name, one.kind) for one in both.shape.fields] == [("x", "int32"), ("mask", "bool")]
    fs.fit(fs.FedAvg(), both, Words, rounds=1)


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("who,text,y\na,1 2,0\nb,3 four,1\n", {"tokens": ["text"]}, "has '3 four' in line 3, column 'text'"),
        ("who,w,y\na,1.5,0\nb,3,1\n", {"tokens": ["w"]}, "has 1.5 in line 2, column 'w', should be tokens"),
        ("who,w,y\na,1,0\nb,3,1\n", {"tokens": ["v"]}, "unknown column 'v'"),
        ("who,text,w,y\na,1 2,5,0\nb,3,6,1\n", {"tokens": ["text", "w"]}, "beside which 'w' cannot be tokens, too"),
        ("who,w,y\na,1,0\nb,3,1\n", {"tokens": ["w"], "standardize": True}, "tokens have no scale"),
        ("who,text,y\na,1 2 3,0\nb,3,1\n", {"tokens": ["text"], "length": 2}, "should have at most 2"),
        ("who,w,y\na,1,0\nb,3,1\n", {"tokens": ["w"], "length": 2}, "length = 2 is for sequences"),
    ],
)  # fmt: skip
def test_what_is_no_token_is_named(text: str, settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(text)
    with pytest.raises(InputError) as error:
        fs.datasets.table(tmp_path / "all.csv", client="who", held_out=0, **settings)
    assert sentence in str(error.value)


def test_a_length_beyond_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(long_table(["1 2", "3"] * 20_000))
    with pytest.raises(InputError, match="memory"):
        fs.datasets.table(tmp_path / "all.csv", client="who", tokens=["text"], length=10_000_000)
