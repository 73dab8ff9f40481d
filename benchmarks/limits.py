"""What the bare products of a step take, beside a step of the tuned loop: nothing around them can be faster than that.

Products are taken one by one, forward and for both gradients, with all that they need in the cache, by the same
functions of torch that both sides call: convolutions with channels last, products of matrices for a stack of clients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import machine, works
from benchmarks.markdown import duration, number
from benchmarks.rows import ROWS

BATCH, CLIENTS, STACK = 10, 8, 24  # points; clients in a stack of the Transformer, and of the LSTM
Timed = Callable[[], object]


def convolutions() -> tuple[list[Timed], float]:
    """Those of a step of the ResNet, and their floating-point operations."""
    found: list[Timed] = []
    operations = [0.0]
    net = works.resnet(True).module()

    def see(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        x, w = (t.detach().contiguous(memory_format=torch.channels_last) for t in (given[0], layer.weight))
        stride, padding = list(layer.stride), [int(side) for side in layer.padding]
        slope = torch.randn(out.shape).contiguous(memory_format=torch.channels_last)
        back: Any = torch.ops.aten.convolution_backward
        first = not operations[0]  # nothing needs the slope of the image
        found.append(lambda: torch.conv2d(x, w, None, stride, padding))
        found.append(
            lambda: back(slope, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, [not first, True, False])
        )
        operations[0] += 2.0 * out.numel() * w[0].numel() * (2 if first else 3)

    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(see)
    with torch.no_grad():
        net(torch.randn(BATCH, 3, 32, 32))
    return found, operations[0]


def matrices() -> tuple[list[Timed], float]:
    """Those of a step of the Transformer for some clients, per client."""
    rows, heads, width = BATCH * works.LENGTH, BATCH * 4, 16
    shapes = [(1, rows, before, after) for before, after in ((64, 192), (64, 64), (64, 128), (128, 64))]
    shapes += [(heads, works.LENGTH, width, works.LENGTH), (heads, works.LENGTH, works.LENGTH, width)]
    found: list[Timed] = []
    operations = 0.0
    for count, m, k, n in shapes * 2:  # layers
        x, w, slope = (torch.randn(CLIENTS * count, *sides) for sides in ((m, k), (k, n), (m, n)))
        for a, b in ((x, w), (slope, w.mT), (x.mT, slope)):
            found.append(lambda a=a, b=b: torch.bmm(a, b))
            operations += 2.0 * count * m * k * n
    return found, operations


def recurrences() -> tuple[list[Timed], float]:
    """Those of a step of the LSTM, per client: of all inputs at once, and of hidden states step by step."""
    steps, before, hidden, gates = 20, 8, 64, 256
    rows = steps * BATCH
    shapes = [(1, rows, before, gates), (1, before, rows, gates), (1, hidden, rows, gates)]
    shapes += [(steps, BATCH, hidden, gates), (steps, BATCH, gates, hidden)]
    found: list[Timed] = []
    operations = 0.0
    for count, m, k, n in shapes:
        a, b = torch.randn(STACK, m, k), torch.randn(STACK, k, n)
        found += [lambda a=a, b=b: torch.bmm(a, b)] * count
        operations += 2.0 * count * m * k * n
    return found, operations


def adam() -> Timed:
    """Adam's pass over the large layer of the letters CNN, whose state does not stay in a cache that two share."""
    from fedsoft.core import kernels

    w, first, second, target = torch.rand(4, 512, 3136).numpy()
    left, right = torch.randn(5, 512).numpy(), torch.randn(5, 3136).numpy()
    one, keep = torch.ones(1).numpy(), torch.tensor([0.9, 0.999]).numpy()
    return lambda: kernels.adam_outer(
        w, left, right, (first, second), (True, one, target), (keep, 10 * one, 1e-8 * one)
    )


def seconds(timed: Timed, least: float) -> float:
    """The best processor time of a call, of some that take a while together."""
    timed()
    best = float("inf")
    for _ in range(5):
        calls, began = 0, time.process_time()
        while (spent := time.process_time() - began) < least:
            timed()
            calls += 1
        best = min(best, spent / calls)
    return best


def part(repeats: int, quick: bool) -> dict[str, Any]:
    """What `make bench` saves."""
    least = 1e-4 if quick else 5e-3
    known: dict[str, tuple[Callable[[], tuple[list[Timed], float]], str, int]] = {
        "ResNet-8": (convolutions, "resnet-tuned", 1),
        "LSTM": (recurrences, "lstm", STACK),
        "Transformer": (matrices, "transformer", CLIENTS),
    }
    result: dict[str, Any] = {
        "threads": {"product": machine.free_cores(), "adam": machine.twice(adam, 0.05 if quick else 1.0)}
    }
    for name, (products, row, clients) in known.items():
        found, operations = products()
        once = {timed: seconds(timed, least) for timed in dict.fromkeys(found)}
        bare = sum(once[timed] for timed in found) / clients
        sides = {"tuned": ROWS[row].theirs(quick), "ours": ROWS[row].ours(quick)}
        steps: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(2 if quick else repeats + 1):
            for side, work in sides.items():
                spent, units = work()
                steps[side] += [spent / units] if turn else []  # the first warms up
        medians = {side: statistics.median(values) for side, values in steps.items()}
        result[name] = {"products": bare, "rate": operations / bare, "goal": ROWS[row].reach, **medians}
    return result


def block(result: dict[str, Any]) -> str:
    """Sentences on a page."""
    threads = result["threads"]
    told = [
        f"By the clock two threads do {threads['product']:.3g} times as many products of matrices in the cache as one, "
        f"and {threads['adam']:.3g} times as many of Adam's passes over the letters CNN's large layer, each with 26 MB "
        "of its own."
    ]
    for name, row in result.items():
        if "products" not in row:
            continue
        bare, left = row["products"], row["tuned"] / row["goal"] - row["products"]
        told.append(
            f"Of a step of the {name}, which takes the tuned loop {duration(row['tuned'])} and fedsoft "
            f"{duration(row['ours'])}, the bare products take {duration(bare)}, at {row['rate'] / 1e9:.0f} GFLOP/s. "
            f"They alone would be {number(row['tuned'] / bare)} times as fast as the tuned loop; the goal "
            f"of {row['goal']:g} leaves {duration(max(left, 0))} for all else, where fedsoft takes "
            f"{duration(max(row['ours'] - bare, 0))}."
        )
    return " ".join(told)
