"""What clients predict for their own points, as users had them."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from fedsoft.core.client_data import Task
from fedsoft.core.federation import Federation


class Triple(NamedTuple):
    """What a client was to predict, and what it did."""

    client: str
    y: np.ndarray
    prediction: np.ndarray


class ClientPredictions(Triple):
    """The held-out points of one client; as a tuple (client, y, prediction).

    Arguments:
        client: its name.
        y: the targets as in the data, text where labels are text, `[points]` or `[points, outputs]`.
        prediction: values, or a probability for each class or label.
        classes: the classes in the order of probabilities, where labels are text or whole numbers not from 0.
        task: classification, multilabel or regression.
    """

    classes: tuple[str | int, ...] | None
    task: Task

    def __new__(
        cls, client: str, y: np.ndarray, prediction: np.ndarray, classes: tuple[str | int, ...] | None, task: Task
    ) -> Self:
        made = super().__new__(cls, client, y, prediction)
        made.classes, made.task = classes, task
        return made

    @property
    def guess(self) -> np.ndarray:
        """What to compare with y: the most probable class, labels of a probability above 1/2, or the values."""
        if self.task == "regression":
            return self.prediction
        if self.task == "multilabel":
            return (self.prediction > 0.5).astype(self.y.dtype)
        best = self.prediction.argmax(-1)
        return best if self.classes is None else np.array(self.classes)[best]


def by_client(federation: Federation, predictions: Tensor) -> list[ClientPredictions]:
    """Divide predictions for all held-out points, in the order of `held_out.points`, among clients."""
    data, labels = federation.held_out, federation.columns.labels
    y = data.y[data.points].cpu().numpy()
    cuts = np.cumsum(data.sizes.cpu().numpy())[:-1]
    targets = np.split(y if labels is None else labels[y], cuts)
    classes = None if labels is None else tuple(labels.tolist())
    found = np.split(predictions.cpu().numpy(), cuts)
    return [
        ClientPredictions(name, own, guess, classes, federation.shape.task)
        for name, own, guess in zip(federation.names, targets, found, strict=True)
    ]
