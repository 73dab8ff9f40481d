"""Compiled kernels are kept where only their user can write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsoft.core import kernel_cache, kernels
from fedsoft.core.kernel_cache import config


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    kernel_cache.own_folder.cache_clear()
    yield tmp_path
    kernel_cache.own_folder.cache_clear()


def test_it_is_a_folder_of_the_user_alone(home: Path) -> None:
    folder = kernel_cache.own_folder()
    assert folder is not None
    assert folder.parent == home / "fedsoft"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_kernels_are_kept_there_and_the_setting_is_put_back(home: Path) -> None:
    made = kernels.compiled(lambda x: x + 1)
    assert home in Path(made.stats.cache_path).parents  # pyright: ignore[reportFunctionMemberAccess]
    assert config.CACHE_DIR == ""


def test_what_others_could_write_to_is_not_read(home: Path) -> None:
    folder = kernel_cache.own_folder()
    assert folder is not None
    folder.chmod(0o770)
    kernel_cache.own_folder.cache_clear()
    assert kernel_cache.own_folder() is None
    folder.rmdir()
    (home / "elsewhere").mkdir()
    folder.symlink_to(home / "elsewhere")
    kernel_cache.own_folder.cache_clear()
    assert kernel_cache.own_folder() is None


def test_without_a_home_kernels_are_compiled_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    assert kernel_cache.own_folder() is None
    made = kernels.compiled(lambda x: x + 1)
    assert not made.stats.cache_path  # pyright: ignore[reportFunctionMemberAccess]
    assert made(1) == 2


def test_the_users_own_choice_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(home / "mine"))
    assert kernel_cache.own_folder() == home / "mine"
