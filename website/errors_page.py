"""The page of all errors: the sentences themselves, read from the code that raises them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fedsoft
from fedsoft.errors import CallbackError, DivergedError, FedsoftError, InputError, StoreError
from website.cells import cell, table

ROOT = Path(fedsoft.__file__).parent
CLASSES = {
    "InputError": InputError, "SettingError": InputError, "MissingSetting": InputError, "FilesGone": InputError,
    "StoreError": StoreError, "DivergedError": DivergedError, "FedsoftError": FedsoftError,
    "CallbackError": CallbackError,
}  # fmt: skip
ROOMS = {
    "cli": "Commands", "core": "Data and models", "data": "Files", "datasets": "Data sets", "partitions": "Partitions",
    "models": "Models", "networks": "Networks", "solvers": "Local solvers", "algorithms": "Algorithms",
    "clusters": "Algorithms",
    "safety": "Privacy and malicious clients", "secure": "Sums only", "aggregators": "Privacy and malicious clients",
    "attacks": "Privacy and malicious clients", "engine": "Engines", "machine": "Engines", "evaluation": "Scores",
    "onboarding": "New clients", "training": "Training", "callbacks": "Training", "runs": "Runs on disk",
    "storage": "Runs on disk",
    "exports": "Exports", "flower": "Federations", "studies": "Studies", "theory": "Theory", "reports": "Studies",
    "paper": "The paper",
}  # fmt: skip
REMEDY = {
    "StoreError": "Look at the folder, its rights, and the space that is left; what was saved is not harmed.",
    "DivergedError": "Lower the learning rate, or scale the data (`standardize = true`).",
    "FedsoftError": "The run as it was last saved can be resumed.",
    "InputError": "",
}
STRONG = re.compile(
    r"(?::|,| \() ?(?=(?:should|need|needs|give|leave|put|use|lower|set|take|finish|look|rename|did you mean|say) )"
)
WEAK = re.compile(r"(?<!['…]): ")
INTRODUCTION = """\
# Errors

Whatever a user can cause is a `FedsoftError`: one sentence that names the field, the value, and what is allowed; the
command line prints
it and ends with exit code 2. This page has all of them, as the code of this version raises them. `…` stands for what
is filled in.
Where the second column is empty, the first one names the value that cannot be used, and the remedy is another one.

| class | raised for |
| --- | --- |
| `fs.InputError` | a value, a file or a name that cannot be used |
| `fs.StoreError` | a run's folder that cannot be read or written, or is damaged |
| `fs.DivergedError` | numbers that are not finite any more, or have grown beyond all bounds |
| `fs.CallbackError` | a callback that raised; the run up to there is in its attribute `run` |
"""


def page() -> str:
    """Return the whole page."""
    rooms: dict[str, dict[tuple[str, str], None]] = {title: {} for title in dict.fromkeys(ROOMS.values())}
    for room, name, text in sentences():
        cause, remedy = parted(text)
        rooms[ROOMS.get(room, "Data and models")][cause, remedy or REMEDY[CLASSES[name].__name__]] = None
    parts = [INTRODUCTION]
    for title, found in rooms.items():
        rows = [(cell(cause), cell(remedy)) for cause, remedy in sorted(found, key=lambda one: one[0].lower())]
        parts += [f"## {title}", table(("what it says: the cause", "what to do"), rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def sentences() -> Iterator[tuple[str, str, str]]:
    """Return the room, the class and the sentence of every error that is composed anywhere."""
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text("utf-8"))
        texts = {
            one.targets[0].id: one.value for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES and node.args:
                text = composed(node.func.id, node.args, texts)
                if re.sub(r"[…\W]", "", text):
                    yield room, node.func.id, text


def composed(name: str, arguments: list[ast.expr], texts: dict[str, ast.expr]) -> str:
    """Return the sentence of an error as its class puts it together."""
    words = [template(one, texts) for one in arguments]
    if name == "SettingError" and len(words) >= 4:
        owner, field, _, reason, *scope = words
        place = f"{owner}.{field}" if owner else field
        return f"{place} = … is not allowed{' ' + scope[0] if scope else ''}: {reason}"
    if name == "MissingSetting":
        owner, field, *reason = words
        return f"{owner}.{field} is missing: {reason[0] if reason else 'give it a value'}"
    return words[0]


def template(node: ast.expr, texts: dict[str, ast.expr]) -> str:
    """Return text with `…` where values are filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(one, texts) for one in node.values)
    if isinstance(node, ast.Name) and node.id in texts:
        return template(texts[node.id], {})
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, texts) + template(node.right, texts)
    return "…"


def parted(text: str) -> tuple[str, str]:
    """Return the cause and the remedy that a sentence tells.

    >>> parted("K = … is not allowed: should be at most …")
    ('K = … is not allowed', 'should be at most …')
    >>> parted("client '…' has no points, leave it out")
    ("client '…' has no points", 'leave it out')
    """
    found = STRONG.search(text) or WEAK.search(text)
    if found is None:
        return text, ""
    cause, remedy = text[: found.start()].strip(), text[found.end() :].strip()
    return cause, remedy.removesuffix(")") if remedy.count(")") > remedy.count("(") else remedy
