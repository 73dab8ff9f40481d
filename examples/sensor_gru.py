"""Recognise activities from windows of a sensor with a GRU and dropout, for wearers of two kinds.

Every wearer has windows of 30 readings of three axes: rest, steps, or a turn. Half of them wear the sensor upside down.

python examples/sensor_gru.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedsoft as fs

ACTIVITIES = ("rest", "steps", "turn")


class Recogniser(nn.Module):
    """Two layers of a GRU with dropout between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(16, len(ACTIVITIES))

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.gru(x)
        return self.head(self.dropout(out.mean(1)))


def windows(rng: np.random.Generator, count: int, *, upside_down: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up windows `[count, 30, 3]` and their activities."""
    y = rng.integers(0, 3, count)
    time = np.arange(30) / 10
    x = 0.3 * rng.standard_normal((count, 30, 3))
    phase = rng.uniform(0, 6, (count, 1))
    x[:, :, 2] += 1.0  # gravity
    x[:, :, 2] += (y == 1)[:, None] * np.sin(4 * time + phase)
    x[:, :, 0] += (y == 2)[:, None] * np.linspace(-1, 1, 30)
    x *= -1 if upside_down else 1
    return x.astype(np.float32), y


def main() -> None:
    """Train, and print how many windows are recognised and who uses which center."""
    rng = np.random.default_rng(0)
    wearers = [windows(rng, 40, upside_down=k % 2 == 1) for k in range(12)]
    fed = fs.Federation.from_clients(wearers, names=[f"wearer-{k:02}" for k in range(12)], held_out=0.3)
    run = fs.fit(
        fs.FedSoft(S=2, K=8, lam=0.02), fed, Recogniser, rounds=6, solver=fs.Adam(lr=1e-2, epochs=8, batch=10), seed=0
    )
    held_out = run.scores().personal_held_out
    assert held_out is not None
    assert run.weights is not None
    print(f"{held_out.mean:.0%} of held-out windows are recognised")
    for name, weights in zip(fed.names, run.weights.tolist(), strict=True):
        print(f"{name}: {', '.join(f'{share:.0%} of center {s}' for s, share in enumerate(weights))}")
    x = torch.from_numpy(wearers[0][0][:1])
    again = [run.predict(x, client=0) for _ in range(2)]
    print("dropout is off in predictions:", bool(torch.equal(*again)))


if __name__ == "__main__":
    main()
