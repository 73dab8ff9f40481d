"""The head of a model: by default the last of its modules that has parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedsoft.core.model import Model
from fedsoft.errors import InputError

Patterns = list[Annotated[str, Field(min_length=1, max_length=200)]] | None
"""Names with `*` and `?` for any text and any character."""


def matching(setting: str, patterns: Iterable[str], known: Sequence[str]) -> set[str]:
    """Return the names of parameters that match; raise for a pattern that matches none."""
    found = set[str]()
    for pattern in patterns:
        own = {name for name in known if fnmatchcase(name, pattern)}
        if not own:
            few = ", ".join(known[:8]) + ", ..." * (len(known) > 8)
            raise InputError(f"{setting} = '{pattern}' matches no parameter of the network, which are {few}")
        found |= own
    return found


def head_of(model: Model, setting: str, patterns: Sequence[str] | None) -> Tensor:
    """Return which parameters are the head's, `[P]`: those that match, by default those of the last module.

    Statistics of batches are never part of it.
    """
    names, sizes = list(model.layout.shapes), model.layout.sizes
    trained = torch.tensor(sizes).cumsum(0) <= model.size - model.statistics
    known = [name for name, kept in zip(names, trained.tolist(), strict=True) if kept]
    last = known[-1].rpartition(".")[0]
    chosen = matching(setting, patterns, known) if patterns else {n for n in known if n.rpartition(".")[0] == last}
    return torch.tensor([name in chosen for name in names]).repeat_interleave(torch.tensor(sizes))
