"""What a callback is, and how those of a run are called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedsoft.errors import CallbackError, FedsoftError, InputError, unknown
from fedsoft.training.records import RoundRecord

if TYPE_CHECKING:
    from fedsoft.training.held_out import HeldOut
    from fedsoft.training.run import Run

LOG = logging.getLogger("fedsoft")

Watched = Any
"""A run: `fedsoft.Run`, which stands above this room. What is here may rely on `training.Run`."""

Listener = Callable[[RoundRecord], object]
"""The short form of a callback: a function of the record of every round. What it returns is ignored."""


class Callback:
    """Looks at a run while it is trained. All methods do nothing: override those that you need.

    A callback may read everything of the run: `run.history`, `run.centers`, `run.weights`, `run.predict(...)`. It
    changes no draw, so a run with callbacks that do not stop it ends in the same bits as one without.

    One that raises ends the run, and nothing is lost: see `CallbackError`.
    """

    @property
    def held_out(self) -> tuple[str | None, ...]:
        """The metrics of personal models on held-out points that `RoundRecord.held_out` should have; None: the
        model's own."""
        return ()

    def on_start(self, run: Watched, rounds: int) -> bool | None:
        """Do something before the first round that is played now, of `rounds` in all.

        The records of rounds that were played before are in `run.history`. True ends the run at once.
        """

    def on_round(self, run: Watched, record: RoundRecord) -> bool | None:
        """Do something after a round, whose record is the last of `run.history`. True ends the run here."""

    def on_end(self, run: Watched) -> None:
        """Do something once no round is left to play; not after an error, nor where the run is to be resumed."""

    def close(self) -> None:
        """Release what is open. Always called, whatever happened; what it raises is only logged."""


class _Heard(Callback):
    """A function as a callback."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def on_round(self, run: Watched, record: RoundRecord) -> None:
        self.listener(record)


def _checked(given: Callback | Listener) -> Callback:
    """Return a callback; raise for what is none, and for methods that would never be called."""
    if isinstance(given, type):
        raise InputError(f"callback {given.__name__} is a class: give an object, such as {given.__name__}()")
    if not isinstance(given, Callback):
        if not callable(given):
            raise InputError(f"callback {given!r} is not allowed: should be a Callback, or a function of a RoundRecord")
        return _Heard(given)
    known = [name for name in vars(Callback) if name.startswith("on_")]
    for name in dir(given):
        if name.startswith("on_") and name not in known and callable(getattr(given, name)):
            raise unknown(f"method of callback {type(given).__name__}", name, known)
    return given


class Watch:
    """The callbacks of a run, called in their order."""

    def __init__(self, given: Sequence[Callback | Listener] = ()) -> None:
        self.callbacks = [_checked(one) for one in given]
        self.by = ""  # the callback that ended the run
        self.stopped_at: int | None = None
        self.measure: HeldOut | None = None

    def over(self, rounds: int) -> bool:
        """Whether a callback ended the run after this round."""
        return self.stopped_at is not None and rounds >= self.stopped_at

    def start(self, run: Run, rounds: int) -> None:
        """Before the first round that is played now. An error of ours is raised as it is: nothing is lost yet."""
        from fedsoft.training.held_out import HeldOut

        wanted = [name for callback in self.callbacks for name in callback.held_out]
        self.measure = HeldOut.of(wanted, run.engine, run.federation) if wanted else None
        for callback in self.callbacks:
            try:
                self._heed(callback, callback.on_start(run, rounds), run)
            except FedsoftError:
                raise
            except Exception as error:
                raise CallbackError(_name(callback), "before the first round", error) from error

    def round(self, run: Run, record: RoundRecord) -> None:
        """Call what listens after a round."""
        for callback in self.callbacks:
            try:
                self._heed(callback, callback.on_round(run, record), run)
            except Exception as error:
                raise CallbackError(_name(callback), f"after round {record.round}", error, run) from error

    def end(self, run: Run) -> None:
        """Once no round is left to play."""
        for callback in self.callbacks:
            try:
                callback.on_end(run)
            except Exception as error:
                raise CallbackError(_name(callback), "at the end", error, run) from error

    def close(self) -> None:
        """Close all of them. The run is over by then: what one of them raises is logged."""
        for callback in self.callbacks:
            try:
                callback.close()
            except Exception as error:
                LOG.warning("%s", CallbackError(_name(callback), "while it was closed", error))

    def _heed(self, callback: Callback, answer: Any, run: Run) -> None:
        if answer is True and self.stopped_at is None:
            self.by, self.stopped_at = _name(callback), run.rounds


def _name(callback: Callback) -> str:
    if not isinstance(callback, _Heard):
        return type(callback).__name__
    return getattr(callback.listener, "__qualname__", type(callback.listener).__name__)
