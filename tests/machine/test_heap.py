"""Freed memory is kept, unless a user wants it otherwise."""

from __future__ import annotations

import pytest

from fedsoft.machine import heap


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(heap.ctypes, "CDLL", called.append)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not heap.keep_heap.__wrapped__()
    assert called == []


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setattr(heap.ctypes, "CDLL", missing)
    assert not heap.keep_heap.__wrapped__()
