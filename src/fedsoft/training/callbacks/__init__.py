"""What looks at a run while it is trained: stops it early, keeps its best round, shows or logs how it goes."""

from typing import TYPE_CHECKING

from fedsoft.plugins import on_first_use

if TYPE_CHECKING:
    from fedsoft.training.callbacks.base import Callback, Listener, Watch
    from fedsoft.training.callbacks.best_round import BestRound
    from fedsoft.training.callbacks.early_stopping import EarlyStopping
    from fedsoft.training.callbacks.mlflow import MLflow
    from fedsoft.training.callbacks.progress import Progress
    from fedsoft.training.callbacks.tensorboard import TensorBoard

__all__ = ["BestRound", "Callback", "EarlyStopping", "Listener", "MLflow", "Progress", "TensorBoard", "Watch"]

# Records are read without torch, which training needs.
_HOMES = {
    "Callback": "base", "Listener": "base", "Watch": "base",
    "BestRound": "best_round",
    "EarlyStopping": "early_stopping",
    "MLflow": "mlflow",
    "Progress": "progress",
    "TensorBoard": "tensorboard",
}  # fmt: skip
__getattr__ = on_first_use(__name__, _HOMES)
