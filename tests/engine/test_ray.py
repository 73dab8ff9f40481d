"""Clients at the workers of a Ray that is started here, on loopback: the same numbers, whatever is lost on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.clusters.averaging import mean_by_size
from fedsoft.core.contract import Algorithm, Ask, PersonalModels, State, Training, job
from fedsoft.core.replies import MODEL, ClientState, Reply
from fedsoft.core.site import Site
from fedsoft.engine.resources import Resources
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.settings import settings
from fedsoft.training import Run
from tests.helpers import engine_for, trained
from tests.test_conformance import NAMES, clients, federation, fitted, outcome

ray = pytest.importorskip("ray", reason='needs Ray: pip install "fedsoft[ray]"')

from fedsoft.engine import ray_cluster  # noqa: E402
from fedsoft.engine.ray import RayEngine  # noqa: E402
from fedsoft.engine.registry import find  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


NAMED = [f"c{k}" for k in range(8)]


def by_name(names: list[str]) -> fs.Federation:
    """Clients by name: each has the same points in every federation."""
    pairs = dict(zip(NAMED, clients((7, 12, 5, 9, 16, 6, 11, 8)), strict=True))
    return fs.Federation.from_clients([pairs[name] for name in names], names=names)


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One start for all tests here; workers go from one engine to the next."""
    yield
    ray.shutdown()


@contextlib.contextmanager
def at_workers(run: Run) -> Iterator[tuple[Run, RayEngine]]:
    assert isinstance(run.engine, RayEngine)
    with contextlib.closing(run.engine):
        yield run, run.engine


def inside(engine: RayEngine, j: int, what: Any) -> Any:
    """What a function says about the shard of a worker, in its process."""
    return ray.get(engine.actors[j].__ray_call__.remote(what))


@settings
class Mortal(Algorithm):
    """FedAvg that remembers; the process of a client dies in the middle of its job where a file says so, once."""

    flag: str
    where: int = 2

    def check(self, clients: int) -> None:
        pass

    def init(self, site: Site, clients: int) -> State:
        return State(site.draw("center", 0)[None])

    def init_client(self, site: Site) -> ClientState:
        return {"w": site.draw("client")[None].repeat(len(site), 1)}

    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        answer = ask("train", ask.everyone, centers=state.centers)
        return State(mean_by_size(ask, answer, state.centers)), {}

    @job(w=MODEL)
    def train(self, site: Site, mine: ClientState, shared: Reply) -> tuple[ClientState, Reply]:
        if site.t == self.where and "7" in site.names and Path(self.flag).exists():
            Path(self.flag).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        w, _ = site.solve((mine["w"] + shared["centers"]) / 2)
        return {"w": w}, {"w": w}

    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        return PersonalModels(mine["w"])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.smoke) if n == "fedsoft" else n for n in NAMES])
def test_every_algorithm_equals_local(name: str) -> None:
    """Whoever is asked, whoever does not answer, whatever is summed or gathered."""
    here = outcome(fitted(name, dropout=0.2))
    with at_workers(fitted(name, dropout=0.2, engine="ray", workers=2)) as (run, engine):
        assert len(engine.actors) == 2
        there = outcome(run)
        plain = fitted(name, dropout=0.2)
        told = run.history
    assert here.keys() == there.keys()
    for key, value in here.items():
        assert value.dtype == there[key].dtype, key
        assert torch.allclose(value.double(), there[key].double(), rtol=1e-6, atol=1e-8, equal_nan=True), key
    for one, other in zip(told, plain.history, strict=True):
        assert (one.gradients, one.bytes_down, one.bytes_up) == (other.gradients, other.bytes_down, other.bytes_up)


def test_a_network_of_the_user_with_adam_in_float32_and_what_a_run_offers() -> None:
    width = 5  # not a name that a worker could import

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))

    rng = np.random.default_rng(1)
    pairs = [(torch.from_numpy(rng.standard_normal((n, 4))), torch.from_numpy(rng.integers(3, size=n)))
             for n in (6, 9, 5, 8, 7)]  # fmt: skip
    fed = fs.Federation.from_clients(pairs, held_out=0.2, classes=3)

    def run(**options: Any) -> Run:
        return trained(
            fs.FedSoft(S=2, K=3), fed, fs.models.module(network), rounds=3, solver=fs.Adam(lr=0.01), **options
        )

    here = run()
    with at_workers(run(engine="ray", workers=2)) as (there, engine):
        assert torch.allclose(here.state.centers, there.state.centers, atol=1e-6)
        assert torch.equal(here.state.u, there.state.u)
        x = pairs[0][0]
        assert torch.allclose(here.predict(x, client=4), there.predict(x, client=4), atol=1e-6)
        assert torch.allclose(here.personal(3)["0.weight"], there.personal(3)["0.weight"], atol=1e-6)
        one, other = here.scores().to_dict(), there.scores().to_dict()
        assert one["personal_held_out"] == pytest.approx(other["personal_held_out"], abs=1e-5)
        rows = np.array([4, 0, 3, 1])
        assert torch.equal(engine.client_states.take(rows, ["w"])["w"], engine.client_states["w"][rows])
        assert torch.equal(torch.cat([part for _, part in engine.client_states.blocks("w")]), engine.client_states["w"])
        assert engine.client_states.take(rows[:0])["w"].shape == (0, here.model.size)


@pytest.mark.parametrize(
    "solver",
    [
        fs.AdamW(lr=0.02, epochs=2, clip=0.5, schedule=fs.Schedule(name="cosine", length=3, warmup=1)),
        fs.TorchOptimizer(
            optimizer=torch.optim.NAdam, options={"lr": 0.02}, epochs=2,
            schedule=fs.Schedule(name="linear", over="steps", length=30),
        ),
    ],
    ids=["adamw", "torch"],
)  # fmt: skip
def test_rates_by_round_weights_of_classes_and_optimizers_of_torch_equal_local(solver: Any) -> None:
    rng = np.random.default_rng(1)
    pairs = [(rng.standard_normal((n, 4)), rng.integers(3, size=n)) for n in (6, 19, 5, 8, 7)]
    fed = fs.Federation.from_clients(pairs, held_out=0.0, classes=3)

    def run(**options: Any) -> Run:
        chosen = fs.FitOptions(dtype="float64", class_weights="local", **options)
        return fs.fit(fs.FedSoft(S=2, K=3), fed, fs.models.mlp(hidden=[5]), rounds=4, solver=solver, options=chosen)

    here = run()
    with at_workers(run(engine="ray", workers=2)) as (there, _):
        assert torch.allclose(here.state.centers, there.state.centers, rtol=0, atol=1e-9)
        assert torch.allclose(here.personal(1)["0.weight"], there.personal(1)["0.weight"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("algorithm", [fs.FedSoft(S=2, K=3), fs.FedEM(S=2)], ids=["fedsoft", "fedem"])
def test_more_rounds_and_clients_that_join_and_leave_equal_local(algorithm: Any) -> None:
    """Clients keep what they know from one set of workers to the next, and from workers to one process and back."""
    first, then = NAMED[:6], [NAMED[4], *NAMED[1:4], NAMED[7], NAMED[6]]

    def begun(**options: Any) -> fs.Run:
        chosen = fs.FitOptions(dtype="float64", **options)
        solver = fs.Adam(lr=0.05, epochs=2)
        return fs.fit(algorithm, by_name(first), fs.models.linear(), rounds=2, solver=solver, options=chosen)

    here = fs.FitOptions(dtype="float64", workers=1)
    there = fs.FitOptions(dtype="float64", workers=2, engine="ray")
    longer = begun(workers=1).extend(3, options=here)
    local = longer.extend(5, federation=by_name(then), options=here)
    for ways in ((there, there, there), (here, there, here), (there, here, there)):
        with contextlib.ExitStack() as opened:
            run = begun(workers=ways[0].workers, engine=ways[0].engine)
            opened.callback(run.engine.close)
            run = run.extend(3, options=ways[1])
            opened.callback(run.engine.close)
            assert torch.allclose(run.state.centers, longer.state.centers, rtol=0, atol=1e-9)
            run = run.extend(5, federation=by_name(then), options=ways[2])
            opened.callback(run.engine.close)
            assert isinstance(run.engine, RayEngine) == (ways[2] is there)
            assert torch.allclose(run.state.centers, local.state.centers, rtol=0, atol=1e-9)
            for key, value in local.engine.client_states.take(np.arange(len(then))).items():
                found = run.engine.client_states.take(np.arange(len(then)))[key]
                assert torch.allclose(found.double(), value.double(), rtol=0, atol=1e-9), key
            record = run.history[3]
            assert (record.joined, record.left) == ([NAMED[7], NAMED[6]], [NAMED[0], NAMED[5]])


def test_what_crosses_grows_with_centers_and_workers_and_not_with_clients() -> None:
    """FedAvg of everybody sends a model to each worker and a sum back; of a client, only its weight in the sum."""
    size = 3 * 64 + 64 + 64 + 1

    def crossed(many: int) -> tuple[int, int, int]:
        engine = engine_for(
            fs.FedAvg(K="all"), federation(clients((5,) * many)), fs.models.mlp(hidden=[64]), seed=0,
            solver=fs.SGD(epochs=1), workers=2, engine=find("ray"),
        )  # fmt: skip
        assert isinstance(engine, RayEngine)
        with contextlib.closing(engine), torch.no_grad():
            state = engine.start()
            down, up, calls = engine.wire.down, engine.wire.up, engine.wire.calls
            engine.round(state, 0)
            wire = engine.wire
            return wire.down - down, wire.up - up, wire.calls - calls

    assert crossed(6) == (2 * 4 * size + 6 * 8, 2 * 8 * size, 4)
    assert crossed(60) == (2 * 4 * size + 60 * 8, 2 * 8 * size, 4)


def test_replies_are_kept_no_longer_than_they_are_asked_for() -> None:
    with at_workers(fitted("fedsoft", rounds=6, engine="ray", workers=2)) as (_, engine):
        for j in range(2):
            assert inside(engine, j, lambda shard: len(shard.replies)) <= 2  # of one round


def test_an_error_of_a_client_is_told_as_ever() -> None:
    for engine in ("local", "ray"):
        with pytest.raises(fs.DivergedError, match=r"client '0' answered job 'train' of round 1 with values"):
            trained(
                fs.FedAvg(),
                federation(),
                fs.models.linear(),
                rounds=3,
                solver=fs.SGD(lr=1e30, epochs=20),
                engine=engine,
            )


def test_guards_exclude_the_same_clients_and_only_norms_cross_the_wire() -> None:
    attack = fs.attacks.scaled(share=0.25, factor=1e6)
    options: dict[str, Any] = {"rounds": 2, "solver": fs.SGD(lr=0.01, epochs=2), "guard": 5.0, "attack": attack}
    local = trained(fs.FedAvg(), federation(), fs.models.linear(), **options)
    far = trained(fs.FedAvg(), federation(), fs.models.linear(), **options, engine="ray", workers=2)
    with at_workers(far) as (run, engine):
        assert [record.excluded for record in run.history] == [record.excluded for record in local.history]
        torch.testing.assert_close(run.state.centers, local.state.centers)
        assert engine.wire.up == 2 * (8 * len(run.federation) + 2 * 8 * run.model.size)


def test_clients_that_diverge_are_dropped_at_their_workers() -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((10, 2)), rng.standard_normal(10)) for _ in range(5)]
    pairs[3] = (pairs[3][0] * 1e30, pairs[3][1])
    fed = fs.Federation.from_clients(pairs, held_out=0)
    options: dict[str, Any] = {"rounds": 2, "solver": fs.SGD(lr=0.1, epochs=2), "diverged": "drop"}
    local = trained(fs.FedSoft(S=2), fed, fs.models.linear(), **options)
    with at_workers(trained(fs.FedSoft(S=2), fed, fs.models.linear(), **options, engine="ray", workers=2)) as (run, _):
        assert run.history[0].excluded == local.history[0].excluded
        assert run.history[0].excluded[0].client == "3"
        torch.testing.assert_close(run.state.centers, local.state.centers)


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_of_a_job_is_replaced_and_the_bits_are_the_same(tmp_path: Path) -> None:
    flag = tmp_path / "die"
    spec = RunSpec.from_dict({
        "rounds": 5, "model": "linear", "solver": {"name": "sgd", "lr": 0.01}, "partition": "10:90",
        "algorithm": {"name": "tests.engine.test_ray:Mortal", "flag": str(flag)},
        "dataset": {"name": "synthetic", "clients": 9, "points": [5, 16], "dimension": 3, "test_points": 20},
    }, allow=["tests.engine.test_ray:Mortal"])  # fmt: skip
    stage = RunOptions(engine="ray", workers=2)
    plain, _ = execute(spec, tmp_path / "plain", stage)
    local, _ = execute(spec, tmp_path / "local", RunOptions())
    flag.touch()
    lost, finished = execute(spec, tmp_path / "lost", stage)
    assert finished
    assert not flag.exists()  # somebody did die
    assert (lost.path / "state.safetensors").read_bytes() == (plain.path / "state.safetensors").read_bytes()
    assert lost.scores() == plain.scores()
    one, other = lost.checkpoint(), local.checkpoint()
    assert one is not None
    assert other is not None
    assert torch.allclose(one.client_states["w"], other.client_states["w"], atol=1e-6)
    # In memory nothing is saved: from the start.
    flag.touch()
    fed = fs.datasets.synthetic(clients=9, points=(5, 16), dimension=3, test_points=20)
    mortal, solver = Mortal(flag=str(flag)), fs.SGD(lr=0.01)
    far = trained(mortal, fed, fs.models.linear(), rounds=5, solver=solver, engine="ray", workers=2)
    with at_workers(far) as (run, _):
        assert not flag.exists()
        assert torch.equal(run.state.centers, one.state.centers)


@pytest.mark.slow
def test_a_worker_that_dies_with_its_replies_or_while_its_memory_is_saved(tmp_path: Path) -> None:
    """Killed from outside, between what it answered and the sum over it, and in the middle of a checkpoint."""
    spec = RunSpec.from_dict({
        "rounds": 4, "model": "linear", "solver": {"name": "sgd", "lr": 0.01}, "partition": "10:90",
        "algorithm": {"name": "fedsoft", "S": 2, "K": 4},
        "dataset": {"name": "synthetic", "clients": 9, "points": [5, 16], "dimension": 3, "test_points": 20},
    })  # fmt: skip

    class Haunted(RayEngine):
        strikes: list[tuple[str, int]]

        def call(self, name: str, asked: Any) -> list[Any]:
            if (name, self.t) in self.strikes:
                self.strikes.remove((name, self.t))
                j = max(asked)
                victim = inside(self, j, lambda shard: os.getpid())
                os.kill(victim, signal.SIGKILL)
            return super().call(name, asked)

    def haunted(*parts: Any, **options: Any) -> Haunted:
        made = Haunted(*parts, **options)
        made.strikes = strikes
        return made

    strikes: list[tuple[str, int]] = []
    plain, _ = execute(spec, tmp_path / "plain", RunOptions(engine=haunted, workers=2))
    strikes += [("weighted", 1), ("take", 3)]
    lost, finished = execute(spec, tmp_path / "lost", RunOptions(engine=haunted, workers=2))
    assert finished
    assert strikes == []
    assert (lost.path / "state.safetensors").read_bytes() == (plain.path / "state.safetensors").read_bytes()


@pytest.mark.slow
def test_ten_thousand_clients_on_two_workers() -> None:
    fed = fs.datasets.synthetic(clients=10_000, points=(5, 10), dimension=5, test_points=50)

    def run(**options: Any) -> Run:
        local = fs.SGD(lr=0.01, epochs=1)
        return trained(fs.FedSoft(S=2, K=200), fed, fs.models.linear(), rounds=3, solver=local, workers=2, **options)

    here = run()
    with at_workers(run(engine="ray")) as (there, engine):
        assert np.diff(engine.cuts) == pytest.approx([5000, 5000], abs=200)
        assert torch.allclose(here.state.centers, there.state.centers, atol=1e-6)
        assert torch.equal(here.state.u, there.state.u)
        assert torch.allclose(here.engine.client_states["w"], engine.client_states["w"], atol=1e-6)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1", "127.0.0.1:port", "127.0.0.1:99999"]
)
def test_an_address_where_no_cluster_is(address: str) -> None:
    with pytest.raises(fs.InputError, match=rf"address = '{address}' is not allowed: no Ray cluster could be joined"):
        ray_cluster._join(address)


def test_what_the_engine_cannot_do_is_said() -> None:
    training = Training(fs.FedAvg(), fs.models.linear()(federation().shape), fs.SGD(), seed=0)
    with pytest.raises(
        fs.InputError, match=r"device = 'cuda' is not allowed: workers of engine 'ray' compute on 'cpu'"
    ):
        RayEngine(training, federation(), resources=Resources(device="cuda"))
    with at_workers(fitted("fedavg", rounds=1, engine="ray", workers=2)) as (run, engine):
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        with pytest.raises(fs.InputError, match=r"this process has joined the Ray cluster at '127.0.0.1:\d+' already"):
            fitted("fedavg", rounds=1, engine="ray", address="10.0.0.1:6379")
        engine.close()
        with pytest.raises(fs.FedsoftError, match="is closed"):
            run.scores()
    with pytest.raises(fs.InputError, match=r"cannot send the algorithm, the model and the solver .*: .*pickle"):
        ray_cluster.sendable(replace(training, solver=threading.Lock()))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_the_command_line_joins_a_cluster_and_stops_when_asked(tmp_path: Path) -> None:
    """A process of its own at our Ray; Ctrl-C reaches it as the terminal sends it, to the whole group."""
    with at_workers(fitted("fedavg", rounds=1, engine="ray", workers=2)):
        address = ray.get_runtime_context().gcs_address
        command = [
            sys.executable, "-c", "from fedsoft.cli import main; main()", "run", "synthetic-10-90", "--set",
            "clients=20", "--set", "K=10", "--engine", "ray", "--address", address, "--workers", "1", "--out",
            str(tmp_path),
        ]  # fmt: skip
        ours = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray: stay on loopback
        process = subprocess.Popen([*command, "--rounds", "100000"], text=True, stderr=subprocess.PIPE,
                                   stdout=subprocess.PIPE, start_new_session=True, env=ours)  # fmt: skip
        try:
            while not [path for path in tmp_path.glob("*/state.safetensors") if path.stat().st_size]:
                assert process.poll() is None, process.communicate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            os.killpg(process.pid, signal.SIGINT)
            _, told = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 130, told
        assert "stopped and saved after round" in told
        done = subprocess.run([*command, "--rounds", "2"], text=True, capture_output=True, timeout=600, env=ours)
        assert done.returncode == 0, done.stderr
        assert "Cost: 2 rounds" in done.stdout
