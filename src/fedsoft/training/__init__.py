"""From an algorithm, a federation and a model to a finished run."""

from fedsoft.training.fit import fit
from fedsoft.training.preparing import as_model, check_device, crowded, prepare
from fedsoft.training.rounds import Limit, Mending, Record, closing_work, play
from fedsoft.training.run import Run

__all__ = [
    "Limit",
    "Mending",
    "Record",
    "Run",
    "as_model",
    "check_device",
    "closing_work",
    "crowded",
    "fit",
    "play",
    "prepare",
]
