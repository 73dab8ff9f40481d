"""Watch a run in TensorBoard, end it when held-out points say so, save it, and let two new clients join.

pip install 'fedsoft[tensorboard]'
python examples/with_tensorboard.py
tensorboard --logdir tensorboard
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fedsoft as fs
from fedsoft.callbacks import Callback, EarlyStopping, TensorBoard
from fedsoft.training import RoundRecord


def sensors(count: int, points: int = 60) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[str]]:
    """Make up sensors that mix two kinds of days: most of them have more of one than of the other."""
    rng = np.random.default_rng(0)
    clients = []
    for k in range(count):
        x = rng.standard_normal((points, 4))
        first = rng.random(points) < (0.8 if k % 2 else 0.2)
        y = np.where(first, x @ [2.0, -1.0, 0.5, 0.0], x @ [-1.0, 1.0, 0.0, 2.0]) > 0
        clients.append((x, y.astype(np.int64)))
    return clients, [f"sensor-{k:02}" for k in range(count)]


class LargestShare(Callback):
    """A callback of one's own: print how sure the clients are of their center."""

    def on_round(self, run: fs.Run, record: RoundRecord) -> None:
        if run.weights is not None and record.round % 10 == 0:
            largest = float(run.weights.max(1).values.mean())
            print(f"round {record.round}: largest share {largest:.2f}, held-out {record.held_out}")


def main() -> None:
    """Train under TensorBoard, then go on with two more sensors."""
    log = Path("tensorboard")
    clients, names = sensors(14)
    fed = fs.Federation.from_clients(clients[:12], names=names[:12])
    stopping = EarlyStopping(metric="accuracy", patience=8, restore=True)
    run = fs.fit(
        fs.FedSoft(S=2), fed, fs.models.mlp([16]), rounds=60, solver=fs.Adam(lr=0.01, epochs=2), seed=0,
        options=fs.FitOptions(callbacks=[stopping, TensorBoard(log / "first"), LargestShare()]),
    )  # fmt: skip
    print(f"played {run.rounds} rounds, ended by {run.ended_by or 'the last one'}; models of round {run.at_round}")
    folder = run.save("sensors")
    print(f"saved to {folder}: held-out accuracy {run.scores().personal_held_out.mean:.1%}")

    everybody = fs.Federation.from_clients(clients, names=names)
    options = fs.FitOptions(callbacks=[TensorBoard(log / "joined", held_out=("accuracy",))])
    longer = fs.load(folder).extend(run.at_round + 10, federation=everybody, options=options)
    event = longer.history[run.at_round]
    shares = [[round(share, 2) for share in row] for row in longer.weights[-2:].tolist()]
    print(f"in round {event.round} {' and '.join(event.joined)} joined; their shares of the centers: {shares}")
    print(f"{len(list(log.rglob('events*')))} logs written: tensorboard --logdir {log}")


if __name__ == "__main__":
    main()
