"""Ray itself: started here or joined, idle workers kept for the next run, its errors made readable."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions
from ray._private import ray_constants
from ray._private.node import Node

from fedsoft import plugins
from fedsoft.core.contract import Training
from fedsoft.errors import FedsoftError, InputError
from fedsoft.machine.resources import cores

PATIENCE = 300.0  # seconds for Ray or a worker to start: a cluster may be busy
KNOCK = 5.0  # seconds to connect to a cluster

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}

GONE = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.NodeDiedError)


@dataclass(frozen=True)
class Place:
    """What a cluster offers: workers, workers per machine, and the cores that each reserves."""

    workers: int
    beside: int
    cores_each: int


_ours = False  # whether Ray was started here, for this process alone
_idle: list[Any] = []  # its idle workers


def idle_worker() -> Any | None:
    """Return an idle worker that is still alive."""
    while _idle:
        with contextlib.suppress(*GONE):
            ray.get((worker := _idle.pop()).ready.remote())
            return worker
    return None


def let_go(worker: Any) -> None:
    """Keep a worker for the next run here, to save the import of torch; on a cluster end it and free its core."""
    if _ours:
        worker.leave.remote()
        _idle.append(worker)
    else:
        ray.kill(worker)


def connect(address: str | None, workers: int | None) -> Place:
    """Join the cluster, or start Ray here: on loopback, without a dashboard or usage statistics.

    What was started ends with this process, or with `ray.shutdown()`.
    """
    global _ours
    if not ray.is_initialized():
        _idle.clear()
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers see the same devices
        with _own_signals():
            if address is None:
                _start(workers or cores())
            else:
                _join(address)
        _ours = address is None
    elif address not in (None, "auto", here := ray.get_runtime_context().gcs_address):
        raise InputError(
            f"address = '{address}' is not allowed: this process has joined the Ray cluster at '{here}' already"
        )
    if _ours:
        many = workers or cores()
        return Place(many, many, 0)
    there = int(ray.cluster_resources().get("CPU", 0))
    if not 1 <= (workers or 1) <= there:
        raise InputError(f"workers = {workers} is not allowed: the cluster has {there} cores")
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    return Place(workers or there, -(-(workers or there) // machines), 1)


def _start(workers: int) -> None:
    """Start Ray. It waits 15 seconds for its own processes, which is too short on a busy machine: try again."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # workers do this process's own work
    until = time.monotonic() + PATIENCE
    with _loopback():
        while not ray.is_initialized():
            try:
                ray.init(address="local", num_cpus=workers, include_dashboard=False, **QUIET)
            except Exception as error:  # Ray raises no error class of its own here
                _end_halves(error)
                if time.monotonic() > until:
                    raise FedsoftError(f"Ray could not be started here: {last_line(error)}") from None


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Keep Ray on loopback, the default on systems other than Linux; it offers no other way."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _end_halves(error: Exception) -> None:
    """End the processes of a failed start, which Ray would leave running until this process ends."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if isinstance(half := frame.f_locals.get("self"), Node):
            half.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _join(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if address != "auto":
            if not host or "/" in host or not port.isdecimal():
                raise ValueError("not an address")
            socket.create_connection((host, int(port)), timeout=KNOCK).close()  # Ray itself would try for minutes
        with (
            _loopback() if host in ("127.0.0.1", "localhost") and not _reached(int(port)) else contextlib.nullcontext()
        ):
            ray.init(address=address, **QUIET)
    except (OSError, OverflowError, ValueError, RuntimeError, exceptions.RayError) as error:
        raise InputError(
            f"address = '{address}' is not allowed: no Ray cluster could be joined there ({last_line(error)}); should "
            "be HOST:PORT of its head, or auto, on a machine that belongs to it"
        ) from None


def _reached(port: int) -> bool:
    """Return whether the port can be reached by this machine's address, by which Ray replaces a loopback address."""
    try:
        socket.create_connection((ray.util.get_node_ip_address(), port), timeout=KNOCK).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the signal handlers of this process: Ray installs its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sendable(training: Training) -> Any:
    """Put what all workers need into Ray's store; Ray pickles functions and classes of the user's script too.

    So it does with those of modules beside the user's file, which workers would not find.
    """
    for module in plugins.modules_beside():
        ray.cloudpickle.register_pickle_by_value(module)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return ray.put(training)
    except Exception as error:  # whatever the user's own class may raise
        reason = last_line(error.__cause__ or error)  # Ray's own text fills a page
        raise InputError(
            f"engine 'ray' cannot send the algorithm, the model and the solver to its workers: {reason}"
        ) from None


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
