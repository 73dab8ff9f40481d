"""Adapt a pretrained CNN to clients with low-rank adapters (LoRA): only the adapters travel.

The CNN learns the digits 0 to 4 in one place. Then 16 clients, half of whom hold their images sideways, learn the
digits 5 to 9 from it, once in full and once by adapters of its frozen layers.

python examples/lora_adapters.py
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsoft as fs


def network() -> nn.Sequential:
    """Return a CNN for images of 8 x 8 pixels and five classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5),
    )  # fmt: skip


def pretrain(x: torch.Tensor, y: torch.Tensor) -> nn.Sequential:
    """Train the network on the digits 0 to 4, all in one place."""
    torch.set_num_threads(1)  # for layers this small, several threads wait for each other on a busy machine
    torch.manual_seed(0)
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(8):
        for rows in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    print(f"pretrained on {len(y)} digits 0 to 4: {float((net.eval()(x).argmax(1) == y).float().mean()):.0%} right")
    return net


def clients(x: torch.Tensor, y: torch.Tensor, count: int = 16, points: int = 80) -> fs.Federation:
    """Deal the digits 5 to 9 to clients; half of them hold nine of ten images sideways, the others one of ten."""
    rng = np.random.default_rng(0)
    dealt = []
    for k in range(count):
        rows = torch.from_numpy(rng.choice(len(y), points, replace=False))
        images, sideways = x[rows].clone(), torch.from_numpy(rng.random(points) < (0.9 if k % 2 else 0.1))
        images[sideways] = images[sideways].rot90(1, (2, 3))
        dealt.append((images, y[rows]))
    return fs.Federation.from_clients(dealt, held_out=0.3)


def main() -> None:
    """Pretrain, federate in full and by adapters, and print what each sends and gets right."""
    digits = load_digits()
    x = torch.from_numpy(digits.images).float()[:, None] / 16  # pyright: ignore[reportAttributeAccessIssue]
    y = torch.from_numpy(digits.target).long()  # pyright: ignore[reportAttributeAccessIssue]
    net = pretrain(x[y < 5], y[y < 5])
    fed = clients(x[y >= 5], y[y >= 5] - 5)
    models = {
        "full training": fs.models.module(net),
        "adapters": fs.models.lora(net, rank=8, trainable=["11.*"]),  # 11 is the last layer: its classes are new
    }
    for name, model in models.items():
        run = fs.fit(
            fs.FedSoft(S=2, K=8, lam=0.01), fed, model, rounds=8, solver=fs.Adam(lr=5e-3, epochs=6, batch=10), seed=0
        )
        sent = sum(record.bytes_up + record.bytes_down for record in run.history) / 1e6
        held_out = run.scores().personal_held_out
        assert held_out is not None
        print(f"{name}: {run.model.size:,} parameters trained, {sent:.1f} MB sent, {held_out.mean:.0%} right")
        with tempfile.TemporaryDirectory() as folder:
            done = fs.export(run, folder, client=0)  # the pretrained weights with the adapter added: a plain network
            print(f"  exported {', '.join(done.files)}")


if __name__ == "__main__":
    main()
