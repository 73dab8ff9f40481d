"""Federations in the JSON format of LEAF: FEMNIST, Shakespeare, Sent140 and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.image_settings import Count
from fedsoft.data.leaf_files import Tokens, Users, read_users, sample, shaped
from fedsoft.errors import InputError, MissingSetting
from fedsoft.settings import settings

__all__ = ["leaf"]


@settings
class Leaf:
    """One client for each user of files `{"users": [...], "num_samples": [...], "user_data": {user: {"x", "y"}}}`.

    Arguments:
        path: of a file, a folder of them, or a folder with `train` and, for the held-out points, `test`.
        shape: of one input, where files have it as one list: FEMNIST has [1, 28, 28]. Images of numbers from 0 to 1
            are kept as bytes.
        tokens: how text becomes numbers: by `characters` (Shakespeare) or by `words` in lower case (Sent140). The first
            token is 1; 0 stands for padding and for tokens that are not in the vocabulary.
        vocabulary: the most tokens, of which the most frequent ones of the training points are kept.
        length: tokens of an input, default: those of the longest; longer ones are cut.
        field: where an x is a list of texts, the one that is used, from 0: Sent140 has its text in 4.
        classes: the number of classes, default: the largest label + 1.
        held_out: the share of each user's points that is kept for scoring, where there is no folder `test`.
        limit: the most bytes of memory for the points of one user while they are read.
        seed: decides which points are held out.
    """

    path: str | Path
    shape: tuple[Count, ...] | None = None
    tokens: Literal["characters", "words"] | None = None
    vocabulary: Annotated[int, Field(ge=1, le=10**6)] = 10_000
    length: Annotated[int, Field(ge=1, le=10**5)] | None = None
    field: Annotated[int, Field(ge=0)] | None = None
    classes: Count | None = None
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    limit: Count = 200 * 10**6
    seed: int = 0

    def federation(self) -> Federation:
        """Read the files."""
        users, tested = read_users(Path(self.path), self.limit, self.field)
        to_inputs = self._coder(users, tested)
        train, test = ({n: (to_inputs(n, x), y) for n, (x, y) in part.items()} for part in (users, tested))
        extra = sorted(test.keys() - train.keys())
        if test and len(extra) == len(test):
            raise InputError(
                f"leaf: path = '{self.path}' has other users in test than in train, but clients need training points: "
                "divide the points of each user (in LEAF: -t sample)"
            )
        share = 0 if test else self.held_out
        made = Federation.from_clients(
            list(train.values()), names=list(train), held_out=share, classes=self.classes, seed=self.seed
        )
        if not test:
            return made
        made = made.with_test({name: pair for name, pair in test.items() if name in train})
        left = [f"{len(extra)} users with test points only are left out, the first is '{extra[0]}'"] if extra else []
        return replace(made, notices=(*made.notices, *left))

    def _coder(self, train: Users, test: Users) -> Callable[[str, np.ndarray], np.ndarray]:
        """Return how the x of a user become inputs: numbers in their shape, or tokens of text."""
        everything = [*train.items(), *test.items()]
        texts = [name for name, (x, _) in everything if x.dtype.kind == "U"]
        if not texts:
            # One type for all: a user may happen to have whole numbers only.
            whole = all(x.dtype.kind in "biu" for _, (x, _) in everything)
            return lambda name, x: shaped(name, x if whole else x.astype(np.float32), self.shape)
        words = (train.get(texts[0]) or test[texts[0]])[0]
        if words.ndim > 1:
            raise MissingSetting(
                "leaf", "field", f"x of user '{texts[0]}' is a list of {words.shape[1]} texts (Sent140: 4)"
            )
        if self.tokens is None:
            raise MissingSetting(
                "leaf", "tokens", f"x of user '{texts[0]}' is text ({sample(words)}), give 'characters' or 'words'"
            )
        if len(texts) < len(everything):
            other = next(name for name, (x, _) in everything if x.dtype.kind != "U")
            raise InputError(f"leaf: user '{other}' has numbers as x, but '{texts[0]}' has text: should be the same")
        coder = Tokens.of([x for x, _ in train.values()], self.tokens, self.vocabulary, self.length)
        return lambda _, x: coder.code(x)


leaf = dataset(Leaf)
