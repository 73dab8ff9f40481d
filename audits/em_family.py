"""What FedEM's code and the repositories that were copied from it have in common: clients with an ensemble of learners.

The copies differ in arguments that are not of the method, so what is built here takes both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from audits.common import CLASSES, Pairs, load, row, softmax_model

WITHOUT = ("torchvision", "tensorboard", "cvxpy", "networkx", "tqdm", "PIL", "matplotlib")


class Numbered(Dataset[Any]):
    """Points with their index, as these repositories expect them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.data, self.targets = x, y

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.data[index], self.targets[index], index


class Silent:
    """A logger that logs nothing."""

    def add_scalar(self, *_: Any) -> None:
        pass


class CrossEntropy(nn.CrossEntropyLoss):
    """The loss of single points, with the number of classes that one of the repositories reads off it."""

    class_number = CLASSES

    def __init__(self) -> None:
        super().__init__(reduction="none")


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.argmax(1) == y).float().sum()


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return the arguments that a function has."""
    known = inspect.signature(function).parameters
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    return arguments if every else {name: value for name, value in arguments.items() if name in known}


def ensemble(load_module: Any, centers: Tensor, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Any:
    """Return learners that start at the rows of `centers`."""
    learner, learners = load_module("learners.learner"), load_module("learners.learners_ensemble")
    made = []
    for center in centers:
        model = load(softmax_model(), center)
        made.append(
            learner.Learner(
                model=model, criterion=CrossEntropy(), metric=accuracy, device="cpu",
                optimizer=optimizer(model.parameters()),
            )
        )  # fmt: skip
    weights = torch.full((len(centers),), 1 / len(centers))
    make = learners.LearnersEnsemble
    return make(made, weights, **accepted(make.__init__, device="cpu"))


def client(
    load_module: Any, kind: str, points: tuple[Tensor, Tensor], learners: Any, batch: int, epochs: int
) -> Any:  # fmt: skip
    """Return a client of a kind, whose batches come in order."""
    x, y = points
    data = Numbered(x, y)
    train, every = DataLoader(data, batch_size=batch), DataLoader(data, batch_size=len(data))
    make = getattr(load_module("client"), kind)
    return make(
        learners_ensemble=learners, train_iterator=train, val_iterator=every, test_iterator=every, logger=Silent(),
        local_steps=epochs, **accepted(make.__init__, class_number=CLASSES),
    )  # fmt: skip


def clients(
    load_module: Any, kind: str, pairs: Pairs, centers: Tensor, sgd: Callable[[Any], torch.optim.Optimizer],
    batch: int, epochs: int,
) -> list[Any]:  # fmt: skip
    return [client(load_module, kind, one, ensemble(load_module, centers, sgd), batch, epochs) for one in pairs]


def centers_of(learners: Any) -> Tensor:
    return torch.stack([row(learner.model) for learner in learners])
