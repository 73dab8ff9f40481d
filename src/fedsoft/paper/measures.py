"""What is compared of a table of centers: free of the draw's scale, by an alignment that cannot make its own success.

The errors of a center on two sources say where on the segment between them it lies: a least-squares center at c has the
error 1 + |c - theta_s|^2 on source s, where noise has variance 1, so that

    a = sqrt(e_0 - 1) / (sqrt(e_0 - 1) + sqrt(e_1 - 1))

is 0 at theta_0, 1 at theta_1 and 1/2 for one pooled model, however far apart the sources of a draw are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedsoft.evaluation.scores import align
from fedsoft.paper.published import Centers
from fedsoft.paper.verdicts import Key

Table = Sequence[Sequence[float]]
"""`[center][source]`: errors, or accuracies in percent."""

LOCAL = "local"
NOISE = 1.0  # variance of the synthetic data
APART = 1.5  # a printed value that implies so many times another distance of the sources is doubtful


def left_over(table: np.ndarray, source: int, higher: bool) -> int:
    """Return the center of a source: the one that is left when the other sources have chosen theirs."""
    if table.shape[1] < 2:
        return 0
    if table.shape == (2, 2):  # the same, in short
        other = table[:, 1 - source]
        return int(other[0] > other[1] if higher else other[0] < other[1])
    others = np.delete(table, source, axis=1)
    cost = -others if higher else others
    taken = {align(cost.T, False)[j] for j in range(others.shape[1])}  # for each other source its center
    free = [s for s in range(len(table)) if s not in taken]
    return free[0] if free else int(cost.mean(1).argmax())


def away(error: float) -> float:
    """Return how far a center is from a source, from its error there."""
    return math.sqrt(max(error - NOISE, 0.0))


def position(own: float, other: float) -> float:
    """Return where a center lies between its source (0) and the other one (1), from its errors on both.

    >>> round(position(29.5, 68.4), 3), position(5.0, 5.0)
    (0.394, 0.5)
    """
    near, far = away(own), away(other)
    return near / (near + far) if near + far else 0.5


def measures(block: str, table: Table, higher: bool, local: float | None = None) -> dict[Key, float]:
    """Return everything that is compared of one block of one run."""
    found: dict[Key, float] = {}
    values = np.asarray(table, dtype=float)
    count = values.shape[1]
    chosen = [left_over(values, j, higher) for j in range(count)]
    for j, s in enumerate(chosen):
        rest = np.delete(values[:, j], s)
        found[block, "own", j] = float(values[s, j])
        found[block, "next", j] = float((rest.max() if higher else rest.min()) if len(rest) else values[s, j])
        found[block, "rest", j] = float(rest.mean() if len(rest) else values[s, j])
    if count == 2 and not higher:
        found[block, "position"] = float(np.mean([position(values[s, j], values[s, 1 - j])
                                                  for j, s in enumerate(chosen)]))  # fmt: skip
        if local is not None:
            found |= {(block, LOCAL): local, (block, "local share"): local / distance(values)}
        return found
    aligned = values[np.argsort(np.asarray(align(values, higher)), kind="stable")]
    scale = np.ones(count) if higher else aligned.mean(0)
    for j in range(count):
        for i in range(len(aligned)):
            found[block, "cell", j, i] = float(aligned[i, j] / scale[j])
    if local is not None:
        found[block, LOCAL] = local
    return found


def distance(table: np.ndarray) -> float:
    """Return the squared distance of two sources that errors of centers on the segment between them imply."""
    return float(np.mean([(away(e0) + away(e1)) ** 2 for e0, e1 in table]))


def compared(block: str, table: Table, higher: bool, local: bool) -> list[Key]:
    """Return the keys of a block whose published values should lie in our range."""
    values = np.asarray(table)
    if values.shape[1] == 2 and not higher:
        return [(block, "position"), *([(block, "local share")] if local else [])]
    cells: list[Key] = [(block, "cell", j, i) for j in range(values.shape[1]) for i in range(len(values))]
    return [*cells, *([(block, LOCAL)] if local else [])]


# --- misprints --------------------------------------------------------------------------------------------------------


def doubtful(printed: Centers) -> tuple[int, int, float] | None:
    """Return a printed error (source, center) of two sources that is probably a misprint, and the value to expect.

    Both centers of a draw lie on the segment between its sources, so both imply the same distance. Where they do not,
    one value is wrong: one that, put right, leaves the value that the paper underlines as the best of its row. A value
    that is printed twice comes first.

    >>> doubtful(Centers(((225.3, 89.9), (117.6, 89.9)), ((1,), (0,))))  # Table 6, sigma_0 = 50
    (1, 1, 268.1955353065341)
    """
    table = np.array(printed.values).T
    if table.shape != (2, 2):
        return None
    implied = [(away(e0) + away(e1)) ** 2 for e0, e1 in table]
    if max(implied) <= APART * min(implied):
        return None
    for s, j in sorted(np.ndindex(2, 2), key=lambda place: -int((table == table[place]).sum())):
        left = math.sqrt(implied[1 - s]) - away(float(table[s, 1 - j]))
        right = table.copy()
        right[s, j] = NOISE + left**2
        if left > 0 and all(right[:, i].argmin() in printed.underlined[i] for i in (0, 1)):
            return j, s, float(right[s, j])
    return None


def mended(printed: Centers) -> list[list[float]]:
    """Return the printed values `[center][source]`, a probable misprint replaced by what the others imply."""
    table = np.array(printed.values, dtype=float).T
    if (found := doubtful(printed)) is not None:
        source, center, expected = found
        table[center, source] = expected
    return table.tolist()
