"""List the runs of a folder, without what it takes to show or to train one."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from fedsoft.errors import FedsoftError
from fedsoft.runs.config_diff import apart, in_short
from fedsoft.runs.folder import RunFolder
from fedsoft.training.notices import unheard

BUDGET = "finished (budget)"  # of work or bytes, before the last round
EARLY = "finished (early)"  # by a callback


def runs_table(folders: list[RunFolder]) -> Table:
    """Return the runs of a folder, one line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("run", "algorithm", "dataset", "settings", "rounds", "state")
    for column in columns:
        table.add_column(column, justify="right" if column == "rounds" else "left", no_wrap=column == "run")
    for row in runs_list(folders):
        table.add_row(*(Text(row["changed"] if column == "settings" else str(row[column])) for column in columns))
    return table


def runs_list(folders: list[RunFolder]) -> list[dict[str, Any]]:
    """Return the runs of a folder as plain values; a run that cannot be read is listed as damaged."""
    rows, specs, noted = [], {}, []
    for i, folder in enumerate(folders):
        row: dict[str, Any] = {"run": folder.name, "path": str(folder.path), "settings": {}, "changed": ""}
        try:
            folder = RunFolder.open(folder.path)
            spec, info, done = folder.recorded, folder.info, len(folder.records())
            row |= {"algorithm": spec.algorithm.name, "dataset": spec.dataset.name, "seed": spec.seed,
                    "variant": spec.variant, "rounds": f"{done}/{spec.rounds}",
                    "state": state_of(folder), "created": info.created}  # fmt: skip
            specs[i] = spec
            noted.append(info.changed)
        except FedsoftError as error:
            row |= dict.fromkeys(("algorithm", "dataset", "seed", "rounds", "created"), "")
            row |= {"variant": None, "state": f"damaged: {error}"}
        rows.append(row)
    for (i, spec), settings in zip(specs.items(), apart(list(specs.values()), noted), strict=True):
        rows[i] |= {"settings": settings, "changed": in_short(settings, spec)}
    return rows


def state_of(folder: RunFolder) -> str:
    """Return `finished`, with what is unusual about the end, or `diverged`, or `stopped`."""
    if folder.scores() is None:
        return "stopped" if folder.diverged is None else "diverged"
    spec, records = folder.recorded, folder.records()
    if unheard(records):
        return "finished (nobody answered)"
    outcome = folder.outcome()
    if outcome is not None and outcome.ended_by:
        return EARLY
    budget = spec.work is not None or spec.bytes is not None
    return BUDGET if budget and len(records) < spec.rounds else "finished"
