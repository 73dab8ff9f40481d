"""Figures 1 and 2, redrawn in the paper's form from our runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedsoft.evaluation.scores import align
from fedsoft.paper.cells import (
    Case,
    ItemReport,
    chance_table,
    claims_table,
    incomplete,
    refs,
    scale_words,
    section,
    verdict,
)
from fedsoft.paper.item_kinds import FigureItem
from fedsoft.paper.library import Library
from fedsoft.paper.nulls import DIMENSION
from fedsoft.paper.verdicts import DRAWS, LEVEL, Judged, Ruling, Word
from fedsoft.reports.cells import Over
from fedsoft.reports.convergence import Courses
from fedsoft.reports.page import Axis, Block, Figure, Level, Panel, Series, Text
from fedsoft.reports.run_loader import Finished
from fedsoft.runs.run_options import RunOptions, build
from fedsoft.seeds import generator
from fedsoft.storage.tensorfile import open_tensors

ROUND = 10  # the paper: "after around 5"; twice that still counts
BEGIN, NEAR = 0.1, 0.05  # of a share
APART = 0.1  # between the mean u of two groups of clients


def _ruled(
    item: FigureItem, case: Case, claims: Sequence[tuple[str, bool]], chance: Mapping[str, float],
    each: Sequence[float | None],
) -> Ruling:  # fmt: skip
    """A figure has no printed values: its claims decide, and how often all of them, and each, hold by chance."""
    judged = tuple(
        Judged(text, None, "yes" if holds else "no", rate) for (text, holds), rate in zip(claims, each, strict=True)
    )
    failed = [text for text, holds in claims if not holds]
    word: Word = "contradicted" if failed else "reproduced"
    if word == "reproduced" and max(chance.values(), default=1.0) > LEVEL:
        word = "consistent but weak"
    if not item.as_published(case.scale):
        word, chance = "not tested at the paper's scale", {}
    sentence = (
        f"{item.title}: {word}; {len(claims) - len(failed)} of {len(claims)} statements of the text hold, "
        f"{sum(claim.shown for claim in judged)} beyond chance."
    )
    if failed:
        sentence += f" Does not hold: {'; '.join(failed)}."
    return Ruling(word, sentence, judged, 0, 0, chance)


def figure_1(item: FigureItem, case: Case) -> ItemReport:
    """Errors of both centers and mean importance weights over the rounds."""
    seeds = case.seeds(item)
    (spec,) = item.runs(case.scale).values()
    runs = case.library.over(spec, seeds)
    if len(runs) < len(seeds):
        return incomplete(item, case, len(seeds) - len(runs))
    rounds = [_parted(run) for run in runs]
    known = [t for t in rounds if t is not None]
    shares = _weights(runs)
    final = {key: Over(tuple(v[-1] for v in values)) for key, values in shares.items()}
    first = statistics.fmean(abs(course[0] - 0.5) for courses in shares.values() for course in courses)
    claims = [
        ("in every seed, each source ends with a best center of its own", len(known) == len(runs)),
        (f"centers part early: in the median seed before round {ROUND} (the paper: around 5; ours: "
         f"{statistics.median(known) if known else float('nan'):g})",
         bool(known) and len(known) * 2 > len(rounds) and statistics.median(known) <= ROUND),
        (f"importance weights begin around 50:50 (ours in the first round: off by {first:.2f})", first <= BEGIN),
        (f"importance weights end within {NEAR:g} of 10:90 (ours: "
         f"{', '.join(f'{over.mean:.3f}' for over in final.values())})",
         all(abs(over.mean - (0.9 if own else 0.1)) <= NEAR for (_, own), over in final.items())),
    ]  # fmt: skip
    # With two centers that are exchangeable, a seed has a best center for each source in half of the cases.
    every, begin, end = _copies(len(runs))
    by_chance = {"exchangeable centers": 0.5 ** len(runs), "jittered copies of one model": every}
    ruling = _ruled(item, case, claims, by_chance, (1.0, 1.0, begin, end))
    blocks: list[Block] = [
        Text(scale_words(item, case, runs[0])),
        verdict(ruling, refs(runs)),
        _drawn("fig1-run", f"One run (seed {runs[0].spec.seed}), as in Fig. 1",
               "Above, the test error of both centers on both sources over the rounds; below, the mean importance "
               "weights of the clients with 90 % of each source.", Courses(runs[:1], averaged=False)),
        _drawn("fig1-seeds", f"The same over {len(runs)} seeds, errors divided by the distance of the sources",
               "As before, mean over seeds; centers in the order of the sources that they stand for at the end.",
               Courses(runs, averaged=True, scaled=True)),
        claims_table(item.id, ruling.claims), chance_table(item.id, ruling),
    ]  # fmt: skip
    return ItemReport(section(item, blocks), ruling)


def _copies(seeds: int) -> tuple[float, float, float]:
    """How often all claims, the third and the fourth hold for two centers moved at random from one pooled model.

    Such centers part at once, one nearer to each source. The share of a source's points that its center explains best
    is at most 1 - arccos(c) / pi, with c the cosine between the difference of the centers and that of the sources.
    """
    rng, begins, ends, both = generator(0, "null", "jittered copies"), 0, 0, 0
    for _ in range(DRAWS):
        moved = rng.standard_normal((seeds, DIMENSION))
        right = 1 - np.arccos(np.abs(moved[:, 0]) / np.linalg.norm(moved, axis=1)) / np.pi
        u = 0.9 * right + 0.1 * (1 - right)
        begin, end = float(np.abs(u - 0.5).mean()) <= BEGIN, abs(float(u.mean()) - 0.9) <= NEAR
        begins, ends, both = begins + begin, ends + end, both + (begin and end)
    return both / DRAWS, begins / DRAWS, ends / DRAWS


def _order(run: Finished) -> list[int]:
    """The centers in the order of the sources that they stand for at the end."""
    return np.argsort(np.asarray(run.scores.alignment), kind="stable").tolist()


def _parted(run: Finished) -> int | None:
    """The round from which on every source had a best center of its own, to the end; None if it never was so."""
    since: int | None = None
    for record in run.scored:
        best = np.asarray(record.centers).argmin(0).tolist()
        apart = len(set(best)) == len(best)
        since = (record.round if since is None else since) if apart else None
    return since


def _weights(runs: Sequence[Finished]) -> dict[tuple[int, bool], list[list[float]]]:
    """For each center and group of clients the mean u over the rounds, seed by seed: `(center, own group?)`."""
    found: dict[tuple[int, bool], list[list[float]]] = {}
    for run in runs:
        order = _order(run)
        for i, center in enumerate(order):
            for group in range(len(order)):
                course = [record.weights[group][center] for record in run.records if record.weights]
                found.setdefault((i, group == i), []).append(course)
    return found


def _drawn(name: str, caption: str, alt: str, courses: Courses) -> Figure:
    return Figure(name, caption, alt, (*courses.errors, *courses.weights), courses.notes, courses.origin)


# --- figure 2 ---------------------------------------------------------------------------------------------------------


def figure_2(item: FigureItem, case: Case) -> ItemReport:
    """Every client's weight of the first center, method by method."""
    seeds = case.seeds(item)
    found = {name: case.library.over(spec, seeds) for name, spec in item.runs(case.scale).items()}
    missing = sum(len(seeds) - len(runs) for runs in found.values())
    if missing:
        return incomplete(item, case, missing)
    views = {name: [_clients(case.library, run) for run in runs] for name, runs in found.items()}
    source = next(iter(found.values()))[0].scores.sources[0]
    panels = []
    for name, seen in views.items():
        u, major = seen[0]
        series = []
        for group, words in ((0, f"90 % {source}"), (1, f"10 % {source}")):
            ids = [k for k, m in enumerate(major) if m == group]
            series.append(Series(f"clients with {words}", ids, [u[k] for k in ids], "scatter", colour=group,
                                 labels=[f"client {k}" for k in ids]))  # fmt: skip
        panels.append(Panel(name, Axis("client"), Axis(f"u of the center of {source}", low=0, high=1), tuple(series),
                            (Level("0.1", 0.1), Level("0.9", 0.9))))  # fmt: skip
    apart = {name: Over(tuple(_gap(u, major) for u, major in seen)) for name, seen in views.items()}
    low = statistics.mean(_below(u) for u, _ in views["FedEM"])
    claims = [
        (f"{name} associates centers and sources: the mean u of both groups differs (ours: by {apart[name].mean:.2f})",
         apart[name].mean > APART)
        for name in ("FedSoft", "IFCA")
    ]  # fmt: skip
    claims.append((
        f"FedEM is biased: most clients put less than 0.5 on one and the same center (ours: {100 * low:.0f} %)",
        low > 0.75,
    ))  # fmt: skip
    each = [_by_chance(views[name]) for name in ("FedSoft", "IFCA")]
    by_chance = {"exchanged clients": _by_chance([seen for name in ("FedSoft", "IFCA") for seen in views[name]])}
    ruling = _ruled(item, case, claims, by_chance, (*each, None))
    runs = tuple(ref for group in found.values() for ref in refs(group))
    figure = Figure("fig2-clients", "Every client's importance weight of the center of the first source, as in Fig. 2",
                    "For each method a point for every client: across its number, upwards its weight.", tuple(panels),
                    (f"One seed of each method ({seeds[0]}). The center is that which stands for {source}.",),
                    tuple(group[0].ref for group in found.values()))  # fmt: skip
    first = next(iter(found.values()))[0]
    blocks: list[Block] = [
        Text(scale_words(item, case, first)), verdict(ruling, runs), figure, claims_table(item.id, ruling.claims),
    ]  # fmt: skip
    return ItemReport(section(item, blocks), ruling)


def _clients(library: Library, run: Finished) -> tuple[list[float], list[int]]:
    """The weight of the center of the first source, and the main source, of every client."""

    def make() -> list[list[float]]:
        _, file = open_tensors(run.folder.path / "state.safetensors")
        u = file.whole("state/u").double()
        federation, _ = build(run.spec, RunOptions(workers=1))
        assert federation.truth is not None
        shares = federation.truth.fractions(federation.train)
        mine = [s for s, j in enumerate(align(np.asarray(run.scores.centers), run.scores.higher_is_better)) if j == 0]
        u = u / u.sum(1, keepdim=True)
        return [u[:, torch.tensor(mine)].sum(1).tolist(), shares.argmax(1).tolist()]

    u, major = library.note("clients", run.folder.name, make)
    return u, [int(m) for m in major]


def _gap(u: Sequence[float], major: Sequence[int]) -> float:
    """How much more the clients of the first source put on its center than the others do."""
    groups = [[v for v, m in zip(u, major, strict=True) if m == group] for group in (0, 1)]
    return statistics.fmean(groups[0]) - statistics.fmean(groups[1])


def _by_chance(views: Sequence[tuple[Sequence[float], Sequence[int]]]) -> float:
    """The share of draws in which the mean u differs as much between groups of clients that are made at random."""
    rng, found = generator(0, "null", "exchanged clients"), 0
    for _ in range(DRAWS):
        gaps = [_gap(u, [major[k] for k in rng.permutation(len(major))]) for u, major in views]
        found += statistics.fmean(gaps) > APART
    return found / DRAWS


def _below(u: Sequence[float]) -> float:
    """The share of clients on the same side of 0.5, whichever it is."""
    low = sum(v < 0.5 for v in u) / len(u)
    return max(low, 1 - low)
