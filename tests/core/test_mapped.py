"""Inputs on disk: the same bits as in memory, and never in memory as a whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.client_data import Augment
from fedsoft.core.mapped import MappedRows

SIZES = (17, 40, 23, 60)


def mapped(folder: Path, x: np.ndarray, name: str = "x") -> np.ndarray:
    np.save(folder / f"{name}.npy", x)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def federation(x: np.ndarray, y: np.ndarray) -> fs.Federation:
    ends = np.cumsum(SIZES)
    return fs.Federation.from_clients([(x[e - n : e], y[e - n : e]) for e, n in zip(ends, SIZES, strict=True)])


def points(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    count = sum(SIZES)
    if kind == "images":
        return rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8), rng.integers(0, 3, count)
    x = rng.standard_normal((count, 5))
    y = x @ np.arange(5.0) + 0.1 * rng.standard_normal(count)
    return {"double": x, "single": x.astype(np.float32), "half": x.astype(np.float16)}.get(
        kind, (10 * x).astype(np.int64)
    ), y


CASES = {
    "tiny linear": ("double", fs.FedSoft(S=2, K=3), fs.models.linear(), fs.Adam(lr=0.05, batch=8, epochs=2)),
    "linear SGD": ("single", fs.FedSoft(S=2, K=3), fs.models.linear(bias=True), fs.SGD(lr=0.05, batch=7, epochs=2)),
    "exact": ("double", fs.FedSoft(S=2, K=3), fs.models.linear(), fs.Exact()),
    "network": ("half", fs.algorithms.FedEM(S=2), fs.models.mlp(), fs.Adam(lr=0.05, batch=8, epochs=2)),
    "parts": ("integers", fs.algorithms.FedRoute(S=2, warm=1), fs.models.mlp(), fs.Adam(lr=0.05, batch=8)),
    "images": ("images", fs.FedSoft(S=2, K=3), fs.models.digits_cnn(), fs.Adam(lr=0.05, batch=8)),
}


@pytest.mark.parametrize("case", CASES)
def test_runs_on_disk_end_in_the_bits_of_runs_in_memory(tmp_path: Path, case: str) -> None:
    kind, algorithm, model, solver = CASES[case]
    x, y = points(kind)
    ends = []
    for source in (x, mapped(tmp_path, x)):
        fed = federation(source, y)
        run = fs.fit(algorithm, fed, model, rounds=3, solver=solver, seed=3)
        ends.append((run.state.centers, fed.fingerprint, repr(run.scores()), type(fed.train.x)))
    (memory, disk) = ends
    assert disk[3] is MappedRows
    assert memory[3] is torch.Tensor
    assert torch.equal(memory[0], disk[0])
    assert memory[1:3] == disk[1:3]


@pytest.mark.slow
def test_images_on_disk_are_varied_by_the_same_draws(tmp_path: Path) -> None:
    x, y = points("images")
    ends = []
    for source in (x, mapped(tmp_path, x)):
        fed = federation(source, y)
        fed = replace(fed, train=replace(fed.train, augment=Augment(1, flip=True)))
        ends.append(fs.fit(fs.algorithms.FedAvg(), fed, fs.models.digits_cnn(), rounds=2).state.centers)
    assert torch.equal(*ends)


def test_scaled_inputs_stay_on_disk(tmp_path: Path) -> None:
    x, y = points("double")
    memory, disk = (federation(source, y).standardized() for source in (3 + 5 * x, mapped(tmp_path, 3 + 5 * x)))
    assert isinstance(disk.train.x, MappedRows)
    torch.testing.assert_close(disk.train.x.in_memory(), memory.train.x, rtol=1e-12, atol=1e-12)
    assert disk.unscaled is None
    assert federation(mapped(tmp_path, 3 + 500 * x, "far"), y).unscaled is not None


@given(st.data())
def test_rows_are_those_of_the_array(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Slices, picks, conversions and concatenations in any order read what they would give in memory."""
    folder = tmp_path_factory.mktemp("rows")
    plain = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 2)))
    disk: torch.Tensor = MappedRows.of(mapped(folder, plain.numpy()))
    for step in data.draw(st.lists(st.sampled_from(["slice", "pick", "convert", "concat", "mixed"]), max_size=5)):
        if step == "slice":
            begin, end = data.draw(st.integers(0, len(plain))), data.draw(st.integers(0, len(plain)))
            plain, disk = plain[begin:end], disk[begin:end]
        elif step == "pick" and len(plain):
            chosen = torch.tensor(data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=6)), dtype=torch.int64)
            assert isinstance(disk, MappedRows)
            plain, disk = plain[chosen], disk.pick(chosen)
        elif step == "convert":
            kind = torch.float32 if plain.dtype == torch.float64 else torch.float64
            plain, disk = plain.to(kind), disk.to(kind)
        elif step == "concat":
            plain, disk = torch.cat([plain, plain]), torch.cat([disk, disk])
        elif step == "mixed":
            plain, disk = torch.cat([plain * 2, plain]), torch.cat([plain * 2, disk])
    assert isinstance(disk, MappedRows)
    assert disk.shape == plain.shape
    assert disk.dtype == plain.dtype
    assert torch.equal(disk.in_memory(), plain)
    if len(plain):
        index = torch.tensor([[len(plain) - 1, 0], [0, -1]])
        assert torch.equal(disk[index], plain[index])
        assert torch.equal(disk[plain[:, 0] > 0], plain[plain[:, 0] > 0])
        assert torch.equal(disk + 1, plain + 1)  # anything else reads what it needs


def test_rows_on_disk_are_never_written_and_never_out_of_range(tmp_path: Path) -> None:
    disk = MappedRows.of(mapped(tmp_path, np.zeros((3, 2))))
    with pytest.raises(TypeError, match="cannot be written"):
        disk.add_(1)
    with pytest.raises(IndexError, match="3 rows"):
        disk[torch.tensor([3])]


def test_a_value_that_is_not_finite_is_found_on_disk(tmp_path: Path) -> None:
    x, y = points("double")
    x[70, 2] = np.nan
    with pytest.raises(fs.InputError, match="client '2': x holds NaN"):
        federation(mapped(tmp_path, x), y)


def test_more_than_memory_holds_is_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsoft.machine.resources.available", lambda: 2**20)
    monkeypatch.setattr("fedsoft.machine.resources.UNCHECKED", 0)
    disk = MappedRows.of(mapped(tmp_path, np.zeros((3000, 100))))
    with pytest.raises(fs.InputError, match=r"reading \[3000, 100\] from disk at once is not allowed"):
        disk.double().mean()


PEAK = """
import sys
import numpy as np, torch
import fedsoft as fs

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

torch.set_num_threads(1)
ends = [0, 50000, 80000, 100000]
def run(x, y, ends):
    fed = fs.Federation.from_clients([(x[a:b], y[a:b]) for a, b in zip(ends, ends[1:])])
    found = fs.fit(fs.FedSoft(S=2, K=2), fed, fs.models.linear(), rounds=1, solver=fs.SGD(lr=1e-3, batch=64, epochs=1))
    found.scores()
    return fed.fingerprint, found.state.centers
x, y = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
run(np.array(x[:60]), y[:60], [0, 20, 40, 60])  # everything is imported and compiled
before = peak()
print(*run(x, y, ends)[:1], peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_an_array_larger_than_the_memory_that_is_used(tmp_path: Path) -> None:
    """400 MB on disk, one client with half of it: the process grows by less than half of the array."""
    rows, columns = 100_000, 1000
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, columns))
    block = np.random.default_rng(0).standard_normal((5000, columns), dtype=np.float32)
    for begin in range(0, rows, len(block)):
        x[begin : begin + len(block)] = block
    x.flush()
    np.save(tmp_path / "y.npy", np.array(x[:, 0]))
    files = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    done = subprocess.run([sys.executable, "-c", PEAK, *files], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1]) < x.nbytes / 2
