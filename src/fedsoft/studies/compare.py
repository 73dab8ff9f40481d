"""Several algorithms on the same federations with the same first values, in parallel, at the same cost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedsoft.checks import toml
from fedsoft.errors import InputError
from fedsoft.machine import check_workers
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec, carried
from fedsoft.studies.farm import Farm, Outcome, Progress, even_share
from fedsoft.studies.farm import folders as folders_of

Budget = Literal["rounds", "work", "bytes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes")
MORE_ROUNDS = 20  # a cheaper method may take so many times the rounds of the first before its budget is used up


@dataclass(frozen=True)
class Entry:
    """One algorithm with one seed."""

    label: str
    spec: RunSpec


def parse_algorithms(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The algorithms of `fedsoft,ifca(average=gradient),fedem(S=3)`, each with its settings.

    >>> parse_algorithms("fedavg,ifca(average=gradient, lr=0.1)")
    [('fedavg', {}), ('ifca', {'average': 'gradient', 'lr': 0.1})]
    """
    found = []
    for match in re.finditer(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)", text):
        settings = {}
        for change in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            key, equals, value = change.partition("=")
            if not equals:
                raise InputError(f"--algorithms: '{change}' is not allowed: should be key=value")
            try:
                settings[key.strip()] = toml(f"x = {value}")["x"]
            except ValueError:
                settings[key.strip()] = value.strip()
        found.append((match[1], settings))
    if not found or re.sub(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)", "", text):
        raise InputError(f"--algorithms '{text}' is not allowed: should be a list such as fedsoft,ifca,fedem")
    return found


def entries(base: RunSpec, algorithms: str, seeds: Sequence[int]) -> list[Entry]:
    """All runs of a comparison. What is not told otherwise of S and K is that of the preset's algorithm.

    Settings in brackets are those of the algorithm; `local.lr` and the like are those of the local solver, and
    `source` lets clients keep only their points of that source.
    """
    made = []
    for name, settings in parse_algorithms(algorithms):
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        label = f"{name}({told})" if told else name
        made += [Entry(label, variant(base, name, settings).with_seed(seed)) for seed in seeds]
    if len({entry.spec.id for entry in made}) < len(made):
        raise InputError(f"--algorithms '{algorithms}' names the same thing twice")
    return made


def variant(base: RunSpec, name: str, settings: dict[str, Any]) -> RunSpec:
    """The run of another algorithm on the same federation, see `entries`."""
    of_preset = base.algorithm.settings
    own = of_preset if name == base.algorithm.name else {}
    told = {key: value for key, value in settings.items() if not key.startswith("local.") and key != "source"}
    solver = {key.removeprefix("local."): value for key, value in settings.items() if key.startswith("local.")}
    raw = base.to_dict() | {"algorithm": {"name": name, **own, **carried(of_preset, name), **told}}
    raw["local"] = raw["local"] | solver
    raw |= {"source": settings["source"]} if "source" in settings else {}
    return RunSpec.from_dict(raw, f"{base.label}-{name}")


def read_algorithms(text: str) -> str:
    """The list itself, or that of a file: `algorithms = ["fedsoft", ...]`, as `fedsoft tune` writes it."""
    if not text.endswith(".toml"):
        return text
    try:
        found = toml(Path(text).read_text("utf-8"))["algorithms"]
        return ",".join([*map(str.strip, found)])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--algorithms '{text}' cannot be read: {type(error).__name__} ({error})") from None


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, the first algorithm first."""

    base: RunSpec
    budget: Budget
    folders: dict[str, list[RunFolder]]
    diverged: dict[str, dict[int, str]] = field(default_factory=dict)  # by seed, those that are not in `folders`

    @property
    def name(self) -> str:
        """Names the comparison by its content."""
        runs = [[label, [folder.info["hash"] for folder in folders]] for label, folders in self.folders.items()]
        lost = [[label, sorted(seeds)] for label, seeds in self.diverged.items()]
        digest = hashlib.sha256(json.dumps([self.budget, runs, *lost]).encode()).hexdigest()[:12]
        return f"compare-{self.base.label}-{digest}"


def compare(
    base: RunSpec, algorithms: str, seeds: Sequence[int], out: Path, *, budget: Budget, jobs: int, device: str,
    on_progress: Callable[[Progress], object], workers: int | None = None, memory: int | str | None = None,
    engine: str = "local", address: str | None = None,
) -> Comparison | None:  # fmt: skip
    """Run everything that is not saved already; None when it was asked to stop (what is done is saved).

    A run whose training diverges is a result, too: it is left out of the means, and named.

    With a budget of work or bytes, every method may spend as much as the first one does with the same seed. The cores
    and the memory are shared by as many processes as run at once; `workers` is for each of them, `memory` for all.
    """
    check_workers(workers)
    wanted = entries(base, algorithms, seeds)
    first, jobs = wanted[0].label, min(jobs, len(wanted))
    share = even_share(jobs, device, workers, memory, engine=engine, address=address)
    farm = Farm(out, jobs, share=share, on_progress=on_progress)
    heads = [entry for entry in wanted if entry.label == first or budget == "rounds"]
    done = _run(farm, heads, more=len(wanted) - len(heads))
    if done is not None and budget != "rounds":
        found = folders_of(done, [entry.label for entry in heads])  # nobody has a budget when the first one diverged
        spent = {e.spec.seed: total(f, budget) for e, f in zip(heads, found, strict=True)}
        if not all(spent.values()):
            raise InputError(f"--budget {budget}: '{first}' spends none, so put a method first that does")
        others = [replace(e, spec=capped(e.spec, budget, spent[e.spec.seed])) for e in wanted if e.label != first]
        heads, rest = heads + others, _run(farm, others)
        done = None if rest is None else done + rest
    if done is None:
        return None
    folders: dict[str, list[RunFolder]] = {}
    diverged: dict[str, dict[int, str]] = {}
    for entry, one in zip(heads, done, strict=True):
        if one.folder is None:
            diverged.setdefault(entry.label, {})[entry.spec.seed] = one.problem
        else:
            folders.setdefault(entry.label, []).append(one.folder)
    if not folders:
        folders_of(done, [entry.label for entry in heads])  # says so
    return Comparison(base, budget, folders, diverged)


def _run(farm: Farm, wanted: Sequence[Entry], more: int = 0) -> list[Outcome] | None:
    """How these ended, well or by divergence; None when it was asked to stop."""
    outcomes = farm.run([entry.spec for entry in wanted], more=more)
    if outcomes is None:
        return None
    kept = [(one, entry.label) for one, entry in zip(outcomes, wanted, strict=True) if not one.diverged]
    folders_of([one for one, _ in kept], [label for _, label in kept])
    return outcomes


def total(folder: RunFolder, budget: Budget) -> int:
    """The client work or the bytes that a run took."""
    keys = ("gradients",) if budget == "work" else ("bytes_down", "bytes_up")
    return sum(record[key] for record in folder.records() for key in keys)


def capped(spec: RunSpec, budget: Budget, amount: int) -> RunSpec:
    """The same run with a budget instead of a number of rounds."""
    return replace(spec, rounds=spec.rounds * MORE_ROUNDS, **{budget: amount})
