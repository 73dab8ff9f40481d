"""Choose settings of every method on held-out client points, under the same client work.

First every combination of learning rates and local epochs; then, with the best of these, each setting that the
algorithm declares to be worth tuning (`settings.Tunable`), such as lambda; then values beyond the edge of what was
tried, as long as the best is at the edge.

Trials run with seeds of their own. They are compared only by the mean over clients of the error of personal models on
held-out points: test sets and the truth are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedsoft import plugins
from fedsoft.errors import InputError
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.given import Given
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.compare import UNSCORED, capped, total
from fedsoft.studies.methods import Algorithms, Method, Methods, read_methods, variant
from fedsoft.studies.process_pool import Outcome, ProcessPool, folders
from fedsoft.studies.trials import Grid, Point, Trial, Tuning, rounded

SEEDS = (1000, 1001)  # far from those of any table
WIDER = 3  # how often a range is widened at its edge


def first_runs(base: RunSpec, seeds: Sequence[int], given: Given | None = None) -> list[RunSpec]:
    """Return the runs of the preset itself: what they spend is the budget of every trial."""
    check_held_out(base, given)
    own = variant(base, base.algorithm.name, {})
    return [replace(own, score_every=UNSCORED).with_seed(seed) for seed in seeds]


def trial_runs(
    base: RunSpec, labels: Iterable[str], grid: Grid, spent: dict[int, int]
) -> dict[Point, list[RunSpec]]:  # fmt: skip
    """Return the runs of every rate and number of epochs, one for each seed; see `runs_at`."""
    methods = [read_methods(label).listed[0] for label in labels]
    points = [(method, Point(method.label, *place)) for method in methods for place in grid.points]
    return {point: runs_at(base, method, point, spent) for method, point in points}


def runs_at(base: RunSpec, method: Method, point: Point, spent: Mapping[int, int]) -> list[RunSpec]:
    """Return the runs of one trial, one for each seed, with the work `spent` under that seed as budget."""
    spec = replace(variant(base, method.name, method.settings | point.settings()), score_every=UNSCORED)
    return [capped(spec.with_seed(seed), "work", work) for seed, work in spent.items()]


def judge(
    base: RunSpec, wanted: Mapping[Point, Sequence[RunSpec]], outcome: Callable[[RunSpec], Outcome]
) -> Tuning:  # fmt: skip
    """Score all trials from runs that have ended."""
    trials, metric, higher = [], "", False
    seeds: tuple[int, ...] = ()
    for point, specs in wanted.items():
        scores, rounds, names, problem = [], [], [], ""
        seeds = tuple(spec.seed for spec in specs)
        for spec in specs:
            ended = outcome(spec)
            found = None if ended.folder is None else held_out_score(ended.folder)
            problem = problem or str(ended.ending)
            scores.append(math.nan if found is None else found[0])
            if ended.folder is not None and found is not None:
                metric, higher = found[1], found[2]
                rounds.append(len(ended.folder.records()))
                names.append(ended.folder.name)
        done = tuple(scores), tuple(rounds), tuple(names)
        trials.append(Trial(point.label, point.lr, point.epochs, *done, problem, dict(point.further)))
    return Tuning(base, metric, higher, seeds, tuple(trials))


def tune(base: RunSpec, algorithms: Algorithms, seeds: Sequence[int], grid: Grid, pool: ProcessPool) -> Tuning | None:
    """Tune every method; None when stopped (what is done is saved)."""
    methods = read_methods(algorithms)
    ranges = {method.label: grid.ranges(method, base.allow) for method in methods.listed}
    for key in grid.further:
        if not any(key in found for found in ranges.values()):
            raise InputError(f"--grid {key}: none of the algorithms has such a setting that is not given already")
    first = first_runs(base, seeds, pool.options.given)
    runs_ahead = len(first) * sum(len(grid.points) + sum(map(len, found.values())) for found in ranges.values())
    outcomes = pool.run(first, more=runs_ahead)
    if outcomes is None:
        return None
    spent = {folder.spec().seed: total(folder, "work") for folder in folders(outcomes, ["the preset"] * len(first))}
    search = _Search(base, methods, spent, pool)
    start = [(method, Point(method.label, *place)) for method in methods.listed for place in grid.points]
    if (found := search.add(start, runs_ahead - len(start) * len(spent))) is None:
        return None
    keys = dict.fromkeys(key for found_ranges in ranges.values() for key in found_ranges)
    for key in keys:
        points = [
            (method, moved(found.best[method.label], key, value))
            for method in methods.listed if method.label in found.best
            for value in ranges[method.label].get(key, ())
        ]  # fmt: skip
        if (found := search.add(points)) is None:
            return None
    for key in (*(["lr"] if grid.widen else []), *(key for key in keys if key not in grid.further)):
        for _ in range(WIDER):
            wider = {m.label: beyond(found, m.label, key) for m in methods.listed if m.label in found.best}
            points = [
                (m, point) for m in methods.listed
                if (point := wider.get(m.label)) is not None and is_allowed(base, m, point)
            ]  # fmt: skip
            if not points:
                break
            if (found := search.add(points)) is None:
                return None
    return found


@dataclass
class _Search:
    """Trials so far."""

    base: RunSpec
    methods: Methods
    spent: dict[int, int]
    pool: ProcessPool
    wanted: dict[Point, list[RunSpec]] = field(default_factory=dict)
    done: dict[str, Outcome] = field(default_factory=dict)

    def add(self, points: Sequence[tuple[Method, Point]], more: int = 0) -> Tuning | None:
        """Run what was not yet run, and judge all; None when stopped."""
        new = {point: runs_at(self.base, method, point, self.spent) for method, point in points}
        outcomes = self.pool.run([spec for specs in new.values() for spec in specs], more=more) if new else []
        if outcomes is None:
            return None
        self.wanted = self.wanted | new
        self.done |= {outcome.spec.id: outcome for outcome in outcomes}
        return judge(self.base, self.wanted, lambda spec: self.done[spec.id])


def moved(best: Trial, key: str, value: float) -> Point:
    """Return the best trial with another value of a setting."""
    if key == "lr":
        return Point(best.label, value, best.epochs, tuple(best.further.items()))
    return Point(best.label, best.lr, best.epochs, tuple((dict(best.further) | {key: value}).items()))


def beyond(found: Tuning, label: str, key: str) -> Point | None:
    """Return a trial beyond the edge at which the best is, at the ratio of the two values there; None elsewhere."""
    side = found.edge(label, key)
    if not side:
        return None
    tried = sorted({trial.values[key] for trial in found.trials if trial.label == label and key in trial.values})
    edge, inner = (tried[0], tried[1]) if side < 0 else (tried[-1], tried[-2])
    if not edge > 0 or not inner > 0:
        return None
    return moved(found.best[label], key, rounded(edge * edge / inner))


def is_allowed(base: RunSpec, method: Method, point: Point) -> bool:
    """Return whether the algorithm takes these settings: what it takes may end at the best value."""
    try:
        variant(base, method.name, method.settings | point.settings())
    except InputError:
        return False
    return True


def held_out_score(folder: RunFolder) -> tuple[float, str, bool] | None:
    """Return the mean over clients on held-out points, the metric, and whether higher is better."""
    scores = folder.scores()
    if scores is None or scores.personal_held_out is None:
        return None
    return scores.personal_held_out.mean, scores.metric, scores.higher_is_better


def check_held_out(base: RunSpec, given: Given | None = None) -> None:
    """Raise where no points are held out."""
    if given is not None and given.data is not None:
        if not int(given.federation(base.seed).held_out.sizes.sum()):
            raise InputError("no points are held out to tune on: make the federation with held_out=0.25")
        return
    known = plugins.parameters(plugins.find("datasets", base.dataset.name, base.allow))
    if "held_out" in known and base.dataset.settings.get("held_out") == 0:
        raise InputError("dataset.held_out = 0 leaves nothing to tune on: set it above 0, for instance 0.25")
