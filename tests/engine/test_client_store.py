from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsoft.engine.client_store import Budget, ClientStore
from fedsoft.errors import InputError, StoreError
from fedsoft.storage import tensorfile

RAM, DISK = 10**9, 0
both = pytest.mark.parametrize("size", [RAM, DISK], ids=["ram", "disk"])


def values(count: int = 7, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "w": torch.from_numpy(rng.standard_normal((count, 2, 3))).float(),
        "steps": torch.from_numpy(rng.integers(0, 9, count)),
        "known": torch.from_numpy(rng.random((count, 1)) < 0.5),
    }


def filled(size: int, count: int = 7, folder: Path | None = None) -> ClientStore:
    store = ClientStore(count, Budget(size), folder=folder)
    store.put(np.arange(count), values(count))
    return store


@both
def test_it_gives_back_what_was_put_there(size: int) -> None:
    store, expected = filled(size), values()
    assert list(store) == ["w", "steps", "known"]
    assert (store.scratch is None) == (size == RAM)
    for name, value in expected.items():
        assert torch.equal(store[name], value)
        assert store[name].dtype == value.dtype
    rows = np.array([0, 1, 4, 6])
    for name, value in store.take(rows).items():
        assert torch.equal(value, expected[name][rows])
    assert list(store.take(rows, ["steps"])) == ["steps"]
    assert store.take(rows[:0])["w"].shape == (0, 2, 3)


@both
@given(st.lists(st.tuples(st.sets(st.integers(0, 6), min_size=1), st.integers(1, 99)), max_size=8))
def test_rows_change_as_those_of_a_tensor_do(size: int, changes: list[tuple[set[int], int]]) -> None:
    store, plain = filled(size), values()["w"]
    for chosen, seed in changes:
        rows = np.array(sorted(chosen))
        new = values(len(rows), seed)["w"]
        store.put(rows, {"w": new})
        plain[rows] = new
        assert torch.equal(store.take(rows, ["w"])["w"], new)
    assert torch.equal(store["w"], plain)
    assert torch.equal(store["steps"], values()["steps"])


@both
def test_what_was_taken_is_a_copy(size: int) -> None:
    store = filled(size)
    store.take(np.array([0]))["w"].zero_()
    assert torch.equal(store["w"], values()["w"])


def test_short_entries_stay_in_memory_first() -> None:
    store = filled(7 * 8 + 7)
    assert set(store.held) == {"known", "steps"}
    assert store.scratch is not None
    assert set(store.scratch.places) == {"w"}
    assert torch.equal(store["w"], values()["w"])


def test_memory_is_free_again_when_a_vault_is_gone() -> None:
    budget = Budget(200)
    one = ClientStore(10, budget)
    one.put(np.arange(10), {"w": torch.zeros(10, 4)})
    two = ClientStore(10, budget)
    two.put(np.arange(10), {"w": torch.zeros(10, 4)})
    assert budget.left == 40
    assert list(one.held) == ["w"]
    assert not two.held
    del one
    gc.collect()
    assert budget.left == 200
    three = ClientStore(10, budget)
    three.put(np.arange(10), {"w": torch.zeros(10, 4)})
    assert list(three.held) == ["w"]


@both
def test_it_can_be_filled_from_another_a_few_rows_at_a_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "BLOCK_BYTES", 50)
    source = filled(DISK)
    assert [begin for begin, _ in source.blocks("w")] == [0, 2, 4, 6]
    copy = ClientStore(7, Budget(size))
    copy.fill(source)
    for name, value in values().items():
        assert torch.equal(copy[name], value)


@both
def test_a_weighted_sum_is_that_of_all_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.from_numpy(np.random.default_rng(1).random((4, 7)))
    sums = []
    for block in (50, 10**6):
        monkeypatch.setattr(tensorfile, "BLOCK_BYTES", block)
        for name, value in values().items():
            total = filled(size).column(name).weighted(weights)
            assert total.dtype == torch.float64
            assert total.shape == (4, *value.shape[1:])
            expected = torch.einsum("sk,k...->s...", weights, value.double())
            assert torch.allclose(total, expected, rtol=1e-14, atol=1e-14)
            sums.append(total)
    assert torch.equal(filled(size).column("w").gather(), values()["w"])


def test_a_weighted_sum_has_the_same_bits_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "BLOCK_BYTES", 4000)
    rng = np.random.default_rng(0)
    w, weights = torch.from_numpy(rng.standard_normal((61, 100))).float(), torch.from_numpy(rng.random((3, 61)))
    sums = []
    for size in (RAM, DISK):
        store = ClientStore(61, Budget(size))
        store.put(np.arange(61), {"w": w})
        sums.append(store.column("w").weighted(weights))
    assert torch.equal(*sums)


@both
def test_all_clients_have_the_same_entries(size: int) -> None:
    store = filled(size)
    for bad in ({"w": torch.zeros(1, 2, 4)}, {"w": torch.zeros(1, 2, 3).double()}, {"new": torch.zeros(1)}):
        with pytest.raises(InputError, match="should be the same for all"):
            store.put(np.array([0]), bad)
    assert torch.equal(store["w"], values()["w"])


@both
def test_many_threads_may_use_it_at_once(size: int) -> None:
    store = ClientStore(400, Budget(size))

    def work(k: int) -> None:
        for rows in np.split(np.arange(k, 400, 4), 10):
            store.put(rows, {"w": torch.from_numpy(rows).repeat(50, 1).T.contiguous()})
            assert torch.equal(store.take(rows)["w"][:, 7], torch.from_numpy(rows))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(store["w"], torch.arange(400).repeat(50, 1).T)


def test_the_scratch_file_has_no_name_and_goes_with_the_vault(tmp_path: Path) -> None:
    store = filled(DISK, folder=tmp_path)
    assert store.scratch is not None
    handle = store.scratch.handle
    assert os.fstat(handle).st_nlink == 0
    assert os.fstat(handle).st_size > 0
    assert not list(tmp_path.iterdir())
    del store
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot keep client state in .*gone.*--memory"):
        filled(DISK, folder=tmp_path / "gone")


@pytest.mark.engine
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The limit on file size is real: the operating system refuses in the middle of a write."""
    code = f"""
import resource, numpy, torch
from pathlib import Path
from fedsoft.engine.client_store import Budget, ClientStore
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ClientStore(9, Budget(0), folder=Path({str(tmp_path)!r})).put(numpy.arange(9), {{"w": torch.zeros(9, 999)}})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("StoreError cannot keep client state in")
    assert done.stdout.count("\n") == 1
