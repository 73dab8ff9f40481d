"""From an algorithm, a federation and a model to a finished run."""

from typing import TYPE_CHECKING

from fedsoft.plugins import on_first_use

if TYPE_CHECKING:
    from fedsoft.training.fit import extend, train
    from fedsoft.training.options import Execution, FitOptions
    from fedsoft.training.plan import Plan
    from fedsoft.training.prepare import Recipe, as_model, check_device, remarks
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
    "play",
    "remarks",
    "train",
]

# Records are read without torch, which training needs. `fit` and `prepare` are modules here: theirs are in these.
_HOMES = {
    "extend": "fit", "train": "fit",
    "Execution": "options", "FitOptions": "options",
    "Plan": "plan",
    "Recipe": "prepare", "as_model": "prepare", "check_device": "prepare", "remarks": "prepare",
    "RoundRecord": "records",
    "Change": "rounds", "Limit": "rounds", "Restarts": "rounds", "closing_work": "rounds", "play": "rounds",
    "Run": "run",
}  # fmt: skip
__getattr__ = on_first_use(__name__, _HOMES)
