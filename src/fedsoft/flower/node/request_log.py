"""How many requests a node has answered in a run, and which run that is: on disk before an answer is sent.

Counts survive restarts and are not reset by a new attempt: a server could begin as many as it likes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedsoft.flower.node.policy import Policy
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.storage.atomic import write_json
from fedsoft.storage.files import read_json

FILE = "requests.json"
SCORES = 10  # requests for scores in a run: exact means, of models that may be the server's choice
REMEMBERED = 8  # rounds: memory goes back by fewer than that


def digest_of(spec: dict[str, Any]) -> str:
    """Return a hash of a run, whatever order its settings come in."""
    return hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=16).hexdigest()


class RequestLog:
    """The requests of one run at one node.

    Arguments:
        folder: of the run's memory.
        policy: holds how many requests are allowed.
        spec: the run as the server describes it.
    """

    def __init__(self, folder: Path, policy: Policy, spec: dict[str, Any]) -> None:
        self.folder, self.policy, self.run = folder, policy, digest_of(spec)
        self.total, self.scores, self.rounds = 0, 0, {}
        if (folder / FILE).exists():
            known = read_json(folder / FILE)
            self._check(known["run"], self.run)
            self.total, self.scores = int(known["total"]), int(known["scores"])
            self.rounds = {int(t): int(n) for t, n in known["rounds"].items()}

    def check(self, spec: dict[str, Any]) -> None:
        """Refuse a run whose settings changed since it began."""
        self._check(self.run, digest_of(spec))

    def _check(self, began: str, now: str) -> None:
        if began != now:
            raise Refused(Refusal.OTHER_RUN, f"the run '{self.folder.name}' was begun with other settings")

    def count(self, t: int) -> None:
        """Count one more request in round t; refuse one too many."""
        found, policy = self.rounds.get(t, 0), self.policy
        if found >= policy.requests_per_round:
            raise Refused(Refusal.REQUESTS, f"round {t} had {found} requests, the limit policy.requests_per_round")
        if self.total >= policy.requests_per_run:
            raise Refused(Refusal.REQUESTS, f"the run had {self.total} requests, the limit policy.requests_per_run")
        self.total += 1
        self.rounds[t] = found + 1
        self.rounds = dict(sorted(self.rounds.items())[-REMEMBERED:])
        self.save()

    def count_scores(self, t: int) -> None:
        """Count one more request for scores."""
        if self.scores >= SCORES:
            raise Refused(Refusal.REQUESTS, f"the run had {self.scores} requests for scores, which is the limit")
        self.scores += 1
        self.count(t)

    def save(self) -> None:
        content = {"run": self.run, "total": self.total, "scores": self.scores, "rounds": self.rounds}
        write_json(self.folder / FILE, content)
