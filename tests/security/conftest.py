"""A module that must not be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TRAP = """
from pathlib import Path
Path(__file__).with_name("sprung").touch()

def called(*args, **kwargs):
    Path(__file__).with_name("called").touch()
    raise SystemExit(3)
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported, and another one when it is called."""
    place = tmp_path / "modules"
    place.mkdir()
    (place / "trapped.py").write_text(TRAP)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "trapped", raising=False)
    return place
