"""The values that the paper prints. Typed from its tables and from nowhere else.

Rows are sources and columns centers, as printed: the paper numbers its centers at random. What the paper underlines
stands beside the values, because it is not everywhere the best one.
"""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = ("10:90", "30:70", "linear", "random")


@dataclass(frozen=True)
class Centers:
    """One block of a table of centers.

    Arguments:
        values: `values[source][center]`.
        underlined: for each source the centers that the paper underlines.
        local: the mean over clients of the error or accuracy on their own training points, where it is printed.
    """

    values: tuple[tuple[float, ...], ...]
    underlined: tuple[tuple[int, ...], ...]
    local: float | None = None


@dataclass(frozen=True)
class Method:
    """One method under one partition: the best center of each source with its number, and the local models."""

    centers: tuple[float, ...]
    indices: tuple[int, ...]
    local: float


def _two(a: tuple[float, float], b: tuple[float, float], best: tuple[int, int], local: float | None = None) -> Centers:
    return Centers((a, b), ((best[0],), (best[1],)), local)


TABLE_1_SYNTHETIC = {  # mean squared error
    "10:90": _two((68.4, 29.5), (21.8, 58.6), (1, 0)),
    "30:70": _two((44.2, 49.6), (41.3, 36.3), (0, 1)),
    "linear": _two((38.2, 59.1), (47.1, 27.8), (0, 1)),
    "random": _two((42.2, 60.6), (42.7, 27.0), (0, 1)),
}

TABLE_1_LETTERS = {  # accuracy, %
    "10:90": _two((68.9, 70.3), (74.6, 73.3), (1, 0)),
    "30:70": _two((65.9, 65.8), (70.1, 70.4), (0, 1)),
    "linear": _two((71.8, 71.7), (73.9, 74.1), (0, 1)),
    "random": _two((72.0, 72.5), (77.7, 77.2), (1, 0)),
}

TABLE_2 = {  # letters, accuracy, %
    "10:90": {
        "FedSoft": Method((70.3, 74.6), (1, 0), 90.9),
        "IFCA": Method((58.5, 61.3), (0, 1), 65.2),
        "FedEM": Method((67.4, 69.8), (1, 1), 63.6),
    },
    "linear": {
        "FedSoft": Method((71.8, 74.1), (0, 1), 86.5),
        "IFCA": Method((55.4, 57.2), (0, 0), 62.9),
        "FedEM": Method((65.9, 69.0), (0, 0), 62.4),
    },
}

TABLE_3 = {  # synthetic, 8 sources, mean squared error
    "random": Centers(
        (
            (62.2, 62.7, 64.0, 63.2, 61.4, 57.6, 63.7, 61.9),
            (65.0, 67.8, 69.4, 65.8, 64.3, 67.1, 64.2, 64.5),
            (60.1, 59.9, 57.8, 58.6, 62.6, 63.2, 60.0, 59.9),
            (96.8, 95.4, 96.8, 98.8, 93.2, 93.8, 95.3, 96.8),
            (86.1, 89.8, 91.8, 87.3, 85.4, 86.6, 85.6, 84.9),
            (161.2, 160.3, 156.0, 160.0, 164.7, 167.3, 162.0, 163.6),
            (110.2, 106.7, 104.8, 109.0, 111.0, 107.8, 111.5, 110.1),
            (34.5, 33.8, 34.8, 33.9, 34.2, 34.1, 34.4, 35.0),
        ),
        ((5,), (6,), (2,), (4,), (7,), (2,), (2,), (1,)),
    )
}

TABLE_4 = {  # letters, 4 sources, accuracy, %: lower 0, lower 90, upper 0, upper 90 degrees
    "random": Centers(
        (
            (71.5, 71.3, 71.3, 72.3),
            (67.6, 67.3, 67.6, 67.3),
            (70.2, 70.8, 70.3, 70.3),
            (71.7, 71.3, 71.9, 71.0),
        ),
        ((3,), (0, 2), (1,), (2,)),
    )
}

TABLE_5 = {  # letters, linear partition, by lambda, accuracy, %
    0.0: _two((48.4, 50.1), (47.7, 47.5), (1, 0), 72.7),
    0.1: _two((71.8, 71.7), (73.9, 74.1), (0, 1), 86.5),
    1.0: _two((55.1, 55.2), (58.7, 58.6), (1, 0), 63.6),
}

TABLE_6 = {  # synthetic, random partition, by sigma_0, mean squared error
    1.0: _two((5.9, 4.2), (3.2, 4.6), (1, 0), 0.6),
    10.0: _two((42.2, 60.6), (42.7, 27.0), (0, 1), 4.96),
    50.0: _two((225.3, 89.9), (117.6, 89.9), (1, 0), 18.8),
    100.0: _two((782.4, 454.4), (432.8, 812.0), (1, 0), 78.3),
}

TABLE_7 = {  # CIFAR-10, accuracy, %
    "10:90": _two((74.8, 77.6), (77.4, 75.3), (1, 0)),
    "30:70": Centers(((78.9, 78.9), (79.0, 78.8)), ((0, 1), (0,))),
    "linear": _two((77.2, 77.4), (78.5, 78.0), (1, 0)),
    "random": _two((76.1, 76.0), (75.3, 75.8), (0, 1)),
}

TABLE_8 = {  # CIFAR-10, accuracy, %
    "30:70": {
        "FedSoft": Method((78.9, 79.0), (1, 0), 98.8),
        "IFCA": Method((75.6, 76.1), (0, 0), 99.0),
        "FedEM": Method((76.0, 74.6), (1, 1), 96.6),
    },
    "linear": {
        "FedSoft": Method((77.4, 78.5), (1, 0), 98.6),
        "IFCA": Method((75.1, 75.3), (0, 0), 98.8),
        "FedEM": Method((76.3, 75.8), (0, 0), 82.0),
    },
}
