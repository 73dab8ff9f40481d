from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from rich.console import Console

import fedsoft as fs
from fedsoft.cli.progress import Progress
from fedsoft.clusters.collapse import reseeded, use_of
from fedsoft.runs.spec import RunSpec
from fedsoft.training import RoundRecord
from fedsoft.training.notices import Kind, Notice, collapse, collapsed
from tests.helpers import engine_for, federation, record, regression_clients


def test_use_by_hand() -> None:
    centers = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    u = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    found = use_of(centers, u, torch.tensor([10, 30]))
    assert found["use"] == pytest.approx([25 / 40, 15 / 40, 0.0])
    assert found["effective"] == pytest.approx([25**2 / (10**2 + 15**2), 1.0, 0.0])
    # Norms 5, 5 and 0, so their root mean square is sqrt(50 / 3).
    assert found["apart"] == pytest.approx([0.0, 0.0, 5 / math.sqrt(50 / 3)])


def used(use: list[float], apart: float = 0.5, t: int = 0, **known: Any) -> RoundRecord:
    return record(t, use=use, effective=[10 * share for share in use], apart=[apart] * len(use), **known)


def test_notices_name_the_center() -> None:
    (one,) = collapsed(used([0.97, 0.03]))
    assert one == Notice(Kind.UNUSED, "1", "center 1 is hardly used: 3.0 % of the points, by 0.3 clients")
    assert [(notice.kind, notice.subject, notice.text) for notice in collapsed(used([0.5, 0.5], 1e-5))] == [
        (Kind.COPY, "0", "center 0 is a copy of another one"), (Kind.COPY, "1", "center 1 is a copy of another one")
    ]  # fmt: skip
    assert collapsed(used([0.5, 0.5], 1e-5, phase="pooled")) == []  # one center on purpose
    assert collapsed(record()) == []  # no mixtures
    assert collapsed(used([0.5, 0.5], 0.1)) == []


def test_only_what_stands_is_worth_a_notice() -> None:
    bad, other, good = used([1.0, 0.0]), used([0.0, 1.0]), used([0.5, 0.5])
    assert collapse([bad] * 4) == []
    assert len(collapse([bad] * 5)) == 1
    assert collapse([bad, bad, bad, bad, good]) == []
    assert collapse([bad, bad, good, bad, bad]) == []
    assert collapse([bad, bad, other, bad, bad]) == []


def test_records_tell_the_use_of_every_center() -> None:
    run = fs.fit(fs.IFCA(S=3), federation(regression_clients()), fs.models.linear(), rounds=3, solver=fs.SGD(epochs=1))
    for one in run.history:
        assert sum(one.use) == pytest.approx(1)
        assert len(one.effective) == len(one.apart) == 3
    single = fs.fit(fs.FedAvg(), federation(regression_clients()), fs.models.linear(), rounds=1)
    assert single.history[0].use == []


def test_the_log_of_a_run_warns_once() -> None:
    spec = RunSpec.from_dict({"rounds": 9, "algorithm": "ifca", "model": "linear", "dataset": "synthetic"})
    text = io.StringIO()
    with Progress(Console(file=text, width=200), spec, 0) as progress:
        for t in range(9):
            progress.update(used([1.0, 0.0], t=t))
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
        engine = engine_for(
            algorithm, fed, fs.models.linear(), seed=0, solver=fs.SGD(lr=0.05, epochs=10, batch=20), dtype="float64"
        )
        with torch.no_grad():
            state = engine.start().update(centers=torch.tensor([[0.1], [1e3]]).double())
            for t in range(20 if reseed else 2):  # later rounding may part copies
                state, _ = engine.round(state, t)
        ends[reseed] = sorted(state.centers.flatten().tolist())
    assert ends[False][1] == pytest.approx(1e3 if name == "IFCA" else ends[False][0])
    assert ends[True] == pytest.approx([-3.0, 3.0], abs=0.1)
