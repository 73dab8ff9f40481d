"""How well a learned prior explains clients, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """How well a prior explains the points of clients, without knowing their models.

    Arguments:
        log: `log sum_s pi_s p(points_k | c_s, Sigma_s)`, summed over clients.
        points, clients: that these are.
        numbers: how many the prior itself consists of.
        one: the same log under one prior for everybody, where several centers are compared with that.
        merged: whether that explains clients as well, so that they predict under it.
    """

    log: float
    points: int
    clients: int
    numbers: int
    one: float | None = None
    merged: bool = False

    @property
    def per_point(self) -> float:
        return self.log / self.points

    @property
    def tells_centers(self) -> bool:
        """Whether runs with other S can be compared by it: not where a prior has more numbers than there are points."""
        return self.numbers < self.points

    @property
    def charged(self) -> float:
        """The same less 1 for each number of the prior (Akaike): what runs with other S compare by.

        So much less would clients have on average from whom the prior was not learned.
        """
        return (self.log - self.numbers) / self.points
