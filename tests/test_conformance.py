"""What every algorithm must do. The algorithms are discovered: a new file is tested without another word."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import Algorithm
from fedsoft.core.replies import Answer, Ids, Reply
from fedsoft.core.site import Site
from fedsoft.engine.client_host import ClientHost
from fedsoft.engine.local import LocalEngine
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import RunSpec
from fedsoft.training import Limit, Run, play
from fedsoft.training.records import RoundRecord
from tests.helpers import engine_for, trained

NAMES = plugins.names("algorithms")
ROUNDS = 4
LOCAL = {"name": "sgd", "lr": 0.05, "epochs": 2, "batch": 5}

every = pytest.mark.parametrize("name", NAMES)


def settings_of(name: str) -> set[str]:
    return set(plugins.parameters(plugins.find("algorithms", name)))


def algorithm(name: str, clients: int = 9, **changes: Any) -> Algorithm:
    """The algorithm with its own defaults, partial participation where it has it, and phases that fit into 4 rounds."""
    wanted = {"K": min(6, clients), "S": 2, "warm": 2, "after": 1, **changes}
    return plugins.build("algorithms", name, {k: v for k, v in wanted.items() if k in settings_of(name)})


def clients(sizes: tuple[int, ...] = (7, 12, 5, 9, 16, 6, 11, 8, 10), seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Two linear sources, mixed 20:80 and 80:20."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((2, 3)) * 2
    made = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, 3))
        source = (rng.random(n) < (0.2 if k % 2 else 0.8)).astype(int)
        y = np.einsum("nd,nd->n", x, theta[source]) + 0.1 * rng.standard_normal(n)
        made.append((torch.from_numpy(x), torch.from_numpy(y)))
    return made


def federation(pairs: list[tuple[Tensor, Tensor]] | None = None, names: list[str] | None = None) -> fs.Federation:
    return fs.Federation.from_clients(clients() if pairs is None else pairs, names=names)


def fitted(name: str, fed: fs.Federation | None = None, rounds: int = ROUNDS, **options: Any) -> Run:
    fed = federation() if fed is None else fed
    made = options.pop("made", None) or algorithm(name, len(fed))
    local = fs.SGD(**{k: v for k, v in LOCAL.items() if k != "name"})
    return trained(made, fed, fs.models.linear(), rounds=rounds, solver=local, dtype="float64", **options)


def outcome(run: Run) -> dict[str, Tensor]:
    """Everything that a run leaves behind, and what it predicts for everybody."""
    engine = run.engine
    with torch.no_grad():
        scores = engine.personal_scores(run.state, run.federation.train)
    left = {f"state {key}": value for key, value in run.state.tensors().items()}
    left |= {f"client {key}": value for key, value in engine.client_states.items()}
    return left | {"personal": scores}


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], order: list[int] | None = None) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        by_client = order is not None and (
            key.startswith(("client ", "state per_client.")) or key in ("personal", "state u")
        )
        value = value[order] if by_client else value
        assert value.shape == other[key].shape, key
        assert torch.allclose(value.double(), other[key].double(), rtol=1e-7, atol=1e-8, equal_nan=True), key


def assert_finite(run: Run) -> None:
    for key, value in outcome(run).items():
        assert bool(torch.isfinite(value).all()), key


@every
def test_the_contract(name: str) -> None:
    made = algorithm(name)
    assert isinstance(made, Algorithm)
    assert type(made).__name__.lower() == name
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(made)[0].name if fields(made) else "x", 1)  # pyright: ignore[reportArgumentType]


@every
def test_the_docstring_follows_the_template(name: str) -> None:
    text = inspect.getdoc(plugins.find("algorithms", name)) or ""
    for heading in ("Maths", "Arguments:", "Cost:", "Use it:", "Avoid it:", "Example:", "Reference:"):
        assert heading in text or (heading == "Arguments:" and not settings_of(name)), heading
    idea = text.partition("Maths")[0].split("\n\n")
    assert len(idea) > 1, "a sentence on what it is, and one on how"
    arguments = text.partition("Arguments:")[2].partition("Cost:")[0]
    for setting in settings_of(name):
        assert setting in arguments.replace(",", ":").replace(" ", ":").split(":") or f"{setting}:" in arguments, (
            setting
        )


@every
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    one, other = outcome(fitted(name)), outcome(fitted(name))
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


@every
@pytest.mark.parametrize("chunk", [1, 4])
def test_the_chunk_does_not_matter(name: str, chunk: int) -> None:
    """One client at a time is the plain loop; the stack must agree with it."""
    assert_close(outcome(fitted(name)), outcome(fitted(name, chunk=chunk)))


@every
@pytest.mark.parametrize(
    "other",
    [pytest.param({"workers": 3}, marks=pytest.mark.slow), pytest.param({"memory": 0}, marks=pytest.mark.slow),
     {"memory": 600, "workers": 2}],
    ids=str,
)  # fmt: skip
def test_neither_workers_nor_memory_change_a_bit(name: str, other: dict[str, Any]) -> None:
    """More threads than cores; clients and replies in files, all of them or the longer ones."""
    one = outcome(fitted(name, chunk=2, dropout=0.2, workers=1, memory="1G"))
    two = outcome(fitted(name, chunk=2, dropout=0.2, **other))
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


@every
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    names, order = [f"client {k}" for k in range(9)], [4, 8, 0, 2, 7, 1, 3, 6, 5]
    pairs = clients()
    one = fitted(name, federation(pairs, names))
    other = fitted(name, federation([pairs[k] for k in order], [names[k] for k in order]))
    assert_close(outcome(one), outcome(other), order)


@every
def test_padding_does_not_matter(name: str) -> None:
    """A client far larger than the others, kept apart by chunks, changes nothing about how the others are computed."""
    pairs = clients((5, 6, 7, 5, 60, 6))
    assert_close(outcome(fitted(name, federation(pairs))), outcome(fitted(name, federation(pairs), chunk=2)))


@every
def test_a_stopped_run_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    chosen = {k: getattr(algorithm(name), k) for k in settings_of(name)}
    raw: dict[str, Any] = {
        "rounds": ROUNDS, "algorithm": {"name": name, **chosen}, "model": "linear", "solver": LOCAL,
        "partition": "10:90",
        "dataset": {"name": "synthetic", "clients": 9, "points": [5, 16], "dimension": 3, "test_points": 20},
    }  # fmt: skip
    raw["algorithm"] = {k: v for k, v in raw["algorithm"].items() if v is not None}
    whole, _ = execute(RunSpec.from_dict(raw), tmp_path / "whole", RunOptions())

    class Stop(BaseException):
        pass

    def stop_after(count: int) -> Callable[[RoundRecord], None]:
        def on_round(record: RoundRecord) -> None:
            if record.round == count:
                raise Stop

        return on_round

    for count in (1, 3):
        with pytest.raises(Stop):
            execute(RunSpec.from_dict(raw), tmp_path / "stopped", RunOptions(callbacks=[stop_after(count)]))
    resumed, finished = execute(RunSpec.from_dict(raw), tmp_path / "stopped", RunOptions())
    assert finished
    assert (resumed.path / "state.safetensors").read_bytes() == (whole.path / "state.safetensors").read_bytes()
    assert resumed.scores() == whole.scores()


@every
@pytest.mark.parametrize("dropout", [0.3, 0.8, 1.0])
def test_dropouts_never_give_nan(name: str, dropout: float) -> None:
    assert_finite(fitted(name, rounds=5, dropout=dropout))


@every
def test_when_nobody_answers_all_models_stay(name: str) -> None:
    """Centers, and what is known of and kept by clients: some algorithms have no centers."""
    first, last = (outcome(fitted(name, rounds=rounds, dropout=1.0)) for rounds in (0, ROUNDS))
    models = [
        key for key in first if key.startswith(("state centers", "state per_client.", "client ")) and len(first[key])
    ]
    assert models
    for key in models:
        assert torch.equal(last[key], first[key]), key


@every
def test_a_whole_cluster_that_is_silent_does_no_harm(name: str) -> None:
    """The clients of one source stop answering after the second round."""
    engine = engine_for(algorithm(name), federation(), fs.models.linear(), seed=0, dtype="float64")
    engine.dropouts = lambda job, t, names: np.array([t >= 2 and int(n) % 2 == 0 for n in names])
    with torch.no_grad():
        state = engine.start()
    fed = federation()
    run = Run(fed, engine, state, [])
    for run.state, record in play(engine, fed, state, [], Limit(5)):
        run.history.append(record)
    assert_finite(run)


@every
def test_a_client_with_one_point(name: str) -> None:
    assert_finite(fitted(name, federation(clients((1, 6, 1, 9, 5, 1)))))


@every
def test_one_center_and_more_centers_than_clients(name: str) -> None:
    if "S" not in settings_of(name):
        pytest.skip("has no S")
    assert_finite(fitted(name, made=algorithm(name, S=1)))
    assert_finite(fitted(name, federation(clients((5, 6, 7))), made=algorithm(name, 3, S=5)))


@every
def test_more_clients_than_there_are_cannot_be_drawn(name: str) -> None:
    made = algorithm(name, K=10)
    with pytest.raises(fs.InputError, match=rf"{type(made).__name__}\.K = 10 .*at most 9, the number of clients"):
        fitted(name, made=made)


@every
def test_a_single_client(name: str) -> None:
    assert_finite(fitted(name, federation(clients((9,))), made=algorithm(name, 1, S=1)))


@every
def test_classification_with_any_network(name: str) -> None:
    if name == "mocha":
        pytest.skip("is for linear models")
    rng = np.random.default_rng(1)
    made = [
        (torch.from_numpy(rng.standard_normal((n, 4))), torch.from_numpy(rng.integers(3, size=n))) for n in (6, 9, 5, 8)
    ]
    fed = fs.Federation.from_clients(made, held_out=0.2, classes=3)

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    run = fs.fit(
        algorithm(name, 4, K=3), fed, fs.models.module(network), rounds=3, solver=fs.Adam(lr=0.01, epochs=1, batch=4)
    )
    assert_finite(run)
    probabilities = run.predict(made[0][0], client=0)
    assert probabilities.shape == (6, 3)
    assert torch.allclose(probabilities.sum(1), torch.ones(6), atol=1e-5)


@every
def test_the_personal_model_is_what_a_client_predicts_with(name: str) -> None:
    run, x = fitted(name), clients()[0][0]
    for k in (0, 4):
        models, predicted = run.ensemble(client=k), run.predict(x, client=k)
        assert torch.allclose(models.predict(x), predicted)
        if len(models.w) == 1 and models.gate is None:
            assert torch.allclose(x @ run.personal(k)["weight"].flatten(), predicted)
        else:
            count = f"{len(models.w)} models" if models.gate is None else "more than one network"
            with pytest.raises(fs.InputError, match=f"predicts with {count} for each client: use"):
                run.personal(k)


@every
def test_images_as_bytes(name: str) -> None:
    rng = np.random.default_rng(2)
    made = [
        (torch.from_numpy(rng.integers(0, 256, (n, 1, 3, 3), dtype=np.uint8)), rng.integers(3, size=n))
        for n in (6, 9, 5)
    ]
    fed = fs.Federation.from_clients(made, classes=3)
    if name == "mocha":
        pytest.skip("is for linear regression")
    assert_finite(fs.fit(algorithm(name, 3, K=2), fed, fs.models.mlp(hidden=[4]), rounds=3, solver=fs.SGD(epochs=1)))


@every
def test_an_mlp_with_adam_agrees_over_chunks(name: str) -> None:
    """The other path of the engine: general gradients, optimiser memory, dropouts."""
    if name == "mocha":
        pytest.skip("is for linear models")

    def run(chunk: int | None) -> Run:
        local = fs.Adam(lr=0.01, epochs=2, batch=5)
        conditions, options = fs.Conditions(dropout=0.2), fs.FitOptions(dtype="float64", chunk=chunk)
        model = fs.models.mlp(hidden=[4])
        return fs.fit(
            algorithm(name), federation(), model, rounds=3, solver=local, conditions=conditions, options=options
        )

    assert_close(outcome(run(None)), outcome(run(2)))


@every
def test_an_mlp_with_adam_has_the_same_bits_with_any_number_of_workers(name: str) -> None:
    if name == "mocha":
        pytest.skip("is for linear models")

    def run(**options: Any) -> dict[str, Tensor]:
        local = fs.Adam(lr=0.01, epochs=2, batch=5)
        model = fs.models.mlp(hidden=[4])
        return outcome(trained(algorithm(name), federation(), model, rounds=3, solver=local, chunk=2, **options))

    one, three = run(workers=1), run(workers=3, memory=0)
    for key, value in one.items():
        assert torch.equal(value, three[key]), key


@every
def test_work_and_bytes_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ask is watched: what goes to each of those asked, and what comes from each that answers."""
    down, up = [0] * ROUNDS, [0] * ROUNDS
    ask = LocalEngine.__call__

    def watched(self: LocalEngine, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        answer = ask(self, job, ids, each=each, **shared)
        down[self.t] += sum(v.nbytes for v in (each or {}).values()) + len(ids) * sum(v.nbytes for v in shared.values())
        up[self.t] += sum(rows.gather().nbytes for rows in answer.values.values())
        return answer

    monkeypatch.setattr(LocalEngine, "__call__", watched)
    run = fitted(name, dropout=0.2)
    assert [record.bytes_down for record in run.history] == down
    assert [record.bytes_up for record in run.history] == up
    assert name == "local" or all(count > 0 for count in (*down, *up))
    assert sum(record.gradients for record in run.history) > 0


@every
def test_no_algorithm_can_see_the_truth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a job and a round can reach: no sources, no mixture, no held-out points, no test sets."""
    fed = fs.datasets.synthetic(clients=9, points=(5, 16), dimension=3, test_points=7)
    seen: list[Site] = []
    make = ClientHost._site

    def spy(self: ClientHost, data: ClientData, rows: np.ndarray, t: int, *noise: Any) -> Site:
        site = make(self, data, rows, t, *noise)
        seen.append(site)
        return site

    monkeypatch.setattr(ClientHost, "_site", spy)
    fs.fit(algorithm(name), fed, fs.models.linear(), rounds=3, solver=fs.SGD(lr=0.01, epochs=1))
    assert seen
    engine = engine_for(algorithm(name), fed, fs.models.linear(), seed=0)  # is the `ask` that a round gets
    assert not any(isinstance(value, fs.Federation) or value is fed.held_out for value in vars(engine).values())
    for site in seen:
        assert site.data.x.data_ptr() != fed.held_out.x.data_ptr()
        assert {f.name for f in fields(site.data)} == {"x", "y", "starts", "sizes", "augment"}
        assert not any(isinstance(value, fs.Federation) for value in vars(site).values())
        assert torch.equal(site.data.x, fed.train.x)


@every
def test_held_out_predictions_do_not_change_a_run(name: str) -> None:
    run = fitted(name)
    before = {key: value.clone() for key, value in outcome(run).items()}
    run.scores()
    after = outcome(run)
    assert all(torch.equal(value, after[key]) for key, value in before.items())
