"""The layout holds: imports go downwards only, siblings do not know each other, heavy packages stay in their rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedsoft

ROOT = Path(fedsoft.__file__).parent
KINDS = ("algorithms", "models", "datasets", "partitions", "solvers", "aggregators", "attacks")
FLAT = ("escape", "errors", "settings", "plugins", "seeds")  # modules that are in no room
MOST_PARAMETERS = 8

# From the ground up. A module may import from its own room, and from what stands before it.
ORDER = [
    *FLAT, "machine", "storage", "core", "networks", "partitions", "data", "models", "datasets", "solvers", "clusters",
    "secure", "safety", "aggregators", "attacks", "algorithms", "engine", "evaluation", "onboarding", "training",
    "callbacks", "runs", "exports", "flower", "studies", "theory", "reports", "paper", "leaderboard", "cli",
]  # fmt: skip


def name_of(path: Path) -> str:
    """A file as a dotted name without `fedsoft.`; a package by its own name, the root as nothing."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in ROOT.rglob("*.py") if "project" not in path.parts}


@cache
def nodes(text: str) -> list[ast.AST]:
    """All parts of a program; every file is read by several tests."""
    return [*ast.walk(ast.parse(text))]


@cache
def modules() -> dict[str, set[str]]:
    """Every module of the package with the modules that it imports, wherever in the file: none is left out."""
    return {name: imported(path.read_text("utf-8"), name) for name, path in FILES.items()}


def imported(text: str, name: str) -> set[str]:
    """The modules that a program names: `from fedsoft.a import b` is a.b where that is a module, else a.

    Those that it imports by text count too: `find("solvers", ...)` is solvers, and `"fedsoft.a.b"` is a.b.
    """
    found: set[str] = set()
    for node in nodes(text):
        if isinstance(node, ast.Call) and node.args and isinstance(kind := node.args[0], ast.Constant):
            found |= set(KINDS) & {kind.value}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = {node.value.partition(":")[0].removeprefix("fedsoft.")} - {node.value}
            found |= named & FILES.keys() - packages(name)  # a package holds files that its modules read
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative name"
            package, dot, rest = (node.module or "").partition(".")
            if package == "fedsoft":
                inside = [f"{rest}{dot}{alias.name}" for alias in node.names]
                found |= {one if one in FILES else rest for one in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("fedsoft").removeprefix(".") for alias in node.names
                      if alias.name.split(".")[0] == "fedsoft"}  # fmt: skip
    return found - {name}


def packages(module: str) -> set[str]:
    """The packages that a module lies in, which are run before it is."""
    parts = module.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in turn, the first named twice; none where there is no such cycle."""
    whole = {}
    for name, imports in graph.items():
        inside = {other for other in graph if room(name) in KINDS and name == room(other) != other}
        above = {package for one in imports for package in packages(one)}
        whole[name] = imports - {""} | inside | (above - packages(name) - {name})
    try:
        tuple(TopologicalSorter(whole).static_order())
    except CycleError as error:
        return error.args[1]
    return []


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
    assert cycle({name: imports for name, imports in modules().items() if name}) == []


def test_nothing_imports_the_root() -> None:
    """It offers what all rooms have: by way of it, every room would import every other."""
    for name, path in FILES.items():
        for node in nodes(path.read_text("utf-8")):
            if name and isinstance(node, ast.ImportFrom) and node.module == "fedsoft":
                assert all(alias.name in (*ORDER, "__version__") for alias in node.names), name
            if name and isinstance(node, ast.Import):
                assert all(alias.name != "fedsoft" for alias in node.names), name


@pytest.mark.parametrize(("where", "line"), [
    ("core.model", "from fedsoft.engine import base"),
    ("runs.folder", "from fedsoft.runs.execute import execute"),
    ("core.model", "def late(): from fedsoft.core.site import Site"),
    ("core.model", "find('solvers', 'adam')"),
    ("core.model", "resolve_name('fedsoft.solvers.adam:Adam')"),
    ("flower.wire", "from fedsoft.flower.node import node"),
])  # fmt: skip
def test_cycles_are_found(where: str, line: str) -> None:
    graph = {name: imports for name, imports in modules().items() if name}
    assert where in cycle(graph | {where: graph[where] | imported(line, where)})


def test_only_plugins_import_by_text() -> None:
    for name, path in FILES.items():
        if name not in ("", "plugins"):
            assert "import_module" not in path.read_text("utf-8").replace("importlib.import_module({package!r})", "")


def test_siblings_do_not_import_each_other() -> None:
    for name, imports in modules().items():
        if room(name) in KINDS:
            assert not {other for other in imports if room(other) == room(name)}, name


def test_no_parameter_list_is_longer_than_eight() -> None:
    for name, path in FILES.items():
        for node in nodes(path.read_text("utf-8")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                known = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                assert len(set(known) - {"self", "cls"}) <= MOST_PARAMETERS, f"{name}, line {node.lineno}"


def test_no_contract_is_guessed() -> None:
    """What an algorithm has is declared in `core.contract`, not found out by looking for it."""
    for name, path in FILES.items():
        for node in nodes(path.read_text("utf-8")):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                assert "algorithm" not in ast.unparse(node.args[0]), f"{name}, line {node.lineno}"
                assert name != "core.contract", f"line {node.lineno}"


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in nodes(path.read_text("utf-8")):
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
        if path != ROOT / "safety" / "accountant.py":
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
    for node in nodes(text):
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


def test_every_algorithm_and_solver_is_offered_at_the_root() -> None:
    assert {"FedPrior", "FedSoft", "Newton", "fit"} <= set(dir(fedsoft))
    assert all(isinstance(getattr(fedsoft, name), type) for name in ("FedPrior", "Newton"))
    with pytest.raises(AttributeError, match="has no attribute 'FedSof': did you mean 'FedSoft'"):
        _ = fedsoft.FedSof


HEAVY = {"torch", "numba", "scipy", "sklearn", "matplotlib", "pyarrow", "numpy", "jinja2", "psutil", "ray"}
LOADED = "import sys; {0}; print(*sorted({1} & set(sys.modules)))"


def loaded(code: str, of: set[str]) -> list[str]:
    """The packages among these that are imported once a program has run."""
    line = LOADED.format(code, of)
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[-2].split()


def test_help_and_the_package_itself_wait_for_nothing_heavy() -> None:
    assert loaded("import fedsoft, fedsoft.cli", HEAVY | {"pydantic"}) == []


def test_a_table_of_runs_waits_for_nothing_heavy(tmp_path: Path) -> None:
    """Records are plain: showing them takes none of what training them takes."""
    federation = fedsoft.datasets.synthetic(partition="10:90", seed=0, clients=4, points=[20, 20])
    algorithm = fedsoft.FedSoft(S=2, K=2)
    fedsoft.fit(algorithm, federation, fedsoft.models.linear(), rounds=1).save(tmp_path / "one")
    for command in (["ls"], ["ls", "--json"], ["show", "one"], ["show", "one", "--json"]):
        words = [*command, "--out", str(tmp_path)]
        assert loaded(f"from fedsoft.cli import app; app({words!r}, standalone_mode=False)", HEAVY) == [], command
