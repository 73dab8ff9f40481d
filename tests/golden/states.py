"""What every algorithm ends in on two presets: for changes that should change nothing.

python -m tests.golden.states              writes tests/golden/states.json, which `test_golden.py` holds runs against
python -m tests.golden.states --bits FILE  writes hashes of all states to a file, to compare bits on one machine
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import torch
from typer.testing import CliRunner

import fedsoft as fs
from fedsoft.cli import app
from fedsoft.core.contract import State
from fedsoft.plugins import find, names, parameters

FILE = Path(__file__).with_name("states.json")
PRESETS = {
    "synthetic-10-90": ["dataset.clients=12", "dataset.points=[20, 40]", "dataset.test_points=50", "solver.epochs=2"],
    "digits-2": ["dataset.clients=6", "dataset.points=[20, 30]", "solver.epochs=2"],
}
ROUNDS, K, SHOWN = 4, 4, 6
# Adam makes steps of what is nothing but rounding where a gradient vanishes, and FedAMP sends all clients' along.
INSTEAD = {"digits-2 fedamp": ["solver.name=sgd", "solver.lr=0.1"]}


def ended(preset: str, algorithm: str, folder: Path) -> State:
    """The server's state after a few rounds."""
    changes = [*PRESETS[preset], f"algorithm.name={algorithm}", *INSTEAD.get(f"{preset} {algorithm}", [])]
    if "K" in parameters(find("algorithms", algorithm)):
        changes.append(f"K={K}")
    words = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(app, ["run", preset, "--rounds", str(ROUNDS), "--out", str(folder), "--json", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return fs.load(next(folder.glob("*/spec.toml")).parent).state


def summary(state: State) -> dict[str, list[float]]:
    """A few numbers of every tensor that hardly anything leaves as they are."""
    found = {}
    for name, value in sorted(state.tensors().items()):
        flat = value.double().flatten()
        wave = torch.cos(torch.arange(len(flat), dtype=torch.float64))
        found[name] = [float(flat.sum()), float(flat.norm()), float((flat * wave).sum()), *flat[:SHOWN].tolist()]
    return found


def bits(state: State) -> str:
    """A hash of everything."""
    whole = hashlib.sha256()
    for name, value in sorted(state.tensors().items()):
        whole.update(name.encode() + value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bits", type=Path)
    told = parser.parse_args()
    found = {}
    for preset in PRESETS:
        for algorithm in names("algorithms"):
            if (preset, algorithm) == ("digits-2", "mocha"):  # for linear models alone
                continue
            with tempfile.TemporaryDirectory() as folder:
                state = ended(preset, algorithm, Path(folder))
            found[f"{preset} {algorithm}"] = bits(state) if told.bits else summary(state)
    (told.bits or FILE).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
