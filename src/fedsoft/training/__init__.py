"""From an algorithm, a federation and a model to a finished run."""

from fedsoft.training.fit import extend, fit, train
from fedsoft.training.options import Execution, FitOptions
from fedsoft.training.plan import Plan
from fedsoft.training.prepare import Recipe, as_model, check_device, prepare, remarks
from fedsoft.training.records import RoundRecord
from fedsoft.training.rounds import Change, Limit, Restarts, closing_work, play
from fedsoft.training.run import Run

__all__ = [
    "Change",
    "Execution",
    "FitOptions",
    "Limit",
    "Plan",
    "Recipe",
    "Restarts",
    "RoundRecord",
    "Run",
    "as_model",
    "check_device",
    "closing_work",
    "extend",
    "fit",
    "play",
    "prepare",
    "remarks",
    "train",
]
