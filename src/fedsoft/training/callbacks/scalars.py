"""A round's record as named numbers, for what draws them over rounds."""

from __future__ import annotations

from fedsoft.training.records import RoundRecord


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round: scores of centers, mixtures, held-out points and cost.

    >>> record = RoundRecord(round=1, last=False, seconds=0.5, gradients=10, bytes_down=8, bytes_up=4, use=[0.75, 0.25])
    >>> scalars(record)["mixture/share of points, center 1"]
    0.25
    """
    found: dict[str, float | None] = {}
    for s, row in enumerate(record.centers):
        found |= {f"centers/center {s}, source {j}": value for j, value in enumerate(row)}
    found |= {f"centers/best, source {j}": value for j, value in enumerate(record.best)}
    for s, use in enumerate(record.served):
        found |= {f"centers/center {s}, all clients": use.on_all, f"centers/center {s}, its clients": use.on_own}
    for s, share in enumerate(record.use):
        found[f"mixture/share of points, center {s}"] = share
    found |= {f"mixture/effective clients, center {s}": value for s, value in enumerate(record.effective)}
    for j, row in enumerate(record.weights):
        found |= {f"mixture/mean u, source {j}, center {s}": value for s, value in enumerate(row)}
    found |= {f"held out/{name}": value for name, value in record.held_out.items()}
    if record.evidence is not None:
        found["prior/evidence per point"] = record.evidence.per_point
    found |= {
        "cost/seconds": record.seconds, "cost/gradients": record.gradients, "cost/evaluations": record.evaluations,
        "cost/bytes down": record.bytes_down, "cost/bytes up": record.bytes_up, "clients/selected": record.selected,
        "clients/answered": record.answered,
    }  # fmt: skip
    return {name: float(value) for name, value in found.items() if value is not None}


def headline(record: RoundRecord) -> str:
    """Return the error of the best center of every source, or of each center on its clients, in a few words."""
    held_out = " ".join(f"held-out {name} {value:.3g}" for name, value in record.held_out.items())
    if not record.best:
        own = [use.on_own for use in record.served[:4]]
        found = "centers " + " ".join("-" if value is None else f"{value:.3g}" for value in own) if own else ""
    else:
        found = "best " + " ".join(f"{value:.3g}" for value in record.best[:4])
    return ", ".join(part for part in (found, held_out) if part)
