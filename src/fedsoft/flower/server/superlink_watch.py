"""Watch the SuperLink from the server's app: no call to it waits forever, and the app can always be ended by a signal.

Flower retries a SuperLink that does not answer without end. It sends and fetches the parts of messages in threads of
its own, while the main thread waits for them without a limit. It ends the app with a signal from another thread, but
Python handles signals in the main thread only between two of its steps, and such a wait is one step. So calls are made
in another thread here, and the main thread looks again and again.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Generic, NoReturn, TypeVar

import httpx
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedsoft.errors import FedsoftError

T = TypeVar("T")

LOOK = 0.5  # seconds between two looks whether a call returned
PROBE = 5.0  # seconds of silence before a small call is made as well
LOST = 30.0  # seconds of silence after which the SuperLink counts as lost
RESUME = "restart it, then resume the run with the same command"
ENDED = (
    "Flower ended the run, because it was stopped or the SuperLink is gone: "
    "see that it runs, then resume the run with the same command"
)


class Signalled(BaseException):
    """The app was asked to end by a signal."""


@contextlib.contextmanager
def raise_when_signalled() -> Iterator[None]:
    """Raise FedsoftError at SIGINT or SIGTERM, so that files and locks are released; Flower's own exit may not."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for known in before:
            signal.signal(known, signal.SIG_IGN)
        raise Signalled

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, end)
        yield
    except Signalled:
        raise FedsoftError(ENDED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class WatchedGrid:
    """A grid whose calls return: with an answer, or with an error that says that the SuperLink is lost.

    Arguments:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def get_node_ids(self) -> Iterable[int]:
        return self._answer(self.grid.get_node_ids)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._answer(self.grid.get_nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._answer(lambda: self.grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._answer(lambda: self.grid.pull_messages(message_ids))

    def _answer(self, what: Callable[[], T]) -> T:
        """Return what a call returns. A long one may take its time, as long as the SuperLink answers a small one."""
        call, probe, silence = _Call(what), None, 0.0
        while not call.over.wait(LOOK):
            silence += LOOK  # not by the clock: an app that was suspended heard nothing in between
            if probe is not None and probe.over.is_set():
                silence, probe = (silence if probe.cut_off else 0.0), None
            if silence >= LOST:
                raise FedsoftError(f"the SuperLink does not answer: {RESUME}")
            if probe is None and silence >= PROBE:
                probe = _Call(self.grid.get_nodes)
        if call.error is None:
            return call.found[0]
        if call.cut_off:
            raise FedsoftError(f"the SuperLink does not answer ({call.error}): {RESUME}") from None
        raise call.error


class _Call(Generic[T]):
    """A call in a thread of its own, which nobody has to join."""

    def __init__(self, what: Callable[[], T]) -> None:
        self.what, self.found = what, list[T]()
        self.error: BaseException | None = None
        self.over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def cut_off(self) -> bool:
        """Whether it ended because the SuperLink could not be reached."""
        return isinstance(self.error, httpx.TransportError)

    def _run(self) -> None:
        try:
            self.found.append(self.what())
        except BaseException as error:
            self.error = error
        finally:
            del self.what
            self.over.set()
