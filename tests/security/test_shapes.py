"""What a server sends has the shape of the model, or nothing is computed: compiled loops know no end of arrays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsoft import plugins
from fedsoft.flower.node.policy import SENDS_SUMS
from fedsoft.flower.node.refusals import Refusal
from tests.security.hospital import ask, described, hospital

HIDDEN = 20
SIZE = 5 * HIDDEN + 1  # parameters of a network of 3 inputs, so many that Adam's steps are compiled
SENT = ("center", "common", "start", "u", "w")  # what algorithms send beside `centers`


NOT_ASKED = (*SENDS_SUMS, "local", "mocha")  # not allowed by default, asks for nothing, for linear models only


@pytest.mark.parametrize("name", [name for name in plugins.names("algorithms") if name not in NOT_ASKED])
def test_models_of_another_size_do_not_show_what_lies_behind_them_in_memory(name: str, tmp_path: Path) -> None:
    """A server that sent short models was answered with what Adam's loop found behind them: memory of the worker."""
    node = hospital(tmp_path, "[policy]\nrequests_per_run = 9999\n")
    model = {"name": "mlp", "hidden": [HIDDEN]}
    raw = described(algorithm=name, model=model, solver={"name": "adam", "epochs": 1, "batch": 100})
    assert "clients" in ask(node, raw).head
    made, asked = plugins.build("algorithms", name, {}), 0
    for job in made.jobs:
        for size in (SIZE - 50, 1, 0, SIZE + 50):
            centers = {"shared/centers": torch.zeros(made.center_count, size)}
            rows = {f"each/{key}": torch.zeros(1, size) for key in SENT}
            right = {"shared/centers": torch.zeros(made.center_count, SIZE)}
            for tensors in (centers, centers | rows, right | rows):
                answer = ask(node, raw, "job", job=job, round=asked, ask=0, clients=["a"], tensors=tensors)
                asked += 1
                if tensors["shared/centers"].shape[1] != SIZE:  # else that may be all that a job looks at
                    assert answer.head.get("refused") == Refusal.MESSAGE, (job, size)


@pytest.mark.parametrize("name", ["fedamp", "fesem", "cfl", "flhc"])
def test_rows_for_single_clients_have_the_size_of_a_model_too(name: str, tmp_path: Path) -> None:
    node = hospital(tmp_path, "[policy]\nrequests_per_round = 99\n")
    model = {"name": "mlp", "hidden": [HIDDEN]}
    raw = described(algorithm=name, model=model, solver={"name": "adam", "epochs": 1, "batch": 100})
    ask(node, raw)

    def train(size: int, dtype: torch.dtype = torch.float32) -> str | None:
        rows = {f"each/{key}": torch.zeros(1, size, dtype=dtype) for key in SENT}
        return ask(node, raw, "job", job="train", clients=["a"], tensors=rows).head.get("refused")

    assert train(SIZE) is None  # these are what it uses
    for size in (SIZE - 1, SIZE + 1, 1, 0):
        assert train(size) == Refusal.FAILED
    assert train(SIZE, torch.int64) == Refusal.FAILED
