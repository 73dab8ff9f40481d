"""What a node sends when it refuses a request: a code from this list, and nothing else.

The reason, with names and values, is in the node's own log: a server must not learn from a refusal what it may not ask.
"""

from __future__ import annotations

from enum import StrEnum

from fedsoft.errors import FedsoftError


class Refusal(StrEnum):
    """All that a server learns about a refusal."""

    MESSAGE = "bad-message"
    NOT_ALLOWED = "not-allowed"
    DATA = "other-data"
    POINTS = "too-few-points"
    CLIENT = "unknown-client"
    PRIVACY = "privacy-required"
    SPENT = "privacy-spent"
    REQUESTS = "too-many-requests"
    RUNS = "too-many-runs"
    OTHER_RUN = "other-run"
    OVERTAKEN = "overtaken"
    FORGOTTEN = "no-memory"
    DIVERGED = "diverged"
    TIME = "time-limit"
    MEMORY = "memory-limit"
    DISK = "disk-limit"
    SUM = "no-sum"
    FAILED = "failed"


MEANS = {
    Refusal.MESSAGE: "it did not understand the message",
    Refusal.NOT_ALLOWED: "its owner does not allow an algorithm, solver, model, setting or code that the run names",
    Refusal.DATA: "its data is not what the run describes",
    Refusal.POINTS: "one of its clients has fewer points than its owner requires",
    Refusal.CLIENT: "it does not hold a client that the request names",
    Refusal.PRIVACY: "its owner requires more noise than the run adds",
    Refusal.SPENT: "its owner's privacy budget is spent",
    Refusal.REQUESTS: "it had as many requests as its owner allows",
    Refusal.RUNS: "it keeps memory of as many runs as its owner allows",
    Refusal.OTHER_RUN: "it knows another run by this name",
    Refusal.OVERTAKEN: "the request was overtaken by a later one, or goes back too far",
    Refusal.FORGOTTEN: "it keeps nothing of this run: resume it on the nodes where it began, with the same command",
    Refusal.DIVERGED: "training diverged there",
    Refusal.TIME: "the job took longer than its owner allows",
    Refusal.MEMORY: "the job needed more memory than its owner allows",
    Refusal.DISK: "the job needed more disk than its owner allows",
    Refusal.SUM: "it takes no part in a sum that is asked for so, or with these nodes",
    Refusal.FAILED: "the job failed there",
}
"""What a code means, for the server's log."""


def meaning(code: object) -> str:
    """Return a code that came from a node in words; a code that is not on the list is not repeated."""
    known = code in list(Refusal) if isinstance(code, str) else False
    return f"it refused ({code}): {MEANS[Refusal(str(code))]}" if known else "it refused, with an unknown code"


class Refused(FedsoftError):
    """A request that a node refuses.

    Arguments:
        code: what the server learns.
        detail: a sentence for the node's own log; it names the setting of the node's file that decides.
    """

    def __init__(self, code: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.code = code
