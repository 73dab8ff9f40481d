"""Runs on tokens: saved, and served without their data; and the same at workers of Ray."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec

FACTORY = "tests.runs.test_inputs:Words"


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.embedding(x) * mask[..., None]).sum(1))


def table(path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{'abc'[i % 3]},{' '.join(map(str, rng.integers(0, 20, rng.integers(1, 6))))},{i % 2}" for i in range(60)]
    path.write_text("who,text,y\n" + "\n".join(rows) + "\n")
    return path


def test_a_run_on_tokens_is_served_without_its_data(tmp_path: Path) -> None:
    file = table(tmp_path / "all.csv")
    spec = RunSpec.from_dict(
        {
            "rounds": 2, "algorithm": {"name": "fedem", "S": 2}, "solver": {"name": "sgd", "lr": 0.1, "epochs": 1},
            "dataset": {"name": "table", "path": str(file), "client": "who", "tokens": ["text"], "length": 8},
            "model": {"name": "module", "factory": FACTORY},
        },
        allow=[FACTORY],
    )  # fmt: skip
    folder, _ = execute(replace(spec, allow=frozenset([FACTORY])), tmp_path / "run", RunOptions())
    x, y = [[3, 1, 2], [4], [7] * 8], [0, 1, 0]
    before = fs.load(folder.path, allow=[FACTORY])
    wanted = before.predict(x, client="b"), before.adopt(x, y).shares
    file.unlink()
    run = fs.load(folder.path, allow=[FACTORY])
    assert torch.equal(run.predict(x, client="b"), wanted[0])
    assert torch.equal(run.adopt(x, y).shares, wanted[1])
    fs.export(run, tmp_path / "out", format="torch")
    with pytest.raises(fs.InputError, match="at most 8"):
        run.predict([[1] * 9], center=0)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_workers_of_ray_end_in_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    fed = fs.datasets.table(table(tmp_path / "all.csv"), client="who", tokens=["text"])
    runs = []
    for engine, workers in (("local", 1), ("ray", 2)):
        options = fs.FitOptions(engine=engine, workers=workers, chunk=1)
        run = fs.fit(fs.FedSoft(S=2), fed, Words, rounds=2, solver=fs.SGD(lr=0.1, epochs=1), options=options)
        with contextlib.closing(run.engine) if engine == "ray" else contextlib.nullcontext():
            runs.append((run.state.centers, run.predict([[1, 2], [3]], client=2), run.scores().personal_held_out))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert runs[0][2] == runs[1][2]
