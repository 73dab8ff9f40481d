"""The rule: the simplest candidate that is not clearly beaten, by points that were tuned on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from fedsoft.evaluation.paired import Difference, mean_of, paired
from fedsoft.studies.recommend.candidates import BY_KEY, rank


class Refusal(StrEnum):
    """Why a candidate is not recommended, whatever its score."""

    FAILED = "training failed, or it has no score"
    RESTLESS = "it still improved when its rounds were over"
    BELOW_ONE = "it scores below one center"


@dataclass(frozen=True)
class Standing:
    """How a candidate fares on points that were tuned on.

    Arguments:
        key: of the candidate.
        values: a number for each seed and client, `[seeds, clients]`, NaN where there is none.
        settled: whether it had come to rest.
        failed: whether training failed on some of the points.
    """

    key: str
    values: np.ndarray
    settled: bool = True
    failed: bool = False


@dataclass(frozen=True)
class Decision:
    """What is recommended, and why.

    Arguments:
        recommended: the key of the simplest candidate that the best one does not clearly beat.
        best: the one with the best score of those that may be recommended.
        top: the one with the best score of all.
        gains: by how much the best one beats each of the others, by key.
        refused: why others may not be recommended.
        several, one: what is recommended and the same with one center, where it has several; else the best candidate
            with several centers and the best of all others.
        clusters: by how much several centers beat one; None where either is missing.
    """

    recommended: str
    best: str
    top: str
    gains: dict[str, Difference] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    several: str | None = None
    one: str | None = None
    clusters: Difference | None = None


def decide(standings: Sequence[Standing], higher_is_better: bool) -> Decision | None:
    """Apply the rule; None where no candidate has a score.

    A candidate that had not come to rest is recommended only where none had. One with several centers has to score at
    least as well as the same with one.
    """
    sign = 1 if higher_is_better else -1
    score = {one.key: sign * mean_of(one.values.ravel()) for one in standings}
    known = {one.key: one for one in standings if math.isfinite(score[one.key]) and not one.failed}
    refused = {one.key: Refusal.FAILED for one in standings if one.key not in known}
    if not known:
        return None
    for key in known:
        if (single := BY_KEY[key].one_center) in known and score[key] < score[single]:
            refused[key] = Refusal.BELOW_ONE
    restless = {key: Refusal.RESTLESS for key, one in known.items() if not one.settled}
    able = [key for key in known if key not in refused | restless] or [key for key in known if key not in refused]
    refused |= restless
    best = max(able, key=lambda key: score[key])

    def gain(first: str, second: str) -> Difference:
        found = paired(known[first].values, known[second].values, higher_is_better=higher_is_better)
        return Difference(math.nan, -math.inf, math.inf, 0) if found is None else found

    gains = {key: gain(best, key) for key in known if key != best}
    recommended = next(key for key in sorted(able, key=rank) if key == best or not gains[key].is_clear)
    several, one = _clusters(known, score)
    if (single := BY_KEY[recommended].one_center) in known:
        several, one = recommended, single
    clusters = None if several is None or one is None else gain(several, one)
    top = max(known, key=lambda key: score[key])
    return Decision(recommended, best, top, gains, refused, several, one, clusters)


def _clusters(known: Mapping[str, Standing], score: Mapping[str, float]) -> tuple[str | None, str | None]:
    """Return the best candidate with several centers, and the best of all others, each among those at rest first."""

    def best(keys: list[str]) -> str | None:
        able = [key for key in keys if known[key].settled] or keys
        return max(able, key=lambda key: score[key], default=None)

    several = [key for key in known if BY_KEY[key].is_clustered]
    return best(several), best([key for key in known if key not in several])
