"""fedjax at the same work: the fastest library beside which fedsoft was measured.

It is no dependency: `make bench PEERS=1` installs it into a folder of its own (build/peers). Rounds are FedSoft's, with
fedjax's `for_each_client` (compiled, one step of a client at a time), its batches and its Adam; the proximal term is
pre-summed, as in the tuned loop.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.loops import LAM, SIGMA, TAU, Work

FOLDER = Path(__file__).parent.parent / "build" / "peers"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def absent() -> str | None:
    """Why fedjax cannot be measured."""
    return None if (FOLDER / "fedjax").is_dir() else "fedjax is not installed: make bench PEERS=1"


@dataclass(frozen=True)
class Net:
    """A network of JAX: what it computes, its loss for each point, and its parameters from a row of fedsoft's."""

    outputs: Callable[[Any, Any], Any]
    loss: Callable[[Any, Any], Any]
    parameters: Callable[[Tensor], Any]
    inputs: Callable[[Tensor], Any] = lambda x: x.numpy()


def linear() -> Net:
    """A linear regression."""
    return Net(lambda w, x: x @ w, lambda out, y: (out - y) ** 2, lambda row: row.numpy())


def letters() -> Net:
    """The paper's CNN, with channels last, as XLA likes them."""
    jax, jnp, lax = _jax()
    sizes = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 3136), (512,), (26, 512), (26,))

    def parameters(row: Tensor) -> list[Any]:
        parts = row.split([int(torch.Size(size).numel()) for size in sizes])
        parts = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
        parts[4] = parts[4].view(512, 64, 7, 7).permute(0, 2, 3, 1).reshape(512, 3136)
        return [part.contiguous().numpy() for part in parts]

    def convolution(x: Any, w: Any, b: Any) -> Any:
        out = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC")) + b
        return lax.reduce_window(out, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def outputs(w: Any, x: Any) -> Any:
        x = convolution(convolution(x, w[0], w[1]), w[2], w[3])
        return jax.nn.relu(x.reshape(len(x), -1) @ w[4].T + w[5]) @ w[6].T + w[7]

    def loss(out: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], 1)[:, 0]

    return Net(outputs, loss, parameters, lambda x: (x.float() / 255).permute(0, 2, 3, 1).numpy())


class Peer:
    """FedSoft in fedjax."""

    def __init__(self, work: Work, net: Net, centers: Tensor, start: Tensor) -> None:
        jax, jnp, _ = _jax()
        fedjax: Any = importlib.import_module("fedjax")
        self.work, self.steps, self.t = work, 0, 0
        train = work.federation.train
        clients = [train.client(k) for k in range(len(train))]
        data = [{"x": net.inputs(x), "y": y.numpy()} for x, y in clients]
        self.data = [fedjax.ClientDataset(part) for part in data]
        self.sizes = [len(y) for _, y in clients]
        self.most = max(self.sizes)
        self.centers = [net.parameters(center) for center in centers]
        optimizer = fedjax.optimizers.adam(work.lr)
        first = net.parameters(start)
        self.own = [(first, optimizer.init(first)) for _ in clients]
        self.u = [jnp.full(len(self.centers), 1 / len(self.centers)) for _ in clients]
        self.tree, self.seeds = jax.tree_util.tree_map, itertools.count()

        def init(_: Any, given: Any) -> Any:
            return given

        def step(state: Any, batch: Any) -> Any:
            w, optimizer_state, strength, target = state
            grads = jax.grad(lambda w: net.loss(net.outputs(w, batch["x"]), batch["y"]).mean())(w)
            grads = self.tree(lambda g, w, c: g + strength * w - c, grads, w, target)
            optimizer_state, w = optimizer.apply(grads, optimizer_state, w)
            return w, optimizer_state, strength, target

        self.each = fedjax.for_each_client(init, step, lambda _, state: state[:2])
        self.mean = jax.jit(lambda v, ws: self.tree(lambda *w: sum(a * b for a, b in zip(v, w, strict=True)), *ws))

        def importance(cs: Any, x: Any, y: Any, real: Any) -> Any:
            losses = jnp.stack([net.loss(net.outputs(c, x), y) for c in cs])
            votes = (jnp.argmin(losses, 0)[None] == jnp.arange(len(cs))[:, None]) & real
            return jnp.maximum(votes.sum(1) / real.sum(), SIGMA)

        self.importance = jax.jit(importance)
        self.padded = [{name: _padded(values, self.most) for name, values in part.items()} for part in data]
        self.real = [jnp.arange(self.most) < n for n in self.sizes]

    def train(self, clients: Iterable[int], epochs: int, shuffle: bool = True) -> None:
        """Have clients solve their problems."""

        def given() -> Iterable[Any]:
            for k in clients:
                w, state = self.own[k]
                pull = w, state, LAM * self.u[k].sum(), self.mean(LAM * self.u[k], self.centers)
                if shuffle:
                    batches = self.data[k].shuffle_repeat_batch(
                        batch_size=self.work.batch, num_epochs=epochs, seed=next(self.seeds)
                    )
                    self.steps += -(-self.sizes[k] * epochs // self.work.batch)
                else:
                    batches = list(self.data[k].batch(batch_size=self.work.batch)) * epochs
                    self.steps += len(batches)
                yield k, batches, pull

        for k, found in self.each((), given()):
            self.own[k] = found

    def round(self) -> None:
        if self.t % TAU == 0:
            self.u = [
                self.importance(self.centers, part["x"], part["y"], real)
                for part, real in zip(self.padded, self.real, strict=True)
            ]
        self.train(range(len(self.own)), self.work.epochs)
        shares = [u * n for u, n in zip(self.u, self.sizes, strict=True)]
        total: Any = sum(shares)
        models, count = [w for w, _ in self.own], len(self.centers)
        self.centers = [self.mean([share[s] / total[s] for share in shares], models) for s in range(count)]
        self.t += 1

    def wait(self) -> None:
        """Until all is computed: JAX is ahead of itself."""
        jax, _, _ = _jax()
        jax.block_until_ready((self.own, self.centers))


def peer_of_rounds(make: Callable[[bool], Work], net: Callable[[], Net]) -> Callable[[bool], Any]:
    """Two rounds at a time, as of fedsoft."""

    def side(small: bool) -> Callable[[], tuple[float, float]]:
        peer = _peer(make(small), net)

        def work() -> tuple[float, float]:
            before, began = peer.steps, time.process_time()
            peer.round()
            peer.round()
            peer.wait()
            return time.process_time() - began, peer.steps - before

        return work

    return side


def peer_of_steps(make: Callable[[bool], Work], net: Callable[[], Net]) -> Callable[[bool], Any]:
    """An epoch of one client after the other."""

    def side(small: bool) -> Callable[[], tuple[float, float]]:
        peer = _peer(make(small), net)
        turns = itertools.cycle(range(len(peer.own)))

        def work() -> tuple[float, float]:
            before, began = peer.steps, time.process_time()
            peer.train([next(turns)], 1)
            peer.wait()
            return time.process_time() - began, peer.steps - before

        return work

    return side


def apart(make: Callable[[bool], Work], net: Callable[[], Net]) -> float:
    """How far models are apart after a local solve of the same batches, relative to how far training moved them."""
    work = make(True)
    engine = work.engine(shuffle=False)
    start = engine.engine.client_states["w"][:1].clone()
    peer = _peer(work, net, shuffle=False)
    everyone = list(range(len(peer.own)))
    peer.train(everyone, work.epochs, shuffle=False)
    engine.train(everyone)
    jax, _, _ = _jax()
    kind = net()
    ours = [kind.parameters(row) for row in engine.engine.client_states["w"]]
    ways, moved = 0.0, 0.0
    for own, (theirs, _) in zip(ours, peer.own, strict=True):
        for a, b, c in zip(*map(jax.tree_util.tree_leaves, (own, theirs, kind.parameters(start[0]))), strict=True):
            ways, moved = ways + float(((a - b) ** 2).sum()), moved + float(((a - c) ** 2).sum())
    return (ways / moved) ** 0.5


def _peer(work: Work, net: Callable[[], Net], shuffle: bool = True) -> Peer:
    engine = work.engine(shuffle=shuffle)
    return Peer(work, net(), engine.state.centers, engine.engine.client_states["w"][0])


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)])


def _jax() -> tuple[Any, Any, Any]:
    """JAX on one thread, from the folder of peers: behind everything else, so that nothing else changes."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return tuple(importlib.import_module(name) for name in ("jax", "jax.numpy", "jax.lax"))  # type: ignore[return-value]
