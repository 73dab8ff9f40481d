"""What clients may do, and what is done about it: one value, the same for every algorithm and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from fedsoft.core.contract import Algorithm
from fedsoft.errors import InputError
from fedsoft.safety.dropouts import Dropouts, check_share
from fedsoft.safety.exclusions import Diverged
from fedsoft.safety.malicious import Attack
from fedsoft.safety.privacy import Privacy
from fedsoft.safety.robust import Aggregator
from fedsoft.secure.protection import Secure


@dataclass(frozen=True)
class Conditions:
    """What clients may do, and what is done about it.

    Arguments:
        dropout: the probability that a client does not answer a job, or a schedule of `fedsoft.safety.dropouts`.
        attack: what malicious clients do, such as `attacks.sign_flip(share=0.2)`, for robustness studies.
        aggregator: replaces the mean wherever clients' models are averaged, such as `aggregators.median()`.
        guard: models with a norm above this many times the median are not accepted; 0 for no limit. Replies that are
            not finite or out of range are never accepted.
        diverged: see `Diverged`; the state of a dropped client stays as it was.
        privacy: the noise that hides points and clients.
        secure: whether replies are seen as sums only, or how; see docs/secure.md.
        malicious: the names of the malicious clients; drawn by the seed when a run is prepared.
    """

    dropout: float | Dropouts = 0.0
    attack: Attack | None = None
    aggregator: Aggregator | None = None
    guard: float = 0.0
    diverged: Diverged = "stop"
    privacy: Privacy | None = None
    secure: Secure | bool | None = None
    malicious: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not callable(self.dropout):
            check_share("dropout", self.dropout)
        if not (self.guard == 0 or 1 <= self.guard < float("inf")):
            raise InputError(f"guard = {self.guard!r} is not allowed: should be a number of at least 1, or 0 for none")
        if self.diverged not in get_args(Diverged):
            raise InputError(f"diverged = {self.diverged!r} is not allowed: should be 'stop' or 'drop'")

    @property
    def protection(self) -> Secure | None:
        """What is asked of sums, where replies are seen as sums only."""
        return Secure() if self.secure is True else self.secure or None

    def check_secure(self, algorithm: Algorithm) -> None:
        """Raise for an algorithm, or for other conditions, that need replies of single clients."""
        if self.protection is None:
            return
        self.protection.check(algorithm)
        privacy = self.privacy
        needed = {
            "aggregator": (self.aggregator is not None, "it compares the models of single clients"),
            "guard": (self.guard != 0, "it compares the norms of single clients"),
            "attack": (self.attack is not None, "what malicious clients send could not be checked"),
            "privacy.floor": (privacy is not None and privacy.floor > 0, "it counts by the mixtures of single clients"),
        }
        for key, (used, why) in needed.items():
            if used:
                raise InputError(f"{key} is not allowed with secure = true: {why}, and only sums over clients are seen")
