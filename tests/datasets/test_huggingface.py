"""Data sets of Hugging Face and partitions of Flower Datasets, made in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions

hf: Any = pytest.importorskip("datasets", reason="needs the extra 'datasets'")
partitioner: Any = pytest.importorskip("flwr_datasets.partitioner", reason="needs the extra 'datasets'")

RNG = np.random.default_rng(0)
COUNT = 40
PIXELS = RNG.integers(0, 256, (COUNT, 8, 6), dtype=np.uint8)
LABELS = RNG.integers(0, 3, COUNT)
WHO = [f"w{k % 4}" for k in range(COUNT)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hf.disable_progress_bars()


def images() -> Any:
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=["b", "a", "c"]), "who": hf.Value("string")}
    return hf.Dataset.from_dict({"image": list(PIXELS), "label": LABELS, "who": WHO}, hf.Features(features))


def table(**more: Any) -> Any:
    x = RNG.standard_normal(COUNT)
    kinds = [["u", "v"][k] for k in RNG.integers(0, 2, COUNT)]
    return hf.Dataset.from_dict({"a": x, "kind": kinds, "label": 2 * x, "who": WHO} | more)


def sentence(*args: Any, **settings: Any) -> str:
    with pytest.raises(fs.InputError) as caught:
        fs.datasets.huggingface(*args, **settings)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_images_with_a_column_of_clients() -> None:
    fed = fs.datasets.huggingface(images(), client="who", held_out=0)
    assert fed.names == ("w0", "w1", "w2", "w3")
    assert fed.shape.input == (1, 8, 6)
    assert fed.columns.classes == ("b", "a", "c")
    x, y = fed.train.client(1)
    assert x.dtype == torch.uint8
    np.testing.assert_array_equal(x[:, 0].numpy(), PIXELS[1::4])
    assert y.tolist() == LABELS[1::4].tolist()


def test_a_split_test_is_held_out() -> None:
    both = hf.DatasetDict(train=images().select(range(30)), test=images().select(range(30, 40)))
    fed = fs.datasets.huggingface(both, client="who")
    assert int(fed.train.sizes.sum()) == 30
    np.testing.assert_array_equal(fed.held_out.client(2)[0][:, 0].numpy(), PIXELS[30:40:4])
    few = hf.DatasetDict(train=images().select([0, 1, 4, 5]), test=images().select([8, 10]))
    fed = fs.datasets.huggingface(few, client="who")
    assert fed.held_out.sizes.tolist() == [1, 0]
    assert "1 clients with test points only are left out, the first is 'w2'" in fed.notices


def test_several_columns_are_a_table() -> None:
    rows = table()
    fed = fs.datasets.huggingface(rows, client="who", held_out=0)
    same = fs.datasets.table(rows.data.table, client="who", target="label", held_out=0)
    assert fed.fingerprint == same.fingerprint
    assert fed.columns.categories == {"kind": ("u", "v")}


def test_a_table_with_a_split_test() -> None:
    rows = table()
    fed = fs.datasets.huggingface(
        hf.DatasetDict(train=rows.select(range(36)), test=rows.select(range(36, 40))), client="who"
    )
    assert fed.held_out.sizes.tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(fed.held_out.y.double(), torch.tensor(rows["label"][36:40]).double())
    assert fed.columns.features == ("a", "kind")


def test_a_data_set_for_each_client_by_name() -> None:
    rows = table()
    fed = fs.datasets.huggingface(
        {"x": rows.select(range(10)), "y": rows.select(range(10, 40))}, drop=["who"], held_out=0
    )
    assert fed.names == ("x", "y")
    assert fed.train.sizes.tolist() == [10, 30]
    pictures = {"p": images().select(range(7)), "q": images().select(range(7, 20))}
    fed = fs.datasets.huggingface(pictures, features=["image"], held_out=0)
    np.testing.assert_array_equal(fed.train.client(1)[0][:, 0].numpy(), PIXELS[7:20])


def test_arrays_and_a_split_by_a_column() -> None:
    x = RNG.standard_normal((COUNT, 3, 2)).astype(np.float32)
    features = hf.Features(
        {
            "x": hf.Array2D((3, 2), "float32"),
            "label": hf.Value("float32"),
            "who": hf.Value("int64"),
            "t": hf.Value("int64"),
        }
    )
    values = {"x": x, "label": x[:, 0, 0], "who": [k % 4 for k in range(COUNT)], "t": list(range(COUNT))}
    fed = fs.datasets.huggingface(hf.Dataset.from_dict(values, features), client="who", split={"time": "t"})
    assert fed.shape.input == (3, 2)
    np.testing.assert_array_equal(fed.held_out.client(3)[0].numpy(), x[[35, 39]])


class Bag(torch.nn.Module):
    """The mean of the embedded tokens that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.to(self.head.weight.dtype).unsqueeze(-1)
        return self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("ragged", [False, True])
def test_tokens_and_their_mask_reach_a_network_by_name(ragged: bool) -> None:
    """As a tokenizer gives them, padded or not."""
    lengths = RNG.integers(2, 7, COUNT) if ragged else [6] * COUNT
    ids = [RNG.integers(1, 50, n).tolist() for n in lengths]
    rows = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids], "label": LABELS % 2, "who": WHO}
    fed = fs.datasets.huggingface(hf.Dataset.from_dict(rows), client="who")
    run = fs.fit(fs.algorithms.FedAvg(), fed, Bag(), rounds=1, solver=fs.SGD(lr=0.1))
    assert torch.isfinite(run.state.centers).all()
    alone = fs.datasets.huggingface(hf.Dataset.from_dict(rows), client="who", drop=["attention_mask"], held_out=0)
    first = alone.train.client(0)[0][0].reshape(-1).tolist()
    assert first[: len(ids[0])] == ids[0]


def test_partitions_of_flower_are_clients() -> None:
    natural = partitioner.NaturalIdPartitioner("who")
    natural.dataset = images()
    by_partition = fs.datasets.huggingface(natural, features=["image"])
    by_column = fs.datasets.huggingface(images(), client="who")
    assert by_partition.names == by_column.names
    assert by_partition.fingerprint == by_column.fingerprint


def test_a_partitioner_by_its_name() -> None:
    settings = {"name": "DirichletPartitioner", "num_partitions": 3, "partition_by": "label", "alpha": 0.5,
                "min_partition_size": 1, "seed": 7}  # fmt: skip
    fed = fs.datasets.huggingface(images(), features=["image"], partitioner=settings, held_out=0)
    own = partitioner.DirichletPartitioner(**{key: value for key, value in settings.items() if key != "name"})
    own.dataset = images()
    assert fed.train.sizes.tolist() == [len(own.load_partition(k)) for k in range(3)]


def test_a_federated_dataset_of_flower(tmp_path: Path) -> None:
    """Made of files here; from the hub it is the same class."""
    flwr_datasets: Any = pytest.importorskip("flwr_datasets")
    table().to_parquet(tmp_path / "train.parquet")
    made = flwr_datasets.FederatedDataset(
        dataset=str(tmp_path), partitioners={"train": partitioner.IidPartitioner(5)}, cache_dir=str(tmp_path / "cache")
    )
    fed = fs.datasets.huggingface(made, drop=["who"], held_out=0)
    assert fed.train.sizes.tolist() == [8] * 5


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_a_run_on_files(tmp_path: Path, form: str) -> None:
    place = tmp_path / ("data" if form == "folder" else "data.parquet")
    table().save_to_disk(place) if form == "folder" else table().to_parquet(place)
    text = 'rounds = 2\nmodel = "linear"\nalgorithm = {name = "fedsoft", S = 2, K = 2}\n'
    (tmp_path / "own.toml").write_text(f'{text}[dataset]\nname = "huggingface"\npath = "{place}"\nclient = "who"\n')
    execute(spec.read(str(tmp_path / "own.toml")), tmp_path / "run", RunOptions())
    assert len(fs.load(tmp_path / "run").history) == 2


def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    rows = table()
    assert "client is missing" in sentence(rows)
    assert "lacks a column: unknown column 'whom'" in sentence(rows, client="whom")
    assert "lacks a column: unknown column 'label'" in sentence(rows.remove_columns("label"), client="who")
    assert "should have 'train'" in sentence(hf.DatasetDict(a=rows), client="who")
    assert "partitions are the clients" in sentence(_partitioned(rows), client="who")
    assert "both given" in sentence(rows, client="who", partitioner={"name": "IidPartitioner"})
    assert "did you mean 'IidPartitioner'" in sentence(rows, partitioner={"name": "IdPartitioner"})
    assert "IidPartitioner cannot be used" in sentence(rows, partitioner={"name": "IidPartitioner", "n": 3})
    assert "should be a Dataset of Hugging Face" in sentence([1, 2], client="who")
    assert "should be a folder of save_to_disk" in sentence(tmp_path, client="who")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert "cannot be read as a data set" in sentence(tmp_path, client="who")
    empty = hf.Dataset.from_dict({"x": [[1, 2], []], "label": [0, 1], "who": ["a", "a"]})
    assert "of point 1 is empty" in sentence(empty, client="who")
    unlabelled = images().cast_column("label", hf.Value("int64")).map(lambda _: {"label": -1})
    assert "label -1" in sentence(unlabelled.cast_column("label", hf.ClassLabel(names=["a", "b"])), client="who")


def test_images_that_differ_or_are_damaged_are_told() -> None:
    from PIL import Image

    def png(width: int, mode: str = "L") -> bytes:
        stream = io.BytesIO()
        Image.new(mode, (width, 4)).save(stream, "PNG")
        return stream.getvalue()

    def made(*content: bytes | None) -> Any:
        cells = [{"bytes": one, "path": None if one else "/etc/passwd"} for one in content]
        kinds = hf.Features({"image": {"bytes": hf.Value("binary"), "path": hf.Value("string")},
                             "label": hf.Value("int64"), "who": hf.Value("string")})  # fmt: skip
        return hf.Dataset.from_dict({"image": cells, "label": [0] * len(cells), "who": ["a"] * len(cells)}, kinds)

    assert "an image of 1 x 4 x 5 in row 2, but the first has 1 x 4 x 3" in sentence(made(png(3), png(5)), client="who")
    assert "not an image that can be read" in sentence(made(b"rubbish"), client="who")
    assert "or only a path" in sentence(made(None), client="who")
    assert fs.datasets.huggingface(made(png(3, "RGB")), client="who").shape.input == (3, 4, 3)


def _partitioned(rows: Any) -> Any:
    made = partitioner.IidPartitioner(2)
    made.dataset = rows
    return made
