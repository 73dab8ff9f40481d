"""Results in which nothing is true: what the rule of `verdicts` must not call reproduced.

Each null is made of our own runs, so that it has their scale and their spread:

- one pooled model: all centers are copies of one, told apart by the sampling error of the test sets alone;
- jittered copies: as before, but each copy is moved in a direction of its own, by several lengths. A center that is
  worse on one source is then better on another one, so that any alignment finds centers "of their own";
- exchanged labels: points of the test sets are given to sources at random, so that a center has one error on all;
- noise: numbers without structure, with the mean and the spread of the run's own table;
- exchanged columns: within each seed the blocks of a table, or the methods of a comparison, change places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedsoft.paper.measures import NOISE
from fedsoft.paper.verdicts import Key, Measures, Null

DIMENSION = 10  # of the synthetic data
JITTERS = (0.1, 0.2, 0.4, 0.8, 1.6)  # lengths of a move, relative to the mean distance of the pooled model to a source
SHIFTS = (1.0, 2.0, 4.0, 8.0, 16.0)  # the same for accuracies, in percentage points

Tables = Mapping[str, np.ndarray]
"""One seed: for each block `[center][source]`, errors or accuracies in percent."""
Measured = Callable[[Mapping[str, np.ndarray], int], Measures]
"""What is compared of the tables of a seed, by its number."""


def sampling_error(table: np.ndarray, higher: bool, points: int) -> np.ndarray:
    """Return the standard deviation of test values on this many points: squared normal errors, or shares in percent."""
    if higher:
        share = np.clip(table / 100, 0.0, 1.0)
        return 100 * np.sqrt(share * (1 - share) / points)
    return np.abs(table) * math.sqrt(2 / points)


def scattered(
    table: np.ndarray, length: float, higher: bool, rng: np.random.Generator
) -> np.ndarray:  # fmt: skip
    """Return the values of jittered copies of one pooled model, which has the mean of the table on each source."""
    pooled = table.mean(0)
    if higher:
        moved = rng.standard_normal(table.shape)
        return pooled + length * (moved - moved.mean(1, keepdims=True))
    away = np.sqrt(np.maximum(pooled - NOISE, 0.0))
    sources = rng.standard_normal((len(pooled), DIMENSION))
    sources -= sources.mean(0)
    sources *= (away / np.linalg.norm(sources, axis=1))[:, None]
    copies = length * away.mean() / math.sqrt(DIMENSION) * rng.standard_normal((len(table), DIMENSION))
    return NOISE + ((copies[:, None] - sources[None]) ** 2).sum(-1)


def of_centers(
    seeds: Sequence[Tables], measured: Measured, *, higher: bool, points: int, ordered: bool
) -> dict[str, Null]:  # fmt: skip
    """Return the nulls of a table of centers; `points` of each test set; `ordered`: blocks are compared as well."""

    def sampled(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn = table + sampling_error(table, higher, points) * rng.standard_normal(table.shape)
        return np.clip(drawn, 0.0, 100.0) if higher else np.abs(drawn)

    def pooled(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return sampled(np.broadcast_to(table.mean(0), table.shape), rng)

    def jittered(length: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
        return lambda table, rng: sampled(scattered(table, length, higher, rng), rng)

    def exchanged(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return sampled(np.broadcast_to(table.mean(1, keepdims=True), table.shape), rng)

    def noise(table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.abs(table.mean() + table.std() * rng.standard_normal(table.shape))

    def null(make: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Null:
        return lambda rng: [
            measured({name: make(table, rng) for name, table in tables.items()}, i) for i, tables in enumerate(seeds)
        ]

    def columns(rng: np.random.Generator) -> list[Measures]:
        found = []
        for i, tables in enumerate(seeds):
            names = list(tables)
            order = rng.permutation(len(names))
            found.append(measured({name: tables[names[k]] for name, k in zip(names, order, strict=True)}, i))
        return found

    moved = {
        f"copies jittered by {f'{length:g} points' if higher else f'{length:.0%}'}": null(jittered(length))
        for length in (SHIFTS if higher else JITTERS)
    }
    made = {"one pooled model": null(pooled), **moved, "exchanged labels": null(exchanged), "noise": null(noise)}
    return made | ({"exchanged columns": columns} if ordered else {})


def of_methods(seeds: Sequence[Measures], *, higher: bool, points: int) -> dict[str, Null]:
    """Return the nulls of a comparison, whose keys are (partition, method, what)."""
    groups: dict[tuple[str | int, ...], list[Key]] = {}
    for key in seeds[0]:
        groups.setdefault((key[0], key[2]), []).append(key)

    def pooled(rng: np.random.Generator) -> list[Measures]:
        found = []
        for one in seeds:
            drawn: dict[Key, float] = {}
            for keys in groups.values():
                mean = np.full(len(keys), np.mean([one[key] for key in keys]))
                values = mean + sampling_error(mean, higher, points) * rng.standard_normal(len(keys))
                drawn |= dict(zip(keys, values.tolist(), strict=True))
            found.append(drawn)
        return found

    def noise(rng: np.random.Generator) -> list[Measures]:
        found = []
        for one in seeds:
            drawn: dict[Key, float] = {}
            for keys in groups.values():
                values = np.array([one[key] for key in keys])
                drawn |= dict(zip(keys, rng.normal(values.mean(), values.std(), len(keys)).tolist(), strict=True))
            found.append(drawn)
        return found

    def exchanged(rng: np.random.Generator) -> list[Measures]:
        found = []
        for one in seeds:
            drawn: dict[Key, float] = {}
            for partition in dict.fromkeys(key[0] for key in one):
                names = list(dict.fromkeys(key[1] for key in one if key[0] == partition))
                order = dict(zip(names, rng.permutation(np.array(names, dtype=object)).tolist(), strict=True))
                for key in one:
                    if key[0] == partition:
                        drawn[key] = one[partition, order[str(key[1])], key[2]]
            found.append(drawn)
        return found

    return {"one pooled model": pooled, "noise": noise, "exchanged methods": exchanged}
