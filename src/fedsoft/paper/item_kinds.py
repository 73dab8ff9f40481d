"""What kinds of tables and figures the paper has: which runs each needs, at the paper's scale and at a fast one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from fedsoft.paper.library import Library
from fedsoft.paper.published import Centers, Method
from fedsoft.runs import spec as specs
from fedsoft.runs.presets import presets
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.compare import capped
from fedsoft.studies.methods import parse_algorithms, read_methods, variant
from fedsoft.studies.process_pool import Ended, Ending, Outcome
from fedsoft.studies.trials import Grid, Point, Tuning
from fedsoft.studies.tuning import WIDER, beyond, first_runs, judge, runs_at, trial_runs

Scale = Literal["paper", "fast"]
SCALES: tuple[Scale, ...] = ("paper", "fast")
Data = Literal["synthetic", "letters", "cifar"]

METHODS = {
    "FedSoft": "fedsoft",
    "IFCA": "ifca",
    "FedEM": "fedem(predict_with=largest)",
    "FedAvg": "fedavg",
    "Local training": "local",
}
"""The methods of every comparison, as `compare` reads them. The paper's local model of FedEM is its largest center."""

ORACLE = "fedavg(source={})"
"""What FedAvg learns where the sources are separated, source by source."""

SOURCES = 2


FAST = {
    "letters": ("model.name=mlp", "model.hidden=[64]"),
    "cifar": ("points=[300, 400]", "model.channels=[8, 16]", "model.hidden=[64]", "epochs=2"),
}
"""What is changed of a preset's fast variant, so that all tables together take half an hour on two cores."""


@cache
def at(preset: str, scale: Scale, changes: tuple[str, ...] = ()) -> RunSpec:
    """A preset at a scale. What has no fast variant is fast enough as it is."""
    fast = scale == "fast" and presets()[preset].fast is not None
    further = FAST.get(preset.partition("-")[0], ()) if fast else ()
    return specs.read(preset, [*further, *changes], fast=fast)


@cache
def method(preset: str, scale: Scale, label: str, changes: tuple[str, ...] = ()) -> RunSpec:
    """A method on a preset, as `compare` reads it."""
    name, settings = parse_algorithms(label)[0]
    return variant(at(preset, scale, changes), name, settings)


@dataclass(frozen=True)
class Column:
    """One block of a table of centers: the preset that it is run with, and what the paper prints."""

    name: str
    preset: str
    printed: Centers | None
    changes: tuple[str, ...] = ()
    scale: Scale | None = None  # default: that of the case

    def spec(self, scale: Scale) -> RunSpec:
        """FedSoft as the preset has it."""
        return method(self.preset, self.scale or scale, "fedsoft", self.changes)


@dataclass(frozen=True)
class Expected:
    """`count` runs like this one. `later`: which ones exactly is known only when others are finished."""

    spec: RunSpec
    count: int
    later: bool = False


@dataclass(frozen=True)
class Item(abc.ABC):
    """A table or figure.

    Arguments:
        id, title: `table1-synthetic`, and what it shows.
        data: which data it is about; synthetic runs are the paper's own at every scale.
        seeds: how many seeds at each scale, by default.
        on_request: whether it is run and shown only where it is named.
    """

    id: str
    title: str
    data: Data
    seeds: dict[Scale, int]
    on_request: bool = field(default=False, kw_only=True)

    def as_published(self, scale: Scale) -> bool:
        """Whether the runs of that scale have the paper's settings."""
        return not self.on_request and (scale == "paper" or self.data == "synthetic")

    @abc.abstractmethod
    def wanted(self, scale: Scale, seeds: Sequence[int], library: Library) -> list[RunSpec]:
        """The runs that it needs, as far as that is known from those that are finished."""

    @abc.abstractmethod
    def forecast(self, scale: Scale, seeds: Sequence[int]) -> list[Expected]:
        """All runs that it needs in the end."""


@dataclass(frozen=True)
class CentersItem(Item):
    """Centers by sources, block by block; Tables 1 and 3 to 7, and Fig. 1.

    Arguments:
        columns: the blocks of the table.
        beside: blocks that the paper does not have, for comparison.
        worst: the block that the paper calls the worst.
        ordered: whether the errors grow from block to block, as the paper says.
        best: the block that the paper calls the best.
        local_factor: what the printed local error has to be multiplied with.
    """

    columns: tuple[Column, ...] = ()
    beside: tuple[Column, ...] = ()
    worst: str = ""
    best: str = ""
    ordered: bool = False
    local_factor: float = 1.0

    def wanted(self, scale: Scale, seeds: Sequence[int], library: Library) -> list[RunSpec]:
        return [column.spec(scale).with_seed(s) for column in (*self.columns, *self.beside) for s in seeds]

    def forecast(self, scale: Scale, seeds: Sequence[int]) -> list[Expected]:
        return [Expected(column.spec(scale), len(seeds)) for column in (*self.columns, *self.beside)]


@dataclass(frozen=True)
class ComparisonItem(Item):
    """Methods side by side; Tables 2 and 8, Fig. 2, and the same for the synthetic data.

    Arguments:
        presets: by the name of the partition. Methods are tuned on the first.
        printed: what the paper prints; None where it has no such table.
        order_local: whether the paper claims an order of local models.
        variants: further rows on the first partition.
        rates: the grid of learning rates for tuning, times the preset's, at each scale.
        tuning_seeds: how many seeds tuning takes at each scale.
        methods: those that are run; default: all, and oracles.
        changes: to the presets, whose scale is then the paper's.
    """

    presets: dict[str, str] = field(default_factory=dict)
    printed: dict[str, dict[str, Method]] | None = None
    order_local: bool = False
    variants: dict[str, Callable[[Scale], RunSpec]] = field(default_factory=dict)
    rates: dict[Scale, tuple[float, ...]] = field(default_factory=dict)
    epochs: dict[Scale, tuple[int, ...] | None] = field(default_factory=dict)
    tuning_seeds: dict[Scale, int] = field(default_factory=dict)
    tuned: bool = True
    methods: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """All methods and oracles, as `compare` reads them."""
        if self.methods:
            return [METHODS[name] for name in self.methods]
        return [*METHODS.values(), *(ORACLE.format(s) for s in range(SOURCES))]

    def plain(self, partition: str, label: str, scale: Scale) -> RunSpec:
        return method(self.presets[partition], "paper" if self.changes else scale, label, self.changes)

    # --- tuning -------------------------------------------------------------------------------------------------------

    def tuning_base(self, scale: Scale) -> RunSpec:
        """The first preset, with held-out points to tune on."""
        base = at(next(iter(self.presets.values())), scale)
        if base.dataset.settings.get("held_out"):
            return base
        dataset = replace(base.dataset, settings=base.dataset.settings | {"held_out": 0.25})
        return replace(base, dataset=dataset)

    def grid(self, scale: Scale) -> Grid:
        return Grid.around(self.tuning_base(scale), epochs=self.epochs[scale], factors=self.rates[scale])

    def tuning_firsts(self, scale: Scale) -> list[RunSpec]:
        """FedSoft with the paper's solver under the tuning seeds: everybody may spend what it spends."""
        return first_runs(self.tuning_base(scale), range(1000, 1000 + self.tuning_seeds[scale]))

    def trials(self, scale: Scale, library: Library) -> dict[Point, list[RunSpec]] | None:
        """All trials; None before it is known what they may spend."""
        key = (self.id, scale, "trials")
        if key not in library.memo:
            firsts = [library.get(spec) for spec in self.tuning_firsts(scale)]
            spent = {run.spec.seed: run.totals.gradients for run in firsts if run is not None}
            if len(spent) < len(firsts):
                return None
            library.memo[key] = trial_runs(self.tuning_base(scale), self.labels, self.grid(scale), spent)
            library.memo[(*key, "spent")] = spent
        made: dict[Point, list[RunSpec]] = library.memo[key]
        for _ in range(WIDER):
            if (more := self._wider(scale, library, made)) is None:
                break
            made |= more
        return made

    def _wider(
        self, scale: Scale, library: Library, made: dict[Point, list[RunSpec]]
    ) -> dict[Point, list[RunSpec]] | None:  # fmt: skip
        """Trials with rates beyond the edge at which the best of a method is; None where there are none, or not yet."""
        rates = {point.lr for point in made}
        if len(rates) > len(self.rates[scale]) + WIDER or not all(
            library.ended(s) for one in made.values() for s in one
        ):
            return None
        found, spent = self._judged(scale, library, made), library.memo[self.id, scale, "trials", "spent"]
        points = [
            point for label in found.best if (point := beyond(found, label, "lr")) is not None and point not in made
        ]
        base, methods = self.tuning_base(scale), {label: read_methods(label).listed[0] for label in self.labels}
        return {point: runs_at(base, methods[point.label], point, spent) for point in points} or None

    def tuning(self, scale: Scale, library: Library) -> Tuning | None:
        """What was found; None before all trials have ended. A trial that failed has no folder, and is never best."""
        key = (self.id, scale, "tuning")
        if key in library.memo:
            return library.memo[key]
        trials = self.trials(scale, library)
        if trials is None or not all(library.ended(spec) for specs in trials.values() for spec in specs):
            return None

        found = library.memo[key] = self._judged(scale, library, trials)
        return found

    def _judged(self, scale: Scale, library: Library, trials: dict[Point, list[RunSpec]]) -> Tuning:
        def outcome(spec: RunSpec) -> Outcome:
            found = library.get(spec)
            if found is None:
                return Outcome(spec, None, Ending(Ended.FAILED, library.failures[spec.id]))
            return Outcome(spec, found.folder)

        return judge(self.tuning_base(scale), trials, outcome)

    def tuned_spec(self, partition: str, label: str, scale: Scale, library: Library, seed: int) -> RunSpec | None:
        """A method with what was found for it, under the work of FedSoft with the paper's solver; None before."""
        found, soft = self.tuning(scale, library), library.get(self.plain(partition, "fedsoft", scale).with_seed(seed))
        if found is None or soft is None or label not in found.best:
            return None
        spec = method(self.presets[partition], scale, found.best[label].setting()).with_seed(seed)
        return capped(spec, "work", soft.totals.gradients)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def wanted(self, scale: Scale, seeds: Sequence[int], library: Library) -> list[RunSpec]:
        """The plain runs and those that tuning begins with; then the trials; then the tuned runs."""
        found = [
            self.plain(partition, label, scale).with_seed(seed)
            for partition in self.presets for label in self.labels for seed in seeds
        ]  # fmt: skip
        found += [make(scale).with_seed(seed) for make in self.variants.values() for seed in seeds]
        if not self.tuned:
            return found
        found += self.tuning_firsts(scale)
        found += [spec for specs in (self.trials(scale, library) or {}).values() for spec in specs]
        made = (
            self.tuned_spec(partition, label, scale, library, seed)
            for partition in self.presets for label in self.labels for seed in seeds
        )  # fmt: skip
        return found + [spec for spec in made if spec is not None]

    def forecast(self, scale: Scale, seeds: Sequence[int]) -> list[Expected]:
        """Trials and tuned runs do the work of FedSoft with the paper's solver."""
        count = len(seeds)
        plain = [Expected(self.plain(p, label, scale), count) for p in self.presets for label in self.labels]
        plain += [Expected(make(scale), count) for make in self.variants.values()]
        if not self.tuned:
            return plain
        tried, firsts = self.tuning_seeds[scale], self.tuning_firsts(scale)
        plain += [Expected(spec, 1) for spec in firsts]
        trials = Expected(firsts[0], len(self.labels) * len(self.grid(scale).points) * tried, later=True)
        tuned = [
            Expected(self.plain(partition, "fedsoft", scale), len(self.labels) * count, later=True)
            for partition in self.presets
        ]
        return [*plain, trials, *tuned]


@dataclass(frozen=True)
class FigureItem(Item):
    """A figure that is drawn from runs of other items."""

    runs: Callable[[Scale], dict[str, RunSpec]] = lambda scale: {}

    def wanted(self, scale: Scale, seeds: Sequence[int], library: Library) -> list[RunSpec]:
        return [spec.with_seed(seed) for spec in self.runs(scale).values() for seed in seeds]

    def forecast(self, scale: Scale, seeds: Sequence[int]) -> list[Expected]:
        return [Expected(spec, len(seeds)) for spec in self.runs(scale).values()]


@dataclass(frozen=True)
class TheoryItem(Item):
    """Statements of the paper that are checked without runs.

    Arguments:
        checks: their names; default: all.
        apart: those that another item has.
    """

    checks: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    def wanted(self, scale: Scale, seeds: Sequence[int], library: Library) -> list[RunSpec]:
        return []

    def forecast(self, scale: Scale, seeds: Sequence[int]) -> list[Expected]:
        return []
