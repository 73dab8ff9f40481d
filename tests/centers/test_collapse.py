from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from rich.console import Console

import fedsoft as fs
from fedsoft.centers.collapse import complaints, reseeded, standing, use_of
from fedsoft.progress import Progress
from fedsoft.runs.spec import RunSpec
from fedsoft.training import prepare
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


def test_reseeding_by_hand() -> None:
    centers, n = torch.tensor([[0.0, 0.0], [4.0, 0.0], [9.0, 9.0]]), torch.tensor([10, 10])
    w = torch.tensor([[1.0, 0.0], [2.0, 1.0], [4.0, 2.0]])  # squared distances to the nearest of two: 1, 5, 4
    idle = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert reseeded(centers, idle, n, w).tolist() == [[0.0, 0.0], [4.0, 0.0], [2.0, 1.0]]
    assert torch.equal(reseeded(centers, idle, n, w[:0]), centers)  # nobody answered
    busy = torch.full((2, 3), 1 / 3)
    assert torch.equal(reseeded(centers, busy, n, w), centers)


@pytest.mark.parametrize("name", ["IFCA", "FedSoft"])
def test_a_center_that_nobody_uses_comes_back(name: str) -> None:
    """Two sources, and a second center too far away for either. It stays there (IFCA), or becomes a copy (FedSoft)."""
    x = torch.linspace(-1, 1, 20)[:, None].double()
    fed = federation([(x, (3.0 if k % 2 else -3.0) * x[:, 0]) for k in range(10)])
    ends: dict[bool, Any] = {}
    for reseed in (False, True):
        algorithm = fs.IFCA(S=2, reseed=reseed) if name == "IFCA" else fs.FedSoft(S=2, lam=0.1, reseed=reseed)
        engine = prepare(
            algorithm, fed, fs.models.linear(), seed=0, local=fs.SGD(lr=0.05, epochs=10, batch=20), dtype="float64"
        )
        with torch.no_grad():
            state = engine.start() | {"centers": torch.tensor([[0.1], [1e3]]).double()}
            for t in range(20):
                state, _ = engine.round(state, t)
        ends[reseed] = sorted(state["centers"].flatten().tolist())
    assert ends[False] == pytest.approx([0.0, 1e3 if name == "IFCA" else 0.0], abs=0.1)
    assert ends[True] == pytest.approx([-3.0, 3.0], abs=0.1)
