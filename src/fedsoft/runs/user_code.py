"""The user's own code in a run: whether it is still that which the run was made with.

A folder holds a digest of the program behind every name of code: the module, and those beside it that it imports.
Comments and empty lines do not count.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fedsoft import plugins
from fedsoft.errors import InputError, StoreError
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec, code_in


def digests(spec: RunSpec) -> dict[str, str]:
    """Return a digest for every name of code in a run that may be imported, and whose program is there to read."""
    found: dict[str, str] = {}
    for name in code_in(spec.to_dict()):
        module = name.partition(":")[0]
        if module not in sys.modules and plugins.allows(spec.allow, name):
            with contextlib.suppress(InputError):  # it is reported where the code is needed
                plugins.imported(name, spec.allow)
        if (known := sys.modules.get(module)) is not None and not is_installed(known):
            programs = {one.__name__: _text(one) for one in with_imports(known)}
            if all(programs.values()):
                found[name] = hashlib.sha256(repr(sorted(programs.items())).encode()).hexdigest()[:16]
    return found


def changed(folder: RunFolder, spec: RunSpec) -> list[str]:
    """Return the names of code that is not what the run was made with."""
    before = folder.info.code
    return [name for name, digest in digests(spec).items() if before and before.get(name, digest) != digest]


def check_code(folder: RunFolder, spec: RunSpec) -> None:
    """Raise where code has changed since the run began."""
    if names := changed(folder, spec):
        raise StoreError(
            f"the code of '{names[0]}' has changed since run '{folder.name}' began: put it back, or start a new run "
            "with --again"
        )


def with_imports(module: ModuleType) -> Iterator[ModuleType]:
    """Yield a module and, in turn, those that it imports from its own folder."""
    root, seen, left = _folder(module), {module.__name__}, [module]
    while left:
        yield (one := left.pop())
        for name in _imports(one):
            known = sys.modules.get(name)
            if known is not None and name not in seen and root is not None and root == _folder(known):
                seen.add(name)
                left.append(known)


def is_installed(module: ModuleType) -> bool:
    """Whether a module is in the folders that packages are installed to: nobody edits it there, and it may be large."""
    folder, places = _folder(module), (sysconfig.get_paths()[key] for key in ("purelib", "platlib", "stdlib"))
    return folder is None or any(folder.is_relative_to(place) for place in places)


def _folder(module: ModuleType) -> Path | None:
    """Return the folder that the module's top package or file lies in."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    file = getattr(top, "__file__", None)
    return None if file is None else Path(file).parents[1 if hasattr(top, "__path__") else 0]


def _imports(module: ModuleType) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(_text(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            package = (module.__package__ or "").split(".")
            above = package[: len(package) + 1 - node.level] if node.level else []
            name = ".".join([*above, *filter(None, [node.module])])
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def _text(module: ModuleType) -> str:
    """Return a module's program without comments and empty lines; nothing where it cannot be read."""
    try:
        text = Path(str(getattr(module, "__file__", None))).read_text("utf-8")
        lines = text.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    except (OSError, UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
