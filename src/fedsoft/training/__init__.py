"""From an algorithm, a federation and a model to a finished run."""

from fedsoft.training.fit import fit
from fedsoft.training.options import Execution, FitOptions
from fedsoft.training.prepare import Recipe, as_model, check_device, prepare, remarks
from fedsoft.training.records import RoundRecord
from fedsoft.training.rounds import Limit, Restarts, closing_work, play
from fedsoft.training.run import Run

__all__ = [
    "Execution",
    "FitOptions",
    "Limit",
    "Recipe",
    "Restarts",
    "RoundRecord",
    "Run",
    "as_model",
    "check_device",
    "closing_work",
    "fit",
    "play",
    "prepare",
    "remarks",
]
