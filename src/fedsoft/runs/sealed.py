"""JSON objects with a checksum over what they say, and typed values read from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedsoft.errors import StoreError
from fedsoft.storage import files

CHECK = "check"  # the key of the checksum
T = TypeVar("T")


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum."""
    plain = json.loads(json.dumps(content))  # as it will be read: keys are text, tuples are lists
    return {**plain, CHECK: _digest(plain)}


def sealed_text(content: Mapping[str, Any]) -> str:
    """Return a JSON object with its checksum as the text of a file."""
    return json.dumps(sealed(content), indent=1) + "\n"


def unsealed(content: object) -> dict[str, Any] | None:
    """Return a JSON object without its checksum; None where that is wrong or missing."""
    if not isinstance(content, dict):
        return None
    rest = {key: value for key, value in content.items() if key != CHECK}
    return rest if content.get(CHECK) == _digest(rest) else None


def read_object(path: Path, otherwise: str = "") -> dict[str, Any]:
    """Read a JSON object, its checksum included; `otherwise` is what a missing file means."""
    try:
        value = files.read_json(path)
    except FileNotFoundError:
        raise StoreError(f"'{path}' is missing: {otherwise}") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"'{path}' is damaged: {files.reason(error)}") from None
    if not isinstance(value, dict):
        raise StoreError(f"'{path}' is damaged: should hold one JSON object")
    return value


def read_typed(path: Path, make: Callable[[Mapping[str, Any]], T], otherwise: str = "") -> T:
    """Read a JSON object with a checksum, and make a typed value of it."""
    content = unsealed(read_object(path, otherwise))
    if content is None:
        raise StoreError(f"'{path}' is damaged: its checksum is wrong")
    try:
        return make(content)
    except ValueError as error:
        flaw = _flaw(error) if isinstance(error, ValidationError) else str(error)
        raise StoreError(f"'{path}' is damaged: {flaw}") from None


def _flaw(error: ValidationError) -> str:
    """Return what is wrong, without the values that a file may hold."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lacking = [str(one["loc"][0]) for one in found if one["type"] == "missing" and len(one["loc"]) == 1]
    if lacking:
        return f"it lacks {', '.join(lacking)}"
    return f"'{'.'.join(map(str, found[0]['loc']))}' is of another type than it should be"


def _digest(content: Mapping[str, Any]) -> str:
    """Of what it says, not of how that is written down."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
