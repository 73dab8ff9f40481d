"""Where a network's training starts: at the weights that it brings, or at draws.

What comes out the same every time a network is made is there on purpose, as in a pretrained network, and is kept. What
differs is what a constructor draws. Centers that would all start at the same weights start apart: the first one and all
clients exactly there, every further center a small step away, each in its own direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedsoft.core.model import Layout, xavier_normal
from fedsoft.seeds import generator

Init = Literal["auto", "xavier", "own"]
"""`auto`: what a network brings is kept, what its constructor draws is drawn anew as in the paper. `own`: kept, or as
the constructor draws. `xavier`: all weights are drawn as in the paper."""

SPREAD = 0.1  # of the root mean square of a tensor: how far further centers start from weights that are kept

Draw = Callable[[np.random.Generator], Tensor]
Apart = Callable[[Tensor, np.random.Generator], Tensor]


@dataclass(frozen=True)
class Start:
    """Where training starts.

    Arguments:
        draw: weights `[P]` from a generator.
        apart: moves them where all draws are the same; None where they differ.
    """

    draw: Draw
    apart: Apart | None


def start_of(make: Callable[[], nn.Module], net: nn.Module, layout: Layout, init: Init, trained: int) -> Start:
    """Return where the training of `net` starts; `make` makes another one like it.

    The first `trained` tensors of the layout are trained, the others are statistics, which are always kept.
    """
    kept = weights_of(net, layout)

    def own(rng: np.random.Generator) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            return weights_of(make(), layout)

    drawn = xavier_normal(layout, keep=kept)

    def auto(rng: np.random.Generator) -> Tensor:
        return torch.where(same, kept, drawn(rng))

    if init == "auto":
        again = own(generator(1, "try"))
        same = torch.cat([(kept[place] == again[place]).all().expand(place.stop - place.start)
                          for _, place, _ in layout.slices()])  # fmt: skip
    draw = {"auto": auto, "xavier": drawn, "own": own}[init]
    first, other = (draw(generator(seed, "try")) for seed in range(2))
    return Start(draw, _apart(layout, trained) if torch.equal(first, other) else None)


def weights_of(net: nn.Module, layout: Layout) -> Tensor:
    """Return the parameters and statistics of a network as a vector."""
    named = (*net.named_parameters(), *net.named_buffers())
    return layout.flatten({name: t.detach().float() for name, t in named if name in layout.shapes})


def _apart(layout: Layout, trained: int) -> Apart:
    """Move every matrix by a share of its size, in a direction of its own; vectors only where there is nothing else."""
    movable = list(layout.slices())[:trained]
    least = 2 if any(len(shape) >= 2 for _, _, shape in movable) else 0

    def apart(w: Tensor, rng: np.random.Generator) -> Tensor:
        w = w.clone()
        for _, place, shape in movable:
            if len(shape) < least:
                continue
            size = float(w[place].square().mean().sqrt())
            if not size:  # such as half of an adapter: as large as a draw would be
                sides = shape if len(shape) >= 2 else (1, math.prod(shape))
                size = math.sqrt(2 / ((sides[0] + sides[1]) * math.prod(sides[2:])))
            step = torch.from_numpy(rng.standard_normal(place.stop - place.start))
            w[place] += (SPREAD * size * step).to(w.dtype)
        return w

    return apart
