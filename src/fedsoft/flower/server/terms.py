"""The terms of an ask: how long clients have, how many must answer, and what is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedsoft.errors import FedsoftError, InputError
from fedsoft.settings import renamed, settings
from fedsoft.storage.files import read_text, reason
from fedsoft.storage.toml import toml


class QuorumError(FedsoftError):
    """Too few clients answered, repeatedly. The run stays as it was saved."""


@settings
class Terms:
    """When an ask is over, and what is accepted.

    Arguments:
        timeout: seconds that clients have for one ask; those that answer later are dropped.
        quorum: the share of the asked clients that must answer; those that did not are asked again.
        patience: how often they are asked again before the run stops (it can be resumed).
        assembly: seconds that clients have to connect at the beginning of a run.
        norm: how many times the median norm a model may have; 0 for any.
        points: how many times the median number of points a client may claim; 0 for any.
    """

    timeout: Annotated[float, Field(gt=0)] = 600.0
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    patience: Annotated[int, Field(ge=0)] = 2
    assembly: Annotated[float, Field(gt=0)] = 600.0
    norm: Annotated[float, Field(ge=0)] = 5.0
    points: Annotated[float, Field(ge=0)] = 100.0


def read_terms(folder: Path) -> Terms:
    """Read terms.toml of a federation's folder; default where there is none."""
    path = folder / "terms.toml"
    try:
        values = toml(read_text(path)) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {reason(error)}") from None
    try:
        with renamed({"Terms": ""}):
            return Terms(**values)
    except InputError as error:
        raise InputError(f"'{path}': {error}") from None
