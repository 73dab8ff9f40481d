"""How many sources are there? Held-out likelihood, the stability of assignments, and the use of each center.

Every number of centers S is run several times on the same federation, from several seeds. What is compared is how
likely the clients' held-out points are under their own mixture of the centers, the mixture and the noise scale being
those of their training points. So it is a question about centers alone, the same for every algorithm that has S.

Centers that have not arrived tell nothing about sources, and the learning rates of presets are made for another method:
so the rate is found first, as the one that explains training points best with the most centers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft import plugins
from fedsoft.centers.posterior import log_density, mixtures, noise_scale, posterior
from fedsoft.clientdata import ClientData
from fedsoft.errors import FedsoftError, InputError
from fedsoft.federation import Federation
from fedsoft.local import losses_of_all
from fedsoft.model import Model, squared_loss
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.stage import Stage, build
from fedsoft.studies.compare import variant
from fedsoft.studies.farm import Farm, Progress, folders
from fedsoft.threads import one_thread

ALGORITHM = "fedem"
SEEDS = (0, 1, 2)
STABLE = 0.2  # adjusted Rand index below which two seeds do not tell of the same clusters
RATES = (1.0, 3.0, 10.0)  # times that of the preset
UNSCORED = 10**6  # rounds between two looks at the test sets: none but the first and the last
NONE = "no cluster structure found"


@dataclass(frozen=True)
class Trial:
    """What was found with S centers.

    Arguments:
        score: mean over clients of the held-out log-likelihood of a point, by the seed that explains training points
            best; larger is better.
        error: the standard error of that mean.
        stability: mean adjusted Rand index between the assignments of training points by two seeds; None for S = 1.
        arrived: how many seeds explain training points as well as the best, but for one standard error.
        agreement: the stability over these alone, as one that got stuck says nothing about sources; None for fewer
            than two.
        use: the share of the training points that each center explains, largest first.
        seed: the seed that was taken.
        runs: the names of the runs.
    """

    S: int
    score: float
    error: float
    stability: float | None
    arrived: int
    agreement: float | None
    use: tuple[float, ...]
    seed: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """The recommendation.

    Arguments:
        label, algorithm, seeds, lr: what was run.
        trials: one for each S, ascending.
        best: the S of the best score.
        first: the smallest S whose score is within one standard error of it.
        needed: how many of its centers it takes to stay within that standard error.
        recommended: the number of sources; 1 when there is no cluster structure.
        structure: whether there is any.
        reasons: why, in sentences.
    """

    label: str
    algorithm: str
    seeds: tuple[int, ...]
    lr: float | None
    trials: tuple[Trial, ...]
    best: int
    first: int
    needed: int
    recommended: int
    structure: bool
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Names the choice by its content."""
        content = [self.algorithm, [trial.runs for trial in self.trials]]
        return f"choose-{self.label}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"

    @property
    def verdict(self) -> str:
        """In a few words."""
        return f"S = {self.recommended}" if self.structure else NONE

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True)
class View:
    """What centers make of the points of a federation.

    Arguments:
        losses: of the training points, `[points, S]`, and of the held-out points.
        s2: the noise scale of the training points, for squared loss.
    """

    train: ClientData
    held_out: ClientData
    losses: tuple[Tensor, Tensor]
    s2: float | None
    outputs: int

    @staticmethod
    def of(federation: Federation, model: Model, centers: Tensor) -> View:
        """Push all points through all centers."""
        parts = [part.to(centers.device, centers.dtype) for part in (federation.train, federation.held_out)]
        train, held_out = (losses_of_all(model, part, centers).double() for part in parts)
        outputs = max(1, parts[0].y[:1].numel())
        s2 = noise_scale(train, parts[0], outputs) if model.loss is squared_loss else None
        return View(parts[0], parts[1], (train, held_out), s2, outputs)

    def only(self, centers: Sequence[int]) -> View:
        """With some of the centers."""
        train, held_out = (losses[:, list(centers)] for losses in self.losses)
        return replace(self, losses=(train, held_out))

    @cached_property
    def mixture(self) -> Tensor:
        """Of every client, `[N, S]`."""
        return mixtures(log_density(self.losses[0], self.s2, self.outputs), self.train, rough=True)

    def assignment(self) -> Tensor:
        """The posterior of every training point, `[points, S]`."""
        logp = log_density(self.losses[0], self.s2, self.outputs)
        return posterior(-logp, self.mixture[self.train.owners])

    def likelihood(self) -> float:
        """The mean log-likelihood of the training points."""
        return float(self._by_client(self.losses[0], self.train).mean())

    def held_out_likelihood(self) -> np.ndarray:
        """The mean log-likelihood of the held-out points of each client that has some."""
        values = self._by_client(self.losses[1], self.held_out)
        return values[self.held_out.sizes > 0].numpy()

    def _by_client(self, losses: Tensor, data: ClientData) -> Tensor:
        """Shares are those of the training points, half a point of every center added: none is ruled out."""
        sizes = self.train.sizes[:, None].double()
        u = (self.mixture * sizes + 0.5) / (sizes + self.mixture.shape[1] / 2)
        logp = log_density(losses, self.s2, self.outputs)
        return data.mean_by_client(torch.logsumexp(u.log()[data.owners] + logp, dim=1))


def trial_specs(
    base: RunSpec, algorithm: str, S: int, seeds: Sequence[int], lr: float | None = None
) -> list[RunSpec]:  # fmt: skip
    """The runs with S centers: the same federation, other draws."""
    if "S" not in plugins.parameters(plugins.find("algorithms", algorithm)):
        raise InputError(f"--algorithm '{algorithm}' has no S to choose: should be one that has, such as {ALGORITHM}")
    data_seed = base.seed if base.data_seed is None else base.data_seed
    settings = {"S": S} | ({} if lr is None else {"local.lr": lr})
    made = replace(variant(base, algorithm, settings), data_seed=data_seed, score_every=UNSCORED)
    return [made.with_seed(seed) for seed in seeds]


def choose(
    base: RunSpec, S: Sequence[int], out: Path, *, algorithm: str = ALGORITHM, seeds: Sequence[int] = SEEDS,
    lr: float | None = None, jobs: int = 1, share: dict[str, Any] | None = None,
    on_progress: Callable[[Progress], object] = id,
) -> Choice | None:  # fmt: skip
    """Run every S with every seed where that is not saved already, and recommend; None when it was asked to stop.

    Arguments:
        base: what to run, from `spec.read`.
        S: the numbers of centers to try.
        out: the folder that holds the runs.
        algorithm: one that has S.
        seeds: of the runs; the federation is that of the seed of `base`.
        lr: the learning rate; found unless told.
        jobs, share, on_progress: see `Farm`.
    """
    wanted = sorted(set(S))
    if not wanted or wanted[0] < 1:
        raise InputError(f"--S {wanted} is not allowed: should be whole numbers of at least 1, such as 1..8")
    if len(wanted) < 2:
        raise InputError(f"--S {wanted[0]} leaves nothing to choose: should be several, such as 1..8")
    federation, simulation = build(trial_specs(base, algorithm, wanted[0], seeds, lr)[0], Stage(**(share or {})))
    if not int(federation.held_out.sizes.sum()):
        raise InputError("choose needs held-out points of clients, and dataset.held_out leaves none: set it above 0")
    farm = Farm(out, jobs, share=share, on_progress=on_progress)
    count = len(wanted) * len(seeds)
    if lr is None and "lr" in base.local.settings:
        lr = _rate(farm, base, algorithm, wanted[-1], seeds[0], federation, simulation.model, count - 1)
        if lr is None:
            return None
    specs = [spec for s in wanted for spec in trial_specs(base, algorithm, s, seeds, lr)]
    outcomes = farm.run(specs)
    if outcomes is None:
        return None
    found = folders(outcomes, [f"{algorithm}(S={spec.algorithm.settings['S']})" for spec in specs])
    with torch.no_grad(), one_thread():
        looked = [
            _trial(federation, simulation.model, s, seeds, found[i * len(seeds) : (i + 1) * len(seeds)])
            for i, s in enumerate(wanted)
        ]
        trials, views = [trial for trial, _ in looked], [view for _, view in looked]
        return decide(base.label, algorithm, seeds, lr, trials, views)


def _rate(
    farm: Farm, base: RunSpec, algorithm: str, S: int, seed: int, federation: Federation, model: Model, more: int
) -> float | None:
    """The learning rate under which S centers explain the training points best; None when it was asked to stop."""
    rates = [float(f"{base.local.settings['lr'] * factor:.6g}") for factor in RATES]
    outcomes = farm.run([trial_specs(base, algorithm, S, [seed], rate)[0] for rate in rates], more=more)
    if outcomes is None:
        return None
    found: dict[float, float] = {}
    with torch.no_grad(), one_thread():
        for rate, outcome in zip(rates, outcomes, strict=True):
            if outcome.folder is not None:  # a rate that is too large diverges
                found[rate] = View.of(federation, model, _centers(outcome.folder)).likelihood()
    if not found:
        raise FedsoftError(f"{algorithm}, seed {seed}: {outcomes[0].problem}")
    return max(found, key=lambda rate: found[rate])


def _trial(
    federation: Federation, model: Model, S: int, seeds: Sequence[int], runs: Sequence[RunFolder]
) -> tuple[Trial, View]:
    """All seeds of one S, and the view of the one that explains the training points best."""
    views = [View.of(federation, model, _centers(folder)) for folder in runs]
    explained = [view.likelihood() for view in views]
    best = int(np.argmax(explained))
    use = tuple(sorted(views[best].assignment().mean(0).tolist(), reverse=True))
    held_out = views[best].held_out_likelihood()
    error = float(held_out.std(ddof=1) / np.sqrt(len(held_out))) if len(held_out) > 1 else 0.0
    names = tuple(folder.name for folder in runs)
    arrived = [view for view, value in zip(views, explained, strict=True) if value >= explained[best] - error]
    found = Trial(
        S, float(held_out.mean()), error, stability(views), len(arrived), stability(arrived), use, seeds[best], names
    )  # fmt: skip
    return found, views[best]


def _centers(folder: RunFolder) -> Tensor:
    point = folder.checkpoint()
    if point is None:
        raise FedsoftError(f"run '{folder.name}' has no saved state: remove its folder and try again")
    return point.state["centers"]


def stability(views: Sequence[View]) -> float | None:
    """Mean adjusted Rand index between the assignments of training points to centers, over pairs of seeds."""
    from sklearn.metrics import adjusted_rand_score

    if len(views) < 2 or views[0].losses[0].shape[1] == 1:
        return None
    labels = [view.assignment().argmax(1).numpy() for view in views]
    return float(np.mean([adjusted_rand_score(a, b) for a, b in itertools.combinations(labels, 2)]))


def needed_centers(view: View, least: float) -> int:
    """How few of the centers keep the held-out score at `least`: the one that matters least leaves first."""
    left = list(range(view.losses[0].shape[1]))
    while len(left) > 1:
        scores = [float(view.only([s for s in left if s != out]).held_out_likelihood().mean()) for out in left]
        if max(scores) < least:
            break
        left.pop(int(np.argmax(scores)))
    return len(left)


def decide(
    label: str, algorithm: str, seeds: Sequence[int], lr: float | None, trials: Sequence[Trial], views: Sequence[View]
) -> Choice:
    """The one-standard-error rule, then whether all centers are needed, then whether seeds agree on them."""
    top = max(trials, key=lambda trial: trial.score)
    least = top.score - top.error
    place = next(i for i, trial in enumerate(trials) if trial.score >= least)
    first = trials[place]
    needed = needed_centers(views[place], least)
    reasons = [
        f"S = {top.S} explains held-out points best ({top.score:.4g} +- {top.error:.2g} per point); "
        f"S = {first.S} is the smallest within one standard error ({first.score:.4g})"
    ]
    recommended = min(first.S, needed)
    if needed < first.S:
        reasons.append(f"{needed} of its {first.S} centers explain them as well: the others are copies or unused")
    structure = recommended > 1
    if not structure:
        reasons.append("one center explains held-out points as well as several")
    elif first.agreement is None:
        reasons.append("only one seed got there, so whether seeds agree on who belongs together is not known: try more")
    elif first.agreement < STABLE:
        structure, recommended = False, 1
        reasons.append(
            f"seeds do not agree on who belongs together (adjusted Rand index {first.agreement:.2f}, below {STABLE})"
        )
    else:
        reasons.append(
            f"{first.arrived} of {len(seeds)} seeds got there and agree on who belongs together "
            f"(adjusted Rand index {first.agreement:.2f})"
        )
    if structure:
        use = ", ".join(f"{100 * u:.0f} %" for u in first.use[:recommended])
        reasons.append(f"the {recommended} centers used most explain {use} of the points")
    if first.S == trials[-1].S and first.S > 1 and needed == first.S:
        reasons.append(f"S = {first.S} is the largest that was tried: try more")
    return Choice(
        label,
        algorithm,
        tuple(seeds),
        lr,
        tuple(trials),
        top.S,
        first.S,
        needed,
        recommended,
        structure,
        tuple(reasons),
    )
