"""What the table measures: for every row the work, two sides that do it, and the ratio to reach."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import machine, peers, works
from benchmarks.loops import Work
from fedsoft.machine.heap import keep_heap
from fedsoft.machine.resources import cores

Side = Callable[[], tuple[float, float]]
"""Does a piece of the work: the seconds it took, and how many units it was."""

Make = Callable[[bool], Side]
"""A side made ready for its first piece; small ones for trying out."""

ALLOWED = 1e-3  # difference in the same batches, relative to how far training moved the models


@dataclass(frozen=True)
class Row:
    """A ratio to reach: theirs to ours, or ours to theirs where it should be `at_most` so much."""

    work: str
    against: str
    theirs: Make
    ours: Make
    reach: float
    at_most: bool = False
    unit: str = "client step"
    two_cores: bool = False
    check: Callable[[], float] | None = None  # how much both sides differ when they use the same batches
    obstacle: Callable[[], str | None] = lambda: None  # why it cannot be measured here

    def ratio(self, theirs: float, ours: float) -> float:
        return ours / theirs if self.at_most else theirs / ours

    def reached(self, ratio: float) -> bool:
        return ratio <= self.reach if self.at_most else ratio >= self.reach


def piece(work: Callable[[], object], count: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds and units of a piece of work; `count` is the units done so far."""
    before, began = count(), clock()
    work()
    return clock() - began, count() - before


# --- whole rounds -----------------------------------------------------------------------------------------------------


def loop_of_rounds(make: Callable[[bool], Work], at_once: int, *, tuned: bool = False) -> Make:
    """The loop, some clients at a time, so that fedsoft can take turns with it."""

    def side(small: bool) -> Side:
        if tuned:
            keep_heap()
        work = make(small)
        loop = work.engine().loop(work, tuned=tuned)
        rounds = loop.rounds(at_once)
        return lambda: piece(lambda: next(rounds), lambda: loop.steps, time.process_time)

    return side


def engine_of_rounds(make: Callable[[bool], Work], rounds: int = 2) -> Make:
    """fedsoft, some rounds at a time, every other one with estimation: as many as take longer than to warm up."""

    def side(small: bool) -> Side:
        engine = make(small).engine()

        def play() -> None:
            for _ in range(rounds):
                engine.round()

        return lambda: piece(play, lambda: engine.steps, time.process_time)

    return side


# --- steps of one client after the other ------------------------------------------------------------------------------


def loop_of_steps(make: Callable[[bool], Work], *, tuned: bool = False) -> Make:
    """An epoch of one client after the other. Where `tuned`, glibc keeps its memory too."""

    def side(small: bool) -> Side:
        if tuned:
            keep_heap()
        work = make(small)
        loop = work.engine().loop(work, tuned=tuned)
        turns = itertools.cycle(range(len(loop.clients)))
        return lambda: piece(lambda: loop.train(next(turns), 1), lambda: loop.steps, time.process_time)

    return side


def engine_of_steps(make: Callable[[bool], Work], epochs: int | None = None) -> Make:
    """All that one client does in a round, then the next."""

    def side(small: bool) -> Side:
        engine = make(small).engine(epochs=epochs)
        turns = itertools.cycle(range(len(engine.engine.names)))
        return lambda: piece(lambda: engine.train([next(turns)]), lambda: engine.steps, time.process_time)

    return side


def engine_of_epochs(make: Callable[[bool], Work], backend: str = "auto", epochs: int | None = 1) -> Make:
    """All clients train for an epoch or for all of a round (None), as many at once as fedsoft stacks."""

    def side(small: bool) -> Side:
        engine = make(small).engine(epochs=epochs, backend=backend)
        everyone = list(range(len(engine.engine.names)))
        return lambda: piece(lambda: engine.train(everyone), lambda: engine.steps, time.process_time)

    return side


def engine_with_workers(make: Callable[[bool], Work], workers: int) -> Make:
    """All clients train for an epoch, by the clock on the wall."""

    def side(small: bool) -> Side:
        engine = make(small).engine(epochs=1, workers=workers)
        everyone = list(range(len(engine.engine.names)))
        return lambda: piece(lambda: engine.train(everyone), lambda: engine.steps, time.perf_counter)

    return side


def one_core() -> str | None:
    return None if cores() >= 2 else "there is one core only"


def no_heap() -> str | None:
    return None if keep_heap() else "there is no glibc whose heap could be tuned"


# --- the machine's own limit ------------------------------------------------------------------------------------------


def letters_limit(small: bool) -> Side:
    """The floating-point operations of a step at the rate of a large product, those of convolutions at that of a
    convolution where it is higher, and what Adam has to move at the rate of a copy that stays in the cache: parameters,
    both moments and the pull's target read, all but the last written."""
    points = 5
    # Forward, and backward to weights and to inputs; nothing needs the slope of the image.
    convolutions = 2 * points * (2 * 28 * 28 * 25 * 32 + 3 * 14 * 14 * 800 * 64)
    full = 2 * points * 3 * (3136 * 512 + 512 * 26)
    moved = (4 + 3) * 4 * machine.COPY["6.7 MB"]
    seconds = 0.01 if small else 0.2

    def side() -> tuple[float, float]:
        product = machine.product_rate(machine.SQUARE, seconds)
        fastest = max(product, machine.product_rate(machine.CONVOLUTION, seconds))
        copy = machine.copy_rate(machine.COPY["6.7 MB"], seconds)
        return convolutions / fastest + full / product + moved / copy, 1

    return side


# --- estimation -------------------------------------------------------------------------------------------------------


def four_letters(small: bool) -> Work:
    return works.letters(small, S=4)


def loop_of_estimates(*, in_batches: bool) -> Make:
    """Client after client, every center: in the batches of training, or all points of a client at once."""

    def side(small: bool) -> Side:
        work = four_letters(small)
        loop = work.engine().loop(work)
        turns, points = itertools.cycle(range(len(loop.clients))), [0]

        def estimate() -> None:
            k = next(turns)
            loop.importance(k, in_batches=in_batches)
            points[0] += len(loop.data[k][1])

        return lambda: piece(estimate, lambda: points[0], time.process_time)

    return side


def engine_of_estimates(small: bool) -> Side:
    engine = four_letters(small).engine()
    points = [0]

    def estimate() -> None:
        engine.estimate()
        points[0] += int(engine.engine.sizes.sum())

    return lambda: piece(estimate, lambda: points[0], time.process_time)


# --- both sides compute the same --------------------------------------------------------------------------------------


def same_round(make: Callable[[bool], Work]) -> Callable[[], float]:
    """A small round of both loops and of fedsoft with the points in a fixed order, so that the batches are the same."""

    def check() -> float:
        work = make(True)
        most = 0.0
        for tuned in (False, True):
            engine = work.engine(shuffle=False)
            loop = engine.loop(work, shuffle=False, tuned=tuned)
            start = torch.cat([engine.engine.client_states["w"], engine.state.centers]).clone()
            next(loop.rounds(len(loop.clients)))
            engine.round()
            if loop.steps != engine.steps:
                raise SystemExit(f"unequal work: {loop.steps} client steps by the loop, {engine.steps} by fedsoft")
            theirs = loop.vectors(loop.clients + loop.centers)
            ours = torch.cat([engine.engine.client_states["w"], engine.state.centers])
            most = max(most, float((theirs - ours).norm() / (ours - start).norm()))
        return _agree(most)

    return check


def same_estimates() -> float:
    """Importance weights by both loops and by fedsoft: the share of points on which they do not agree."""
    work = four_letters(True)
    engine = work.engine()
    loop = engine.loop(work)
    u = engine.estimate()
    both = [torch.stack([loop.importance(k, how) for k in range(len(loop.clients))]) for how in (False, True)]
    return _agree(max(float((theirs - u).abs().max()) for theirs in both))


def same_as_peer(make: Callable[[bool], Work], net: Callable[[], peers.Net]) -> Callable[[], float]:
    """A small local solve of fedjax and of fedsoft with the points in a fixed order."""
    return lambda: _agree(peers.apart(make, net))


def _agree(difference: float) -> float:
    if not difference <= ALLOWED:
        raise SystemExit(f"the loop and fedsoft differ by {difference:.1e} on the same batches")
    return difference


# --- all rows ---------------------------------------------------------------------------------------------------------

MANY = 20  # rounds of some milliseconds
PLAIN, TUNED = "plain loop", "tuned loop and heap"
SEQUENCES = (
    ("transformer", "Transformer, 2 layers, 32 tokens, 40 clients", works.transformer, 1.5),
    ("lstm", "LSTM, 20 steps, 24 clients", works.lstm, 1.5),
    ("gru", "GRU, 20 steps, 24 clients", works.gru, 1.5),
)
SMALL = (
    ("softmax", "softmax regression, digits, 100 clients", works.softmax),
    ("logistic", "logistic regression, 10 inputs, 84 clients", works.logistic),
    ("logit", "conditional logit, 3 alternatives, 84 clients", works.logit),
)

ROWS: dict[str, Row] = {
    "synthetic": Row(
        "synthetic round, 84 clients", PLAIN,
        loop_of_rounds(works.synthetic, 14), engine_of_rounds(works.synthetic, MANY), 700,
        check=same_round(works.synthetic),
    ),
    "synthetic-fedjax": Row(
        "synthetic round, 84 clients", "fedjax",
        peers.peer_of_rounds(works.synthetic, peers.linear), engine_of_rounds(works.synthetic, MANY), 80,
        check=same_as_peer(works.synthetic, peers.linear), obstacle=peers.absent,
    ),
    **{
        name: Row(
            # All ten epochs of a round: of one, half would be what asking clients costs, whoever solves.
            work, "stacks of clients", engine_of_epochs(make, "stacked", None), engine_of_epochs(make, epochs=None),
            5, check=same_round(make),
        )
        for name, work, make in SMALL
    },
    "digits": Row(
        "digits MLP round, 100 clients", PLAIN,
        loop_of_rounds(works.digits, 10), engine_of_rounds(works.digits), 8, check=same_round(works.digits),
    ),
    "letters": Row(
        "letters CNN", PLAIN,
        loop_of_steps(works.letters), engine_of_steps(works.letters), 3.6, check=same_round(works.letters),
    ),
    "letters-tuned": Row(
        "letters CNN", TUNED,
        loop_of_steps(works.letters, tuned=True), engine_of_steps(works.letters), 1.8, obstacle=no_heap,
    ),
    "letters-fedjax": Row(
        "letters CNN", "fedjax",
        peers.peer_of_steps(works.letters, peers.letters), engine_of_steps(works.letters), 1.8,
        check=same_as_peer(works.letters, peers.letters), obstacle=peers.absent,
    ),
    "letters-workers": Row(
        "letters CNN, two workers", "one worker (wall clock)",
        engine_with_workers(works.letters, 1), engine_with_workers(works.letters, 2), 1.9, two_cores=True,
        obstacle=one_core,
    ),
    "letters-limit": Row(
        "letters CNN", "the machine's limit",
        letters_limit, engine_of_steps(works.letters, epochs=2), 1.5, at_most=True,
    ),
    "estimate": Row(
        "importance, letters, S = 4", "loop in batches of 5",
        loop_of_estimates(in_batches=True), engine_of_estimates, 2.6, unit="point", check=same_estimates,
    ),
    "estimate-whole": Row(
        "importance, letters, S = 4", "loop, a client at once",
        loop_of_estimates(in_batches=False), engine_of_estimates, 2.6, unit="point",
    ),
    "resnet": Row(
        "ResNet-8 with GroupNorm", PLAIN,
        loop_of_steps(works.resnet), engine_of_steps(works.resnet), 1.8, check=same_round(works.resnet),
    ),
    "resnet-tuned": Row(
        "ResNet-8 with GroupNorm", TUNED,
        loop_of_steps(works.resnet, tuned=True), engine_of_steps(works.resnet), 1.3, obstacle=no_heap,
    ),
    "resnet-batchnorm": Row(
        "ResNet-8 with BatchNorm", TUNED,
        loop_of_steps(works.resnet_batch_norm, tuned=True), engine_of_steps(works.resnet_batch_norm), 1,
        check=same_round(works.resnet_batch_norm), obstacle=no_heap,
    ),
    "dropout": Row(
        "digits MLP round with dropout", TUNED,
        loop_of_rounds(works.dropout, 10, tuned=True), engine_of_rounds(works.dropout), 2,
        check=same_round(works.dropout_off), obstacle=no_heap,
    ),
    "batchnorm": Row(
        "digits MLP round with BatchNorm", TUNED,
        loop_of_rounds(works.batch_norm, 10, tuned=True), engine_of_rounds(works.batch_norm), 2,
        check=same_round(works.batch_norm), obstacle=no_heap,
    ),
    "bag": Row(
        "EmbeddingBag, 40 clients", TUNED,
        loop_of_steps(works.bag, tuned=True), engine_of_epochs(works.bag), 1.8, check=same_round(works.bag),
        obstacle=no_heap,
    ),
    **{
        name: Row(
            work, TUNED, loop_of_steps(make, tuned=True), engine_of_epochs(make), reach, check=same_round(make),
            obstacle=no_heap,
        )
        for name, work, make, reach in SEQUENCES
    },
    **{
        f"{name}-choice": Row(
            work, "the backend not chosen", engine_of_epochs(make, "loop"), engine_of_epochs(make), 1
        )
        for name, work, make, _ in SEQUENCES
    },
}  # fmt: skip
