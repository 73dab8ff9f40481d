"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsoft.errors import InputError, unknown

# The order of these lines is that of the checks.
from fedsoft.theory import objective  # isort: skip
from fedsoft.theory import estimation  # isort: skip
from fedsoft.theory import subproblems  # isort: skip
from fedsoft.theory import descent  # isort: skip
from fedsoft.theory import joint  # isort: skip
from fedsoft.theory import selection  # isort: skip
from fedsoft.theory import tau  # isort: skip
from fedsoft.theory.check import STATEMENTS, Check

FAMILIES = (objective, estimation, subproblems, descent, joint, selection, tau)
DRAWS = 200


def run_checks(
    seed: int = 0,
    draws: int = DRAWS,
    only: Sequence[str] | None = None,
    on_check: Callable[[str, int, int], object] | None = None,
) -> list[Check]:
    """Check the statements of the paper.

    Arguments:
        seed: of all draws.
        draws: how many problems or selections the larger checks draw; the smaller ones take a fixed part of it.
        only: names of checks, or beginnings of names (default: all).
        on_check: called with the name, the number done and the total before each check.
    """
    if not isinstance(draws, int) or isinstance(draws, bool) or draws < 10:
        raise InputError(f"draws = {draws!r} is not allowed: should be a whole number of at least 10")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed = {seed!r} is not allowed: should be a whole number of at least 0")
    names = list(STATEMENTS)
    if only:
        for name in only:
            if not any(known.startswith(name) for known in STATEMENTS) or not name:
                raise unknown("check", name, STATEMENTS)
        names = [known for known in STATEMENTS if any(known.startswith(name) for name in only)]
    found = []
    for done, name in enumerate(names):
        if on_check is not None:
            on_check(name, done, len(names))
        found.append(STATEMENTS[name].check(seed, draws))
    return found
