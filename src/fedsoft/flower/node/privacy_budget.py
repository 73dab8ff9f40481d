"""What each client's noise has paid for, over all runs of a node: on disk before an answer is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsoft.errors import StoreError
from fedsoft.flower.node.policy import Policy
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.safety.accountant import gaussian_epsilon
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

FILE = "privacy.json"


class PrivacyBudget:
    """How much each client has released, in units in which Gaussian noises add up: see `Privacy.precision`.

    Arguments:
        folder: of the node's memory.
        policy: holds the largest epsilon that is allowed.
    """

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.folder, self.policy = folder, policy

    def read(self) -> dict[str, float]:
        """Return what was spent, by client."""
        path = self.folder / FILE
        try:
            found = read_json(path) if path.exists() else {}
            return {str(name): float(value) for name, value in found.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise StoreError(f"'{path}' is damaged ({type(error).__name__}): nothing is answered without it") from None

    def check(self, clients: Sequence[str], precision: float) -> dict[str, float]:
        """Refuse a job that may release so much before any data is used: a later refusal would reveal something.

        Return what was spent before it.
        """
        noise, known = self.policy.noise, self.read()
        if not noise.epsilon:
            return known
        epsilon = gaussian_epsilon(1.0, noise.delta, max(known.get(name, 0.0) for name in clients) + precision)
        if epsilon > noise.epsilon:
            detail = f"epsilon would become {epsilon:.3g}, and policy.privacy.epsilon is {noise.epsilon:g}"
            raise Refused(Refusal.SPENT, detail)
        return known

    def spend(self, known: Mapping[str, float], clients: Sequence[str], precision: float) -> None:
        """Write down what these clients release, beside what was `known` to be spent before."""
        write_json(self.folder / FILE, {**known, **{name: known.get(name, 0.0) + precision for name in clients}})
