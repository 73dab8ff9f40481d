"""Pages that are executed: Markdown in, a notebook that was run and the page with what it printed out.

A page whose first line is `<!-- executed -->` is a program. Its blocks run in order, as one session in an empty folder:

- `python` in one interpreter, `sh` in a shell that stops at the first error;
- `toml`, `csv` or `text` whose first line is `# name.toml` (or another file) are written to that file;
- `<!-- run ... -->` is Python that readers do not see, `<!-- not run: why -->` before a block leaves it out;
- `<!-- figure: path | what it shows -->` stands for an image that a block before it has written.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "<!-- executed -->"
SECONDS = 240  # that a block may take
FENCE = re.compile(
    r"^<!-- run\n(?P<hidden>.*?)^-->\n"
    r"|(?P<skip>^<!-- not run: [^\n]*-->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```\n"
    r"|^<!-- figure: (?P<path>[^|\n]+) \| (?P<alt>[^\n]+) -->\n",
    re.DOTALL | re.MULTILINE,
)
NAMED = re.compile(r"# ([\w.-]+\.(?:toml|csv|py|txt))\n")
PROGRESS = re.compile(r"^.*: \d+ (?:of \d+ (?:runs|rounds)|trials)\b.*\n", re.MULTILINE)  # of commands, on stderr
OBJECT = "<IPython.core.display."  # a bar that moves, which is nothing in text
PLAIN = """\
import os

os.environ.pop("FORCE_COLOR", None)  # commands print plain text here, and no bars that move
os.environ["TERM"] = "dumb"
""".rstrip()
SHELL = "%%bash\nset -eo pipefail\n"


@dataclass(frozen=True)
class Piece:
    """A part of a page: text, code, or the place of a figure."""

    text: str  # as it stands in the page
    code: str = ""  # of the notebook's cell, if it is one
    hidden: bool = False
    figure: tuple[str, str] | None = None


def is_executed(text: str) -> bool:
    """Whether a page is a program."""
    return text.startswith(MARK)


def pieces(text: str) -> Iterator[Piece]:
    """Cut a page at its blocks."""
    place = 0
    for found in FENCE.finditer(text):
        yield Piece(text[place : found.start()])
        place = found.end()
        if found["hidden"] is not None:
            yield Piece("", found["hidden"], hidden=True)
        elif found["path"] is not None:
            path, alt = found["path"].strip(), found["alt"].strip()
            show = f"from IPython.display import Image\nImage(*sorted(__import__('glob').glob('{path}')), alt={alt!r})"
            yield Piece(found[0], show, figure=(path, alt))
        else:
            block = found[0].removeprefix(found["skip"] or "")
            yield Piece(block, "" if found["skip"] else cell(found["language"], found["code"]))
    yield Piece(text[place:])


def cell(language: str, code: str) -> str:
    """Return a block as a notebook's cell; nothing where it is not to be run."""
    if language == "python":
        return code
    if language == "sh":
        return SHELL + code
    named = NAMED.match(code)
    return f"%%writefile {named[1]}\n{code}" if named else ""


def notebook(parts: list[Piece]) -> Any:
    """Return the page as a notebook that was not run yet."""
    from nbformat import v4

    book = v4.new_notebook()
    book.cells.append(v4.new_code_cell(PLAIN, id="plain"))
    for number, piece in enumerate(parts):
        if piece.code:
            book.cells.append(v4.new_code_cell(piece.code.rstrip(), metadata={"piece": number}, id=f"cell-{number}"))
        elif text := piece.text.replace(MARK, "").strip():
            book.cells.append(v4.new_markdown_cell(text, id=f"text-{number}"))
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


def execute(book: Any, folder: Path, name: str) -> None:
    """Run all cells in order in this folder; raise with the page's name where one fails."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        book, timeout=SECONDS, startup_timeout=SECONDS, kernel_name="python3", extra_arguments=["--log-level=40"],
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    try:
        client.execute(env=surroundings())
    except CellExecutionError as error:
        raise SystemExit(f"{name}: a block failed\n{error}") from None
    for one in book.cells:  # times and the like would make every build another one
        one.metadata.pop("execution", None)


def surroundings() -> dict[str, str]:
    """Return the environment of blocks: the commands of this Python, and plain text of one width."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "PYTHONWARNINGS": "ignore", "MPLBACKEND": "agg"}
    return os.environ | plain | {"PATH": path}


def printed(outputs: list[Any]) -> str:
    """Return what a cell printed, without how far it was, which a terminal shows in one place."""
    text = ""
    for one in outputs:
        if one.output_type == "stream":
            text += one.text if one.name == "stdout" else PROGRESS.sub("", one.text)
        elif "text/plain" in one.get("data", {}) and not one.data["text/plain"].startswith(OBJECT):
            text += one.data["text/plain"] + "\n"
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return "\n".join(lines).strip("\n")


def page(parts: list[Piece], book: Any, folder: Path, target: Path) -> str:
    """Return the page in Markdown, with what was printed under each block; figures are copied beside `target`."""
    outputs = {one.metadata["piece"]: one.outputs for one in book.cells if "piece" in one.metadata}
    text = ""
    for number, piece in enumerate(parts):
        if piece.figure:
            path, alt = piece.figure
            (made,) = sorted(folder.glob(path)) or [folder / path]
            place = target.with_name(f"{target.stem}-{made.parent.name}-{made.name}")
            shutil.copyfile(made, place)
            text += f"![{alt}]({place.name})\n"
            continue
        text += piece.text
        if not piece.hidden and (shown := printed(outputs.get(number, []))) and not piece.code.startswith("%%write"):
            text += f"\n```{{ .text .output .no-copy }}\n{shown}\n```\n"
    return text.replace(MARK + "\n", "")


def saved(parts: list[Piece], book: Any, folder: Path, target: Path) -> None:
    """Write the page, and beside it the notebook as it was run."""
    import nbformat

    target.write_text(page(parts, book, folder, target), "utf-8")
    nbformat.write(book, target.with_suffix(".ipynb"))
