"""How long a round of the paper's synthetic experiment takes, against the loop that one would write by hand.

    python benchmarks/synthetic_round.py [--repeats 9] [--quick] [--json FILE]

All on one thread. Three measurements:

(a) One FedSoft round of 84 clients with 100 to 200 points: 10 epochs, batches of 10, Adam, a linear model with 10
    inputs, two centers, everybody takes part, importance weights estimated every other round. By a plain PyTorch loop
    (a module, a DataLoader and an Adam for each client, the proximal term summed over centers and parameters in the
    loss), by a tuned loop (index batches, fused Adam, the proximal term pre-summed and added to the gradient), and by
    fedsoft; once more by fedsoft with K = 84, so that the selection is drawn too. All start from the same models and
    take the same number of client steps, which are counted on both sides. They draw other batches, so their centers are
    compared by their error on the test sets; with the points in a fixed order, where the batches are the same, they are
    compared number by number.
(b) Growth from 100 to 10,000 clients, each size in a process of its own: time, and the peak of memory less what the
    imports take.
(c) The train job with 2 and with 8 centers: a local step should not cost more.

Two rounds (one with estimation, one without) are timed together; of all repeats the best and the median are kept. Times
are processor time, which on one thread is the time on the clock if nothing else runs, and suffers less if something
does. They still move by some 15 %: look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedsoft as fs
from fedsoft.contract import State
from fedsoft.scores import align, center_scores
from fedsoft.simulate import Simulation
from fedsoft.training import prepare

CLIENTS, EPOCHS, BATCH, LR, LAM, SIGMA, TAU = 84, 10, 10, 5e-3, 1.0, 1e-4, 2
SIZES = [100, 300, 1000, 3000, 10000]
MB = 2**20


@dataclass(frozen=True)
class Timing:
    """Seconds per round."""

    best: float
    median: float
    repeats: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        return Timing(min(seconds), statistics.median(seconds), len(seconds))


def engine(federation: fs.Federation, S: int = 2, K: Any = "all", shuffle: bool = True) -> tuple[Simulation, State]:
    """The engine, ready for its first round."""
    algorithm = fs.FedSoft(S=S, K=K, lam=LAM, tau=TAU, sigma=SIGMA)
    solver = fs.Adam(lr=LR, epochs=EPOCHS, batch=BATCH, shuffle=shuffle)
    simulation = prepare(algorithm, federation, fs.models.linear(), seed=0, local=solver)
    return simulation, simulation.start()


def time_rounds(simulation: Simulation, state: State, repeats: int, first: int = 0) -> tuple[Timing, State]:
    """Time `repeats` pairs of rounds; per round."""
    seconds = []
    for t in range(first, first + 2 * repeats, 2):
        began = time.process_time()
        state, _ = simulation.round(state, t)
        state, _ = simulation.round(state, t + 1)
        seconds.append((time.process_time() - began) / 2)
    return Timing.of(seconds), state


# --- (a) the loop that one would write by hand ------------------------------------------------------------------------


class Loop:
    """FedSoft with one module per client. `tuned`: index batches, fused Adam, and the proximal term pre-summed."""

    def __init__(
        self, federation: fs.Federation, centers: Tensor, start: Tensor, *, tuned: bool, shuffle: bool = True
    ) -> None:
        self.data = [federation.train.client(k) for k in range(len(federation))]
        self.tuned, self.shuffle, self.steps = tuned, shuffle, 0
        self.centers = [self._linear(center) for center in centers]
        self.clients = [self._linear(start) for _ in self.data]
        self.optimizers = [torch.optim.Adam(client.parameters(), lr=LR, fused=tuned) for client in self.clients]
        self.loaders = [DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=shuffle) for x, y in self.data]
        self.u = torch.full((len(self.data), len(centers)), 1 / len(centers))
        self.strength: list[float] = []
        self.target = centers

    @staticmethod
    def _linear(weight: Tensor) -> nn.Linear:
        layer = nn.Linear(weight.numel(), 1, bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight)
        return layer

    def round(self, t: int) -> None:
        if t % TAU == 0:
            self.u = torch.stack([self.importance(x, y) for x, y in self.data])
        self.strength, self.target = (LAM * self.u.sum(1)).tolist(), (LAM * self.u @ self.stacked).unsqueeze(1)
        for k in range(len(self.clients)):
            self.train(k)
        sizes = torch.tensor([len(y) for _, y in self.data])
        share = self.u * sizes[:, None]
        v = share / share.sum(0)
        with torch.no_grad():
            for s, center in enumerate(self.centers):
                center.weight.zero_()
                for k, client in enumerate(self.clients):
                    center.weight.add_(v[k, s] * client.weight)

    @torch.no_grad()
    def importance(self, x: Tensor, y: Tensor) -> Tensor:
        losses = torch.stack([(center(x).squeeze(1) - y) ** 2 for center in self.centers])
        votes = torch.bincount(losses.argmin(0), minlength=len(self.centers))
        return (votes / len(y)).clamp(min=SIGMA)

    def train(self, k: int) -> None:
        x, y = self.data[k]
        for _ in range(EPOCHS):
            if not self.tuned:
                for x_batch, y_batch in self.loaders[k]:
                    self.step(k, x_batch, y_batch)
                continue
            order = torch.randperm(len(y)) if self.shuffle else torch.arange(len(y))
            for places in order.split(BATCH):
                self.step(k, x[places], y[places])

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        client, optimizer = self.clients[k], self.optimizers[k]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(client(x).squeeze(1), y)
        if not self.tuned:
            for s, center in enumerate(self.centers):
                for parameter, target in zip(client.parameters(), center.parameters(), strict=True):
                    loss = loss + LAM / 2 * self.u[k, s] * (parameter - target.detach()).square().sum()
        loss.backward()
        if self.tuned and client.weight.grad is not None:
            client.weight.grad.add_(client.weight.detach(), alpha=self.strength[k]).sub_(self.target[k])
        optimizer.step()
        self.steps += 1

    def time_rounds(self, count: int) -> Timing:
        began = time.process_time()
        with torch.enable_grad():
            for t in range(count):
                self.round(t)
        seconds = (time.process_time() - began) / count
        return Timing(seconds, seconds, 1)

    @property
    def stacked(self) -> Tensor:
        return torch.cat([center.weight.detach() for center in self.centers])


def test_errors(simulation: Simulation, federation: fs.Federation, centers: Tensor) -> list[float]:
    """The test error of each center on the source that it stands for."""
    assert federation.truth is not None
    table = center_scores(simulation.model, centers, federation.truth.tests)
    return [float(table[s, source]) for s, source in enumerate(align(table, higher_is_better=False))]


def compare_round(clients: int, repeats: int, rounds: int) -> dict[str, Any]:
    """Measurement (a)."""
    federation = fs.datasets.synthetic(clients=clients)
    steps = int((-(-federation.train.sizes // BATCH)).sum()) * EPOCHS
    simulation, state = engine(federation)
    centers, start = state["centers"].clone(), simulation.memory["w"][0].clone()
    torch.manual_seed(0)
    loops = {tuned: Loop(federation, centers, start, tuned=tuned) for tuned in (False, True)}
    timings = {
        "plain loop": loops[False].time_rounds(rounds),
        "tuned loop": loops[True].time_rounds(rounds),
    }
    for t in range(rounds):
        state, _ = simulation.round(state, t)
    taken = int(simulation.memory["moments.steps"].sum())
    if {taken, loops[False].steps, loops[True].steps} != {steps * rounds}:
        raise SystemExit(f"unequal work: {taken} client steps by fedsoft, {loops[False].steps} and {loops[True].steps}")
    errors = {
        "plain loop": test_errors(simulation, federation, loops[False].stacked),
        "tuned loop": test_errors(simulation, federation, loops[True].stacked),
        "fedsoft": test_errors(simulation, federation, state["centers"]),
    }
    timings["fedsoft"], _ = time_rounds(simulation, state, repeats, first=2)
    drawn, state = engine(federation, K=clients)  # K = N: everybody is drawn, and works, but the draws are made
    timings["fedsoft, drawn"], _ = time_rounds(drawn, state, repeats)

    fixed, state = engine(federation, shuffle=False)
    loop = Loop(federation, centers, start, tuned=True, shuffle=False)
    loop.time_rounds(1)
    state, _ = fixed.round(state, 0)
    difference = float((loop.stacked - state["centers"]).abs().max())
    if difference > 1e-4:
        raise SystemExit(f"the loop and fedsoft differ by {difference:.1e} on the same batches")
    return {
        "clients": clients, "points": int(federation.train.sizes.sum()), "steps": steps, "loop_rounds": rounds,
        "seconds": {name: asdict(timing) for name, timing in timings.items()}, "test_errors": errors,
        "difference_in_fixed_order": difference,
    }  # fmt: skip


def show_round(result: dict[str, Any], console: Console) -> None:
    table = Table(title=f"(a) a round of {result['clients']} clients, {result['points']:,} points, "
                        f"{result['steps']:,} client steps")  # fmt: skip
    for column in ("", "ms per round", "median", "client steps per s", "speed-up on plain", "on tuned"):
        table.add_column(column, justify="left" if column == "" else "right")
    plain, tuned = (result["seconds"][name]["median"] for name in ("plain loop", "tuned loop"))
    for name, timing in result["seconds"].items():
        best, median = timing["best"], timing["median"]
        table.add_row(
            name, f"{best * 1e3:,.1f}", f"{median * 1e3:,.1f}", f"{result['steps'] / median:,.0f}",
            *(f"{ratio:.2g} x" if ratio < 10 else f"{ratio:.0f} x" for ratio in (plain / median, tuned / median)),
        )  # fmt: skip
    console.print(table)
    rows = ", ".join(f"{name} {' '.join(f'{e:.3f}' for e in values)}" for name, values in result["test_errors"].items())
    console.print(f"test error of the centers after {result['loop_rounds']} rounds: {rows}")
    console.print("largest difference between the centers of the tuned loop and of fedsoft after a round with the same "
                  f"batches: {result['difference_in_fixed_order']:.1e}\n")  # fmt: skip


# --- (b) growth -------------------------------------------------------------------------------------------------------


def memory() -> tuple[int, int]:
    """The memory of this process now and at its peak, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start from the peak of the process that started this one
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most


def one_size(clients: int, repeats: int) -> dict[str, Any]:
    """Time and memory for so many clients. Run in a fresh process."""
    imported, _ = memory()
    federation = fs.datasets.synthetic(clients=clients)
    made, _ = memory()
    simulation, state = engine(federation)
    timing, _ = time_rounds(simulation, state, repeats)
    return {
        "clients": clients, "chunk": simulation.chunk, "seconds": asdict(timing), "imported_bytes": imported,
        "data_bytes": made - imported, "extra_bytes": memory()[1] - imported,
    }  # fmt: skip


def grow(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """Measurement (b)."""
    results = []
    for clients in sizes:
        few = max(2, min(repeats, 9000 // clients))
        command = [sys.executable, __file__, "--one-size", str(clients), "--repeats", str(few)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    return results


def show_growth(results: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="(b) growth")
    for column in (
        "clients",
        "s per round",
        "median",
        "us per client",
        "peak MB",
        "KB per client",
        "of it data",
        "chunk",
    ):
        table.add_column(column, justify="right")
    for result in results:
        clients, best, median = result["clients"], result["seconds"]["best"], result["seconds"]["median"]
        table.add_row(
            f"{clients:,}", f"{best:.3f}", f"{median:.3f}", f"{best / clients * 1e6:.0f}",
            f"{result['extra_bytes'] / MB:.0f}", f"{result['extra_bytes'] / clients / 1024:.0f}",
            f"{result['data_bytes'] / clients / 1024:.0f}", f"{result['chunk']:,}",
        )  # fmt: skip
    console.print(table)
    console.print("memory beyond what the imports take\n")


# --- (c) the number of centers ----------------------------------------------------------------------------------------


def compare_centers(clients: int, repeats: int, counts: tuple[int, int] = (2, 8)) -> dict[str, Any]:
    """Measurement (c): the train job alone, in turns."""
    federation = fs.datasets.synthetic(clients=clients)
    seconds: dict[int, list[float]] = {S: [] for S in counts}
    jobs: dict[int, Callable[[], object]] = {}
    for S in counts:
        simulation, state = engine(federation, S=S)
        jobs[S] = lambda simulation=simulation, c=state["centers"]: simulation("train", simulation.everyone, centers=c)
    for job in jobs.values():
        job()
    for _ in range(3 * repeats):
        for S, job in jobs.items():
            began = time.process_time()
            job()
            seconds[S].append(time.process_time() - began)
    few, many = (statistics.median(seconds[S]) for S in counts)
    return {"seconds": {S: asdict(Timing.of(values)) for S, values in seconds.items()}, "ratio_of_medians": many / few}


def show_centers(result: dict[str, Any], console: Console) -> None:
    table = Table(title="(c) the train job of all clients")
    for column in ("centers", "ms", "median"):
        table.add_column(column, justify="right")
    for S, timing in result["seconds"].items():
        table.add_row(str(S), f"{timing['best'] * 1e3:.1f}", f"{timing['median'] * 1e3:.1f}")
    console.print(table)
    console.print(f"ratio of the medians: {result['ratio_of_medians']:.2f}\n")


# --- all of it --------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What it was measured on."""
    cpu, info = platform.processor(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].strip() if names else cpu
    return {
        "cpu": cpu, "cores": os.cpu_count(), "load_average": os.getloadavg()[0], "platform": platform.platform(),
        "python": platform.python_version(), "torch": str(torch.__version__), "threads": torch.get_num_threads(),
        "fedsoft": fs.__version__,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9, help="pairs of rounds to time (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save all numbers here")
    parser.add_argument("--quick", action="store_true", help="fewer clients, sizes and repeats")
    parser.add_argument("--one-size", type=int, help=argparse.SUPPRESS)  # what (b) starts
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats should be 1 or more")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if arguments.one_size:
        print(json.dumps(one_size(arguments.one_size, arguments.repeats)))
        return
    quick = arguments.quick
    repeats, clients = (min(3, arguments.repeats), 16) if quick else (arguments.repeats, CLIENTS)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    result: dict[str, Any] = {"machine": machine(), "settings": {"repeats": repeats, "quick": quick}}
    console.print("{cpu}, torch {torch}, {threads} thread, load {load_average:.1f}\n".format(**result["machine"]))
    result["round"] = compare_round(clients, repeats, rounds=1 if quick else 2)
    show_round(result["round"], console)
    result["growth"] = grow(SIZES[:3] if quick else SIZES, repeats)
    show_growth(result["growth"], console)
    result["centers"] = compare_centers(clients, repeats)
    show_centers(result["centers"], console)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"saved {arguments.json}")


if __name__ == "__main__":
    main()
