"""Compare several algorithms on the same federations with the same initial weights, in parallel, at the same cost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedsoft.errors import InputError
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import check
from fedsoft.runs.spec import RunSpec, carried
from fedsoft.storage.files import read_text, reason
from fedsoft.storage.toml import toml
from fedsoft.studies.process_pool import Ended, Outcome, ProcessPool
from fedsoft.studies.process_pool import folders as folders_of
from fedsoft.training.records import Totals

Budget = Literal["rounds", "work", "bytes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes")
ALGORITHM = re.compile(r"\s*([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)")  # a name, settings in brackets
UNSCORED = 10**6  # rounds between two scores: only the first and the last round are scored
MORE_ROUNDS = 20  # times the rounds of the first method, for a cheaper one to use up its budget


@dataclass(frozen=True)
class Entry:
    """One algorithm with one seed."""

    label: str
    spec: RunSpec


def parse_algorithms(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Split `fedsoft,ifca(average=gradient),fedem(S=3)` into algorithms, each with its settings.

    >>> parse_algorithms("fedavg,ifca(average=gradient, lr=0.1)")
    [('fedavg', {}), ('ifca', {'average': 'gradient', 'lr': 0.1})]
    """
    found = []
    for match in ALGORITHM.finditer(text):
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
    if not found or ALGORITHM.sub("", text):
        raise InputError(f"--algorithms '{text}' is not allowed: should be a list such as fedsoft,ifca,fedem")
    return found


def entries(base: RunSpec, algorithms: str, seeds: Sequence[int]) -> list[Entry]:
    """Return all runs of a comparison. S and K are those of the preset's algorithm by default.

    Settings in brackets are those of the algorithm; `solver.lr` and the like are those of the local solver, and
    `source` lets clients keep only their points of that source.
    """
    made = []
    for name, settings in parse_algorithms(algorithms):
        given = ", ".join(f"{key}={value}" for key, value in settings.items())
        label = f"{name}({given})" if given else name
        made += [Entry(label, variant(base, name, settings).with_seed(seed)) for seed in seeds]
    if len({entry.spec.id for entry in made}) < len(made):
        raise InputError(f"--algorithms '{algorithms}' names the same thing twice")
    return made


def variant(base: RunSpec, name: str, settings: dict[str, Any]) -> RunSpec:
    """Return the run of another algorithm on the same federation; see `entries`."""
    of_preset = base.algorithm.settings
    own = of_preset if name == base.algorithm.name else {}
    given = {key: value for key, value in settings.items() if not key.startswith("solver.") and key != "source"}
    solver = {key.removeprefix("solver."): value for key, value in settings.items() if key.startswith("solver.")}
    allow = [*base.allow, name]  # naming a method is consent to import it
    raw = base.to_dict() | {"algorithm": {"name": name, **own, **carried(of_preset, name, allow), **given}}
    raw["solver"] = raw["solver"] | solver
    raw |= {"source": settings["source"]} if "source" in settings else {}
    return RunSpec.from_dict(raw, f"{base.label}-{name}", allow=allow)


def read_algorithms(text: str) -> str:
    """Return the list itself, or that of a TOML file: `algorithms = ["fedsoft", ...]`, as `fedsoft tune` writes it."""
    if not text.endswith(".toml"):
        return text
    try:
        found = toml(read_text(Path(text)))["algorithms"]
        return ",".join([*map(str.strip, found)])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--algorithms '{text}' cannot be read: {type(error).__name__} ({reason(error)})") from None


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, the first algorithm first."""

    base: RunSpec
    budget: Budget
    folders: dict[str, list[RunFolder]]
    diverged: dict[str, dict[int, str]] = field(default_factory=dict)  # runs that are not in `folders`, by seed

    @property
    def name(self) -> str:
        """Return a name made from the content."""
        runs = [[label, [folder.info.hash for folder in folders]] for label, folders in self.folders.items()]
        lost = [[label, sorted(seeds)] for label, seeds in self.diverged.items()]
        digest = hashlib.sha256(json.dumps([self.budget, runs, *lost]).encode()).hexdigest()[:12]
        return f"compare-{self.base.label}-{digest}"


def compare(
    base: RunSpec, algorithms: str, seeds: Sequence[int], pool: ProcessPool, *, budget: Budget = "rounds"
) -> Comparison | None:
    """Run everything that is not saved already; None when stopped (what is done is saved).

    A run that diverges is a result, too: it is left out of the means, and named. With a budget of work or bytes, every
    method may spend as much as the first one does with the same seed.
    """
    wanted = entries(base, algorithms, seeds)
    first = wanted[0].label
    ones = [entry for entry in wanted if entry.spec.seed == seeds[0] and not (pool.out / entry.spec.id).exists()]
    check({entry.label: entry.spec for entry in ones})
    heads = [entry for entry in wanted if entry.label == first or budget == "rounds"]
    done = _run(pool, heads, more=len(wanted) - len(heads))
    if done is not None and budget != "rounds":
        found = folders_of(done, [entry.label for entry in heads])  # without the first one there is no budget
        spent = {e.spec.seed: total(f, budget) for e, f in zip(heads, found, strict=True)}
        if not all(spent.values()):
            raise InputError(f"--budget {budget}: '{first}' spends none, so put a method first that does")
        others = [replace(e, spec=capped(e.spec, budget, spent[e.spec.seed])) for e in wanted if e.label != first]
        heads, rest = heads + others, _run(pool, others)
        done = None if rest is None else done + rest
    if done is None:
        return None
    folders: dict[str, list[RunFolder]] = {}
    diverged: dict[str, dict[int, str]] = {}
    for entry, one in zip(heads, done, strict=True):
        if one.folder is None:
            diverged.setdefault(entry.label, {})[entry.spec.seed] = one.ending.problem
        else:
            folders.setdefault(entry.label, []).append(one.folder)
    if not folders:
        folders_of(done, [entry.label for entry in heads])  # raises
    return Comparison(base, budget, folders, diverged)


def _run(pool: ProcessPool, wanted: Sequence[Entry], more: int = 0) -> list[Outcome] | None:
    """Return outcomes, finished or diverged; None when stopped. Raise where a run ended otherwise."""
    outcomes = pool.run([entry.spec for entry in wanted], more=more)
    if outcomes is None:
        return None
    pairs = zip(outcomes, wanted, strict=True)
    kept = [(one, entry.label) for one, entry in pairs if one.ending.how is not Ended.DIVERGED]
    folders_of([one for one, _ in kept], [label for _, label in kept])
    return outcomes


def total(folder: RunFolder, budget: Budget) -> int:
    """Return the client work or the bytes of a run."""
    totals = Totals.of(folder.records())
    return totals.gradients if budget == "work" else totals.bytes


def capped(spec: RunSpec, budget: Budget, amount: int) -> RunSpec:
    """Return the same run with a budget instead of a number of rounds."""
    return replace(spec, rounds=spec.rounds * MORE_ROUNDS, **{budget: amount})
