from __future__ import annotations

import io
import math

import pytest
import torch
from rich.console import Console

import fedsoft as fs
from fedsoft.collapse import complaints, standing, use_of
from fedsoft.progress import Progress
from fedsoft.spec import RunSpec
from tests.helpers import federation, regression_clients


def test_use_by_hand() -> None:
    centers = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    u = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    found = use_of(centers, u, torch.tensor([10, 30]))
    assert found["use"] == pytest.approx([25 / 40, 15 / 40, 0.0])
    assert found["effective"] == pytest.approx([25**2 / (10**2 + 15**2), 1.0, 0.0])
    # Norms 5, 5 and 0, so their root mean square is sqrt(50 / 3).
    assert found["apart"] == pytest.approx([0.0, 0.0, 5 / math.sqrt(50 / 3)])


def test_complaints_name_the_center() -> None:
    record = {"use": [0.97, 0.03], "effective": [9.0, 1.5], "apart": [0.5, 0.5]}
    assert complaints(record) == ["center 1 is hardly used: 3.0 % of the points, by 1.5 clients"]
    record = {"use": [0.5, 0.5], "effective": [9.0, 9.0], "apart": [1e-5, 1e-5]}
    assert complaints(record) == ["center 0 is a copy of another one", "center 1 is a copy of another one"]
    assert complaints(record | {"phase": "pooled"}) == []  # one center on purpose
    assert complaints({"round": 0}) == []  # no mixtures
    assert complaints({"use": [0.5, 0.5], "effective": [9.0, 9.0], "apart": [0.1, 0.1]}) == []


def test_only_what_stands_is_worth_a_word() -> None:
    bad = {"use": [1.0, 0.0], "effective": [9.0, 0.0], "apart": [0.5, 0.5]}
    good = {"use": [0.5, 0.5], "effective": [9.0, 9.0], "apart": [0.5, 0.5]}
    assert standing([bad] * 4) == []
    assert len(standing([bad] * 5)) == 1
    assert standing([bad, bad, bad, bad, good]) == []
    assert standing([bad, bad, good, bad, bad]) == []


def test_records_tell_the_use_of_every_center() -> None:
    run = fs.fit(fs.IFCA(S=3), federation(regression_clients()), fs.models.linear(), rounds=3, local=fs.SGD(epochs=1))
    for record in run.history:
        assert sum(record["use"]) == pytest.approx(1)
        assert len(record["effective"]) == len(record["apart"]) == 3
    single = fs.fit(fs.FedAvg(), federation(regression_clients()), fs.models.linear(), rounds=1)
    assert "use" not in single.history[0]


def test_the_log_of_a_run_warns_once() -> None:
    spec = RunSpec.from_dict({"rounds": 9, "algorithm": "ifca", "model": "linear", "dataset": "synthetic"})
    text = io.StringIO()
    bad = {"use": [1.0, 0.0], "effective": [9.0, 0.0], "apart": [0.5, 0.5]}
    with Progress(Console(file=text, width=200), spec, 0) as progress:
        for t in range(9):
            progress.update({"round": t, **bad})
    lines = [line for line in text.getvalue().splitlines() if "warning" in line]
    assert lines == ["warning: after round 5 center 1 is hardly used: 0.0 % of the points, by 0.0 clients"]
