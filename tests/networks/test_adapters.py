"""Frozen parts and adapters: only what is trained is kept and sent, and what is exported is the whole network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import fedsoft as fs
from fedsoft.core.client_data import DataShape
from fedsoft.errors import InputError
from fedsoft.networks.adapters import adapted, merged
from tests.helpers import class_clients, federation, fitted, random_stack
from tests.networks.test_dropout import Encoder, gradient, stack_of

VECTORS = DataShape("classification", (6,), 3)
IMAGES = DataShape("classification", (2, 6, 6), 3)


def perceptron() -> nn.Sequential:
    """The same weights in every call, as if they were read from a file."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    draws = torch.Generator().manual_seed(7)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=draws)
    return net


def convolution() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3)
    )


class Tokens(nn.Module):
    """Embeds the inputs, which are taken for numbers of tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table, self.head = nn.Embedding(10, 5, padding_idx=0), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x.abs().long().clamp(max=9)).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], DataShape]] = {
    "perceptron": (perceptron, VECTORS),
    "convolution": (convolution, IMAGES),
    "encoder": (lambda: Encoder(dropout=0.0), VECTORS),
    "tokens": (Tokens, VECTORS),
}


def changed(net: nn.Module) -> nn.Module:
    """Adapters as training might leave them."""
    draws = torch.Generator().manual_seed(1)
    for name, p in net.named_parameters():
        if "lora" in name:
            p.data = torch.randn(p.shape, generator=draws) * 0.3
    return net.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_an_adapter_starts_as_nothing_and_merges_into_the_weights(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    base = make().eval()
    x = 3 * torch.randn(4, *shape.input)
    net = adapted(base, 2, None, ["*"]).eval()
    torch.testing.assert_close(net(x), base(x))
    assert {n for n, p in net.named_parameters() if p.requires_grad} == {
        n for n, _ in net.named_parameters() if "lora" in n
    }
    expected = changed(net)(x)
    assert not torch.allclose(expected, base(x), atol=1e-3)
    plain = merged(net)
    torch.testing.assert_close(plain(x), expected, rtol=1e-4, atol=1e-5)
    assert plain.state_dict().keys() == base.state_dict().keys()
    assert [type(part) for part in plain.modules()] == [type(part) for part in base.modules()]


def test_the_change_is_b_times_a_scaled_by_alpha() -> None:
    base = perceptron()
    net = changed(adapted(base, 2, 6.0, ["0"]))
    a, b = net.get_parameter("0.lora_a"), net.get_parameter("0.lora_b")
    assert (a.shape, b.shape) == ((2, 6), (8, 2))
    expected = base.get_parameter("0.weight") + 3 * b @ a
    torch.testing.assert_close(merged(net).get_parameter("0.weight"), expected)
    high = adapted(base, 100, None, ["2"])
    assert high.get_parameter("2.lora_a").shape == (3, 8)  # no more than the smaller side


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_adapters_are_those_of_torch_in_every_backend(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    base = make()
    model = fs.models.lora(base, rank=2)(shape)
    assert all("lora" in key for key in model.layout.shapes)
    w, x, y, weight = stack_of(model, shape, (4, 4))
    x, w = 3 * x, w * 0.3
    for backend in model.backends:
        found = gradient(model.by(backend), w, x, y, weight, None)
        for k in range(2):
            net = adapted(base, 2, None, ["*"]).double().eval()
            own = dict(net.named_parameters())
            for key, value in model.layout.unflatten(w[k]).items():
                own[key].data = value.clone()
            with torch.enable_grad():
                (F.cross_entropy(net(x[k]), y[k], reduction="none") * weight[k]).sum().backward()
            for key, value in model.layout.unflatten(found[k]).items():
                torch.testing.assert_close(value, own[key].grad, rtol=1e-8, atol=1e-10)
        assert model.module is not None
        torch.testing.assert_close(
            model.by(backend).outputs(w, x)[0], model.module(model.layout.unflatten(w[0]))(x[0]).detach()
        )


# --- where training starts --------------------------------------------------------------------------------------------


def test_centers_start_apart_and_the_first_and_all_clients_at_the_network_itself() -> None:
    pairs = class_clients(dimension=6, classes=3)
    run = fs.fit(fs.FedSoft(S=3), federation(pairs), fs.models.lora(perceptron(), rank=2), rounds=0)
    x = pairs[0][0].float()
    expected = perceptron()(x).softmax(1).detach()
    torch.testing.assert_close(run.predict(x, center=0), expected)
    torch.testing.assert_close(run.predict(x, client=0), expected)
    others = [run.predict(x, center=s) for s in (1, 2)]
    for other in others:
        assert 1e-4 < float((other - expected).abs().max()) < 0.5
    assert not torch.allclose(others[0], others[1], atol=1e-4)


def test_a_drawn_head_is_drawn_and_the_rest_kept() -> None:
    def backbone_with_a_new_head() -> nn.Module:
        return nn.Sequential(perceptron()[0], nn.Tanh(), nn.Linear(8, 3))

    model = fs.models.lora(backbone_with_a_new_head, rank=2, targets=["0"], trainable=["2.*"])(VECTORS)
    assert set(model.layout.shapes) == {"0.lora_a", "0.lora_b", "2.weight", "2.bias"}
    first, other = (model.layout.unflatten(model.draw(np.random.default_rng(seed))) for seed in (0, 1))
    assert torch.equal(first["0.lora_a"], other["0.lora_a"])
    assert float(first["0.lora_b"].abs().max()) == 0
    assert not torch.equal(first["2.weight"], other["2.weight"])


# --- only what is trained travels -------------------------------------------------------------------------------------


def test_bytes_states_and_models_are_those_of_the_trained_part_alone() -> None:
    pairs = class_clients(dimension=6, classes=3)
    sent, kept = [], []
    for model in (fs.models.module(perceptron()), fs.models.module(perceptron(), trainable=["2.*"])):
        run = fitted(fs.FedAvg(), pairs, 2, fs.SGD(epochs=1), model=model)
        sent.append(sum(record.bytes_up + record.bytes_down for record in run.history))
        kept.append(run.model.size)
        run = fitted(fs.FedSoft(S=2), pairs, 1, fs.Adam(epochs=1), model=model)
        assert run.engine.client_states["optimizer.first"].shape == (len(pairs), kept[-1])
    assert kept == [83, 27]
    assert sent[1] / sent[0] == pytest.approx(27 / 83, rel=0.02)


def test_frozen_parts_stay_and_requires_grad_and_patterns_are_one_mechanism() -> None:
    net = perceptron()
    net[0].requires_grad_(False)
    by_hand, by_name = fs.models.module(net)(VECTORS), fs.models.module(perceptron(), trainable=["2.*"])(VECTORS)
    assert by_hand.layout.shapes == by_name.layout.shapes
    w, x = random_stack(by_hand, 2), torch.randn(2, 3, 6, dtype=torch.float64)
    assert torch.equal(by_hand.outputs(w, x), by_name.outputs(w, x))
    frozen = fs.models.module(perceptron(), trainable=["2.*"])
    run = fitted(fs.FedSoft(S=2), class_clients(dimension=6, classes=3), 2, fs.SGD(epochs=1), model=frozen)
    assert run.model.module is not None
    whole = run.model.module(run.model.layout.unflatten(run.state.centers[0]))
    torch.testing.assert_close(whole.get_parameter("0.weight").float(), perceptron()[0].weight)


def test_training_with_adapters_agrees_over_backends_and_lowers_the_loss() -> None:
    pairs = class_clients((30, 25, 40), dimension=6, classes=3)
    model = fs.models.lora(perceptron(), rank=2)
    settings: list[dict[str, Any]] = [{}, {"backend": "loop"}, {"chunk": 1}]
    runs = [fitted(fs.FedSoft(S=2), pairs, 4, fs.SGD(lr=0.1, epochs=5), model=model, **more) for more in settings]
    for other in runs[1:]:
        torch.testing.assert_close(runs[0].state.centers, other.state.centers, rtol=1e-7, atol=1e-9)

    def loss(out: Tensor, y: Tensor) -> float:
        return float(F.nll_loss(out.detach().log(), y))

    x, y = pairs[2]
    before = loss(perceptron().double()(x.double()).softmax(1), y)
    assert loss(runs[0].predict(x, client=2), y) < 0.8 * before


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["perceptron", "convolution", "encoder"])
def test_an_export_is_the_network_with_the_adapter_added(name: str, tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    pairs = [
        (x.reshape(-1, *shape.input), y)
        for x, y in class_clients((20, 12), dimension=int(np.prod(shape.input)), classes=3)
    ]
    torch.manual_seed(0)
    base = make()
    run = fs.fit(fs.FedSoft(S=2), federation(pairs), fs.models.lora(base, rank=2), rounds=2, solver=fs.SGD(lr=0.1))
    done = fs.export(run, tmp_path / "out", client=0)
    plain = make()
    plain.load_state_dict(load_file(done.folder / "client-0.safetensors"))
    x = pairs[0][0].float()
    torch.testing.assert_close(plain.eval()(x).softmax(1).detach(), run.predict(x, client=0), rtol=1e-4, atol=1e-5)
    if name != "encoder":
        written = fs.export(run, tmp_path / "torch", client=0, format="torch")
        scope: dict[str, Any] = {"__file__": str(written.folder / "model.py")}
        code = (written.folder / "model.py").read_text()
        assert "fedsoft" not in code.replace("Models that fedsoft exported", "")
        exec(compile(code, "model.py", "exec"), scope)
        torch.testing.assert_close(scope["predict"](x, "client-0"), run.predict(x, client=0), rtol=1e-4, atol=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_patterns_that_match_nothing_are_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"targets = \['head'\] match no layer .*: should match some of 0, 2"):
        fs.models.lora(perceptron(), targets=["head"])(VECTORS)
    with pytest.raises(InputError, match=r"trainable = 'head\.\*' matches no parameter of the network, which are 0"):
        fs.models.module(perceptron(), trainable=["head.*"])(VECTORS)
    with pytest.raises(InputError, match="the network has none"):
        fs.models.lora(nn.PReLU())(VECTORS)
    with pytest.raises(InputError, match="rank = 0 is not allowed"):
        fs.models.lora(perceptron(), rank=0)
    with pytest.raises(InputError, match="made a int"):
        fs.models.lora(lambda: 3)(VECTORS)
