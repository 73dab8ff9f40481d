"""The last round of networks: points that clients hold back find a way to personal models, and all clients take it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsoft.clusters.mixture_loss import mixture_losses
from fedsoft.clusters.personal_way import RATES, SCALES, SLOWER, TASKS, Trial, hold_back, lowest, pull_to, task_solver
from fedsoft.clusters.selection import Participants, participants
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State, Way, job
from fedsoft.core.replies import NUMBER, ClientState, Reply
from fedsoft.core.site import Site


@dataclass(frozen=True)
class Beginning:
    """Where the models of m clients begin: J centers each, and what is whose.

    Arguments:
        centers: `[m, J, P]`.
        part: which of its client's models each point trains, `[points]`.
        shares: how a client adds up the predictions of its models, `[m, J]`.
    """

    centers: Tensor
    part: Tensor
    shares: Tensor

    @staticmethod
    def at(site: Site, c: Tensor) -> Beginning:
        """Return one center `c[m, P]` for each client, trained by all its points."""
        return Beginning(c[:, None], torch.zeros_like(site.data.owners), c.new_ones(len(c), 1))


def reached(old: Tensor, mean: Tensor, reach: float) -> Tensor:
    """Return centers after a step `reach` times as far as the mean of what clients trained."""
    return mean if reach == 1 else old + reach * (mean - old)


class Closing(Algorithm):
    """The last round; subclasses declare the settings and say where clients begin.

    K clients try out a way with some of their points held back: first one task at the run's learning rate, at a third
    of it, and so on while that is better; then task by task at the best rate. All clients take the way that was best.
    """

    K: Participants
    spread: float
    learn: bool = True

    MOST_TASKS: ClassVar[int] = RATES + 2 * TASKS  # of a client in the last round

    @abc.abstractmethod
    def beginning(self, site: Site, mine: ClientState, shared: Mapping[str, Tensor]) -> Beginning:
        """Return where the clients of a site begin, from its points alone."""

    def unknown_way(self, like: Tensor) -> dict[str, Tensor]:
        """Return what a state holds before a way is known."""
        return {"strengths": like.new_zeros(TASKS), "scale": like.new_zeros(()), "rate": like.new_ones(())}

    def untuned(self, w: Tensor) -> ClientState:
        """Return what clients keep before they have models `w[m, J, P]` of their own."""
        even = w.new_full(w.shape[:2], 1 / w.shape[1])
        return {"own": w, "mean": w, "shares": even, "tuned": torch.zeros(len(w), dtype=torch.bool, device=w.device)}

    def closed(self, state: State, ask: Ask, shared: Mapping[str, Tensor] | None = None) -> tuple[State, int]:
        """Find the way, unless it is known, and have all clients take it; return how many did."""
        shared = shared or {}
        if not float(state.extra["strengths"][0]):
            way, like = self._found(state, ask, shared), state.centers
            strengths = like.new_zeros(TASKS)
            strengths[: len(way.strengths)] = like.new_tensor(way.strengths)
            found = {"strengths": strengths, "scale": like.new_tensor(way.scale), "rate": like.new_tensor(way.rate)}
            state = state.update(extra=found)
        way = {name: state.extra[name] for name in ("strengths", "scale", "rate")}
        return state, len(ask("tune", ask.everyone, each=None, centers=state.centers, **way, **shared).ids)

    def _found(self, state: State, ask: Ask, shared: Mapping[str, Tensor]) -> Way:
        first = self.spread**-2
        if not self.learn:
            return Way((first,) * TASKS, 1.0)
        ids, like = participants(ask, self.K), state.centers

        def losses(strength: float, task: int, rate: float) -> Tensor | None:
            now = {"strength": like.new_tensor(strength), "rate": like.new_tensor(rate), "task": torch.tensor(task)}
            answer = ask("try_out", ids, each=None, centers=like, **now, **shared)
            everybody = torch.ones(1, len(answer.ids), dtype=torch.float64)
            return answer["held_back"].weighted(everybody)[0] if len(answer.ids) else None

        rate, best = 1.0, float("inf")
        for slower in (SLOWER**-i for i in range(RATES)):
            if (found := losses(first, 0, slower)) is None or lowest(found)[1] >= best:
                break
            rate, best = slower, lowest(found)[1]
        trial = Trial.begin(first, rate)
        while not trial.over and (found := losses(trial.strength, len(trial.tried), trial.way.rate)) is not None:
            trial = trial.after(found)
        return trial.way

    @job(held_back=NUMBER)
    def try_out(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Do the next task of a way on a part of the points; return losses of the others along the line to it."""
        task = int(shared["task"])
        rest, back = hold_back(site, "held back from the way")
        begin = self.beginning(rest, mine, shared)
        w, before = (begin.centers, begin.centers) if task == 0 else (mine["own"], mine["mean"])
        w = task_done(rest, begin, w, float(shared["strength"]), float(shared["rate"]), task)
        mean = before + (w - before) / (task + 1)
        return mine | {"own": w, "mean": mean}, {"held_back": losses_along(back, begin, mean)}

    @job()
    def tune(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        """Take the way with all points."""
        way, begin = way_of(shared), self.beginning(site, mine, shared)
        w, mean = begin.centers, begin.centers
        for task, strength in enumerate(way.strengths):
            w = task_done(site, begin, w, strength, way.rate, task)
            mean = mean + (w - mean) / (task + 1)
        w = begin.centers + way.scale * (mean - begin.centers)
        return mine | {"own": w, "shares": begin.shares, "tuned": torch.ones_like(mine["tuned"])}, {}

    def predict_tuned(self, mine: ClientState, untuned: PersonalModels) -> PersonalModels:
        """Return clients' own models, and those of `untuned` while they have none."""
        models, tuned = untuned.models, mine["tuned"]
        if mine["own"].shape[1] == 1:
            return PersonalModels(torch.where(tuned[:, None], mine["own"][:, 0], models))
        if untuned.shares is None:
            models, shares = models[:, None], torch.zeros_like(mine["shares"])
            shares[:, 0] = 1
        else:
            shares = untuned.shares
        return PersonalModels(
            torch.where(tuned[:, None, None], mine["own"], models), torch.where(tuned[:, None], mine["shares"], shares)
        )


def way_of(extra: Mapping[str, Tensor]) -> Way:
    """Return the way that a state holds, or that clients received."""
    return Way(tuple(s for s in extra["strengths"].tolist() if s > 0), float(extra["scale"]), float(extra["rate"]))


def task_done(site: Site, begin: Beginning, w: Tensor, strength: float, rate: float, task: int) -> Tensor:
    """Return models `[m, J, P]` after a task from `w`, each on the points that are its own; without any it stays."""
    wide = site.parts(begin.part, w.shape[1])
    pull = pull_to(begin.centers.flatten(0, 1), strength, wide.data.sizes.clamp(min=1))
    solver = task_solver(site.solver, task, rate)
    found, _ = wide.by(solver).solve(w.flatten(0, 1), prox=pull, label=f"way {task}")
    site.count_parts(wide)
    return found.view(w.shape)


def losses_along(back: Site, begin: Beginning, w: Tensor) -> Tensor:
    """Return the summed losses `[m, scales]` of points held back, at `SCALES` on the lines from centers to `w`."""
    c = begin.centers
    return torch.stack([mixture_losses(back, c + scale * (w - c), begin.shares) for scale in SCALES], 1)
