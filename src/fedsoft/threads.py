"""Work on several threads that ends in the same bits for any number of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums over threads round differently for each number of threads: one thread gives the same bits everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """`[work(item) for item in items]`, by so many threads at once, each of which computes as one thread and no more.

    An error is that of the first item that fails, as in a plain loop. After an error, or Ctrl-C, items that nobody has
    begun are left out, and those that are being worked on are waited for.
    """

    submitting = threading.Lock()

    def do(item: T) -> R:
        with (
            submitting
        ):  # Ctrl-C while a thread is being started would leave one that the pool knows nothing of, at work
            pass
        torch.set_num_threads(1)  # for this thread; torch keeps it beside the number of the whole process
        with torch.no_grad():  # which is a thread's own, too
            return work(item)

    with one_thread():
        if workers == 1 or len(items) < 2:
            return [do(item) for item in items]
        pool = ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="fedsoft")
        try:
            with submitting:
                futures = [pool.submit(do, item) for item in items]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)
