"""What could be shipped, from the simplest on, and the settings of each that are tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsoft import plugins
from fedsoft.errors import InputError, unknown
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.recommend.search import Range, Search, Searches

Family = Literal["constant", "one model", "clusters", "alone", "fine-tuned", "personal", "learned prior"]
RATES = (0.3, 1.0, 3.0)  # times the rate of the preset
MOST_CENTERS = 16
RATE = "solver.lr"
OF_RATES = (RATE, "own_rate")  # settings that a solver without a rate has no use for
FEW_PARAMETERS = 32  # up to which `newton` is tried: each of its steps costs an evaluation for each of them
CLIENTS_PER_CENTER = 5


@dataclass(frozen=True)
class Candidate:
    """One thing that could be shipped. Those listed earlier are simpler.

    Arguments:
        key: in files.
        label: in sentences and tables.
        algorithm: by name; None for a constant guess, which is not trained.
        family: candidates of a family are variants of one idea.
        settings: that are not tuned.
        one_center: the candidate that this is with one center, where it has several.
        adopts_by: the job that gives a newcomer its model; default: rounds with the shared models as they are.
        ship: what is exported.
    """

    key: str
    label: str
    algorithm: str | None
    family: Family
    settings: Mapping[str, Any] = field(default_factory=dict)
    one_center: str | None = None
    adopts_by: str | None = None
    ship: Literal["centers", "clients", "nothing"] = "clients"

    @property
    def is_clustered(self) -> bool:
        return self.one_center is not None

    def searches(self, base: RunSpec, clients: int, parameters: int) -> Searches:
        """Return what is searched: settings with the run's solver and, for models of few parameters, with `newton`."""
        ranges = self.ranges(base, clients)
        found = [Search(ranges)]
        if RATE in ranges and parameters <= FEW_PARAMETERS:
            without = {key: one for key, one in ranges.items() if key not in OF_RATES}
            found.append(Search(without, {"solver.name": "newton"}))
        return Searches(found)

    def ranges(self, base: RunSpec, clients: int) -> dict[str, Range]:
        """Return what is tuned: the learning rate, what the algorithm declares, and the number of centers."""
        if self.algorithm is None:
            return {"own": Range((0, 1), 1.0, whole=True)}  # one guess for all clients, or each client's own
        found: dict[str, Range] = {}
        has_rate = "lr" in base.solver.settings
        if has_rate:
            rate = float(base.solver.settings["lr"])
            found[RATE] = Range(tuple(rounded(rate * factor) for factor in RATES), 3.0)
        for key, values in plugins.tunable("algorithms", self.algorithm).items():
            if key in OF_RATES and not has_rate:
                continue
            whole = all(isinstance(value, int) for value in values)
            found[key] = Range(values, values[-1] / values[-2], whole=whole)
        if self.is_clustered:
            most = max(2, min(MOST_CENTERS, clients // CLIENTS_PER_CENTER))
            counts = tuple(count for count in (2, 4) if count <= most)
            found["S"] = Range(counts, 2.0, least=2, most=most, whole=True)
        return found


CANDIDATES = (
    Candidate("constant", "a constant guess", None, "constant", ship="nothing"),
    Candidate("fedavg", "one model for all", "fedavg", "one model", ship="centers"),
    Candidate("ifca", "a model for each cluster of clients", "ifca", "clusters", one_center="fedavg"),
    Candidate("fedem", "a mixture of models for each client", "fedem", "clusters", one_center="fedavg"),
    Candidate("fedroute", "a mixture of models that points are routed to", "fedroute", "clusters", one_center="fedavg"),
    Candidate("local", "models that clients train alone", "local", "alone"),
    Candidate("finetune", "fine-tuned copies of one model", "finetune", "fine-tuned", adopts_by="tune"),
    Candidate("ditto", "Ditto's personal models", "ditto", "personal"),
    Candidate("fedsoft", "FedSoft's personal models", "fedsoft", "personal", one_center="ditto"),
    Candidate("fedprior-1", "personal models with a learned prior", "fedprior", "learned prior", {"S": 1}),
    Candidate(
        "fedprior", "personal models with a learned prior", "fedprior", "learned prior", one_center="fedprior-1"
    ),
    Candidate(
        "fedlevels", "models of tastes and sources with learned priors", "fedlevels", "learned prior",
        one_center="fedprior-1",
    ),
)  # fmt: skip
BY_KEY = {one.key: one for one in CANDIDATES}
FIRST = ("constant", "fedavg", "finetune", "fedprior-1")  # tried however short the time is


def chosen(only: Sequence[str] | None) -> list[Candidate]:
    """Return the candidates of these keys, the simplest first; default: all."""
    for key in only or ():
        if key not in BY_KEY:
            raise unknown("candidate", key, BY_KEY)
    found = [one for one in CANDIDATES if only is None or one.key in only]
    if len(found) < 2:
        raise InputError("recommend needs at least two candidates to compare: name more of them")
    return found


def rank(key: str) -> int:
    """Return the place by simplicity, the simplest first."""
    return [one.key for one in CANDIDATES].index(key)


def rounded(value: float) -> float:
    """Return a value with three digits."""
    return float(f"{value:.3g}")
