from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.core.model import Builder
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.helpers import Pairs, class_clients, federation, fitted, random_stack, regression_clients

IMAGES = DataShape("classification", (1, 6, 6), 3)
SEQUENCES = DataShape("classification", (7,), 3)
VECTORS = DataShape("regression", (3,), 1)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


class Recurrent(nn.Module):
    """Reads the inputs as a sequence of numbers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, num_layers=2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(-1))[0][:, -1])


def one_by_one(make: Callable[[], nn.Module], w: Tensor, x: Tensor) -> Tensor:
    net = make().to(w.dtype)
    outputs = []
    for k in range(len(w)):
        vector_to_parameters(w[k], net.parameters())
        outputs.append(net(x[k]).detach())
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("make", "shape", "backends"),
    [(convolution, IMAGES, {"loop", "stacked"}), (Recurrent, SEQUENCES, {"loop", "stacked"})],
    ids=["conv", "lstm"],
)
def test_outputs_of_a_stack_equal_the_networks_one_by_one(
    make: Callable[[], nn.Module], shape: DataShape, backends: set[str]
) -> None:
    model = fs.models.module(make)(shape)
    assert set(model.backends) == backends
    w, x = random_stack(model, 3), torch.randn(3, 5, *shape.input, dtype=torch.float64)
    for backend in ("auto", *backends):
        assert torch.allclose(model.by(backend).outputs(w, x), one_by_one(make, w, x), atol=1e-12)


def test_a_recurrent_network_learns_client_by_client() -> None:
    run = fs.fit(
        fs.FedSoft(S=2, K=2),
        federation(class_clients((9, 6, 12), dimension=7, classes=3)),
        Recurrent(),
        rounds=2,
        solver=fs.Adam(lr=0.02, epochs=5, batch=4),
    )
    losses = run.model.loss(
        run.model.outputs(run.engine.client_states["w"][:1], run.federation.train.client(0)[0].float()[None]),
        run.federation.train.client(0)[1][None],
    )
    assert float(losses.mean()) < np.log(3)


def test_biases_start_at_0_whatever_a_layer_calls_them() -> None:
    model = fs.models.module(Recurrent)(SEQUENCES)
    params = model.layout.unflatten(model.draw(np.random.default_rng(0)))
    assert {name: float(p.abs().max()) for name, p in params.items() if "bias" in name} == {
        name: 0.0 for name in params if "bias" in name
    }


def test_scales_of_a_norm_start_at_1() -> None:
    model = fs.models.module(convolution)(IMAGES)
    assert model.layout.unflatten(model.draw(np.random.default_rng(0)))["1.weight"].tolist() == [1.0] * 4


def test_building_and_drawing_leave_the_global_generator_of_torch_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fs.models.module(convolution, init="own")(IMAGES).draw(np.random.default_rng(0))
    assert torch.equal(torch.rand(3), expected)


def test_own_first_values_are_those_of_the_networks_constructor_and_follow_the_generator() -> None:
    def make() -> nn.Module:
        layer = nn.Linear(3, 1)
        nn.init.uniform_(layer.weight, 5, 6)
        nn.init.constant_(layer.bias, 7)
        return layer

    model = fs.models.module(make, init="own")(VECTORS)
    first, again, other = (model.draw(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert bool(((first[:3] >= 5) & (first[:3] <= 6)).all())
    assert float(first[3]) == 7
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# --- pretrained weights -----------------------------------------------------------------------------------------------


def weights_of(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def pretrained() -> nn.Sequential:
    """The same weights in every call, as if they were read from a file."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    generator = torch.Generator().manual_seed(7)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return net


CENTERED = (fs.FedSoft(S=3), fs.FedEM(S=3), fs.IFCA(S=3), fs.HypCluster(S=3), fs.FedRoute(S=3, first="xavier"))


@pytest.mark.parametrize("given", [pretrained, pretrained()], ids=["function", "finished"])
@pytest.mark.parametrize("algorithm", CENTERED, ids=lambda one: type(one).__name__)
def test_a_network_starts_from_its_own_weights_and_no_center_is_a_copy(given: Any, algorithm: Any) -> None:
    own = weights_of(pretrained())
    run = fs.fit(algorithm, federation(class_clients()), given, rounds=0)
    assert torch.equal(run.state.centers[0], own)
    if "w" in run.engine.client_states:
        assert torch.equal(run.engine.client_states["w"], own.expand(8, -1))
    matrices = torch.cat(
        [torch.full((15,), True), torch.full((5,), False), torch.full((20,), True), torch.full((4,), False)]
    )
    for other in run.state.centers[1:]:
        assert torch.equal(other[~matrices], own[~matrices])
        away = (other - own)[matrices].norm() / own[matrices].norm()
        assert 0.05 < float(away) < 0.2
    assert not torch.allclose(run.state.centers[1], run.state.centers[2], atol=1e-3)


@pytest.mark.parametrize("algorithm", [fs.FedAvg(), fs.Ditto(), fs.Local(), fs.FineTune(), fs.FedProx(), fs.CFL()])
def test_a_model_for_everybody_starts_exactly_at_the_networks_weights(algorithm: Any) -> None:
    run = fs.fit(algorithm, federation(class_clients()), pretrained(), rounds=0)
    expected = weights_of(pretrained())
    assert all(torch.equal(center, expected) for center in run.state.centers)
    assert (
        all(torch.equal(w, expected) for w in run.engine.client_states["w"])
        if "w" in run.engine.client_states
        else True
    )


def test_training_goes_on_from_pretrained_weights() -> None:
    pairs = class_clients((200,) * 4, classes=3)
    x, y = torch.cat([x for x, _ in pairs[1::2]]).float(), torch.cat([y for _, y in pairs[1::2]])
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    fed = federation(pairs[1::2])
    kept, drawn = (
        fs.fit(fs.FedAvg(), fed, fs.models.module(net, init=init), rounds=1, solver=fs.SGD(lr=1e-3, epochs=1))
        for init in ("auto", "xavier")
    )
    right = [float((run.predict(x, center=0).argmax(1) == y).double().mean()) for run in (kept, drawn)]
    assert right[0] > 0.95
    assert right[1] < 0.8


def test_only_what_a_constructor_draws_is_drawn() -> None:
    def backbone_with_a_new_head() -> nn.Module:
        return nn.Sequential(pretrained()[0], nn.Tanh(), nn.Linear(5, 4))

    run = fs.fit(fs.FedSoft(S=2), federation(class_clients()), backbone_with_a_new_head, rounds=0)
    first, second = run.centers
    for center in (first, second, run.personal(0)):
        assert torch.equal(center["0.weight"], pretrained().state_dict()["0.weight"])
        assert torch.equal(center["0.bias"], pretrained().state_dict()["0.bias"])
        assert torch.equal(center["2.bias"], torch.zeros(4))
    assert not torch.allclose(first["2.weight"], second["2.weight"], atol=0.1)


def test_a_function_that_draws_everything_starts_as_xavier_does() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))

    shape = DataShape("classification", (3,), 4)
    auto, xavier = (fs.models.module(make, init=init)(shape) for init in ("auto", "xavier"))
    assert torch.equal(auto.draw(generator(3, "center", 1)), xavier.draw(generator(3, "center", 1)))
    assert auto.apart is None


class Scales(nn.Module):
    """A model without matrices: draws leave it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.scale


@pytest.mark.parametrize("init", ["auto", "own", "xavier"])
def test_vectors_alone_start_apart_too(init: Any) -> None:
    run = fs.fit(fs.FedSoft(S=2), federation(regression_clients()), fs.models.module(Scales, init=init), rounds=0)
    assert run.state.centers[0].tolist() == [0, 0, 0]
    assert float(run.state.centers[1].abs().max()) > 0.01


def test_a_model_whose_centers_start_as_copies_is_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(regression_clients())
    model = replace(fs.models.module(Scales)(fed.shape), apart=None)
    run = fs.fit(fs.FedSoft(S=2), fed, model, rounds=0)
    assert torch.equal(run.state.centers[0], run.state.centers[1])
    assert caplog.messages == [
        "the 2 centers start as copies of each other, since all draws of this model are the same"
    ]
    caplog.clear()
    fs.fit(fs.FedSoft(S=2, first="simplex"), fed, model, rounds=0)  # they are parted by the clients' models
    fs.fit(fs.FedAvg(), fed, model, rounds=0)
    assert caplog.messages == []


@pytest.mark.parametrize(("last", "told"), [([nn.Softmax(-1)], True), ([], False), ([nn.ReLU()], False)])
def test_a_softmax_before_the_loss_is_worth_a_word(
    last: list[nn.Module], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    fed = fs.Federation.from_clients([(rng.standard_normal((9, 3)), np.arange(9) % 3) for _ in range(2)])
    fs.fit(fs.FedAvg(), fed, nn.Sequential(nn.Linear(3, 3), *last), rounds=0)
    assert [message for message in caplog.messages if "leave out the network's own" in message] == caplog.messages
    assert len(caplog.messages) == told


def test_what_is_done_to_a_network_later_changes_nothing() -> None:
    net = pretrained()
    model = fs.models.module(net)(DataShape("classification", (3,), 4))
    net.state_dict()["0.weight"].zero_()
    assert torch.equal(model.draw(np.random.default_rng(0)), weights_of(pretrained()))


def test_the_users_network_is_not_changed_by_training() -> None:
    net = nn.Linear(3, 1)
    before = [p.detach().clone() for p in net.parameters()]
    fs.fit(fs.FedSoft(), federation(regression_clients((5, 6))), net, rounds=1, solver=fs.SGD(epochs=1))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_network_can_be_named_by_its_import_path() -> None:
    assert fs.models.module(f"{__name__}:convolution")(IMAGES).size == fs.models.module(convolution)(IMAGES).size
    with pytest.raises(InputError, match=r"should be 'package\.module:name'"):
        fs.models.module("convolution")
    with pytest.raises(InputError, match="cannot be imported"):
        fs.models.module("tests:nothing")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="no parameters"):
        fs.models.module(nn.Flatten)(VECTORS)


def test_a_network_that_does_not_take_the_inputs_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match=r"fails on 3 points of shape \[3\]"):
        fs.models.module(lambda: nn.Linear(5, 1))(VECTORS)


def test_a_factory_that_makes_no_network_is_refused() -> None:
    with pytest.raises(InputError, match="made a int"):
        fs.models.module(lambda: 3)(VECTORS)


def centers_of(model: Builder | nn.Module, pairs: Pairs, rounds: int = 2, **settings: Any) -> Tensor:
    return fitted(fs.FedSoft(), pairs, rounds, fs.SGD(epochs=1, batch=5), model=model, **settings).state.centers


def test_an_output_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"output .*\[4, 2\].*\[4, 4\]"):
        centers_of(nn.Linear(3, 2), class_clients())


class Squeezed(nn.Module):
    """A network that drops the axis of its one output, with or without saying which."""

    def __init__(self, *axis: int) -> None:
        super().__init__()
        self.layer, self.axis = nn.Linear(3, 1), axis

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(*self.axis)


def test_a_network_that_squeezes_is_right_or_refused_on_batches_of_one_point() -> None:
    # The last batch of the two largest clients is one point, where a bare squeeze() drops the axis of points as well.
    pairs = regression_clients((6, 11, 11))
    expected = centers_of(fs.models.module(lambda: Squeezed(1)), pairs)
    try:
        centers = centers_of(fs.models.module(Squeezed), pairs)
    except InputError:
        return
    assert torch.allclose(centers, expected, atol=1e-9)


def test_a_network_that_looks_at_the_whole_batch_is_refused_or_ignores_padding() -> None:
    # Batch statistics of a padded batch are not those of the client's points.
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))

    pairs = regression_clients((5, 7, 10))
    try:
        together, apart = (centers_of(fs.models.module(make), pairs, 1, chunk=chunk) for chunk in (3, 1))
    except InputError:
        return
    assert torch.allclose(together, apart, atol=1e-9)


# --- a loss of the user's ---------------------------------------------------------------------------------------------


def absolute(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).abs()


def test_a_loss_of_ones_own_is_what_is_minimised_and_scored() -> None:
    model = fs.models.module(nn.Linear(3, 1), loss=absolute)(VECTORS)
    w = random_stack(model, 2)
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    assert torch.allclose(model.loss(model.outputs(w, x), y), (model.outputs(w, x) - y).abs())
    sign = (model.outputs(w, x) - y).sign()
    gradient = model.gradient(w, x, y, torch.ones(2, 5, dtype=torch.float64))
    assert torch.allclose(gradient[:, :3], torch.einsum("mb,mbd->md", sign, x), atol=1e-12)
    assert model.metric.name == "loss"
    assert not model.metric.higher_is_better


def test_a_loss_of_ones_own_keeps_accuracy_as_the_metric_of_classes() -> None:
    def focal(output: Tensor, y: Tensor) -> Tensor:
        plain = F.cross_entropy(output, y, reduction="none")
        return (1 - (-plain).exp()) ** 2 * plain

    model = fs.models.module(nn.Linear(3, 4), loss=focal)(DataShape("classification", (3,), 4))
    output, y = torch.randn(2, 5, 4), torch.randint(0, 4, (2, 5))
    assert torch.allclose(model.loss(output, y)[1], focal(output[1], y[1]))
    assert model.metric.name == "accuracy"


@pytest.mark.parametrize("first", [1, 5], ids=["first-client-of-one-point", "first-client-of-five"])
def test_a_loss_that_averages_over_the_batch_is_refused_with_advice(first: int) -> None:
    with pytest.raises(InputError, match="one number per point"):
        centers_of(fs.models.module(nn.Linear(3, 1), loss=F.mse_loss), regression_clients((first, 6, 7)))


def test_parameters_that_are_frozen_stay_what_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    net[0].requires_grad_(False)
    model = fs.models.module(net)(DataShape("regression", (3,), 1))
    assert set(model.layout.shapes) == {"2.weight", "2.bias"}
    w = model.draw(generator(0, "x"))[None]
    x = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0))
    by_hand = net[2](torch.tanh(net[0](x[0])))  # from its own weights
    assert torch.allclose(model.outputs(w, x)[0], by_hand[:, 0], atol=1e-6)


class Odd(nn.Module):
    """Tied weights, a frozen layer, a buffer, and a parameter that nothing depends on."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.again = self.inner
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))
        self.shift: Tensor
        self.register_buffer("shift", torch.linspace(-1, 1, 6))
        self.head = nn.Conv2d(1, 3, (6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.frozen(self.inner(x))) + self.shift))
        return self.head(x).flatten(1)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_gradients_client_by_client_are_those_of_the_network_alone(dtypes: tuple[torch.dtype, ...]) -> None:
    model = fs.models.module(Odd)(IMAGES)
    assert model.backend.name == "loop"

    def difference(dtype: torch.dtype) -> float:
        w, y = random_stack(model, 3).to(dtype), torch.tensor([[0, 2, 1, 1]] * 3)
        x, weight = torch.randn(3, 4, *IMAGES.input, dtype=dtype), torch.rand(3, 4, dtype=dtype)
        before, found = w.clone(), model.gradient(w, x, y, weight)
        assert torch.equal(w, before)
        torch.manual_seed(0)
        net = Odd().to(dtype)  # the frozen layer as the model's own was made
        trained = [p for p in net.parameters() if p.requires_grad]
        expected = []
        with torch.enable_grad():
            for k in range(3):
                vector_to_parameters(w[k].clone(), trained)
                loss = (F.cross_entropy(net(x[k]), y[k], reduction="none") * weight[k]).sum()
                parts = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
                expected.append(torch.cat([part.flatten() for part in parts]))
        torch.testing.assert_close(model.outputs(w, x)[2], net(x[2]).detach())
        torch.testing.assert_close(found, torch.stack(expected))
        return float((found - torch.stack(expected)).abs().max())

    for dtype in dtypes:
        assert difference(dtype) < (1e-5 if dtype == torch.float32 else 1e-12)


def test_threads_do_not_see_each_others_parameters() -> None:
    model = fs.models.module(Odd)(IMAGES)
    x, y = torch.randn(1, 4, *IMAGES.input, dtype=torch.float64), torch.tensor([[0, 2, 1, 1]])
    weight, stacks = torch.full((1, 4), 0.25, dtype=torch.float64), [random_stack(model, 1) * k for k in range(1, 5)]
    expected = [model.gradient(w, x, y, weight) for w in stacks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda w: [model.gradient(w, x, y, weight) for _ in range(20)], stacks))
    for some, one in zip(found, expected, strict=True):
        assert all(torch.equal(gradient, one) for gradient in some)
