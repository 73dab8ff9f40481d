"""Takes the pages of `docs/` and of the top folder into one folder, with links that hold there."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md", "docs/algorithms.md": "algorithms/index.md",
}  # fmt: skip
"""Pages of the repository that have another place on the site."""
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1[^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def gather(target: Path) -> list[Path]:
    """Copy everything to `target`; return the files of code that pages link to."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("algorithms.md"))
    for name, place in OUTSIDE.items():
        if name not in ("README.md", "docs/algorithms.md") and (ROOT / name).is_file():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / place)
    homes = {place: ROOT / name for name, place in OUTSIDE.items()}
    code: set[Path] = set()
    for page in sorted(target.rglob("*.md")):
        name = page.relative_to(target).as_posix()
        home = homes.get(name, DOCS / name) if name != "index.md" else DOCS / name
        page.write_text(relinked(page.read_text("utf-8"), home, name, code), "utf-8")
    return sorted(code)


def relinked(text: str, home: Path, name: str, code: set[Path]) -> str:
    """Return a page whose links are those of the site.

    Arguments:
        text: of the page.
        home: where it stands in the repository.
        name: where it stands on the site.
        code: files of code that are linked to are added here.
    """

    def changed(found: re.Match[str]) -> str:
        path, anchor = Path(os.path.normpath(home.parent / found[1])), found[2] or ""
        inside = path.relative_to(ROOT).as_posix()
        if inside == "docs/algorithms.md" and anchor:  # the section of an algorithm is a page of its own
            return relative(name, f"algorithms/{anchor[1:]}.md")
        if inside in OUTSIDE:
            return relative(name, OUTSIDE[inside]) + anchor
        if path.is_relative_to(DOCS):
            return relative(name, path.relative_to(DOCS).as_posix()) + anchor
        if path.is_file():
            code.add(path)
            return relative(name, source_page(path)) + (
                f"#__codelineno-0-{line_of(path, anchor[1:])}" if anchor else ""
            )
        return found[0]  # MkDocs tells what is wrong

    return outside_code(text, lambda part: LINK.sub(changed, part))


def line_of(path: Path, name: str) -> int:
    """Return the line of a file that defines `name`, which may be `Class.method`; raise a KeyError where none does."""
    body: list[ast.stmt] = ast.parse(path.read_text("utf-8")).body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((one for one in body if part in _defined(one)), None)
        if found is None:
            raise KeyError(f"{path.relative_to(ROOT)} does not define {name}")
        body = getattr(found, "body", [])
    assert found is not None
    return found.lineno


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [one.id for one in targets if isinstance(one, ast.Name)]


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what is text in a page, and no code."""
    place, parts = 0, []
    for found in CODE.finditer(text):
        parts += [change(text[place : found.start()]), found[0]]
        place = found.end()
    return "".join([*parts, change(text[place:])])


def relative(page: str, other: str) -> str:
    """Return the way from one page of the site to another.

    >>> relative("paper/report.md", "index.md")
    '../index.md'
    """
    return os.path.relpath(other, Path(page).parent).replace(os.sep, "/")


def source_page(path: Path) -> str:
    """Return where a file of code stands on the site."""
    return f"source/{path.relative_to(ROOT).as_posix().replace('.', '_')}.md"


def write_sources(files: list[Path], target: Path) -> None:
    """Write a page with the text of each file, whose lines can be linked to."""
    for path in files:
        page = target / source_page(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        language = {".py": "python", ".toml": "toml", ".json": "json"}.get(path.suffix, "text")
        title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
        front = "---\nsearch:\n  exclude: true\n---\n\n"
        page.write_text(f'{front}{title}``````{language} linenums="1"\n{path.read_text("utf-8")}\n``````\n', "utf-8")
