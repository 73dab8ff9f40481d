"""What looks at a run while it is trained: stops it early, keeps its best round, shows or logs how it goes."""

from fedsoft.training.callbacks.base import Callback, Listener, Watch
from fedsoft.training.callbacks.best_round import BestRound
from fedsoft.training.callbacks.early_stopping import EarlyStopping
from fedsoft.training.callbacks.mlflow import MLflow
from fedsoft.training.callbacks.progress import Progress
from fedsoft.training.callbacks.tensorboard import TensorBoard

__all__ = ["BestRound", "Callback", "EarlyStopping", "Listener", "MLflow", "Progress", "TensorBoard", "Watch"]
