"""Networks with dropout, BatchNorm and adapters as runs of the command line: by name, stopped and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.training import RoundRecord

TEXT = """
rounds = 4
partition = "10:90"

[algorithm]
name = "{algorithm}"

[dataset]
name = "digits"
clients = 4
points = [12, 17]

[model]
{model}

[solver]
name = "adam"
epochs = 1
batch = 5
"""
NET = f"{__name__}:network"
MODELS = {
    "averaged": f'name = "module"\nfactory = "{NET}"',
    "local": f'name = "module"\nfactory = "{NET}"\nstatistics = "local"',
    "lora": f'name = "lora"\nfactory = "{NET}"\nrank = 2\ntargets = ["1"]\ntrainable = ["5.*"]',
}


def network() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10)
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_stopped_run_ends_in_the_same_bits(model: str, tmp_path: Path) -> None:
    algorithm = "fedavg" if model == "local" else "fedsoft"
    file = tmp_path / "run.toml"
    file.write_text(TEXT.format(model=MODELS[model], algorithm=algorithm))
    chosen, options = replace(spec.read(str(file)), allow=(NET,)), RunOptions()

    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    whole, _ = execute(chosen, tmp_path / "whole", options)
    with pytest.raises(KeyboardInterrupt):
        execute(chosen, tmp_path / "run", RunOptions(callbacks=[stop], workers=2))
    folder, finished = execute(chosen, tmp_path / "run", options)
    assert finished
    assert (folder.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()
    found = folder.checkpoint()
    assert found is not None
    assert bool(torch.isfinite(found.state.centers).all())
