"""Running statistics as parameters of a client: against torch's own layers, over backends, in whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Step
from fedsoft.errors import InputError
from tests.helpers import class_clients, federation, fitted
from tests.networks.test_dropout import gradient, stack_of

VECTORS = DataShape("classification", (6,), 3)
IMAGES = DataShape("classification", (1, 8, 8), 3)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


class Block(nn.Module):
    """The basic block of a ResNet, as torchvision has it."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A small ResNet in torchvision's manner: stem, blocks, pooling, one fully connected layer."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Block(4, 4), Block(4, 4))
        self.layer2 = nn.Sequential(Block(4, 8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


def loaded(make: Callable[[], nn.Module], params: dict[str, Tensor]) -> Any:
    net = make().double()
    state = net.state_dict()
    net.load_state_dict({name: params.get(name, value) for name, value in state.items()})
    return net


# --- one step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "shape"), [(perceptron, VECTORS), (ResNet, IMAGES)], ids=["perceptron", "resnet"])
def test_a_step_is_that_of_torch_and_ignores_padding_in_every_backend(
    make: Callable[[], nn.Module], shape: DataShape
) -> None:
    # With dropout left out, torch computes the same: gradients, and the statistics that a batch leaves.
    def plain() -> nn.Module:
        net = make()
        for part in net.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return net

    model = fs.models.module(plain)(shape)
    assert set(model.backends) == {"loop", "stacked"}
    points = (5, 4, 2)
    w, x, y, weight = stack_of(model, shape, points)
    w[:, -model.statistics :] = w[:, -model.statistics :].abs() + 0.5
    step = Step(torch.tensor([4, 5, 6]), torch.tensor(points))
    for backend in model.backends:
        found = gradient(model.by(backend), w, x, y, weight, step)
        for k, n in enumerate(points):
            params = model.layout.unflatten(w[k])
            net = loaded(plain, params)
            torch.testing.assert_close(model.by(backend).outputs(w, x)[k], net.eval()(x[k]).detach())
            with torch.enable_grad():
                loss = (F.cross_entropy(net.train()(x[k, :n]), y[k, :n], reduction="none") * weight[k, :n]).sum()
                loss.backward()
            expected = {name: p.grad for name, p in net.named_parameters()} | dict(net.named_buffers())
            own = model.layout.unflatten(found[k])
            for name in own:
                torch.testing.assert_close(own[name], expected[name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_a_batch_of_one_point_uses_the_running_statistics_and_leaves_them(backend: str) -> None:
    model = fs.models.module(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))(VECTORS)
    w, x, y, weight = stack_of(model, VECTORS, (3, 1))
    w[:, -model.statistics :] = torch.rand(2, 12, dtype=torch.float64) + 0.5
    found = gradient(model.by(backend), w, x, y, weight, Step(torch.arange(2), torch.tensor([3, 1])))
    assert torch.equal(found[1, -12:], w[1, -12:])
    assert not torch.allclose(found[0, -12:], w[0, -12:], atol=1e-3)
    still = gradient(model.by(backend), w, x, y, weight, None)
    torch.testing.assert_close(found[1, :-12], still[1, :-12])
    assert torch.equal(still[:, -12:], torch.zeros_like(still[:, -12:]))


def test_images_of_one_point_have_statistics_over_their_pixels_as_in_torch() -> None:
    model = fs.models.module(ResNet)(IMAGES)
    w, x, y, weight = stack_of(model, IMAGES, (1,))
    found = gradient(model, w, x, y, weight, Step(torch.arange(1), torch.tensor([1])))
    assert not torch.equal(found[0, -model.statistics :], w[0, -model.statistics :])


def test_a_layer_that_sees_another_batch_than_that_of_points_is_trained_client_by_client() -> None:
    class Folded(nn.Module):
        """Normalises all steps of all sequences together."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x.view(-1, 2)).view(-1, 6))

    model = fs.models.module(Folded)(VECTORS)
    assert set(model.backends) == {"loop"}
    w, x, y, weight = stack_of(model, VECTORS, (4, 1))
    found = gradient(model, w, x, y, weight, Step(torch.arange(2), torch.tensor([4, 1])))
    mean = (
        model.layout.unflatten(found[1])["norm.running_mean"] - 0.9 * model.layout.unflatten(w[1])["norm.running_mean"]
    )
    torch.testing.assert_close(mean, 0.1 * x[1, :1].view(-1, 2).mean(0))


def test_frozen_layers_keep_their_statistics() -> None:
    net = perceptron()
    net[1].requires_grad_(False)
    net[1].get_buffer("running_mean").add_(1)
    model = fs.models.module(net)(VECTORS)
    assert model.statistics == 0
    made = model.module
    assert made is not None
    assert made(model.layout.unflatten(model.draw(np.random.default_rng(0)))).state_dict()["1.running_mean"].mean() == 1


# --- whole runs -------------------------------------------------------------------------------------------------------

SIZES = (9, 6, 13, 5, 1, 8)


def clients(shape: DataShape) -> list[tuple[Tensor, Tensor]]:
    flat = class_clients(SIZES, dimension=int(np.prod(shape.input)), classes=3)
    return [(x.reshape(-1, *shape.input), y) for x, y in flat]


def run_of(make: Callable[[], nn.Module], shape: DataShape, algorithm: Any = None, **settings: Any) -> Any:
    solver = settings.pop("solver", fs.SGD(lr=0.05, epochs=2, batch=4))
    model = fs.models.module(make)
    return fitted(algorithm or fs.FedSoft(S=2), clients(shape), 3, solver, model=model, **settings)


@pytest.mark.parametrize(("make", "shape"), [(perceptron, VECTORS), (ResNet, IMAGES)], ids=["perceptron", "resnet"])
def test_runs_agree_over_backends_chunks_and_workers(make: Callable[[], nn.Module], shape: DataShape) -> None:
    first = run_of(make, shape, chunk=2, workers=1)
    again = run_of(make, shape, chunk=2, workers=2)
    assert torch.equal(first.state.centers, again.state.centers)
    for settings in ({"chunk": 6}, {"backend": "loop"}, {"backend": "stacked"}):
        other = run_of(make, shape, **settings)
        torch.testing.assert_close(first.state.centers, other.state.centers, rtol=1e-7, atol=1e-9)
        for name in ("w",):
            torch.testing.assert_close(
                first.engine.client_states[name], other.engine.client_states[name], rtol=1e-7, atol=1e-9
            )


@pytest.mark.parametrize("solver", [fs.SGD(lr=0.1, momentum=0.9, epochs=2, batch=4), fs.Adam(epochs=2, batch=4)])
def test_statistics_are_left_by_the_batches_whatever_the_solver_does(solver: Any) -> None:
    """One client, no pull: a plain loop of torch leaves the same."""

    def make() -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

    x, y = clients(VECTORS)[2]
    run = fitted(
        fs.Local(), [(x, y)], 1, type(solver)(**{**vars(solver), "shuffle": False}), model=fs.models.module(make)
    )
    net = make().double().train()
    for _ in range(2):
        for batch in x.double().split(4):
            net[0](batch) if len(batch) > 1 else None
    own = run.model.layout.unflatten(run.engine.client_states["w"][0])
    torch.testing.assert_close(own["0.running_mean"], net[0].running_mean)
    torch.testing.assert_close(own["0.running_var"], net[0].running_var)


@pytest.mark.parametrize(
    "algorithm", [fs.FedAvg(), fs.APFL(), fs.pFedMe(), fs.MAPPER(), fs.FedEM(S=2), fs.IFCA(S=2), fs.Ditto()],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_every_kind_of_training_leaves_statistics(algorithm: Any) -> None:
    run = run_of(perceptron, VECTORS, algorithm)
    start = run.model.layout.unflatten(run.model.draw(np.random.default_rng(0)))
    for center in run.centers:
        if bool((center["0.weight"] == start["0.weight"]).all()):
            continue
        assert bool((center["1.running_var"] > 0).all())
        assert not torch.allclose(center["1.running_mean"], start["1.running_mean"].to(center["1.running_mean"]))
    assert bool(torch.isfinite(run.state.centers).all())


def test_averages_of_gradients_are_refused_for_statistics() -> None:
    with pytest.raises(InputError, match=r"IFCA.*average = 'gradient'.*should be 'model'.*BatchNorm"):
        run_of(perceptron, VECTORS, fs.IFCA(S=2, average="gradient"))


def test_a_resnet_learns_and_its_export_predicts_the_same(tmp_path: Path) -> None:
    pairs = clients(IMAGES)
    run = fs.fit(
        fs.FedSoft(S=2), federation(pairs), ResNet, rounds=4, solver=fs.Adam(lr=0.01, epochs=3, batch=4), seed=1
    )
    losses = run.model.loss(
        run.model.outputs(run.engine.client_states["w"][2:3], pairs[2][0].float()[None]), pairs[2][1][None]
    )
    assert float(losses.mean()) < 0.7  # below log 3 = 1.1
    done = fs.export(run, tmp_path / "out", client=2)
    from safetensors.torch import load_file

    net = ResNet()
    net.load_state_dict(load_file(done.folder / next(f for f in done.files if f.endswith(".safetensors"))))
    torch.testing.assert_close(
        net.eval()(pairs[2][0].float()).softmax(1).detach(), run.predict(pairs[2][0].float(), client=2)
    )


def test_noise_that_makes_a_variance_negative_does_no_harm() -> None:
    model = fs.models.module(perceptron)(VECTORS)
    w = model.draw(np.random.default_rng(0))[None].double()
    w[:, -3:] = -1
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    for backend in model.backends:
        assert bool(torch.isfinite(model.by(backend).outputs(w, x)).all())
    assert model.module is not None
    out = model.module(model.layout.unflatten(w[0]))(x[0])
    torch.testing.assert_close(out, model.outputs(w, x)[0])


# --- statistics that stay with the client -----------------------------------------------------------------------------


def local_run(algorithm: Any, **settings: Any) -> Any:
    model = fs.models.module(perceptron, statistics="local")
    return fitted(algorithm, clients(VECTORS), 3, fs.SGD(lr=0.05, epochs=2, batch=4), model=model, **settings)


LOCAL = [fs.FedSoft(S=2), fs.FedAvg(), fs.FedEM(S=2), fs.IFCA(S=2), fs.Ditto(), fs.FineTune()]


@pytest.mark.parametrize("algorithm", LOCAL, ids=lambda one: type(one).__name__)
def test_local_statistics_never_leave_and_serve_every_model_of_the_client(algorithm: Any) -> None:
    run = local_run(algorithm)
    q = run.model.statistics
    assert q == 16
    assert run.model.local_statistics
    own = run.engine.client_states["statistics"]
    assert len(own.unique(dim=0)) == len(SIZES) - 1 + bool((own[4] != own[0]).any())  # client 4 has one point
    centers = run.state.centers[:, -q:]
    first = run.model.draw(np.random.default_rng(0))[-q:].to(centers)
    assert all(bool((row == 0).all()) or torch.equal(row, first) for row in centers)
    assert bool((centers == 0).all(1).any())
    for k in (0, 2):
        x = clients(VECTORS)[k][0]
        ensemble = run.ensemble(client=k)
        assert torch.equal(ensemble.w[:, -q:], own[k].expand(len(ensemble.w), -1))
        torch.testing.assert_close(run.predict(x, client=k), ensemble.predict(x))
        torch.testing.assert_close(run.engine.personal_predictions(run.state, run.federation.train)[: len(x)] if k == 0
                                   else ensemble.predict(x), ensemble.predict(x))  # fmt: skip


def test_local_statistics_agree_over_chunks_and_backends() -> None:
    first = local_run(fs.FedAvg(), chunk=2)
    for settings in ({"chunk": 6}, {"backend": "loop"}):
        other = local_run(fs.FedAvg(), **settings)
        for a, b in ((first.state.centers, other.state.centers),
                     (first.engine.client_states["statistics"], other.engine.client_states["statistics"])):  # fmt: skip
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_client_estimates_with_its_own_statistics() -> None:
    # Two clients whose inputs differ by a shift alone are one to a center once each takes its own mean.
    x, y = clients(VECTORS)[2]
    pairs = [(x, y), (x + 5.0, y)]
    model = fs.models.module(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), statistics="local")
    solver = fs.SGD(lr=0.05, epochs=40, batch=13, shuffle=False)
    run = fitted(fs.FedAvg(), pairs, 3, solver, model=model)
    torch.testing.assert_close(run.predict(x, client=0), run.predict(x + 5.0, client=1), atol=0.02, rtol=0.02)
    own = run.engine.client_states["statistics"]
    torch.testing.assert_close(own[1, :6] - own[0, :6], torch.full((6,), 5.0, dtype=own.dtype), rtol=1e-3, atol=1e-3)


def test_centers_without_statistics_are_scored_by_those_of_the_points_and_not_exported(tmp_path: Path) -> None:
    run = local_run(fs.FedAvg())
    x = clients(VECTORS)[2][0]
    params = run.model.layout.unflatten(run.state.centers[0])
    net = loaded(perceptron, params)
    net[1].track_running_stats, net[1].running_mean, net[1].running_var = False, None, None
    torch.testing.assert_close(run.predict(x, center=0), net.eval()(x).softmax(1).detach())
    with pytest.raises(InputError, match="centers cannot be exported with statistics = 'local'"):
        fs.export(run, tmp_path / "centers")
    done = fs.export(run, tmp_path / "client", client=2)
    assert done.models == ("client-2",)


def test_a_new_client_takes_the_statistics_of_its_first_batch() -> None:
    run = local_run(fs.FedSoft(S=2))
    x, y = class_clients((30,), dimension=6, classes=3, seed=5)[0]
    adopted = run.adopt(x.float() + 1, y, how="personal")
    variance = run.model.layout.unflatten(adopted.ensemble.w[0])["1.running_var"]
    assert bool((variance > 0).all())
    assert bool(torch.isfinite(adopted.predict(x)).all())


def test_single_steps_refuse_local_statistics() -> None:
    with pytest.raises(InputError, match="statistics = 'local' is not for algorithms that take single steps"):
        local_run(fs.pFedMe())


def test_counts_under_privacy_refuse_local_statistics() -> None:
    """One point would change the statistics by which all others are counted."""
    privacy = fs.Privacy(counts=2.0)
    with pytest.raises(InputError, match=r"privacy\.counts = 2\.0 is not allowed with statistics = 'local'"):
        local_run(fs.FedSoft(S=2), privacy=privacy)
    averaged = fs.models.module(perceptron)
    fitted(fs.FedSoft(S=2), clients(VECTORS), 1, fs.SGD(lr=0.05, batch=4), model=averaged, privacy=privacy)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(6, momentum=None), r"'0' \(BatchNorm1d\) has momentum=None"),
        (nn.InstanceNorm1d(6, track_running_stats=True), r"'0' \(InstanceNorm1d\) keeps running statistics in a way"),
        (nn.BatchNorm1d(6, track_running_stats=False), "a batch of one point has no statistics.*use GroupNorm"),
    ],
    ids=["mean over all", "instances", "no statistics"],
)
def test_statistics_that_cannot_be_shared_are_refused(layer: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fs.models.module(lambda: nn.Sequential(layer, nn.Linear(6, 3)))(VECTORS)
