"""Clients that join a run, and clients that leave it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedsoft.core.federation import Federation
from fedsoft.core.scaling import Scale
from fedsoft.errors import InputError
from fedsoft.training.rounds import Change


def membership(before: Sequence[str], after: Sequence[str], at: int) -> Change:
    """Return who joins and who leaves after `at` rounds; raises where nobody stays."""
    old, new = set(before), set(after)
    if not old & new:
        raise InputError(
            f"none of the clients of the run is in this federation: it has '{after[0]}' to '{after[-1]}', the run "
            f"'{before[0]}' to '{before[-1]}' (clients are found by their names)"
        )
    joined, left = (name for name in after if name not in old), (name for name in before if name not in new)
    return Change(at, tuple(joined), tuple(left))


def check_same_kind(old: Federation, new: Federation) -> Federation:
    """Return the new federation as models of the old one see it; raises where they cannot."""
    for name, had, has in (
        ("shape", old.shape, new.shape), ("classes", old.columns.classes, new.columns.classes),
        ("features", old.columns.features, new.columns.features),
        ("categories", dict(old.columns.categories), dict(new.columns.categories)),
    ):  # fmt: skip
        if had != has:
            raise InputError(f"the {name} of this federation should be those of the run, {had}: they are {has}")
    return scaled_as(new, old.scale)


def scaled_as(federation: Federation, scale: Scale | None) -> Federation:
    """Return a federation whose inputs are scaled as a run's are: its models know no other."""
    own = federation.scale
    if scale is None and own is None:
        return federation
    if scale is not None and own is not None and torch.equal(scale.mean, own.mean) and torch.equal(scale.std, own.std):
        return federation
    if scale is None or own is not None:
        run = "does not scale its inputs" if scale is None else "scales its inputs by those that it began with"
        raise InputError(
            f"this federation is scaled by its own points, but the run {run}: make it with standardize=False "
            "(no federation.standardized()), it is then scaled as the run's is"
        )
    return federation.scaled(scale)
