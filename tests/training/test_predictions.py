"""What users get back for their own points."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsoft as fs
from fedsoft.data.new_points import read_new_clients
from fedsoft.errors import InputError
from fedsoft.runs.execute import execute
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec


def scaled_federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    pairs = []
    for k in range(5):
        z = rng.standard_normal((60, 4))
        label = np.where(z @ [1.0, -1.0, 0.5, k % 2] > 0, "yes", "no")
        pairs.append((np.array([40.0, 3e4, -7.0, 100.0]) + z * [10.0, 8e3, 2.0, 50.0], label))
    return fs.Federation.from_clients(pairs, names=list("abcde")).standardized()


@pytest.fixture(scope="module")
def run() -> fs.Run:
    return fs.fit(fs.FedSoft(S=2), scaled_federation(), fs.models.linear(bias=True), rounds=6)


def test_predictions_come_with_their_client_and_targets_as_in_the_data(run: fs.Run) -> None:
    found = run.held_out_predictions()
    hits, points = 0, 0
    for k, one in enumerate(found):
        client, y, prediction = one
        assert client == "abcde"[k]
        assert set(y) <= {"yes", "no"}
        assert one.classes == ("no", "yes")
        assert prediction.shape == (len(y), 2)
        np.testing.assert_allclose(prediction.sum(1), 1, rtol=1e-5)
        own = np.mean(one.guess == y)
        assert own == pytest.approx(run.outcome().held_out[k])
        hits, points = hits + np.sum(one.guess == y), points + len(y)
    assert points == int(run.federation.held_out.sizes.sum())
    assert hits / points > 0.8


def test_inputs_as_they_were_give_the_same_predictions(run: fs.Run) -> None:
    fed = run.federation
    assert fed.scale is not None
    for k, (client, _, prediction) in enumerate(run.held_out_predictions()):
        raw = fed.scale.back(fed.held_out.client(k)[0])
        np.testing.assert_allclose(run.predict(raw, client=str(client)), prediction, atol=1e-4)


def test_points_of_the_federation_are_not_scaled_twice(run: fs.Run) -> None:
    fed = run.federation
    x, y = fed.held_out.client(1)
    shuffled = x[torch.randperm(len(x))]
    for given in (x, x[2:7], x.numpy(), x.clone(), x.double().numpy().tolist(), shuffled, fed.train.client(0)[0]):
        with pytest.raises(InputError, match=r"would be scaled twice.*run.held_out_predictions"):
            run.predict(given, client=1)
    with pytest.raises(InputError, match="would be scaled twice"):
        run.predict(x, center=0)
    with pytest.raises(InputError, match="would be scaled twice"):
        run.adopt(x, np.array(["no", "yes"])[y])


def test_few_values_in_common_are_no_mistake() -> None:
    # Of the values 0, 1 and 2 the middle one becomes 0: inputs of 0 are in the scaled points, too.
    x = np.array([0.0, 1.0, 2.0] * 20)[:, None]
    fed = fs.Federation.from_clients([(x, (x[:, 0] > 0.5).astype(int))] * 2).standardized()
    run = fs.fit(fs.FedAvg(), fed, fs.models.linear(bias=True), rounds=1)
    assert run.predict(np.zeros((5, 1)), center=0).shape == (5, 2)
    assert run.predict(x, center=0).shape == (60, 2)


def test_without_points_it_says_what_is_lacking(tmp_path: Path) -> None:
    synthetic = {"name": "synthetic", "clients": 3, "points": [6, 9], "dimension": 3, "test_points": 5}
    spec = RunSpec.from_dict({"rounds": 1, "algorithm": "fedavg", "model": "linear", "dataset": synthetic,
                              "solver": {"name": "adam", "epochs": 1}, "partition": "10:90"})  # fmt: skip
    folder, _ = execute(spec, tmp_path / "run", RunOptions(workers=1))
    assert len(load(folder.path, data=True).held_out_predictions()) == 3
    with pytest.raises(InputError):
        load(folder.path).held_out_predictions()


def labels() -> fs.Federation:
    rng = np.random.default_rng(3)
    pairs = []
    for _ in range(4):
        x = rng.standard_normal((80, 3))
        pairs.append((x, (x > 0).astype(np.int64)))  # integers, three labels that may apply together
    return fs.Federation.from_clients(pairs, task="multilabel")


def test_labels_that_apply_together_are_predicted_with_probabilities() -> None:
    fed = labels()
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))

    def own(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(output, y, reduction="none").mean(1)

    for model in (fs.models.mlp(hidden=[16]), fs.models.module(net), fs.models.module(net, loss=own)):
        run = fs.fit(fs.FedAvg(), fed, model, rounds=8, options=fs.FitOptions(metrics=["f1", "auc", "log_loss"]))
        for one in run.held_out_predictions():
            assert one.prediction.min() >= 0
            assert one.prediction.max() <= 1
            assert one.y.shape == one.prediction.shape
            assert np.mean(one.guess == one.y) > 0.85
        assert run.scores().metric == "accuracy"


def test_targets_with_columns_lead_to_the_task() -> None:
    with pytest.raises(InputError, match="give task = 'multilabel' for labels 0 and 1 that may apply together"):
        fs.Federation.from_clients([(np.zeros((4, 2)), np.ones((4, 5), dtype=int))])


# --- files and tables -------------------------------------------------------------------------------------------------

ROWS = {"age": [50.0, 30.0, 41.0], "who": ["n", "n", "n"], "colour": ["red", "blue", "violet"], "out": [3, 1, 2]}


@pytest.fixture(scope="module")
def tabled(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """A run on a table with a column of text, standardized, whose labels are the numbers 1 to 3."""
    rng = np.random.default_rng(0)
    lines = [f"c{k % 3};{rng.normal(40, 9):.3f};{'red' if k % 2 else 'blue'};{k % 3 + 1}" for k in range(60)]
    file = tmp_path_factory.mktemp("table") / "all.csv"
    file.write_text("\n".join(["who;age;colour;out", *lines]) + "\n")
    fed = fs.datasets.table(file, client="who", target="out", delimiter=";", standardize=True)
    return fs.fit(fs.FedSoft(S=2), fed, fs.models.linear(bias=True), rounds=1)


def coded(run: fs.Run) -> list[list[float]]:
    assert run.federation.columns.elements == ("age", "colour=blue", "colour=red")
    return [[50.0, 0.0, 1.0], [30.0, 1.0, 0.0], [41.0, 0.0, 0.0]]


def test_predict_and_adopt_take_files_data_frames_and_columns(
    tabled: fs.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, lines = tmp_path / "n.csv", zip(*ROWS.values(), strict=True)
    file.write_text("\n".join([";".join(ROWS), *(";".join(map(str, line)) for line in lines)]) + "\n")
    expected = tabled.predict(coded(tabled), center=0)
    arrow = pa.table(ROWS)
    given = [file, str(file), ROWS, arrow, {name: ROWS[name] for name in ("colour", "age")}]
    with contextlib.suppress(ImportError):  # pandas need not be there
        given.append(arrow.to_pandas())
    for one in given:
        assert torch.equal(tabled.predict(one, center=0), expected)
    assert "1 of 3 points have a value of column 'colour' that no client had in training" in caplog.text
    plain = tabled.adopt(coded(tabled), ROWS["out"], name="n", how="personal")
    for one in given[:4]:
        found = tabled.adopt(one, how="personal")
        assert (found.name, found.to_dict()) == ("n", plain.to_dict())
        assert torch.equal(found.predict(one), plain.predict(coded(tabled)))
    assert torch.equal(tabled.adopt(given[4], ROWS["out"]).shares, plain.shares)


def test_several_new_clients_in_one_table(tabled: fs.Run) -> None:
    rows = {**ROWS, "who": ["p", "q", "p"]}
    with pytest.raises(InputError, match="adopt is for one client, but these are 2: 'p', 'q'"):
        tabled.adopt(rows)
    found = tabled.adopt_all(rows)
    assert {name: one.points for name, one in found.items()} == {"p": 2, "q": 1}
    pairs = {"p": (coded(tabled)[::2], [3, 2]), "q": (coded(tabled)[1:2], [1])}
    assert {name: one.to_dict() for name, one in tabled.adopt_all(pairs).items()} == {
        name: one.to_dict() for name, one in found.items()
    }


def test_a_loaded_run_reads_files_as_its_own(tabled: fs.Run, tmp_path: Path) -> None:
    loaded = load(tabled.save(tmp_path / "saved"))
    assert loaded.federation.columns == tabled.federation.columns
    assert torch.equal(loaded.predict(ROWS, client="c1"), tabled.predict(ROWS, client="c1"))
    (tmp_path / "new.csv").write_text("age;colour;out\n50;red;3\n")
    (tmp_path / "renamed.csv").write_text("age;colour;result\n50;red;3\n")
    for file, target in (("new.csv", None), ("renamed.csv", "result")):
        ((x, y),) = read_new_clients(tmp_path / file, loaded.federation, target).values()
        assert (x.tolist(), np.asarray(y).tolist()) == (coded(tabled)[:1], [3])


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[50.0, "red"]], "x is not an array of numbers .it holds text: .* run.predict and run.adopt take files"),
        ({"age": [50.0]}, "should have the columns of the run's data, but lacks 'colour'"),
        ({"age": [50.0], "colour": "red"}, "it cannot be read"),
        ("nope.csv", "'nope.csv' does not exist"),
    ],
)
def test_rows_that_cannot_be_read_are_one_sentence(tabled: fs.Run, x: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tabled.predict(x, center=0)


def test_whole_labels_come_back_as_numbers(tabled: fs.Run) -> None:
    found = tabled.held_out_predictions()[0]
    assert found.classes == (1, 2, 3)
    assert {*found.y.tolist(), *found.guess.tolist()} <= {1, 2, 3}
