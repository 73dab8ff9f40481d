"""Compare several algorithms on the same federations with the same initial weights, in parallel, at the same cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from fedsoft.errors import InputError, unknown
from fedsoft.evaluation.values import Scores
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import check
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.converged import DOUBLINGS, Reached, improved
from fedsoft.studies.methods import Algorithms, read_methods
from fedsoft.studies.process_pool import Ended, Outcome, ProcessPool
from fedsoft.studies.process_pool import folders as folders_of
from fedsoft.training.records import Totals

Budget = Literal["rounds", "work", "bytes", "converged"]
BUDGETS: tuple[Budget, ...] = ("rounds", "work", "bytes", "converged")
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
    method may spend as much as the first one does with the same seed, or the one that a file of `tune` names. With
    `converged` every method has as many rounds as it needs: twice as many as long as that helps, see `converged`.
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
    if budget == "converged":
        ended = _converged(pool, wanted)
        return None if ended is None else _gathered(base, budget, [method.label for method in methods.listed], ended)
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
    ended = [*zip(heads, done, strict=True)]
    return _gathered(base, budget, [method.label for method in methods.listed], ended)


Pairs = Sequence[tuple[Entry, Outcome]]


def _gathered(base: RunSpec, budget: Budget, order: Sequence[str], ended: Pairs) -> Comparison:
    """Return a comparison of runs that are finished or diverged; raises where none is finished."""
    folders: dict[str, list[RunFolder]] = {}
    diverged: dict[str, dict[int, str]] = {}
    for entry, one in sorted(ended, key=lambda pair: order.index(pair[0].label)):
        if one.folder is None:
            diverged.setdefault(entry.label, {})[entry.spec.seed] = one.ending.problem
        else:
            folders.setdefault(entry.label, []).append(one.folder)
    if not folders:
        folders_of([one for _, one in ended], [entry.label for entry, _ in ended])  # raises
    return Comparison(base, budget, folders, diverged)


def _converged(pool: ProcessPool, wanted: Sequence[Entry]) -> list[tuple[Entry, Outcome]] | None:
    """Run every method with twice the rounds until that no longer helps, and keep what it had before."""
    kept: dict[str, list[tuple[Entry, Outcome]]] = {}
    left = dict.fromkeys(entry.label for entry in wanted)
    for doubling in range(DOUBLINGS + 1):
        now = [
            replace(entry, spec=replace(entry.spec, rounds=entry.spec.rounds * 2**doubling, work=None, bytes=None))
            for entry in wanted if entry.label in left
        ]  # fmt: skip
        outcomes = _run(pool, now)
        if outcomes is None:
            return None
        for label in [*left]:
            pairs = [pair for pair in zip(now, outcomes, strict=True) if pair[0].label == label]
            if label in kept and not _improved(kept[label], pairs):
                del left[label]
            else:
                kept[label] = pairs
        if not left:
            break
    return [pair for pairs in kept.values() for pair in pairs]


def _improved(before: Pairs, after: Pairs) -> bool:
    """Whether more rounds have helped; a seed under which training diverges with more of them says nothing."""
    both = [(a.folder, b.folder) for (_, a), (_, b) in zip(before, after, strict=True)]
    known = [(a.scores(), b.scores()) for a, b in both if a is not None and b is not None]
    scores = [(a, b) for a, b in known if a is not None and b is not None]
    if not scores:
        return False
    first, second = ([_reached(one) for one in part] for part in zip(*scores, strict=True))
    return improved(first, second, scores[0][0].higher_is_better)


def _reached(scores: Scores) -> Reached:
    best, personal = scores.of_best, scores.personal_held_out
    return Reached(None if not best else fmean(best), None if personal is None else personal.mean)


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
