"""Compare several algorithms on the same federations with the same initial weights, in parallel, at the same cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedsoft.errors import InputError, unknown
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import check
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.methods import Algorithms, read_methods
from fedsoft.studies.process_pool import Ended, Outcome, ProcessPool
from fedsoft.studies.process_pool import folders as folders_of
from fedsoft.training.records import Totals

Budget = Literal["rounds", "work", "bytes"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes")
UNSCORED = 10**6  # rounds between two scores: only the first and the last round are scored
MORE_ROUNDS = 20  # times the rounds of the first method, for a cheaper one to use up its budget


@dataclass(frozen=True)
class Entry:
    """One algorithm with one seed."""

    label: str
    spec: RunSpec


def entries(base: RunSpec, algorithms: Algorithms, seeds: Sequence[int]) -> list[Entry]:
    """Return all runs of a comparison, of every method with every seed."""
    made = []
    for method in read_methods(algorithms).listed:
        made += [Entry(method.label, method.spec(base).with_seed(seed)) for seed in seeds]
    if len({entry.spec.id for entry in made}) < len(made):
        raise InputError(f"--algorithms '{algorithms}' names the same thing twice")
    return made


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
    base: RunSpec, algorithms: Algorithms, seeds: Sequence[int], pool: ProcessPool, *, budget: Budget = "rounds"
) -> Comparison | None:
    """Run everything that is not saved already; None when stopped (what is done is saved).

    A run that diverges is a result, too: it is left out of the means, and named. With a budget of work or bytes, every
    method may spend as much as the first one does with the same seed, or the one that a file of `tune` names.
    """
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    if not seeds:
        raise InputError("seeds: none is given, should be at least one")
    methods = read_methods(algorithms)
    wanted = entries(base, methods, seeds)
    first = methods.budget_of or wanted[0].label
    ones = [entry for entry in wanted if entry.spec.seed == seeds[0] and not (pool.out / entry.spec.id).exists()]
    check({entry.label: entry.spec for entry in ones}, pool.options.given)
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
    order = [method.label for method in methods.listed]
    for entry, one in sorted(zip(heads, done, strict=True), key=lambda pair: order.index(pair[0].label)):
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
