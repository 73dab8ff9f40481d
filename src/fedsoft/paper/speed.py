"""What runs take on this machine, estimated from measured step times."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedsoft.errors import FedsoftError
from fedsoft.machine.threads import one_thread
from fedsoft.paper.item_kinds import Expected, Item, Scale
from fedsoft.paper.library import Library
from fedsoft.runs.run_options import RunOptions, build
from fedsoft.runs.spec import Part, RunSpec

FEW, STEPS = 2, 12  # clients of a measurement and batches of each, where models are computed client by client
TIMES = 2
PATIENCE = 6.0  # seconds after which a job is not measured again
STACKED = ("linear", "mlp")


@dataclass(frozen=True)
class Speed:
    """Seconds on one core.

    Arguments:
        start: to make or read the data.
        gradient: for one training point, once.
        evaluation: to score one point under one model.
        tests: how many test points there are.
    """

    start: float
    gradient: float
    evaluation: float
    tests: int


def measure(spec: RunSpec) -> Speed:
    """Train and evaluate a few clients of a run, and time it. Small models are timed in the stacks that they run in."""
    small = spec.model.name in STACKED
    settings = dict(spec.dataset.settings)
    if not small:
        points = STEPS * spec.solver.settings["batch"]
        settings |= {"clients": FEW, "points": [points, points]}
    probe = replace(
        spec,
        algorithm=Part("fedsoft", {"S": 2, "K": "all"}),
        dataset=Part(spec.dataset.name, settings),
        solver=Part(spec.solver.name, spec.solver.settings | {"epochs": 1}),
        source=None,
    )
    began = time.process_time()  # what others do on this machine meanwhile is not counted
    federation, engine = build(probe, RunOptions(workers=1))
    start = time.process_time() - began
    with torch.no_grad(), one_thread():
        centers = engine.start().centers
        seconds = {"estimate": math.inf, "train": math.inf}
        for job in ("estimate", "train") * TIMES:  # the first of each warms up, the fastest counts
            if PATIENCE < seconds[job] < math.inf:
                continue
            began = time.process_time()
            engine(job, engine.everyone, centers=centers)
            seconds[job] = min(seconds[job], time.process_time() - began)
    total = int(federation.train.sizes.sum())
    tests = sum(len(y) for _, y in federation.truth.tests) if federation.truth is not None else 0
    return Speed(start, seconds["train"] / total, seconds["estimate"] / total / 2, tests)


def speed_of(spec: RunSpec, library: Library) -> Speed:
    """Measured once for each data set, model and batch size, then kept beside the runs."""
    data = {key: spec.dataset.settings.get(key) for key in ("size", "augment", "dimension", "cases", "test_points")}
    content: list[Any] = [
        spec.dataset.name,
        data,
        spec.model.to_dict(),
        spec.solver.name,
        spec.solver.settings["batch"],
    ]
    name = hashlib.sha256(json.dumps([*content, spec.dtype], sort_keys=True).encode()).hexdigest()[:12]
    found = library.note("speed", f"{spec.dataset.name}-{name}", lambda: asdict(measure(spec)))
    return Speed(**found)


def expected_seconds(spec: RunSpec, library: Library) -> float:
    """What a run takes on one core of this machine; not known (NaN) where its data is not there."""
    try:
        return seconds(spec, speed_of(spec, library))
    except FedsoftError:
        return math.nan


def seconds(spec: RunSpec, speed: Speed) -> float:
    """What a run takes on one core of that speed."""
    data, own = spec.dataset.settings, spec.algorithm.settings
    clients, mean = data["clients"], sum(data["points"]) / 2
    centers = own.get("S", 1)
    drawn = own.get("K", "all")
    drawn = clients if drawn == "all" else drawn
    if spec.algorithm.name == "fedsoft":
        tasks = clients * (1 - (1 - drawn / clients) ** centers)
        scored = clients * centers / own["tau"]
    else:
        tasks = drawn * (centers if spec.algorithm.name == "fedem" else 1)
        scored = drawn * centers if spec.algorithm.name in ("ifca", "fedem") else 0
    part = 0.5 if spec.source is not None else 1.0  # of a client's points
    gradients = tasks * mean * part * spec.solver.settings["epochs"] * spec.rounds
    if spec.work is not None:
        gradients = min(gradients, spec.work)
    rounds = spec.rounds if spec.work is None else gradients / (tasks * mean * part * spec.solver.settings["epochs"])
    evaluations = scored * mean * rounds + clients * mean * 2
    evaluations += (rounds // spec.score_every + 2) * centers * speed.tests
    return speed.start + gradients * speed.gradient + evaluations * speed.evaluation


def forecast(items: Iterable[Item], scale: Scale, seeds: Callable[[Item], range]) -> list[Expected]:
    """All runs that some items need; those that they share once."""
    plain: dict[str, Expected] = {}
    later = []
    for expected in (e for item in items for e in item.forecast(scale, seeds(item))):
        if expected.later:
            later.append(expected)
        elif expected.spec.id not in plain or plain[expected.spec.id].count < expected.count:
            plain[expected.spec.id] = expected
    return [*plain.values(), *later]


def core_seconds(expected: Iterable[Expected], library: Library) -> float:
    """What they take on one core; NaN where the data of one is not there."""
    return sum(e.count * expected_seconds(e.spec, library) for e in expected)
