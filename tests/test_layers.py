"""The layout holds: imports go downwards only, siblings do not know each other, heavy packages stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import fedsoft

ROOT = Path(fedsoft.__file__).parent
KINDS = ("algorithms", "models", "datasets", "partitions", "solvers", "aggregators", "attacks")
FLAT = ("escape", "errors", "settings", "plugins", "seeds")  # modules that are in no room

# From the ground up. A module may import from its own room, and from what stands before it.
ORDER = [
    *FLAT, "machine", "storage", "core", "networks", "data", "partitions", "models", "datasets", "solvers", "clusters",
    "safety", "aggregators", "attacks", "algorithms", "engine", "evaluation", "onboarding", "training", "runs",
    "exports", "flower", "studies", "theory", "reports", "paper", "cli",
]  # fmt: skip


def name_of(path: Path) -> str:
    """A file as a dotted name without `fedsoft.`; a package by its own name, the root as nothing."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in ROOT.rglob("*.py") if "project" not in path.parts}


def modules() -> dict[str, set[str]]:
    """Every module of the package with the modules that it imports, wherever in the file: none is left out."""
    return {name: imported(path.read_text("utf-8"), name) for name, path in FILES.items()}


def imported(text: str, name: str) -> set[str]:
    """The modules that a program names: `from fedsoft.a import b` is a.b where that is a module, else a."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative name"
            package, dot, rest = (node.module or "").partition(".")
            if package == "fedsoft":
                inside = [f"{rest}{dot}{alias.name}" for alias in node.names]
                found |= {one if one in FILES else rest for one in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("fedsoft.") for alias in node.names if alias.name.startswith("fedsoft.")}
    return found - {name}


def room(module: str) -> str:
    """The first part of its name."""
    return module.split(".")[0]


def test_every_module_has_its_place() -> None:
    assert {room(name) for name in FILES} - {""} == set(ORDER)
    assert sorted(path.stem for path in ROOT.glob("*.py")) == sorted([*FLAT, "__init__"])


def test_imports_go_downwards() -> None:
    for name, imports in modules().items():
        for other in imports - {""} if name else ():  # the root offers what all rooms have
            if room(other) != room(name):
                assert ORDER.index(room(other)) < ORDER.index(room(name)), f"{name} imports {other}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: imports - {""} for name, imports in modules().items() if name}
    for name, imports in graph.items():  # importing a module runs the packages that it lies in
        packages = {one.rpartition(".")[0] for one in imports}
        imports |= {package for package in packages - {""} if not name.startswith(f"{package}.") and package != name}
    assert list(TopologicalSorter(graph).static_order())


def test_only_plugins_import_by_text() -> None:
    for name, path in FILES.items():
        if name not in ("", "plugins"):
            assert "import_module" not in path.read_text("utf-8").replace("importlib.import_module({package!r})", "")


def test_siblings_do_not_import_each_other() -> None:
    for name, imports in modules().items():
        if room(name) in KINDS:
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
        if ROOT / "flower" not in path.parents:
            assert not names & {"flwr", "cryptography"}, path
        if path != ROOT / "safety" / "privacy.py":
            assert "dp_accounting" not in names, path
        if path not in {ROOT / "engine" / name for name in ("ray.py", "ray_cluster.py")}:
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
        if path.name not in ("seeds.py", "passes.py"):  # passes.py names draws of torch in order to refuse them
            for banned in ("np.random.seed", "np.random.default_rng", "torch.rand", "import random", "torch.Generator"):
                assert banned not in text.replace("torch.random.fork_rng", ""), f"{banned} in {path.name}"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, fedsoft.cli; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
