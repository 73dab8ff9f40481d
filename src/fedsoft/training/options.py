"""How `fit` and runs are carried out: nothing here changes their draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedsoft.core.class_weight_choice import ClassWeights
from fedsoft.core.client_metrics import MetricChoice
from fedsoft.engine.base import Factory
from fedsoft.engine.resources import Resources
from fedsoft.training.callbacks.base import Callback, Listener


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where clients are, and what may be used of the machine.

    Arguments:
        device: `cpu` or `cuda`.
        chunk: how many clients are stacked together; default: by size.
        workers: how many threads train clients at once; default: one for each core. Results do not depend on it.
        memory: how much RAM the clients' states and replies may take, such as "4G"; default: half of what is available.
            What does not fit is kept on disk. Results do not depend on it.
        engine: where clients are: `local` in this process, `ray` in others, here or on a cluster; or a `Factory`.
        address: of the cluster, for engines that have one.
        backend: how a model is computed: `stacked` (all clients of a chunk at once), `loop` (one after the other),
            `chain` (the same, with a backward pass written by hand), `compiled` (linear models, a whole local solve in
            one compiled loop); `auto` takes the fastest.
        callbacks: what looks at the run while it is trained, see `fedsoft.callbacks`; a function is called with the
            record of every round.
    """

    device: str = "cpu"
    chunk: int | None = None
    workers: int | None = None
    memory: int | str | None = None
    engine: str | Factory = "local"
    address: str | None = None
    backend: str = "auto"
    callbacks: Sequence[Callback | Listener] = ()

    @property
    def resources(self) -> Resources:
        """What may be used of the machine."""
        return Resources(self.chunk, self.device, self.workers, self.memory)


@dataclass(frozen=True, kw_only=True)
class FitOptions(Execution):
    """How `fit` computes, beyond `Execution`.

    Arguments:
        dtype: `float32` or `float64`.
        metrics: what to score by, beside the loss's own metric: names, or functions (y, prediction) -> number by name;
            see docs/training.md.
        class_weights: of points in the local loss, by their class: `balanced` over all clients, `local` by each
            client's own labels, or a weight for each class.
        score_every: rounds between two scores of the centers on the test sets, which may cost more than training.
        progress: whether to show how far it is; default: in a terminal and in a notebook, after two seconds.
    """

    dtype: Literal["float32", "float64"] = "float32"
    metrics: MetricChoice | None = None
    class_weights: ClassWeights | Sequence[float] | None = None
    score_every: int = 1
    progress: bool | None = None
