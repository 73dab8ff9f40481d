"""Clients whose mixture changes while a federation learns: told from their u alone, round by round.

Every client has a usual mixture, a mean over rounds that forgets, and an unrest, the mean of how far its u strays from
it. A client is flagged when its u is much farther from the usual one than that, while the federation is calm: while
centers still move, all clients' u move with them, and that is no news about a client. Hard choices, where all u are 0
or 1, are not watched: a client between two centers changes its choice for no reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsoft.contract import State

FORGETS = 0.3  # of the old mean in each round
LEAST = 0.15  # share of a client's points; a smaller change is not flagged
BEYOND = 6.0  # times the usual unrest
CALM = 0.03  # half of the clients stray by less: the centers stand still
QUIET = 5  # calm rounds before anything is flagged


def watch(new: State, old: State) -> tuple[State, list[int]]:
    """The state after a round with what was learnt about usual mixtures, and the clients that left theirs."""
    if "u" not in new or new["u"].shape[1] < 2:
        return new, []
    u: Tensor = new["u"] / new["u"].sum(1, keepdim=True)
    known = "usual_k" in old and old["usual_k"].shape == u.shape
    usual, unrest = (old["usual_k"], old["unrest_k"]) if known else (u, torch.zeros_like(u[:, 0]))
    quiet = int(old["quiet"]) if known else 0
    away = (u - usual).abs().sum(1) / 2
    hard = bool(((u == 0) | (u == 1)).all())
    if hard or not known or float(away.median()) > CALM:  # begin anew
        usual, unrest, quiet, changed = u, torch.zeros_like(away), 0, torch.zeros_like(away, dtype=torch.bool)
    else:
        quiet += 1
        changed = (away > LEAST) & (away > BEYOND * unrest) & (quiet > QUIET)
        usual = torch.where(changed[:, None], u, usual + FORGETS * (u - usual))
        unrest = torch.where(changed, 0, unrest + FORGETS * (away - unrest))
    entries = {"usual_k": usual, "unrest_k": unrest, "quiet": torch.tensor(quiet)}
    return new | entries, torch.nonzero(changed).flatten().tolist()


def changes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The changes that the records of a run tell of, a sentence for each round."""
    return [
        f"after round {record['round'] + 1} the mixture of {len(names)} client{'s' * (len(names) > 1)} had changed: "
        + ", ".join(names[:10])
        + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        for record in records
        if (names := record.get("changed"))
    ]
