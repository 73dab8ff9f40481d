"""Draw contact sheets: examples of every source with their labels."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsoft.core.federation import Federation
from fedsoft.errors import InputError
from fedsoft.reports.pictures import image

CELL = 0.62  # inches
CAPTION = 0.3  # of a cell
MOST_CLIENTS, MOST_COLUMNS = 8, 26

Row = tuple[str, Tensor, Tensor]


def contact_sheet(fed: Federation, labels: list[str], title: str, examples: int = 2) -> bytes:
    """Draw a row of test images for each source, one of every label, `examples` times; clients without a truth."""
    if len(fed.shape.input) != 3 or fed.shape.input[0] not in (1, 3):
        raise InputError(f"{title} has points of shape {list(fed.shape.input)}: only images can be drawn")
    return image(_figure(_rows(fed, examples), labels, title))


def _rows(fed: Federation, examples: int) -> list[Row]:
    """Return what to draw, row by row."""
    if fed.truth is None:
        clients = [(name, *fed.train.client(k)) for k, name in enumerate(fed.names[:MOST_CLIENTS])]
        return [(name, x[:MOST_COLUMNS], y[:MOST_COLUMNS]) for name, x, y in clients]
    rows: list[Row] = []
    for name, (x, y) in zip(fed.truth.names, fed.truth.tests, strict=True):
        by_label = [(y == label).nonzero()[:, 0].tolist() for label in range(fed.shape.outputs)]
        for number in range(examples):
            chosen = torch.tensor([images[number] for images in by_label if len(images) > number], dtype=torch.int64)
            rows.append((name if number == 0 else "", x[chosen], y[chosen]))
    return rows


def _figure(rows: list[Row], labels: list[str], title: str) -> Figure:
    """Draw all images on one axis: hundreds of axes would take many seconds."""
    columns = max(len(y) for _, _, y in rows)
    margin = 0.12 * max(len(name) for name, _, _ in rows) + 0.3
    height = len(rows) * (1 + CAPTION)
    figure = Figure(figsize=(CELL * columns + margin, CELL * height + 0.5))
    left, top = margin / figure.get_figwidth(), 1 - 0.4 / figure.get_figheight()
    axis = figure.add_axes((left, 0.02, 0.99 - left, top - 0.02))
    for i, (name, x, y) in enumerate(rows):
        bottom = height - (i + 1) * (1 + CAPTION)
        axis.text(-0.15, bottom + 0.5, name, ha="right", va="center", fontsize=10)
        for j, label in enumerate(y.tolist()):
            axis.imshow(_pixels(x[j]), extent=(j + 0.04, j + 0.96, bottom + 0.04, bottom + 0.96), cmap="gray",
                        vmin=0, vmax=255, interpolation="nearest")  # fmt: skip
            axis.text(j + 0.5, bottom + 1.0, labels[label], ha="center", va="bottom", fontsize=7)
    axis.set(xlim=(0, columns), ylim=(0, height), aspect="equal")
    axis.axis("off")
    figure.suptitle(title, fontsize=11)
    return figure


def _pixels(image: Tensor) -> np.ndarray:
    """Return `[height, width]` of grey, or `[height, width, 3]` of colour."""
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()
