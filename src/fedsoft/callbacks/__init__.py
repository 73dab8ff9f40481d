"""What looks at a run while it is trained, for `FitOptions(callbacks=[...])`: see docs/callbacks.md."""

from fedsoft.training.callbacks import BestRound, Callback, EarlyStopping, MLflow, Progress, TensorBoard

__all__ = ["BestRound", "Callback", "EarlyStopping", "MLflow", "Progress", "TensorBoard"]
