"""A recommendation in sentences, tables and files."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich.table

from fedsoft.evaluation.paired import Difference, mean_of
from fedsoft.reports.numbers import duration, factor, number
from fedsoft.reports.page import html
from fedsoft.reports.pictures import draw
from fedsoft.reports.recommendation_page import figures, page_of, tables_of, titled
from fedsoft.reports.results import WIDTH, StudyResult
from fedsoft.reports.tables import shown
from fedsoft.studies.recommend.candidates import BY_KEY, rank
from fedsoft.studies.recommend.outcome import Recommendation, Row
from fedsoft.studies.recommend.rule import Refusal
from fedsoft.studies.recommend.split import FOLDS


@dataclass(frozen=True, repr=False)
class RecommendationReport(StudyResult):
    """What to ship, and how sure that is. `found` holds all the numbers."""

    found: Recommendation
    scratch: object = None
    made_by: str = ""

    @property
    def name(self) -> str:
        return self.found.folder.name

    @property
    def recommended(self) -> str:
        """The key of what is recommended, such as `finetune` or `fedprior-1`."""
        return self.found.decision.recommended

    @property
    def run(self) -> Path | None:
        """The run of what is recommended; None for a constant guess."""
        return self.found.runs.get(self.recommended)

    @property
    def sentences(self) -> list[str]:
        return [*answer(self.found), *reservations(self.found), *self._next()]

    def _next(self) -> list[str]:
        command = export_command(self.found)
        return [] if command is None else [f"Export it: {command}"]

    def rows(self) -> list[dict[str, Any]]:
        return [row_of(self.found, row) for row in self.found.rows]

    def tables(self, width: int = WIDTH) -> list[rich.table.Table]:
        return [shown(table, table.caption, starred=True) for table in tables_of(self.found)]

    def to_dict(self) -> dict[str, Any]:
        found, decision = self.found, self.found.decision
        return {
            "recommended": decision.recommended, "sentences": self.sentences, "export": export_command(found),
            "metric": found.metric, "higher_is_better": found.higher_is_better, "beside": dict(found.beside),
            "seeds": list(found.seeds), "clients": found.clients, "newcomers": found.newcomers, "folds": found.folds,
            "decision": {
                "best": decision.best, "top": decision.top, "refused": dict(decision.refused),
                "gains": {key: gain.to_dict() for key, gain in decision.gains.items()},
                "several": decision.several, "one": decision.one,
                "clusters": None if decision.clusters is None else decision.clusters.to_dict(),
            },
            "candidates": self.rows(), "left_out": list(found.left_out), "seconds": round(found.seconds, 1),
            "budget": found.budget, "run": None if self.run is None else str(self.run),
        }  # fmt: skip

    def files(self) -> dict[str, bytes]:
        page = page_of(self.found, answer(self.found), [*reservations(self.found), *self._next()], self.made_by)
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        by = "" if self.found.is_own else f"-{self.found.metric}"
        return {
            f"recommendation{by}.json": f"{text}\n".encode(), f"recommendation{by}.html": html(page).encode(),
            f"candidates{by}.csv": self.to_csv().encode(),
        }  # fmt: skip

    def png(self) -> bytes:
        return draw(figures(self.found)[0], f"{self.found.label}: {titled(self.found.recommended)}")


# --- sentences --------------------------------------------------------------------------------------------------------


def answer(found: Recommendation) -> list[str]:
    """Return what to ship, what clusters add, and what newcomers get."""
    return [_ship(found), *_clusters(found), *_newcomers(found)]


def rival_of(found: Recommendation) -> Row | None:
    """Return what one would ship otherwise: the best simpler candidate of another family, else the best other one."""
    own, sign = found.recommended, 1 if found.higher_is_better else -1
    others = [row for row in found.rows if row.candidate.family != own.candidate.family and row.test]
    simpler = [row for row in others if rank(row.key) < rank(own.key)]
    return max(simpler or others, key=lambda row: sign * mean_of(row.tuned.ravel()), default=None)


def _ship(found: Recommendation) -> str:
    own, rival = found.recommended, rival_of(found)
    score = number(found.score(own), found.metric)
    if not own.test:
        return f"Ship {titled(own)}. On test points it has no value of {found.metric} ({own.problem or 'none there'})."
    if rival is None:
        return f"Ship {titled(own)}: {score}."
    gain, other = found.gain(own, rival), number(found.score(rival), found.metric)
    ahead = rank(rival.key) < rank(own.key)
    lead = f"Ship {titled(own)}: " if ahead else f"Ship {titled(own)}, as nothing is clearly better: "
    measured = "" if found.metric == "accuracy" else f" ({found.metric})"
    return f"{lead}{score} against {other}{measured} for {titled(rival)}{_in_brackets(gain, found.metric)}."


def _clusters(found: Recommendation) -> list[str]:
    decision = found.decision
    if decision.several is None or decision.one is None or decision.clusters is None:
        return []
    several_, one = found.row(decision.several), found.row(decision.one)
    gain = found.gain(several_, one)
    if gain is None:
        return []
    if decision.clusters.is_clear:
        beside = f"over one center: {titled(several_)} against {titled(one)}"
        doubt = "" if gain.is_clear else "; on test points that is not clear, as it was on tuning points"
        return [f"Clusters add {_amount(gain.mean, found.metric)} ({_span(gain, found.metric)}) {beside}{doubt}."]
    with_several, with_one = (number(found.score(row), found.metric) for row in (several_, one))
    interval = _in_brackets(gain, found.metric)
    # They may be recommended all the same, where the best single center had not converged.
    lead = "Clusters add nothing that is certain" if found.recommended is several_ else "Clusters add nothing"
    return [f"{lead}: {with_several} with {titled(several_)}, {with_one} with {titled(one)}{interval}."]


def _newcomers(found: Recommendation) -> list[str]:
    """Return what newcomers get with the fewest and the most points that were tried, beside one model for all."""
    own = found.recommended
    counts = [points for points in found.counts if points in own.newcomers]
    if not counts:
        return []
    parts = []
    for points in dict.fromkeys((counts[0], counts[-1])):
        score = number(found.newcomer_score(own, points), found.metric)
        text = f"{score} with {points} points"
        one = next((row for row in found.rows if row.key == "fedavg" and row.key != own.key), None)
        gain = None if one is None else found.newcomer_gain(own, one, points)
        if one is not None and gain is not None:
            beside = number(found.newcomer_score(one, points), found.metric)
            text += f" (one model for all {beside}; {_signed(gain, found.metric)}, {_span(gain, found.metric)})"
        parts.append(text)
    return [f"Newcomers get {', '.join(parts)}."]


def reservations(found: Recommendation) -> list[str]:
    """Return what the answer does not rest on: runs that had not converged, edges, and what there was no time for."""
    decision, said = found.decision, list[str]()
    own = found.recommended
    if decision.best != decision.recommended:
        gain, best = decision.gains[decision.recommended], found.row(decision.best)
        said.append(
            f"On tuning points the gain of {titled(best)} is {_amount(gain.mean, found.metric)} "
            f"({_span(gain, found.metric)}), which is not clear: the simpler one is recommended."
        )
    restless = [key for key, why in decision.refused.items() if why is Refusal.RESTLESS]
    if restless:
        named = ", ".join(f"{key} ({max(found.row(key).rounds)} rounds)" for key in restless)
        only = " None had converged, so that the answer may change with more rounds." if not own.settled else ""
        said.append(f"Not converged: {named}; give more rounds to know more.{only}")
    if decision.top in restless and decision.top != own.key:
        said.append(f"Of these {decision.top} scored best of all, and is not recommended before it has converged.")
    below = [key for key, why in decision.refused.items() if why is Refusal.BELOW_ONE]
    if below:
        said.append(f"Not recommended, as one center scores better: {', '.join(map(_with_S(found), below))}.")
    edges = [f"{key} of {row.key}" for row in found.rows for key in row.edges]
    if edges:
        said.append(f"Best at the edge of what was tried, however wide: {', '.join(edges)}.")
    return [*said, *_left_out(found), *(f"{row.key}: {row.problem}" for row in found.rows if row.problem)]


def _left_out(found: Recommendation) -> list[str]:
    """Return what there was no time for."""
    if found.budget is None:
        return [f"Could not be trained: {', '.join(found.left_out)}."] if found.left_out else []
    cut = [row.key for row in found.rows if row.cut]
    parts = [f"not tried: {', '.join(found.left_out)}"] if found.left_out else []
    parts += [f"searched in part: {', '.join(cut)}"] if cut else []
    parts += [f"decided on one fold instead of {FOLDS}"] if found.folds < FOLDS else []
    unseen = [row.key for row in found.rows if not row.test and not row.problem]
    parts += [f"not measured on test points: {', '.join(unseen)}"] if unseen else []
    return [f"Left out within {duration(found.budget)}: {'; '.join(parts)}."] if parts else []


def _with_S(found: Recommendation) -> Any:
    return lambda key: f"{key} (S = {found.row(key).S})"


def _in_brackets(gain: Difference | None, metric: str) -> str:
    if gain is None:
        return ""
    return f" ({_signed(gain, metric)}, {100 * gain.level:.0f} % interval {_span(gain, metric)})"


def _signed(gain: Difference, metric: str) -> str:
    return f"{'+' if gain.mean >= 0 else ''}{_amount(gain.mean, metric)}"


def _amount(value: float, metric: str) -> str:
    scaled = factor(metric) * value
    return f"{scaled:.1f}" if metric == "accuracy" else f"{scaled:.3g}"


def _span(gain: Difference, metric: str) -> str:
    return f"{_amount(gain.low, metric)} to {_amount(gain.high, metric)}"


# --- plain values -----------------------------------------------------------------------------------------------------


def row_of(found: Recommendation, row: Row) -> dict[str, Any]:
    """Return a candidate in plain values."""
    gain = None if row.key == found.decision.recommended else found.gain(found.recommended, row)
    measured = {"test": _number(found.score(row)), "worst_decile": found.worst_decile(row)}
    measured |= {f"test_{name}": _number(found.score(row, name)) for name in found.beside}
    newcomers = {f"newcomers_{n}": _number(found.newcomer_score(row, n)) for n in found.counts}
    return {
        "candidate": row.key, "label": row.candidate.label, "algorithm": row.candidate.algorithm,
        "settings": [dict(one) for one in row.settings], "rounds": list(row.rounds), "converged": row.settled,
        "edges": list(row.edges), "trials": row.trials, "tuned": _number(mean_of(row.tuned.ravel())), **measured,
        **newcomers, "cost": None if row.cost is None else asdict(row.cost),
        "behind": None if gain is None else gain.to_dict(), "problem": row.problem,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if value == value else None


def export_command(found: Recommendation) -> str | None:
    """Return what to type to export what is recommended; None for a constant guess."""
    path = found.runs.get(found.decision.recommended)
    if path is None:
        return None
    what = BY_KEY[found.decision.recommended].ship
    allow = [part for name in found.allow for part in ("--allow", name)]
    return shlex.join(["fedsoft", "export", str(path), "--what", what, *allow])
