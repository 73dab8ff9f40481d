"""Rounds as TensorBoard shows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsoft.errors import InputError
from fedsoft.training.callbacks.base import Callback
from fedsoft.training.callbacks.scalars import scalars
from fedsoft.training.records import RoundRecord
from fedsoft.training.run import Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Callback):
    """Write scores of centers, mixtures and cost of every round; `tensorboard --logdir FOLDER` shows them.

    What clients' mixtures are like is written as a histogram for each center. Where a run is resumed or played on, its
    curves go on; what was written of rounds that are played again is replaced.

    Arguments:
        folder: where to write.
        held_out: metrics of personal models on held-out points to measure and write, too.
    """

    def __init__(self, folder: str | Path = "tensorboard", held_out: tuple[str, ...] = ()) -> None:
        self.folder, self.wanted = Path(folder), tuple(held_out)
        self.writer: SummaryWriter | None = None

    @property
    def held_out(self) -> tuple[str | None, ...]:
        return self.wanted

    def on_start(self, run: Run, rounds: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("TensorBoard is not installed: pip install 'fedsoft[tensorboard]'") from None
        self.close()
        self.writer = SummaryWriter(str(self.folder), purge_step=run.rounds + 1 if run.rounds else None)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        assert self.writer is not None
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record.round)
        if run.weights is not None and run.weights.shape[1] > 1:
            for s, shares in enumerate(run.weights.T):
                self.writer.add_histogram(f"mixture/u of clients, center {s}", shares.cpu().numpy(), record.round)
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None
