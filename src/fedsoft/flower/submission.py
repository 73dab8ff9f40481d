"""A run that is handed to the server's app, and how it ended: two JSON files in the federation's folder.

Flower says no more about a run than that it ended, so the app writes the outcome beside the submission.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from fedsoft.errors import InputError
from fedsoft.flower.server.terms import Terms
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

CONFIG = pydantic.ConfigDict(frozen=True, extra="forbid")


class Submission(pydantic.BaseModel):
    """What is run, and how.

    Arguments:
        spec, label: the run as plain values, and its name.
        folder: of the run.
        terms: when an ask is over, and what is accepted.
        allow: code of the user's own that the run names.
        keys: fingerprints of the nodes that share synthetic clients, in the order of their shares.
        chunk, memory, keep: see `RunOptions`.
        tensorboard: where rounds are logged for TensorBoard, if at all.
    """

    model_config = CONFIG

    spec: dict[str, Any]
    label: str
    folder: Path
    terms: Terms
    allow: list[str]
    keys: list[str]
    chunk: int | None = None
    memory: int | str | None = None
    keep: int | None = None
    tensorboard: Path | None = None


class Outcome(pydantic.BaseModel):
    """How a run ended: finished, stopped, or with an error.

    Arguments:
        run: Flower's number of it.
    """

    model_config = CONFIG

    run: int
    finished: bool = False
    error: str | None = None


@dataclass(frozen=True)
class SubmittedRun:
    """The two files of a submitted run.

    Arguments:
        path: of the submission.
    """

    path: Path

    @property
    def outcome_path(self) -> Path:
        return self.path.with_name(f"{self.path.stem}.outcome.json")

    def submit(self, submission: Submission) -> None:
        """Write the submission; the outcome of an earlier one is removed."""
        self.outcome_path.unlink(missing_ok=True)
        write_json(self.path, submission.model_dump(mode="json"), indent=1)

    def submission(self) -> Submission:
        try:
            return Submission(**read_json(self.path))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"'{self.path}' is not a submitted run: {error}") from None

    def end(self, outcome: Outcome) -> None:
        write_json(self.outcome_path, outcome.model_dump())

    def outcome(self) -> Outcome | None:
        """Return how the run ended; None while it runs."""
        return Outcome(**read_json(self.outcome_path)) if self.outcome_path.exists() else None
