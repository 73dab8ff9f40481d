from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from fedsoft.machine.threads import in_order


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    def work(item: int) -> int:
        time.sleep(0.002 * (5 - item))  # the last are done first
        return item * item

    assert in_order(work, range(5), workers) == [0, 1, 4, 9, 16]
    assert in_order(work, [], workers) == []


def test_as_many_items_are_worked_on_at_once_as_there_are_workers() -> None:
    meeting = threading.Barrier(3, timeout=30)  # breaks unless three of them are at work together
    assert sorted(in_order(lambda _: meeting.wait(), range(6), 3)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_worker_computes_as_one_thread_without_gradients_and_the_caller_finds_his_settings_again(
    workers: int,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = in_order(lambda _: (torch.get_num_threads(), torch.is_grad_enabled()), range(6), workers)
        assert seen == [(1, False)] * 6
        assert torch.get_num_threads() == 2
        assert torch.is_grad_enabled()
        assert in_order(lambda _: torch.get_num_threads(), range(6), workers) == [1] * 6
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_error_is_that_of_the_first_item_that_fails_and_no_thread_is_left(workers: int) -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        time.sleep(0.02 if item == 2 else 0)  # later ones fail before it does
        if item >= 2:
            raise ValueError(f"item {item}")

    before = threading.active_count()
    with pytest.raises(ValueError, match="item 2"):
        in_order(work, range(1000), workers)
    assert threading.active_count() == before
    assert len(begun) < 1000  # the rest is left out


@pytest.mark.engine
def test_ctrl_c_ends_all_threads() -> None:
    code = """
import os, threading, time
from fedsoft.machine.threads import in_order
def work(item):
    os.write(1, b"begun\\n")  # at once: two prints may mix
    time.sleep(0.3)
try:
    in_order(work, range(1000), 3)
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["begun\n"] * 3
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert printed.splitlines()[-1] == "interrupted 1"
    assert len(printed.splitlines()) < 20


def test_the_largest_are_begun_first_and_results_stay_in_order() -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def work(k: int) -> int:
        with lock:
            begun.append(k)
        time.sleep(0.05)
        return k

    assert in_order(work, range(4), 2, [1, 2, 4, 3]) == [0, 1, 2, 3]
    assert {*begun[:2]} == {2, 3}
