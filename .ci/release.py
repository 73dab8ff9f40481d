"""Build wheel and sdist, check them, and try the wheel in an empty environment of every Python that is found.

    python .ci/release.py [--cuda] [--python PATH ...]

The environments hold what the wheel's own metadata asks for, in the versions of `constraints.txt`, and nothing of this
folder. A Python for which the package index has torch with CUDA only is left out, unless `--cuda` allows for its
gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13")
HEAVY = re.compile(r"nvidia|cuda|triton")


def main() -> int:
    """Do everything; the exit code is 1 where something is not as it should be."""
    reader = argparse.ArgumentParser(description="Build and try the packages.")
    reader.add_argument("--cuda", action="store_true", help="try Pythons that only have torch with CUDA, too")
    reader.add_argument("--python", nargs="*", help="interpreters; default: all of 3.11 to 3.13 that are found")
    chosen = reader.parse_args()
    wheel, problems = build(), []
    problems += metadata_problems(wheel)
    print("\n".join(problems) or f"metadata: nothing amiss in {wheel.name}", flush=True)
    for python in chosen.python or found_pythons():
        if not chosen.cuda and (heavy := with_cuda(python)):
            print(f"{python}: left out, since torch would bring {heavy} packages of CUDA (--cuda tries it)", flush=True)
        elif problem := tried(python, wheel):
            problems.append(f"{python}: {problem}")
            print(problems[-1], flush=True)
    return 1 if problems else 0


def build() -> Path:
    """Return the wheel, beside which the sdist lies; both are looked over by twine."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = _environment(sys.executable, Path(folder))
        _run(tools, "-m", "pip", "install", "--quiet", "build", "twine")
        _run(tools, "-m", "build", "--outdir", str(DIST), str(ROOT), quiet=True)
        files = sorted(DIST.iterdir())
        _run(tools, "-m", "twine", "check", "--strict", *map(str, files))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def metadata_problems(wheel: Path) -> list[str]:
    """Return what is wrong with what the packages tell about themselves."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(packed.read(place).decode("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    classifiers = told.get_all("Classifier") or []
    source = re.search(r'__version__ = "(.+)"', (ROOT / "src/fedsoft/__init__.py").read_text("utf-8"))
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    wanted = {
        "the version of the wheel": told["Version"] == version,
        "__version__": source is not None and source[1] == version,
        "the version in CITATION.cff": citation is not None and citation[1] == version,
        "a part on this version in CHANGELOG.md": f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text("utf-8"),
        "the licence": told["License-Expression"] == "Apache-2.0" and any("LICENSE" in name for name in names),
        "classifiers of Python": all(f"Programming Language :: Python :: {one}" in classifiers for one in VERSIONS),
        "the classifier Typing :: Typed": "Typing :: Typed" in classifiers and "fedsoft/py.typed" in names,
        "addresses": bool(told.get_all("Project-URL")),
        "a command": any(name.endswith("entry_points.txt") for name in names),
        "presets in the wheel": any(name.endswith("presets/digits-2.toml") for name in names),
        "nothing but the package in the wheel": all(name.startswith(("fedsoft/", "fedsoft-")) for name in names),
        "an sdist": any(DIST.glob("*.tar.gz")),
    }
    return [f"metadata: {what} is missing or wrong" for what, fine in wanted.items() if not fine]


def found_pythons() -> list[str]:
    """Return an interpreter of each version, from the PATH or from pyenv."""
    found = []
    for version in VERSIONS:
        beside = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        candidates = [shutil.which(f"python{version}"), *map(str, reversed(beside))]
        if here := next((one for one in candidates if one and answers(one, version)), None):
            found.append(here)
        else:
            print(f"python{version}: not found, not tried", flush=True)
    return found


def answers(python: str, version: str) -> bool:
    """Whether an interpreter is of this version: the PATH may hold names that pyenv answers with an error."""
    line = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", line], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def with_cuda(python: str) -> int:
    """Return how many packages of CUDA torch would bring along."""
    with tempfile.TemporaryDirectory() as folder:
        inside = _environment(python, Path(folder))
        report = Path(folder) / "report.json"
        arguments = ["--dry-run", "--quiet", "--report", str(report), "-c", str(ROOT / "constraints.txt"), "torch"]
        _run(inside, "-m", "pip", "install", *arguments)
        planned = json.loads(report.read_text("utf-8"))["install"]
    return sum(bool(HEAVY.search(one["metadata"]["name"].lower())) for one in planned)


def tried(python: str, wheel: Path) -> str:
    """Install the wheel into an empty environment and use it in another folder; return what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        inside = _environment(python, Path(folder) / "environment")
        elsewhere = Path(folder) / "elsewhere"
        elsewhere.mkdir()
        shutil.copyfile(Path(__file__).with_name("smoke.py"), elsewhere / "smoke.py")
        try:
            _run(inside, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
            _run(inside, "-m", "pip", "check", quiet=True)
            _run(inside, "smoke.py", str(ROOT), folder=elsewhere)
        except subprocess.CalledProcessError as error:
            return f"'{' '.join(map(str, error.cmd))}' ended with {error.returncode}"
    return ""


def _environment(python: str, folder: Path) -> Path:
    """Return the interpreter of a new environment."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def _run(python: Path, *arguments: str, folder: Path = ROOT, quiet: bool = False) -> None:
    """Run Python; nothing of this folder or of the user's own packages is seen."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    path = f"{python.parent}{os.pathsep}{clean.get('PATH', '')}"
    out = subprocess.DEVNULL if quiet else None
    subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=clean | {"PYTHONNOUSERSITE": "1", "PATH": path},
        check=True,
        stdout=out,
    )


if __name__ == "__main__":
    sys.exit(main())
