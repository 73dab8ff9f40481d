"""Without any extra, and without the tools of developers, everything but the extras themselves works."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

# Names under which the extras are imported, and what comes with them alone.
EXTRAS = (
    "ray", "flwr", "grpc", "cryptography", "onnx", "onnxscript", "onnxruntime", "playwright", "hypothesis", "pytest",
    "xdist", "dp_accounting",
)  # fmt: skip
BLOCKED = f"""
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
"""


def without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + code, *arguments],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_every_module_but_those_of_extras_can_be_imported() -> None:
    code = """
import importlib, pkgutil, fedsoft
skipped = ("fedsoft.engine.ray", "fedsoft.flower.")
for module in pkgutil.walk_packages(fedsoft.__path__, "fedsoft."):
    if not module.name.startswith(skipped):
        importlib.import_module(module.name)
for name in fedsoft.__all__:
    getattr(fedsoft, name)
print("all")
"""
    done = without_extras(code)
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list", "algorithms"], ["run", "--help"], ["flower", "--help"]], ids=str
)
def test_commands_answer(arguments: list[str]) -> None:
    done = without_extras("from fedsoft.cli import main; main()", *arguments)
    assert done.returncode == 0, done.stderr


def test_a_run_works_and_an_extra_is_asked_for_by_name(tmp_path: Path) -> None:
    words = ["run", "synthetic-10-90", "--rounds", "1", "--set", "clients=5", "--set", "K=2", "--out", str(tmp_path)]
    done = without_extras("from fedsoft.cli import main; main()", *words)
    assert done.returncode == 0, done.stderr
    assert "Saved:" in done.stdout
    for engine in ("ray", "flower"):
        done = without_extras("from fedsoft.cli import main; main()", *words, "--again", "--engine", engine)
        assert done.returncode == 2, done.stderr
        assert f"fedsoft[{engine}]" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_is_blocked_here_is_what_the_extras_bring() -> None:
    file = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    extras = file["project"]["optional-dependencies"]
    wanted = {"".join(c for c in text.split("[")[0] if c.isalnum() or c in "-_").rstrip("0123456789") for name in
              ("ray", "onnx") for text in extras[name]}  # fmt: skip
    assert wanted <= set(EXTRAS)
