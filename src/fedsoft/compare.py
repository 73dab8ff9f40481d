"""Several algorithms on the same federations with the same first values, in parallel, at the same cost."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.farm import Farm, Progress
from fedsoft.farm import folders as folders_of
from fedsoft.machine import check_workers, cores, memory_size
from fedsoft.spec import Part, RunSpec
from fedsoft.store import RunFolder

Budget = Literal["rounds", "work", "bytes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes")
MORE_ROUNDS = 20  # a cheaper method may take so many times the rounds of the first before its budget is used up

CARRIED = ("S", "K")  # settings of the preset's algorithm that the others take over where they have them


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
                settings[key.strip()] = tomllib.loads(f"x = {value}")["x"]
            except tomllib.TOMLDecodeError:
                settings[key.strip()] = value.strip()
        found.append((match[1], settings))
    if not found or re.sub(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)", "", text):
        raise InputError(f"--algorithms '{text}' is not allowed: should be a list such as fedsoft,ifca,fedem")
    return found


def entries(base: RunSpec, algorithms: str, seeds: Sequence[int]) -> list[Entry]:
    """All runs of a comparison. What is not told otherwise of S and K is that of the preset's algorithm."""
    made = []
    for name, settings in parse_algorithms(algorithms):
        known = plugins.parameters(plugins.find("algorithms", name))
        of_preset = base.algorithm.settings
        carried = {key: of_preset[key] for key in CARRIED if key in known and key in of_preset}
        own = of_preset if name == base.algorithm.name else {}
        part = Part(name, plugins.resolve("algorithms", name, own | carried | settings))
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        label = f"{name}({told})" if told else name
        made += [Entry(label, replace(base, algorithm=part, label=f"{base.label}-{name}").with_seed(s)) for s in seeds]
    if len({entry.spec.id for entry in made}) < len(made):
        raise InputError(f"--algorithms '{algorithms}' names the same thing twice")
    return made


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, the first algorithm first."""

    base: RunSpec
    budget: Budget
    folders: dict[str, list[RunFolder]]

    @property
    def name(self) -> str:
        """Names the comparison by its content."""
        runs = [[label, [folder.info["hash"] for folder in folders]] for label, folders in self.folders.items()]
        digest = hashlib.sha256(json.dumps([self.budget, runs]).encode()).hexdigest()[:12]
        return f"compare-{self.base.label}-{digest}"


def compare(
    base: RunSpec, algorithms: str, seeds: Sequence[int], out: Path, *, budget: Budget, jobs: int, device: str,
    on_progress: Callable[[Progress], object], workers: int | None = None, memory: int | str | None = None,
) -> Comparison | None:  # fmt: skip
    """Run everything that is not saved already; None when it was asked to stop (what is done is saved).

    With a budget of work or bytes, every method may spend as much as the first one does with the same seed. The cores
    and the memory are shared by as many processes as run at once; `workers` is for each of them, `memory` for all.
    """
    check_workers(workers)
    wanted = entries(base, algorithms, seeds)
    first, jobs = wanted[0].label, min(jobs, len(wanted))
    share = {"device": device, "workers": workers or max(1, cores() // jobs), "memory": memory_size(memory) // jobs}
    farm = Farm(out, jobs, share=share, on_progress=on_progress)
    heads = [entry for entry in wanted if entry.label == first or budget == "rounds"]
    done = _run(farm, heads, more=len(wanted) - len(heads))
    if done is not None and budget != "rounds":
        spent = {e.spec.seed: total(f, budget) for e, f in zip(heads, done, strict=True)}
        if not all(spent.values()):
            raise InputError(f"--budget {budget}: '{first}' spends none, so put a method first that does")
        capped = [_capped(e, budget, spent[e.spec.seed]) for e in wanted if e.label != first]
        heads, rest = heads + capped, _run(farm, capped)
        done = None if rest is None else done + rest
    if done is None:
        return None
    folders: dict[str, list[RunFolder]] = {}
    for entry, folder in zip(heads, done, strict=True):
        folders.setdefault(entry.label, []).append(folder)
    return Comparison(base, budget, folders)


def _run(farm: Farm, wanted: Sequence[Entry], more: int = 0) -> list[RunFolder] | None:
    """The folders of these; None when it was asked to stop."""
    outcomes = farm.run([entry.spec for entry in wanted], more=more)
    return None if outcomes is None else folders_of(outcomes, [entry.label for entry in wanted])


def total(folder: RunFolder, budget: Budget) -> int:
    """The client work or the bytes that a run took."""
    keys = ("gradients",) if budget == "work" else ("bytes_down", "bytes_up")
    return sum(record[key] for record in folder.records() for key in keys)


def _capped(entry: Entry, budget: Budget, amount: int) -> Entry:
    return replace(entry, spec=replace(entry.spec, rounds=entry.spec.rounds * MORE_ROUNDS, **{budget: amount}))
