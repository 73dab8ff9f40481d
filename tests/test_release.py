"""What is published fits together: versions, metadata, containers, and what the forge's templates say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import fedsoft as fs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_there_is_one_version() -> None:
    cited = re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)
    assert cited is not None
    assert fs.__version__ == PROJECT["version"] == cited[1]
    parts = re.findall(r"^## (.+)$", text("CHANGELOG.md"), re.MULTILINE)
    assert parts[0] == "Unreleased"
    released = [part for part in parts if part != "Unreleased"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", part) for part in released), released
    dated = re.search(r"^date-released: (.+)$", text("CITATION.cff"), re.MULTILINE)
    assert dated is not None
    assert released[0] == f"{fs.__version__} - {dated[1]}"
    assert f"fedsoft-{fs.__version__}-py3-none-any.whl" in text("docs/index.md")
    assert f"fedsoft is at {'.'.join(fs.__version__.split('.')[:2])}:" in text("docs/stability.md")


def test_the_changelog_keeps_its_form() -> None:
    """https://keepachangelog.com: these headings, each once in a version."""
    for part in re.split(r"^## ", text("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, headings
        assert len(set(headings)) == len(headings), headings


def test_the_changelog_says_nothing_twice() -> None:
    """No two lines of entries begin alike: one of them would have been left from a merge."""
    lines = text("CHANGELOG.md").splitlines()
    begun = [line[:45] for line in lines if len(line) > 45 and line.startswith(("- ", "  "))]
    assert sorted({one for one in begun if begun.count(one) > 1}) == []


def test_every_extra_is_explained() -> None:
    tools = {"dev", "docs"}
    for name in PROJECT["optional-dependencies"].keys() - tools:
        assert f"fedsoft[{name}]" in text("docs/install.md"), name


def test_the_container_installs_what_was_tried() -> None:
    """Its instructions can be followed: files exist, and it does not run as root."""
    lines = [line for line in text("Dockerfile").replace("\\\n", " ").splitlines() if line and line[0] != "#"]
    known = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    steps = [line.partition(" ")[::2] for line in lines]
    assert {name for name, _ in steps} <= known
    assert steps[0][0] == "FROM"
    python = re.fullmatch(r"python:(3\.\d+)-slim-bookworm", steps[0][1])
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]
    sources = [name for kind, rest in steps if kind == "COPY" for name in rest.split()[:-1]]
    ignored = text(".dockerignore").splitlines()
    assert all(f"!{name}" in ignored for name in sources)
    assert all((ROOT / name).is_file() for name in sources if "*" not in name)
    commands = [shlex.split(part) for kind, rest in steps if kind == "RUN" for part in rest.split("&&")]
    assert all("--no-cache-dir" in words for words in commands if words[0] == "pip")
    assert [rest for kind, rest in steps if kind == "USER"] == ["fedsoft"]
    (ran,) = re.findall(r"^docker run .+$", text("docs/install.md"), re.MULTILINE)
    assert '--user "$(id -u):$(id -g)"' in ran  # the user of the image may not write into a folder of the machine's
    for kind, rest in steps:
        if kind in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)


def test_the_machine_to_develop_on_uses_targets_that_exist() -> None:
    made = json.loads(text(".devcontainer/devcontainer.json"))
    targets = re.findall(r"make (\w+)", made["postCreateCommand"])
    assert targets
    assert all(re.search(rf"^{target}:", text("Makefile"), re.MULTILINE) for target in targets)


def test_make_takes_torch_for_the_cpu_first() -> None:
    """By the same setting as the container and the page on installing; else Linux gets gigabytes of CUDA."""
    recipe = text("Makefile").partition("\n$(CORE): ")[2].partition("\n\n")[0]
    assert 0 < recipe.index("--index-url $(TORCH_INDEX)) torch") < recipe.index("$(PIP) -e .")
    for page in ("Dockerfile", "docs/install.md", "docs/index.md"):
        assert '--index-url "$TORCH_INDEX"' in text(page), page


def release_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    release = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(release)
    return release


def test_a_python_that_does_not_start_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the names that pyenv puts on the PATH for versions that are not chosen."""
    release, places = release_script(), tmp_path / "bin"
    places.mkdir()
    for version, line in (("3.11", "echo 3.11"), ("3.12", "exit 127"), ("3.13", "echo 3.9")):
        (places / f"python{version}").write_text(f"#!/bin/sh\n{line}\n")
        (places / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{places}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert release.found_pythons() == [str(places / "python3.11")]
    assert capsys.readouterr().out.splitlines() == [f"python{v}: not found, not tried" for v in ("3.12", "3.13")]


def test_releases_are_tried_on_every_python_that_is_promised() -> None:
    release = release_script()
    promised = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert list(release.VERSIONS) == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"
