"""Add the noise of `privacy.Privacy`: at clients before anything leaves them, and to centers.

Every draw is named after the experiment with its secret, the ask and the client. So the same ask gets the same answer
again, and any other ask fresh noise: the difference of two answers reveals nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.replies import Answer, Kind, Reply, Rows
from fedsoft.errors import InputError
from fedsoft.safety.privacy import Privacy, Released
from fedsoft.seeds import generator

# --- at clients -------------------------------------------------------------------------------------------------------


@dataclass
class ClientNoise:
    """The noise of some clients in one job.

    Arguments:
        privacy: its scale.
        times: how often their algorithm uses counts in one estimation.
        names: of the clients.
        sizes: their numbers of points.
        labels: seed, experiment, secret and ask, which name the draws together with the client.
    """

    privacy: Privacy
    times: int
    names: Sequence[str]
    sizes: Tensor
    labels: tuple[str | int, ...]
    calls: int = field(default=0, init=False)
    sent: int = field(default=0, init=False)

    @property
    def released(self) -> Released:
        """Return what left these clients with noise so far."""
        return Released(self.calls / self.times, self.sent)

    @property
    def covers_models(self) -> bool:
        """Return whether models leave with noise."""
        return self.privacy.update_noise > 0

    def shares(self, shares: Tensor) -> Tensor:
        """Return shares `[m, S]` with noise that hides any single point."""
        if not self.privacy.counts:
            return shares
        self.calls += 1
        std = self.privacy.counts * math.sqrt(2 * self.times)
        return hidden_shares(shares, self.sizes, std, self._draws("counts", self.calls))

    def reply(self, reply: Reply, shared: Mapping[str, Tensor], kinds: Mapping[str, Kind]) -> Reply:
        """Return a reply with noise on its models; raise for entries without noise."""
        noisy = [name for name in reply if kinds[name].has_parameters or kinds[name] is Kind.MIXTURE]
        if other := sorted(set(reply) - set(noisy)):
            raise InputError(
                f"privacy.update_noise = {self.privacy.update_noise} is not allowed here: clients also send {other}, "
                "which have no noise"
            )
        models = [name for name in reply if kinds[name].has_parameters]
        if not models:
            return reply
        if len(models) > 1:
            raise InputError(f"privacy.update_noise is not allowed here: clients send several models ({models})")
        w = reply[models[0]]
        self.sent += 1
        around = shared["centers"].mean(0) if "centers" in shared else torch.zeros_like(w[0])
        return reply | {models[0]: hidden_models(w, around, self.privacy, self._draws("updates", self.sent))}

    def _draws(self, *labels: str | int) -> list[np.random.Generator]:
        seed, *others = self.labels
        return [generator(int(seed), *labels, *others, name) for name in self.names]


def hidden_shares(shares: Tensor, n: Tensor, std: float, draws: list[np.random.Generator]) -> Tensor:
    """Add noise to the counts of `shares[m, S]` of `n[m]` points; clip at 0 and normalise rows to sum to 1."""
    noise = np.stack([draw.standard_normal(shares.shape[1]) for draw in draws])
    counts = shares.double().nan_to_num() * n[:, None].double() + std * torch.from_numpy(noise).to(shares.device)
    counts = counts.clamp(min=0)
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / shares.shape[1]).to(shares.dtype)


def hidden_models(w: Tensor, around: Tensor, privacy: Privacy, draws: list[np.random.Generator]) -> Tensor:
    """Clip models `w[m, P]` to a ball around a model that the server knows, and add noise."""
    if w.ndim != 2 or around.shape != w.shape[1:] or len(draws) != len(w):  # one noise would be shared by several
        raise InputError(f"models of shape {list(w.shape)} around {list(around.shape)}: should be [m, P] around [P]")
    update = w.double() - around.double()
    update = torch.where(torch.isfinite(update).all(1, keepdim=True), update, 0.0)  # hides which clients diverged
    length = torch.linalg.vector_norm(update, dim=1, keepdim=True)
    noise = torch.from_numpy(np.stack([draw.standard_normal(w.shape[1]) for draw in draws])).to(w.device)
    clipped = update * (privacy.update_clip / length.clamp(min=privacy.update_clip))
    # Noise first: a server chooses `around`, and beside a large one the update would be rounded before it is hidden.
    hidden = clipped + 2 * privacy.update_clip * privacy.update_noise * noise
    return (around.double() + hidden).to(w.dtype)


# --- on centers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HiddenRows:
    """Models that can only be seen as noisy means. All of them are gathered in one place for it.

    Arguments:
        rows: the models.
        clip, noise: see `Privacy`.
        members: how many clients a mean is over. Those that did not answer count as no change.
        release: called once for every new set of centers; returns the noise generator of each center.
    """

    rows: Rows
    clip: float
    noise: float
    members: int
    release: Callable[[], Callable[[int], np.random.Generator]]

    def gather(self) -> Tensor:
        """Raise: single models are never shown."""
        raise InputError("privacy.clip is not allowed here: this algorithm looks at single models")

    def weighted(self, weights: Tensor) -> Tensor:
        """Raise: weights that depend on other clients have no bounded sensitivity."""
        raise InputError("privacy.clip is not allowed here: this algorithm takes sums that are no plain means")

    def average(self, weights: Tensor, old: Tensor) -> Tensor:
        """Return centers `old[S, P]` moved by the mean of the clipped updates with a positive weight, and by noise."""
        w, c = self.rows.gather().double(), old.double()
        moved, draw = c.clone(), self.release()
        for s, drawn in enumerate(weights > 0):
            update = w[drawn.to(w.device)] - c[s]
            length = torch.linalg.vector_norm(update, dim=1, keepdim=True)
            moved[s] += (update * (self.clip / length.clamp(min=self.clip))).sum(0) / self.members
            noise = torch.from_numpy(draw(s).standard_normal(c.shape[1])).to(c.device)
            moved[s] += self.std(len(c)) * noise
        return moved.to(old.dtype)

    def std(self, centers: int) -> float:
        """Return the standard deviation of the noise on every coordinate of this many centers."""
        return self.noise * 2 * self.clip * math.sqrt(centers) / self.members


class _Nobody:
    """No models: centers get noise even when nobody answered."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self) -> Tensor:
        return torch.empty(0, self.size)

    def weighted(self, weights: Tensor) -> Tensor:
        return weights.new_zeros((len(weights), self.size), dtype=torch.float64)


@dataclass(frozen=True)
class HiddenAnswer(Answer):
    """An answer whose models are seen only as noisy means, even when nobody answered."""

    models: Mapping[str, HiddenRows]

    def __getitem__(self, name: str) -> Rows:
        return self.models[name] if name in self.models else super().__getitem__(name)


def hidden(answer: Answer, hide: Callable[[Rows], HiddenRows], size: int, kinds: Mapping[str, Kind]) -> Answer:
    """Return the answer with models (of `size` parameters) that can only be seen as noisy means."""
    names = [name for name, kind in kinds.items() if kind.has_parameters]
    models = {name: hide(answer.values[name] if name in answer else _Nobody(size)) for name in names}
    seen = {name: models.get(name, rows) for name, rows in answer.values.items()}
    return HiddenAnswer(answer.ids, seen, models)
