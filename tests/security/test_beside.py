"""A module beside a TOML file that the user runs is found; a module in or beside a run's folder never is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

import fedsoft as fs
from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.plugins import ConsentError
from fedsoft.runs import spec as specs
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from tests.security.test_names import forged, raw_with

NET = """
from torch import nn
from {helper} import Act

def net():
    return nn.Sequential(nn.Linear(3, 2), Act(), nn.Linear(2, 1))
"""
HELPER = """
from torch import nn

class Act(nn.Module):
    def forward(self, x):
        return x.tanh()
"""


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A folder with run.toml, a module that it names, and another one that this imports; the module's name."""
    stem = f"own_{abs(hash(request.node.nodeid))}"  # imported modules stay for the life of a process
    place = tmp_path / "mine"
    place.mkdir()
    (place / f"{stem}.py").write_text(NET.format(helper=f"{stem}_helper"))
    (place / f"{stem}_helper.py").write_text(HELPER)
    (place / "run.toml").write_text(tomli_w.dumps(raw_with("factory", f"{stem}:net")))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return place, stem


def test_a_factory_beside_the_file_is_found(own: tuple[Path, str], tmp_path: Path) -> None:
    place, stem = own
    spec = specs.read(str(place / "run.toml"))
    folder, finished = execute(spec, tmp_path / "runs" / "run", RunOptions())
    assert finished
    assert sys.modules[stem].__file__ == str(place / f"{stem}.py")
    with pytest.raises(ConsentError):
        fs.load(folder.path)
    assert len(fs.load(folder.path, allow=[f"{place}/{stem}:net"]).centers) == 1


def test_what_is_typed_with_the_file_is_found_too(own: tuple[Path, str]) -> None:
    place, stem = own
    (place / "run.toml").write_text(tomli_w.dumps(raw_with("model", "mlp")))
    spec = specs.read(str(place / "run.toml"), ["model.name=module", f"factory={stem}:net"])
    assert plugins.allows(spec.allow, f"{stem}:net")
    plugins.build("models", spec.model.name, spec.model.settings, spec.allow)


def test_a_module_beside_hides_nothing_that_is_installed(own: tuple[Path, str], tmp_path: Path) -> None:
    place, stem = own
    (place / "torch.py").write_text("raise SystemExit(3)")
    plugins.imported(f"{stem}:net", [f"{place}/{stem}:net"])
    assert sys.path[-1] == str(place)
    with pytest.raises(InputError, match="another module is called 'torch'"):
        plugins.imported("torch:zeros", [f"{place}/torch:zeros"])


def test_one_name_at_two_places_is_refused(own: tuple[Path, str], tmp_path: Path) -> None:
    place, stem = own
    plugins.imported(f"{stem}:net", [f"{place}/{stem}:net"])
    (tmp_path / f"{stem}.py").write_text("net = None")
    with pytest.raises(InputError, match="another module is called"):
        plugins.imported(f"{stem}:net", [f"{tmp_path}/{stem}:net"])


def test_a_module_that_fails_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match="'own_broken:net' cannot be imported: ZeroDivisionError"):
        plugins.imported("own_broken:net", [f"{tmp_path}/own_broken:net"])
    (tmp_path / "own_broken.py").write_text("net = 7  # mended")
    assert plugins.imported("own_broken:net", [f"{tmp_path}/own_broken:net"]) == 7


@pytest.mark.parametrize("where", ["in the folder", "beside the folder", "in the current folder"])
def test_a_run_folder_imports_nothing(tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    made = forged(tmp_path, "factory", "trapped:called")
    place = {"in the folder": made.path, "beside the folder": made.path.parent}.get(where, tmp_path / "here")
    place.mkdir(exist_ok=True)
    (place / "trapped.py").write_text((trap / "trapped.py").read_text())
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(trap))])
    monkeypatch.chdir(place)
    with pytest.raises(ConsentError):
        fs.load(made.path)
    with pytest.raises(InputError, match=r"looked for trapped\.py on Python's path"):
        fs.load(made.path, allow=["trapped:called"])  # the name alone allows no place
    with pytest.raises(InputError, match=r"looked for trapped\.py on Python's path"):
        specs.read(str(made.path / "spec.toml"), ["dataset.name=trapped:called"])  # nor does a file in such a folder
    assert not [*tmp_path.rglob("sprung")]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("words", [[], ["--engine", "ray", "--workers", "1"]], ids=["local", "ray"])
def test_the_command_finds_it_from_any_folder(own: tuple[Path, str], tmp_path: Path, words: list[str]) -> None:
    _, stem = own

    def command(*given: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-P", "-c", "from fedsoft.cli import main; main()", *given]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)

    done = command("run", "mine/run.toml", *words)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert command("export", str(folder)).returncode == 2
    assert command("export", str(folder), "--allow", f"{stem}:net").returncode == 2
    assert command("export", str(folder), "--allow", f"mine/{stem}:net").returncode == 0
    if not words:
        many = command("compare", "mine/run.toml", "-a", "fedavg,local", "--seeds", "0..1", "--jobs", "2")
        assert many.returncode == 0, many.stderr
