"""What adapters save: a CNN pretrained on letters, federated on digits, in full, by adapters, and by its head.

    FEDSOFT_DATA=... python -m benchmarks.adapters [--clients 100] [--rounds 20]

The CNN learns the 26 letters (EMNIST, both cases, 8 x 8 pixels) in one place. Then clients with the digits of
scikit-learn, upright and turned by 90 degrees, 10:90, train it with FedSoft (S = 2) from these weights, with a new last
layer. Every way of training runs in a process of its own. What clients keep between rounds are models, optimizer state
and mixtures. Prints the table of docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.model import Builder

HEAD = "10"


def network(classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def pretrain(file: Path, epochs: int) -> None:
    """Train on all letters, and save the weights."""
    train = fs.datasets.letters(clients=1, points=(20000, 20000), held_out=0.0, partition="50:50").train
    x, y = nn.functional.interpolate(train.x.float() / 255, (8, 8), mode="area"), train.y
    torch.manual_seed(0)
    net = network(26)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    right = float((net.eval()(x).argmax(1) == y).float().mean())
    print(f"pretrained on {len(y)} letters, {right:.1%} of them right", file=sys.stderr)
    save_file(net.state_dict(), file)


def ways(weights: dict[str, Tensor]) -> dict[str, Builder]:
    def pretrained() -> nn.Sequential:
        net = network(10)
        own = {name: value for name, value in weights.items() if not name.startswith(f"{HEAD}.")}
        net.load_state_dict(own, strict=False)
        return net

    head = [f"{HEAD}.*"]
    return {
        "full, from draws": fs.models.module(lambda: network(10)),
        "full, pretrained": fs.models.module(pretrained),
        "LoRA, rank 8, and head": fs.models.lora(pretrained, rank=8, trainable=head),
        "LoRA, rank 2, and head": fs.models.lora(pretrained, rank=2, trainable=head),
        "head alone": fs.models.module(pretrained, trainable=head),
    }


def federate(way: str, file: Path, clients: int, rounds: int) -> dict[str, float]:
    """Run one way; return what it cost and what it got right."""
    fed = fs.datasets.digits(clients=clients, partition="10:90", rotations=(0, 90))
    model = ways(load_file(file))[way]
    solver = fs.Adam(lr=2e-3, epochs=2, batch=10)
    fs.fit(fs.FedSoft(S=2, K=2), fs.datasets.digits(clients=4), model, rounds=1, solver=solver)  # compile
    began = time.process_time()
    run = fs.fit(fs.FedSoft(S=2, K=clients // 2, lam=0.01), fed, model, rounds=rounds, solver=solver, seed=0)
    seconds = time.process_time() - began
    scores = run.scores()
    states = run.engine.client_states
    kept = sum(states[name].numel() * states[name].element_size() for name in states) / clients
    assert scores.personal_held_out is not None
    served = scores.of_best or []
    return {
        "trained": run.model.size, "sent": sum(r.bytes_down + r.bytes_up for r in run.history) / 1e6,
        "kept": kept / 1e3, "seconds": seconds,
        "personal": scores.personal_held_out.mean, "centers": sum(served) / max(1, len(served)),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=100)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--epochs", type=int, default=8, help="of pretraining (default 8)")
    options.add_argument("--way", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.way:
        print(json.dumps(federate(chosen.way[0], Path(chosen.way[1]), chosen.clients, chosen.rounds)))
        return
    print("| trained | parameters | sent, MB | kept by a client, kB | seconds | clients | centers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "letters.safetensors"
        pretrain(file, chosen.epochs)
        for way in ways(load_file(file)):
            command = [sys.executable, "-m", "benchmarks.adapters", "--clients", str(chosen.clients)]
            command += ["--rounds", str(chosen.rounds), "--way", way, str(file)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(
                "| {way} | {trained:,} | {sent:.0f} | {kept:.0f} | {seconds:.0f} | {personal:.1%} "
                "| {centers:.1%} |".format(way=way, **found), flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
