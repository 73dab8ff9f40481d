"""Other people's code, run from a checkout that the reader made: nothing of it is kept here.

It is ordinary code that runs with the rights of the reader, so read it before.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class Absent(Exception):
    """A checkout that is not there, or is not the one that was audited."""


class Anything:
    """What stands for a class or function of a package that is imported but never used here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> Anything:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Hollow(ModuleType):
    """A module in which every name can be imported."""

    __all__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


class Hollows(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hollow modules in the place of packages that the authors' files import for other purposes (plots, logs, data)."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in self.packages or name.startswith(tuple(f"{one}." for one in self.packages)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = Hollow(spec.name)
        module.__path__ = []
        module.__all__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def code(folder: Path, inside: str = "", *, without: Sequence[str] = ()) -> Iterator[Any]:
    """Import modules of a checkout by the names that they have among themselves; forget them afterwards.

    Arguments:
        folder: the checkout.
        inside: the folder in it that the authors start their program from.
        without: packages that are imported there and not needed here.
    """
    root = (folder / inside).resolve()
    if not root.is_dir():
        raise Absent(f"{root} is not a folder: make the checkout first")
    before, finder = set(sys.modules), Hollows(without)
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in finder.packages}
    local = {path.stem for path in root.glob("*.py")} | {path.name for path in root.iterdir() if path.is_dir()}
    hidden |= {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in local}
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, finder)
    words, sys.argv = sys.argv, sys.argv[:1]  # some files read the command line when they are imported
    try:
        yield importlib.import_module
    finally:
        sys.argv = words
        sys.meta_path.remove(finder)
        sys.path.remove(str(root))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if isinstance(sys.modules[name], Hollow) or (origin and Path(origin).is_relative_to(root)):
                del sys.modules[name]
        sys.modules.update(hidden)


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout."""
    if not folder.is_dir():
        raise Absent(f"there is no folder {folder}")
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"{folder} is not a git checkout")
    return done.stdout.strip()
