"""The layout holds: imports go downwards only, siblings do not know each other, heavy packages stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fedsoft

ROOT = Path(fedsoft.__file__).parent
KINDS = ("algorithms", "models", "datasets", "partitions", "solvers", "rules", "attacks")

# From the ground up. A module may import what stands before it.
ORDER = [
    "escape", "errors", "checks", "machine", "threads", "tensorfile", "vault", "seeds", "kernels", "partition",
    "clientdata", "federation", "model", "networks", "plugins", "images", "tablefile", "partitions", "models",
    "datasets", "batches", "local", "solvers", "contract", "centers", "trust", "rules", "attacks", "algorithms", "host",
    "simulate", "engines", "scores", "newcomers", "training", "runs", "engines.flower", "modelcard", "exporting",
    "studies", "theory", "reports", "paper", "progress", "cli",
]  # fmt: skip


def modules() -> dict[str, set[str]]:
    """Every module of the package (dotted, without `fedsoft.`) with the modules of the package it imports."""
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        imports = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "fedsoft":
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsoft."):
                imports.add((node.module or "").removeprefix("fedsoft."))
            elif isinstance(node, ast.Import):
                imports |= {a.name.removeprefix("fedsoft.") for a in node.names if a.name.startswith("fedsoft.")}
        found[name] = imports
    return found


def room(module: str) -> str:
    """The first part of its name; what carries whole runs to a federation stands above `runs`, a room of its own."""
    return "engines.flower" if module.startswith("engines.flower") else module.split(".")[0]


def test_every_module_has_its_place() -> None:
    assert {room(name) for name in modules()} - {"__init__"} == set(ORDER)


def test_imports_go_downwards() -> None:
    for name, imports in modules().items():
        if name == "__init__" or name.endswith(".__init__"):
            continue
        for other in imports - {"__version__"}:
            if room(other) != room(name):
                assert ORDER.index(room(other)) < ORDER.index(room(name)), f"{name} imports {other}"


def test_siblings_do_not_import_each_other() -> None:
    for name, imports in modules().items():
        if room(name) in KINDS and not name.endswith("__init__"):
            assert not {other for other in imports if room(other) == room(name)}, name


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_only_reports_draw() -> None:
    for path in ROOT.rglob("*.py"):
        names = imported_packages(path)
        if "reports" not in path.parts:
            assert not names & {"matplotlib", "jinja2", "markupsafe"}, path
        if ROOT / "engines" / "flower" not in path.parents:
            assert not names & {"flwr", "cryptography"}, path
        if path != ROOT / "trust" / "privacy.py":
            assert "dp_accounting" not in names, path
        if path not in {ROOT / "engines" / name for name in ("ray.py", "raycluster.py")}:
            assert "ray" not in names, path


PICKLES = {
    "pickle",
    "_pickle",
    "cPickle",
    "pickle5",
    "joblib",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "jsonpickle",
}
LOADERS = {"read_pickle", "unsafe_load", "full_load", "load_module", "literal_eval"}


def unsafe_calls(text: str) -> list[str]:
    """What in a program could run something that stands in a file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        pickles = [k.value for k in node.keywords if k.arg == "allow_pickle"]
        if any(not (isinstance(value, ast.Constant) and value.value is False) for value in pickles):
            found.append(f"{name} with allow_pickle")
        if name in ("np.load", "numpy.load", "np.lib.format.read_array") and not pickles:
            found.append(f"{name} without allow_pickle=False")
        if name in ("torch.load", "yaml.load", "eval", "exec", "__import__", "torch.jit.load", "torch.package"):
            found.append(name)
        if name.rpartition(".")[2] in LOADERS:
            found.append(name)
    return found


def test_nothing_is_unpickled() -> None:
    """Neither here nor in the benchmarks; pickles are made in tests alone, as bad input."""
    for path in [*ROOT.rglob("*.py"), *(Path(__file__).parents[1] / "benchmarks").rglob("*.py")]:
        assert not imported_packages(path) & PICKLES, path
        assert not unsafe_calls(path.read_text("utf-8")), path


def test_unsafe_calls_are_found() -> None:
    safe = "np.load(f, allow_pickle=False); json.load(f); safetensors.torch.load(b); model.eval()"
    assert unsafe_calls(safe) == []
    bad = ("np.load(f)", "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)", "torch.load(f)", "eval(x)",
           "pd.read_pickle(f)", "yaml.load(f)", "yaml.unsafe_load(f)", "np.lib.format.read_array(f)")  # fmt: skip
    for call in bad:
        assert unsafe_calls(call), call


def test_only_seeds_makes_generators() -> None:
    """Every draw is named."""
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.name != "seeds.py":
            for banned in ("np.random.seed", "np.random.default_rng", "torch.rand", "import random", "torch.Generator"):
                assert banned not in text.replace("torch.random.fork_rng", ""), f"{banned} in {path.name}"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, fedsoft.cli; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
