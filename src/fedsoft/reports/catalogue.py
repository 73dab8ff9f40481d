"""The page that lists every algorithm, made from the docstrings. `make docs` writes it, a test holds it up to date."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from fedsoft import plugins

HEADINGS = ("Maths", "Arguments", "Cost", "Use it", "Avoid it", "Example", "Reference")

INTRODUCTION = """\
# Algorithms

Every algorithm that fedsoft holds, in the same form. All of them run on the same engine with the same draws, take part
in `fedsoft compare`, and pass one conformance suite; each is checked against a closed form and in its limits
(`tests/algorithms`). This page is made from the docstrings by `make docs`.

In the maths, k is a client, n_k the number of its training points, f_k its mean loss, w_k its model, c_s a center, N
the number of clients, S the number of centers. One *task* is one local solve: `epochs` passes over the client's points.
"""


def sections(docstring: str) -> dict[str, str]:
    """A docstring cut at its headings; what stands before the first is called `about`."""
    pattern = rf"^({'|'.join(HEADINGS)})\b[^\n:]*:"
    cuts = [*re.finditer(pattern, docstring, re.MULTILINE)]
    found = {"about": docstring[: cuts[0].start() if cuts else None].strip()}
    for cut, after in zip(cuts, [*cuts[1:], None], strict=True):
        found[cut[1]] = inspect.cleandoc(docstring[cut.end() : after.start() if after else None])
    return found


def page() -> str:
    """The whole page, in Markdown."""
    parts = [INTRODUCTION, "| algorithm | in one sentence |\n| --- | --- |"]
    classes = {name: plugins.find("algorithms", name) for name in plugins.names("algorithms")}
    for thing in classes.values():
        about = sections(inspect.getdoc(thing) or "")["about"].split("\n\n")[0]
        parts[-1] += f"\n| [{thing.__name__}](#{thing.__name__.lower()}) | {' '.join(about.split())} |"
    parts += [entry(name) for name in classes]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def entry(name: str) -> str:
    thing = plugins.find("algorithms", name)
    found = sections(inspect.getdoc(thing) or "")
    lines = [f"## {thing.__name__}", found["about"], f"`--set algorithm={name}`"]
    lines.append(maths(found["Maths"]))
    if "Arguments" in found:
        lines.append(settings_table(name, found["Arguments"]))
    for heading in ("Cost", "Use it", "Avoid it", "Reference"):
        if heading in found:
            title = "Cost to a client per round" if heading == "Cost" else heading
            lines.append(f"**{title}:** {' '.join(found[heading].split())}")
    return "\n\n".join(line for line in lines if line)


def maths(text: str) -> str:
    """Return the part on maths: the leading formula, then text and formulas as they are."""
    return "\n\n".join(filter(None, ["```text\n" + inspect.cleandoc(_first_block(text)) + "\n```", _rest(text)]))


def _first_block(maths: str) -> str:
    """The leading lines, up to the first that is not indented as a formula once the text goes on."""
    return maths.split("\n\n")[0]


def _rest(maths: str) -> str:
    return "\n\n".join(_as_text_or_formula(part) for part in maths.split("\n\n")[1:])


def _as_text_or_formula(part: str) -> str:
    indented = all(line.startswith("    ") for line in part.splitlines() if line.strip())
    return "```text\n" + inspect.cleandoc(part) + "\n```" if indented else part


def settings_table(name: str, arguments: str) -> str:
    """The settings as a table: name, default, meaning; what is said after them, as text."""
    arguments, _, more = arguments.partition("\n\n")
    defaults = plugins.parameters(plugins.find("algorithms", name))
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for match in re.finditer(r"^([\w, ]+): (.*?)(?=^[\w, ]+: |\Z)", arguments, re.MULTILINE | re.DOTALL):
        keys = [key.strip() for key in match[1].split(",")]
        values = ", ".join(f"`{defaults[key].default}`" if key in defaults else "" for key in keys)
        rows.append(f"| {', '.join(f'`{key}`' for key in keys)} | {values} | {' '.join(match[2].split())} |")
    return "\n".join(rows) + (f"\n\n{inspect.cleandoc(more)}" if more else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
