"""Runs as pictures."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsoft.runs.folder import RunFolder

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")


def convergence(folder: RunFolder) -> bytes | None:
    """The paper's Fig. 1 as PNG: for each source, the error of all centers over rounds, and below it the mean
    importance weights of the clients that have most of that source. Where nobody knows the sources, each center on its
    clients' points, and its share. None when there is neither."""
    records, scores = [record for record in folder.records() if record.get("centers")], folder.scores()
    if not records:
        return _uses(folder)
    spec = folder.spec()
    sources, centers = len(records[0]["centers"][0]), max(len(record["centers"]) for record in records)
    names = scores["sources"] if scores else [str(j) for j in range(sources)]
    with_weights = "weights" in records[0]
    figure = Figure(figsize=(3.4 * sources + 0.6, 6.0 if with_weights else 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if with_weights else 1, sources, sharex=True, sharey="row", squeeze=False)
    rounds = [record["round"] + 1 for record in records]
    for j in range(sources):
        top = axes[0][j]
        for s in range(centers):
            top.plot(rounds, [_at(r["centers"], s, j) for r in records], color=_colour(s), label=f"center {s}", lw=1.8)
        _floor(top, scores, j)
        top.set_title(f"source {names[j]}", fontsize=10)
        top.grid(alpha=0.25)
        if with_weights:
            bottom = axes[1][j]
            for s in range(centers):
                values = [_at(r["weights"], j, s) for r in records]
                bottom.plot(rounds, values, color=_colour(s), lw=1.8)
            _true_shares(bottom, scores, j)
            bottom.set_ylim(-0.02, 1.02)
            bottom.set_title(f"clients with mostly {names[j]}", fontsize=10)
            bottom.grid(alpha=0.25)
        axes[-1][j].set_xlabel("round")
    metric = scores["metric"] if scores else "error"
    axes[0][0].set_ylabel(f"test {metric.upper() if metric == 'mse' else metric} of centers")
    if metric == "mse":
        axes[0][0].set_yscale("log")
    if with_weights:
        axes[1][0].set_ylabel("mean importance weight u")
    axes[0][0].legend(frameon=False, fontsize=9, loc="best")
    if with_weights and scores:
        axes[1][0].plot([], [], color="#444444", ls="--", lw=1, label="true share")
        axes[1][0].legend(*_last(axes[1][0]), frameon=False, fontsize=9, loc="center right")
    figure.suptitle(spec.title, fontsize=11)
    return png(figure)


def _uses(folder: RunFolder) -> bytes | None:
    """Where nobody knows the sources: every center on the points of its clients, and its share of all data."""
    records, scores = [record for record in folder.records() if record.get("served")], folder.scores()
    if not records:
        return None
    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    fit, share = figure.subplots(1, 2, sharex=True)
    rounds = [record["round"] + 1 for record in records]
    for s in range(max(len(record["served"]) for record in records)):
        uses = [record["served"][s] if s < len(record["served"]) else {} for record in records]
        own = [float("nan") if use.get("on_own") is None else use["on_own"] for use in uses]
        fit.plot(rounds, own, color=_colour(s), lw=1.8, label=f"center {s}")
        share.plot(rounds, [use.get("share", float("nan")) for use in uses], color=_colour(s), lw=1.8)
    metric = scores["metric"] if scores else "error"
    fit.set_title(f"{metric.upper() if metric == 'mse' else metric} on the points of its clients", fontsize=10)
    share.set_title("share of all data", fontsize=10)
    share.set_ylim(-0.02, 1.02)
    for axis in (fit, share):
        axis.set_xlabel("round")
        axis.grid(alpha=0.25)
    fit.legend(frameon=False, fontsize=9, loc="best")
    figure.suptitle(folder.spec().title, fontsize=11)
    return png(figure)


def _at(table: list[list[float]], i: int, j: int) -> float:
    """An entry of a table that may have grown over the rounds; NaN where it was not there yet."""
    return table[i][j] if i < len(table) and j < len(table[i]) else float("nan")


def _last(axis: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axis.get_legend_handles_labels()
    return handles[-1:], labels[-1:]


def _floor(axis: Any, scores: dict[str, Any] | None, j: int) -> None:
    """The oracle of a source as a dashed line: the figure should show how far there is to go."""
    if scores and scores["oracle"]:
        axis.axhline(scores["oracle"][j], color="#444444", ls="--", lw=1, label="oracle")


def _true_shares(axis: Any, scores: dict[str, Any] | None, j: int) -> None:
    """The true mean shares of the group as dashed lines, in the colour of the center that stands for each source."""
    if scores and scores["shares"] and scores["shares"][j]:
        for source, share in enumerate(scores["shares"][j]):
            center = next((s for s, stands_for in enumerate(scores["alignment"]) if stands_for == source), -1)
            axis.axhline(share, color=_colour(center) if center >= 0 else "#444444", ls="--", lw=1, label="true share")


def _colour(s: int) -> str:
    return COLOURS[s % len(COLOURS)]


def png(figure: Figure) -> bytes:
    """A finished figure as the bytes of a PNG file."""
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format="png", dpi=130)
        return buffer.getvalue()
