"""Clients may remember more than the machine has memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
from fedsoft.runs import spec
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.execute import execute

def peak() -> int:
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

clients, memory, path = sys.argv[1:]
settings = ["points=[4, 6]", "dimension=100", "model=mlp", "model.hidden=[400]", "K=all", "epochs=1", "test_points=50"]
chosen = spec.read("synthetic-10-90", [f"clients={clients}", *settings, "rounds=1"])
before = peak()
_, finished = execute(chosen, Path(path), RunOptions(memory=memory, workers=2))
print(finished, peak() - before)
"""


def run(clients: int, memory: str, path: Path) -> int:
    """A real process that trains so many clients; the memory that it had at most beyond what its imports take."""
    command = [sys.executable, "-c", CODE, str(clients), memory, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    finished, peak = done.stdout.split()
    assert finished == "True"
    return int(peak)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak of a process")
def test_memory_stays_within_bounds(tmp_path: Path) -> None:
    """3,000 clients remember 1.5 GB and answer with 0.5 GB. 200 MB are for them, the rest for chunks and all else."""
    peak = run(3000, "200M", tmp_path / "run")
    state = (tmp_path / "run" / "state.safetensors").stat().st_size
    (tmp_path / "run" / "state.safetensors").unlink()
    assert state > 1.4e9
    assert peak < 400e6
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak of a process")
def test_the_bits_are_those_of_a_run_in_memory(tmp_path: Path) -> None:
    run(60, "4M", tmp_path / "disk")
    run(60, "4G", tmp_path / "ram")
    one, other = ((tmp_path / name / "state.safetensors").read_bytes() for name in ("disk", "ram"))
    assert one == other
