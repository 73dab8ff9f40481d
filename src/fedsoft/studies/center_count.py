"""How many centers? Held-out likelihood, the stability of assignments, and the use of each center.

Every number of centers S is run several times on the same federation, from several seeds. The score is how likely the
clients' held-out points are under their own mixture of the centers, with the mixture and the noise scale of their
training points. So it depends on centers alone, and is the same for every algorithm that has S.

Centers that have not converged say nothing about sources, and the learning rates of presets suit another method: so the
rate is chosen first, as the one that explains training points best with the most centers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsoft import plugins
from fedsoft.errors import FedsoftError, InputError
from fedsoft.evaluation.paired import paired
from fedsoft.machine.threads import one_thread
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions, build
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.methods import variant
from fedsoft.studies.mixture_fit import MixtureFit, needed_centers, stability
from fedsoft.studies.process_pool import ProcessPool, folders
from fedsoft.training.settled import settled

ALGORITHM = "fedem"
SEEDS = (0, 1, 2)
STABLE = 0.2  # adjusted Rand index below which seeds disagree on clusters
SURE = 0.9  # level of the interval by which several centers have to beat one: 95 %, one-sided
SCORED = 12  # times that a run is scored, to see whether it has come to rest
RATES = (1.0, 3.0, 10.0)  # times that of the preset
NONE = "no cluster structure found"


@dataclass(frozen=True)
class CountTrial:
    """The result with S centers.

    Arguments:
        score: mean over clients of the held-out log-likelihood of a point, for the seed that explains training points
            best; larger is better.
        error: standard error of that mean.
        stability: mean adjusted Rand index between the assignments of training points by two seeds; None for S = 1.
        arrived: how many seeds explain training points as well as the best, within one standard error.
        agreement: stability over these alone, as a seed that got stuck says nothing about sources; None for fewer than
            two.
        use: share of the training points that each center explains, largest first.
        seed: the best seed.
        runs: names of the runs.
        settled: whether the best seed's run had come to rest; None where that is not known.
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
    settled: bool | None = None


@dataclass(frozen=True)
class Choice:
    """The recommendation.

    Arguments:
        label, algorithm, seeds, lr: what was run.
        trials: one for each S, ascending.
        best: the S with the best score.
        first: the smallest S whose score is within one standard error of it.
        needed: how many of its centers are needed to stay within that standard error.
        recommended: the number of sources; 1 when there is no cluster structure.
        structure: whether there is cluster structure.
        reasons: sentences that say why.
    """

    label: str
    algorithm: str
    seeds: tuple[int, ...]
    lr: float | None
    trials: tuple[CountTrial, ...]
    best: int
    first: int
    needed: int
    recommended: int
    structure: bool
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return a name made from the content."""
        content = [self.algorithm, [trial.runs for trial in self.trials]]
        return f"choose-{self.label}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"

    @property
    def verdict(self) -> str:
        return f"S = {self.recommended}" if self.structure else NONE

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def trial_specs(
    base: RunSpec, algorithm: str, S: int, seeds: Sequence[int], lr: float | None = None
) -> list[RunSpec]:  # fmt: skip
    """Return the runs with S centers: the same federation, other draws."""
    if "S" not in plugins.parameters(plugins.find("algorithms", algorithm, [algorithm])):
        raise InputError(f"--algorithm '{algorithm}' has no S to choose: should be one that has, such as {ALGORITHM}")
    data_seed = base.seed if base.data_seed is None else base.data_seed
    settings = {"S": S} | ({} if lr is None else {"solver.lr": lr})
    every = max(1, base.rounds // SCORED)
    made = replace(variant(base, algorithm, settings), data_seed=data_seed, score_every=every)
    return [made.with_seed(seed) for seed in seeds]


def choose(
    base: RunSpec, S: Sequence[int], pool: ProcessPool, *, algorithm: str = ALGORITHM, seeds: Sequence[int] = SEEDS,
    lr: float | None = None,
) -> Choice | None:  # fmt: skip
    """Run every S with every seed where that is not saved already, and recommend a number; None when stopped.

    Arguments:
        base: what to run, from `spec.read`.
        S: the numbers of centers to try; 1 is tried besides, as what all others have to beat.
        pool: runs it, and names the folder that holds the runs.
        algorithm: one that has S.
        seeds: of the runs; the federation is that of the seed of `base`.
        lr: the learning rate; default: chosen by trial.
    """
    wanted = sorted(set(S))
    if not wanted or wanted[0] < 1:
        raise InputError(f"--S {wanted} is not allowed: should be whole numbers of at least 1, such as 1..8")
    if len(wanted) < 2:
        raise InputError(f"--S {wanted[0]} leaves nothing to choose: should be several, such as 1..8")
    if not seeds:
        raise InputError("seeds: none is given, should be at least two")
    wanted = wanted if wanted[0] == 1 else [1, *wanted]
    first = trial_specs(base, algorithm, wanted[0], seeds, lr)[0]
    federation, engine = build(first, RunOptions(device=pool.options.device, given=pool.options.given))
    if not int(federation.held_out.sizes.sum()):
        raise InputError("choose needs held-out points of clients, and dataset.held_out leaves none: set it above 0")

    def fit(folder: RunFolder) -> MixtureFit:
        return MixtureFit.of(federation, engine.model, _centers(folder))

    if lr is None and "lr" in base.solver.settings:
        rates = [float(f"{base.solver.settings['lr'] * factor:.6g}") for factor in RATES]
        tried = {rate: trial_specs(base, algorithm, wanted[-1], [seeds[0]], rate)[0] for rate in rates}
        lr = _best_rate(tried, pool, fit, more=len(wanted) * len(seeds) - 1)
        if lr is None:
            return None
    specs = [spec for s in wanted for spec in trial_specs(base, algorithm, s, seeds, lr)]
    outcomes = pool.run(specs)
    if outcomes is None:
        return None
    found = folders(outcomes, [f"{algorithm}(S={spec.algorithm.settings['S']})" for spec in specs])
    with torch.no_grad(), one_thread():
        trials, fits = [], []
        for i, s in enumerate(wanted):
            runs = found[i * len(seeds) : (i + 1) * len(seeds)]
            trial, best = _trial(s, seeds, [folder.name for folder in runs], [fit(folder) for folder in runs])
            calm = settled(runs[list(seeds).index(trial.seed)].records(), engine.model.metric.higher_is_better)
            trials.append(replace(trial, settled=calm))
            fits.append(best)
        return decide(base.label, algorithm, seeds, lr, trials, fits)


def _best_rate(
    tried: dict[float, RunSpec], pool: ProcessPool, fit: Callable[[RunFolder], MixtureFit], more: int
) -> float | None:
    """Return the learning rate whose run explains the training points best; None when stopped."""
    outcomes = pool.run([*tried.values()], more=more)
    if outcomes is None:
        return None
    found: dict[float, float] = {}
    with torch.no_grad(), one_thread():
        for rate, outcome in zip(tried, outcomes, strict=True):
            if outcome.folder is not None:  # a rate that is too large diverges
                found[rate] = fit(outcome.folder).likelihood()
    if not found:
        folders(outcomes, [outcome.spec.algorithm.name for outcome in outcomes])  # raises
    return max(found, key=lambda rate: found[rate])


def _trial(
    S: int, seeds: Sequence[int], names: Sequence[str], fits: Sequence[MixtureFit]
) -> tuple[CountTrial, MixtureFit]:
    """Summarize all seeds of one S; also return the fit that explains the training points best."""
    explained = [fit.likelihood() for fit in fits]
    best = int(np.argmax(explained))
    use = tuple(sorted(fits[best].assignment().mean(0).tolist(), reverse=True))
    held_out = fits[best].held_out_likelihood()
    error = float(held_out.std(ddof=1) / np.sqrt(len(held_out))) if len(held_out) > 1 else 0.0
    arrived = [fit for fit, value in zip(fits, explained, strict=True) if value >= explained[best] - error]
    found = CountTrial(
        S, float(held_out.mean()), error, stability(fits), len(arrived), stability(arrived), use, seeds[best],
        tuple(names),
    )  # fmt: skip
    return found, fits[best]


def _centers(folder: RunFolder) -> Tensor:
    point = folder.checkpoint()
    if point is None:
        raise FedsoftError(f"run '{folder.name}' has no saved state: remove its folder and try again")
    return point.state.centers


def decide(
    label: str, algorithm: str, seeds: Sequence[int], lr: float | None, trials: Sequence[CountTrial],
    fits: Sequence[MixtureFit],
) -> Choice:  # fmt: skip
    """Apply the one-standard-error rule, then check whether all centers are needed and whether seeds agree on them.

    A number of centers whose run had not come to rest, or that does not beat one center, client by client and by more
    than chance, is never recommended.
    """
    reasons: list[str] = []
    able = [0, *(i for i in range(1, len(trials)) if _is_candidate(trials[i], fits[i], fits[0], reasons))]
    if trials[0].S > 1:  # nothing to beat is known
        able = [*range(len(trials))]
    top = max((trials[i] for i in able), key=lambda trial: trial.score)
    least = top.score - top.error
    place = next(i for i in able if trials[i].score >= least)
    first = trials[place]
    needed = needed_centers(fits[place], least)
    reasons.insert(
        0,
        f"S = {top.S} explains held-out points best ({top.score:.4g} +- {top.error:.2g} per point); "
        f"S = {first.S} is the smallest within one standard error ({first.score:.4g})",
    )
    recommended = min(first.S, needed)
    if needed < first.S:
        reasons.append(f"{needed} of its {first.S} centers explain them as well: the others are copies or unused")
    structure = recommended > 1
    if not structure:
        reasons.append("one center explains held-out points as well as several")
    elif (agreement := first.stability if first.agreement is None else first.agreement) is None:
        reasons.append("there is one seed, so whether seeds agree on who belongs together is not known: try more")
    elif agreement < STABLE:
        structure, recommended = False, 1
        alone = "; only one seed got there: try more" if first.agreement is None else ""
        reasons.append(
            f"seeds do not agree on who belongs together (adjusted Rand index {agreement:.2f}, below {STABLE}){alone}"
        )
    else:
        reasons.append(
            f"{first.arrived} of {len(seeds)} seeds got there and agree on who belongs together "
            f"(adjusted Rand index {agreement:.2f})"
        )
    if structure:
        use = ", ".join(f"{100 * u:.0f} %" for u in first.use[:recommended])
        reasons.append(f"the {recommended} centers used most explain {use} of the points")
    if first.S == trials[-1].S and first.S > 1 and needed == first.S:
        reasons.append(f"S = {first.S} is the largest that was tried: try more")
    return Choice(
        label, algorithm, tuple(seeds), lr, tuple(trials), top.S, first.S, needed, recommended, structure,
        tuple(reasons),
    )  # fmt: skip


def _is_candidate(trial: CountTrial, fit: MixtureFit, one: MixtureFit, reasons: list[str]) -> bool:
    """Return whether a number of centers may be recommended; append why not to the reasons."""
    if trial.settled is False:
        reasons.append(f"S = {trial.S} still improved when its run ended, so it is left out: give it more rounds")
        return False
    gain = paired(fit.held_out_likelihood(), one.held_out_likelihood(), level=SURE)  # on the same points of each client
    if gain is None or gain.is_clear:
        return gain is not None
    reasons.append(
        f"S = {trial.S} is not surely better than one center ({gain.mean:.3g} per point and client, "
        f"{100 * SURE:.0f} % interval {gain.low:.3g} to {gain.high:.3g})"
    )
    return False
