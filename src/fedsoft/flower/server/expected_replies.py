"""What replies to a job look like and cost: found by having a synthetic client do it.

Form and cost follow from the algorithm, the model and what was sent, never from what some client answered first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import Training
from fedsoft.core.federation import Federation
from fedsoft.core.inputs import made_up
from fedsoft.core.local_solve import task_passes
from fedsoft.core.replies import Kind
from fedsoft.engine.client_host import ClientHost, Ticket
from fedsoft.engine.resources import Resources
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.privacy import Privacy, Released
from fedsoft.secure.protection import Secure

Forms = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Names, types and shapes of one client's row."""

POINTS = 4  # of the synthetic client
SLACK = 2.0  # times the expected cost are still accepted


def forms_of(rows: Mapping[str, Tensor]) -> Forms:
    """Return the form of one row of a reply."""
    return tuple(sorted((name, value.dtype, tuple(value.shape[1:])) for name, value in rows.items()))


@dataclass(frozen=True)
class Expectation:
    """What one client replies to a job, what that costs for each of its points, and what of it has noise."""

    forms: Forms
    kinds: Mapping[str, Kind]
    gradients: float
    evaluations: float
    released: Released

    @property
    def row_bytes(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for _, dtype, shape in self.forms)

    def allows(self, gradients: int, evaluations: int, points: int) -> bool:
        """Whether clients with this many points in total can have spent that."""
        return (
            gradients <= SLACK * self.gradients * points + POINTS
            and evaluations <= SLACK * self.evaluations * points + POINTS
        )


class Expected:
    """Expectations by job and by the forms of what is sent.

    Arguments:
        training: what clients run.
        federation: has the shape of the data; its points are not used.
        privacy: the noise that clients add.
        secure: whether their replies leave as sums only.
    """

    def __init__(
        self, training: Training, federation: Federation, privacy: Privacy | None, *, secure: Secure | None = None
    ) -> None:
        shape = federation.shape
        # Drawn: equal points could be singular.
        x = made_up(shape.input, shape.fields, federation.train.x.dtype, POINTS)
        y = federation.train.y.new_zeros((POINTS, *federation.train.y.shape[1:]))
        data = ClientData.concat([(x, y)])
        self.make = lambda: ClientHost(
            training, data, ["made up"], resources=Resources(workers=1),
            conditions=Conditions(diverged="drop", privacy=privacy, secure=secure),
        )  # fmt: skip
        self.algorithm, self.task = training.algorithm, task_passes(training.solver)
        self.known: dict[tuple[object, ...], Expectation] = {}

    def of(self, job: str, shared: Mapping[str, Tensor], each: Mapping[str, Tensor], t: int) -> Expectation:
        """Return what a client replies to this."""
        key = (job, forms_of({name: value[None] for name, value in shared.items()}), forms_of(each))
        if key not in self.known:
            host = self.make()
            with torch.no_grad():
                host.init_clients()
                done = host.run_job(job, np.arange(1), {n: v[:1] for n, v in each.items()}, shared, Ticket(t))
            forms = forms_of({name: done.replies[name] for name in done.replies})
            gradients, evaluations = done.cost.gradients / POINTS, done.cost.evaluations / POINTS
            if job in self.algorithm.partial_jobs:
                gradients = max(gradients, self.task)
            kinds = self.algorithm.jobs[job].replies
            self.known[key] = Expectation(forms, kinds, gradients, evaluations, done.released)
        return self.known[key]
