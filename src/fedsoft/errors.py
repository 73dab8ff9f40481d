"""Errors that a user can cause: one sentence each, composed when it is shown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from fedsoft.escape import shown

MANY = 40  # names that are written out beside the nearest one
NEAR = 0.6  # likeness of two names from which one is likely meant by the other
LONGEST = 2000  # characters of an error: names in it may come from a file
MEANT = {
    "learning_rate": "lr", "learningrate": "lr", "rate": "lr", "l2": "weight_decay", "wd": "weight_decay",
    "max_norm": "clip", "grad_clip": "clip", "scheduler": "schedule", "lr_scheduler": "schedule",
    "batch_size": "batch", "local_epochs": "epochs", "lambda": "lam", "clusters": "S", "n_clusters": "S",
    "centers": "S", "num_rounds": "rounds", "n_clients": "clients", "random_state": "seed", "optimizer": "solver",
}  # fmt: skip
"""What settings are called elsewhere, where no likeness of the letters tells."""


class FedsoftError(Exception):
    """An error that the user can fix. The command line prints its one sentence and exits with 2."""

    @property
    def text(self) -> str:
        """The sentence, before it is made safe to print."""
        return super().__str__()

    @override
    def __str__(self) -> str:
        text = shown(self.text)
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


class InputError(FedsoftError, ValueError):
    """A value that cannot be used: names the field, the value and what is allowed."""


class SettingError(InputError):
    """A setting with a value that is not allowed.

    `settings.renamed` changes the owner, so that the sentence names the setting as the user typed it.

    Arguments:
        owner: what has the setting: a class, a function, or a table of a file; empty for none.
        field: the name of the setting.
        value: what it was set to.
        reason: what is allowed instead, or why this is not.
        scope: where it is not allowed, such as `for this model`; default: nowhere.

    >>> print(SettingError("FedSoft", "K", 9, "should be at most 3"))
    FedSoft.K = 9 is not allowed: should be at most 3
    """

    def __init__(self, owner: str, field: str, value: object, reason: str, scope: str = "") -> None:
        # Exception.__new__ keeps the arguments, of which a copy in another process is made.
        self.owner, self.field, self.value, self.reason, self.scope = owner, field, value, reason, scope

    @property
    def name(self) -> str:
        """The setting as the user typed it."""
        return f"{self.owner}.{self.field}" if self.owner else self.field

    @property
    @override
    def text(self) -> str:
        scope = f" {self.scope}" if self.scope else ""
        value = str(self.value).lower() if isinstance(self.value, bool) else repr(self.value)  # as in TOML
        return f"{self.name} = {value} is not allowed{scope}: {self.reason}"


class MissingSetting(SettingError):
    """A setting that needs a value and has none; `reason`: what to do."""

    def __init__(self, owner: str, field: str, reason: str = "give it a value") -> None:
        super().__init__(owner, field, None, reason)

    @property
    @override
    def text(self) -> str:
        return f"{self.name} is missing: {self.reason}"


class UnknownSetting(SettingError):
    """A setting that its owner does not have."""

    def __init__(self, owner: str, field: str, known: list[str]) -> None:
        super().__init__(owner, field, None, "")
        self.known = known

    @property
    @override
    def text(self) -> str:
        return unknown(f"setting of {self.owner}" if self.owner else "setting", self.field, self.known).text


class FilesGone(InputError):
    """The files of a run are not where they were when it began.

    Arguments:
        what: a sentence about it.
        how: the argument that gives their new place; the commands name their own options.
    """

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what} ({how} tells where it is now)")
        self.what = what


class StoreError(FedsoftError, OSError):
    """A run folder that cannot be read or written."""


class WorkerLost(FedsoftError):
    """A worker is gone, with the state of its clients. See `engine.base.Engine.restart_workers`."""


class CallbackError(FedsoftError):
    """A callback that raised. Nothing is lost: the run up to there is in `run`, or saved in its folder.

    Arguments:
        name: of the callback.
        when: it was called.
        error: what it raised.
        run: the run up to there, where there is one in memory.
    """

    def __init__(self, name: str, when: str, error: Exception, run: Any = None) -> None:
        self.name, self.when, self.error, self.run = name, when, error, run
        self.kept = "the run up to there is in the error's attribute 'run'" if run is not None else ""

    @property
    @override
    def text(self) -> str:
        kept = f" ({self.kept})" if self.kept else ""
        return f"callback {self.name} failed {self.when}: {type(self.error).__name__}: {self.error}{kept}"


class DivergedError(FedsoftError, ArithmeticError):
    """Numbers that are not finite, or have grown beyond all bounds."""


def advice(rates: Iterable[str]) -> str:
    """What to do when training diverged: lower these settings of the algorithm, else the rate of the solver."""
    named = " or ".join(f"algorithm.{name}" for name in rates) or "solver.lr"
    return f"lower the learning rate ({named}) or scale the data"


def _near(name: str, options: list[str]) -> list[str]:
    """Return the option that looks most like a name, if one does; capitals count only between equals."""
    cased = difflib.get_close_matches(name, options, n=1, cutoff=NEAR)
    if cased:
        return cased
    plain = {option.lower(): option for option in reversed(options)}
    return [plain[found] for found in difflib.get_close_matches(name.lower(), plain, n=1, cutoff=NEAR)]


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return an error for a name that does not exist, with the nearest one that does; a long list is not written out.

    >>> print(unknown("model", "liner", ["linear", "mlp"]))
    unknown model 'liner': did you mean 'linear'? (known: linear, mlp)
    >>> print(unknown("key", "learning_rate", ["aggregate", "lr"]))
    unknown key 'learning_rate': did you mean 'lr'? (known: aggregate, lr)
    >>> print(unknown("class", "weird", ["low", "mid"]), unknown("column", "ID", ["age", "id"]), sep="; ")
    unknown class 'weird' (known: low, mid); unknown column 'ID': did you mean 'id'? (known: age, id)
    """
    options = sorted(known)
    meant = MEANT.get(str(name).lower().replace("-", "_"))
    near = [meant] if meant in options else _near(str(name), options)
    hint = f": did you mean '{near[0]}'?" if near else ""
    listed = f" (known: {', '.join(options) or 'none'})" if not near or len(options) <= MANY else ""
    return InputError(f"unknown {kind} '{name}'{hint}{listed}")
