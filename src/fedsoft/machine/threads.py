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


class PerThread(threading.local):
    """Attributes of each thread. It can be sent to other processes, where it is empty in every thread."""

    def __reduce__(self) -> tuple[type[PerThread], tuple[()]]:
        return PerThread, ()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: sums over several round differently for each number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[T], R], items: Sequence[T], workers: int, sizes: Sequence[float] | None = None) -> list[R]:
    """Return `[work(item) for item in items]`, computed by this many threads, each of which uses one core.

    Where there are `sizes`, the largest items are begun first, so that no thread is left with a long one at the end.
    An error is that of the first item that fails, as in a plain loop. After an error, or Ctrl-C, items that no thread
    has begun are left out, and the others are waited for.
    """

    submitting = threading.Lock()

    def do(item: T) -> R:
        with submitting:  # Ctrl-C while a thread starts would leave one at work that the pool does not know of
            pass
        torch.set_num_threads(1)  # for this thread; torch keeps it beside the number of the whole process
        with torch.no_grad():  # which is a thread's own, too
            return work(item)

    with one_thread():
        if workers == 1 or len(items) < 2:
            with torch.no_grad():
                return list(map(work, items))
        pool = ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="fedsoft")
        try:
            order = range(len(items)) if sizes is None else sorted(range(len(items)), key=lambda k: -sizes[k])
            with submitting:
                futures = {k: pool.submit(do, items[k]) for k in order}
            return [futures[k].result() for k in range(len(items))]
        finally:
            pool.shutdown(cancel_futures=True)
