"""A federation of real processes for the tests, the proxy that its nodes go through, and a dishonest worker."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsoft.flower.local_cluster import flwr
from fedsoft.flower.local_cluster.cluster import LocalCluster
from fedsoft.flower.local_cluster.flwr import HOST
from fedsoft.flower.submit import write_submission
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec

PATIENCE = 600.0  # seconds, on a machine that has much else to do


def wait(there: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for an event."""
    end = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def burners(count: int, seconds: float = PATIENCE) -> Iterator[None]:
    """Processes that do nothing but compute, with less right to do so than others; they end by themselves at last."""
    code = f"import os, time; os.nice(5); end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class Door:
    """A reverse proxy as in the project's nginx.conf: TLS, nothing but /v1/fleet. It keeps all that passes."""

    def __init__(self, federation: LocalCluster) -> None:
        self.passed: list[tuple[str, bytes, bytes]] = []  # path, what went in, what came out
        self.turned_away: list[str] = []
        door, (host, port) = self, federation.settings.address.split(":")
        trusted = ssl.create_default_context(cafile=str(federation.authority))

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if not self.path.startswith("/v1/fleet/"):
                    door.turned_away.append(self.path)
                    self.reply(403, {}, b"")
                    return
                onward = http.client.HTTPSConnection(host, int(port), context=trusted, timeout=60)
                try:
                    onward.request(self.command, self.path, body, dict(self.headers.items()))
                    answer = onward.getresponse()
                    content = answer.read()
                    door.passed.append((self.path, body, content))
                    self.reply(answer.status, dict(answer.getheaders()), content)
                except OSError:
                    self.reply(502, {}, b"")
                finally:
                    onward.close()

            do_GET = do_PUT = do_DELETE = do_POST

            def reply(self, code: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(code)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A peer that hangs up, or does not trust us."""

        self.server = Server((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = federation.authority.parent
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Submitted:
    """A run that was handed to Flower."""

    def __init__(self, federation: LocalCluster, spec: RunSpec, path: Path) -> None:
        self.submitted, self.path = write_submission(federation, spec, path, RunOptions(chunk=1)), path
        self.number = federation.submit(self.submitted.path)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What stands in a log of the run so far."""
        path = self.path / name
        text = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def asked(self, t: int, job: str) -> list[dict[str, Any]]:
        """The messages to nodes that asked for a job of a round."""
        return [e for e in self.lines("wire.jsonl") if (e["way"], e["round"], e.get("job")) == ("down", t, job)]

    def finished(self) -> RunFolder:
        outcome = wait(self.submitted.outcome, f"the end of {self.path.name}")
        assert outcome.finished, outcome
        return RunFolder.open(self.path)


def dishonest(node: str, ready: str, control: str, silence: str) -> None:
    """The worker of a node that spoils its answers, in the rounds and ways that the file `control` says.

    `silence` is how many seconds it says nothing, where that is the way.
    """
    import torch

    from fedsoft.flower.node.config import NodeConfig
    from fedsoft.flower.node.node import Node
    from fedsoft.flower.node.worker import serve
    from fedsoft.flower.wire import WireMessage

    class Dishonest(Node):
        def answer(self, message: WireMessage) -> WireMessage:
            honest = super().answer(message)
            how = json.loads(Path(control).read_text("utf-8")).get(str(message.head.get("round")))
            if message.head.get("job") != "train" or how is None:
                return honest
            if how == "silence":
                time.sleep(float(silence))  # until the server has given up
            w = honest.tensors["w"]
            spoiled = {"nan": torch.full_like(w, torch.nan), "shape": w[:, :-1], "norm": 10 * w}[how]
            return WireMessage(honest.head, {"w": spoiled.contiguous()})

    serve(Dishonest(NodeConfig(Path(node))), Path(ready))


def start_dishonest(federation: LocalCluster, k: int, control: Path, seconds: float) -> None:
    """In place of the worker of node k."""
    folder = federation.node(k)
    (folder / "worker.ready").unlink(missing_ok=True)
    code = "import sys; from tests.flower.processes import dishonest; dishonest(*sys.argv[1:])"
    words = [folder / "node.toml", folder / "worker.ready", control, seconds]
    line = [sys.executable, "-c", code, *(str(word) for word in words)]
    name, ready = f"worker-{k}", folder / "worker.ready"

    def start() -> None:
        federation.processes.start(name, line, folder / "worker.log", flwr.environment(federation))

    def is_ready() -> bool:
        """An honest worker that was on its way may come first: it has to go."""
        process = federation.processes.read()[name]
        known = ready.read_text("utf-8").strip() if ready.exists() else ""
        if known == str(process.pid):
            return True
        if known:
            ready.unlink()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(known), signal.SIGKILL)
        if not process.alive:
            start()
        return False

    start()
    wait(is_ready, "the dishonest worker")
