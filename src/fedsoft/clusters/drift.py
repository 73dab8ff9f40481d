"""Clients whose mixture changes while a federation learns: seen from their u alone, round by round.

Every client has a usual mixture, a mean over rounds that forgets, and an unrest, the mean of how far its u strays from
it. A client is flagged when its u is much farther from the usual one than that, while the federation is calm: while
centers still move, all clients' u move with them, and that is no news about a client. Hard choices, where all u are 0
or 1, are not watched: a client between two centers changes its choice for no reason.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsoft.core.contract import State

FORGETS = 0.3  # of the old mean in each round
LEAST = 0.15  # share of a client's points; a smaller change is not flagged
CHANCE = 1.5  # divided by the root of a client's points: which center has a few undecided ones is chance
BEYOND = 6.0  # times the usual unrest
CALM = 0.03  # half of the clients stray by less: the centers stand still
QUIET = 5  # calm rounds before anything is flagged


def watch(new: State, old: State, sizes: Tensor | None = None) -> tuple[State, list[int]]:
    """The state after a round with what was learnt about usual mixtures, and the clients that left theirs.

    `sizes`: the numbers of points of the clients; default: many.
    """
    if new.mixture is None or new.mixture.shape[1] < 2:
        return new, []
    u: Tensor = new.mixture / new.mixture.sum(1, keepdim=True)
    before = old.per_client
    known = "usual" in before and before["usual"].shape == u.shape
    usual, unrest = (before["usual"], before["unrest"]) if known else (u, torch.zeros_like(u[:, 0]))
    quiet = int(old.extra["quiet"]) if known else 0
    away = (u - usual).abs().sum(1) / 2
    hard = bool(((u == 0) | (u == 1)).all())
    if hard or not known or float(away.median()) > CALM:  # start over
        usual, unrest, quiet, changed = u, torch.zeros_like(away), 0, torch.zeros_like(away, dtype=torch.bool)
    else:
        quiet += 1
        chance = 0.0 if sizes is None else CHANCE / sizes.to(away).clamp(min=1).sqrt()
        changed = (away > LEAST) & (away > chance) & (away > BEYOND * unrest) & (quiet > QUIET)
        usual = torch.where(changed[:, None], u, usual + FORGETS * (u - usual))
        unrest = torch.where(changed, 0, unrest + FORGETS * (away - unrest))
    kept = new.update(per_client={"usual": usual, "unrest": unrest}, extra={"quiet": torch.tensor(quiet)})
    return kept, torch.nonzero(changed).flatten().tolist()
