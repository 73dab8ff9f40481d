"""A run knows when the user's own code is no longer that which it was made with."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

import fedsoft as fs
from fedsoft.errors import StoreError
from fedsoft.runs import spec as specs
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.user_code import is_installed, with_imports
from tests.security.test_names import raw_with

NET = """
from torch import nn

from {stem}_parts import Act


def net():  # one layer
    return nn.Sequential(nn.Linear(3, 1), Act())
"""
PARTS = "from torch import nn\n\nAct = nn.Tanh\n"


@pytest.fixture
def stem(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a network, one that it imports, and a TOML file that names it."""
    stem = f"edited_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{stem}.py").write_text(NET.format(stem=stem))
    (tmp_path / f"{stem}_parts.py").write_text(PARTS)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw_with("factory", f"{stem}:net")))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return stem


def edits() -> list[tuple[str, Callable[[str], str], bool]]:
    return [
        ("", lambda text: text.replace("one layer", "a comment") + "\n\n", False),
        ("", lambda text: text.replace("Act()", "Act(), nn.ReLU()"), True),
        ("_parts", lambda text: text.replace("Tanh", "ReLU"), True),
    ]


@pytest.mark.parametrize(("which", "edit", "matters"), edits(), ids=["comment", "network", "what it imports"])
def test_edited_code_is_told(
    stem: str, which: str, edit: Callable[[str], str], matters: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> bool:
        return execute(specs.read(str(tmp_path / "run.toml")), tmp_path / "run", RunOptions())[1]

    def load() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedsoft"):
            fs.load(tmp_path / "run", allow=[f"{tmp_path}/{stem}:net"])
        return [record.getMessage() for record in caplog.records]

    assert run()
    assert run()  # found as it was saved
    assert load() == []
    program = tmp_path / f"{stem}{which}.py"
    program.write_text(edit(program.read_text()))
    if not matters:
        assert run()
        assert load() == []
        return
    with pytest.raises(StoreError, match=f"the code of '{stem}:net' has changed since run 'run' began: put it back"):
        run()
    (said,) = load()
    assert f"the code of '{stem}:net' is not that which run 'run' was trained with" in said


def test_runs_made_in_python_know_it_too(stem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sys.path.append(str(tmp_path))
    net = __import__(stem).net
    fed = fs.Federation.from_clients([([[0.0, 1, 2], [1, 2, 3]], [1.0, 2]), ([[0.0, 1, 2], [1, 0, 3]], [1.0, 3])])
    fs.fit(fs.FedAvg(), fed, net, rounds=1).save(tmp_path / "run")
    (tmp_path / f"{stem}.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3, 1)\n")
    fs.load(tmp_path / "run", allow=[f"{stem}:net"])
    assert "is not that which run 'run' was trained with" in caplog.text


def test_packages_are_followed_and_what_is_installed_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "parcel" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "parcel" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from . import acts\n\nfrom ..top import Layer\n")
    (package / "acts.py").write_text("X = 1\n")
    (tmp_path / "parcel" / "top.py").write_text("from torch import nn\n\nLayer = nn.Linear\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = {one.__name__ for one in with_imports(importlib.import_module("parcel.inner"))}
    assert found == {"parcel.inner", "parcel.inner.acts", "parcel.top"}
    assert not is_installed(sys.modules["parcel.inner"])
    assert is_installed(sys.modules["torch.optim"])
    assert is_installed(sys.modules["logging"])
