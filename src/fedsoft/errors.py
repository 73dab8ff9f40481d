"""The one kind of error that a user can cause, and the words to say it with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fedsoft.escape import shown

LONGEST = 2000  # signs of an error: names in it may come from a file


class FedsoftError(Exception):
    """Something the user can put right. Its text is one sentence; the command line prints it and exits with 2."""

    def __str__(self) -> str:
        text = shown(super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


class InputError(FedsoftError, ValueError):
    """A value that cannot be used: names the field, the value and what is allowed."""


class FilesGone(InputError):
    """The files of a run are not where they were when it began.

    Arguments:
        what: a sentence about it.
        how: what tells where they are now; the commands name their own options.
    """

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what} ({how} tells where it is now)")
        self.what = what


class StoreError(FedsoftError, OSError):
    """A run folder that cannot be read or written."""


class WorkerLost(FedsoftError):
    """A place where clients were is gone, with what they kept there. See `simulate.Engine.mend`."""


class DivergedError(FedsoftError, ArithmeticError):
    """Numbers that are not finite, or have grown beyond all measure."""


def advice(algorithm: object) -> str:
    """What to do when training diverged: lower the rates that this algorithm steps with, its own where it has some."""
    own = getattr(algorithm, "rates", ())
    named = " or ".join(f"algorithm.{name}" for name in own) or "local.lr"
    return f"lower the learning rate ({named}) or scale the data"


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """An error for a name that does not exist, with the nearest one that does.

    >>> print(unknown("model", "liner", ["linear", "mlp"]))
    unknown model 'liner': did you mean 'linear'? (known: linear, mlp)
    """
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} '{name}'{hint} (known: {', '.join(options) or 'none'})")
