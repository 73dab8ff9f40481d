from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.clusters.density import knee, linked
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import batches, groups, of_source
from tests.helpers import Pairs, class_clients, engine_for, fitted, played, regression_clients, silent

SGD = fs.SGD(lr=0.1, epochs=2, batch=5)
LINEAR = fs.models.linear(bias=True)


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def placed(places: tuple[float, ...] = (0.0, 0.0, 0.0, 6.0, 6.0, 6.0, 6.0), n: int = 40, seed: int = 0) -> Pairs:
    """Clients whose inputs lie around one of several places; labels by a rule that all share."""
    rng, pairs = np.random.default_rng(seed), []
    for place in places:
        x = rng.standard_normal((n, 3)) + place
        pairs.append((torch.from_numpy(x), torch.from_numpy((x[:, 0] > place).astype(np.int64))))
    return pairs


def swapped(n: int = 60) -> Pairs:
    """The same inputs everywhere; every other client has its two labels swapped."""
    rng, pairs = np.random.default_rng(1), []
    for k in range(8):
        x = rng.standard_normal((n, 3))
        pairs.append((torch.from_numpy(x), torch.from_numpy(((x[:, 0] > 0) ^ bool(k % 2)).astype(np.int64))))
    return pairs


def two_classes(pairs: Pairs) -> fs.Federation:
    return fs.Federation.from_clients(pairs, held_out=0.0, classes=2)


# --- clustering by density --------------------------------------------------------------------------------------------


def test_clusters_by_hand() -> None:
    """Nearest distances in order 1, 1, 1, 1, 2, 9: the knee is at 2, and the last is alone."""
    assert linked(rows(0, 1, 3, 20, 21, 30), 1.0).tolist() == [0, 0, 0, 1, 1, 2]
    assert linked(rows(0, 1, 3, 20, 21, 30), 0.5).tolist() == [0, 0, 1, 2, 2, 3]
    assert linked(rows(0, 1, 3, 20, 21, 30), 5.0).tolist() == [0, 0, 0, 1, 1, 1]
    assert linked(rows(30, 20, 0, 21, 1, 3), 1.0).tolist() == [2, 1, 0, 1, 0, 0]  # in another order


def test_the_knee_by_hand() -> None:
    assert knee(torch.tensor([1.0, 1, 1, 1, 2, 9])) == 4  # 4.8 below the line at 3, 5.4 below at 4
    assert knee(torch.tensor([0.0, 1.0, 2.0, 3.0])) == 3  # no knee: all are linked
    assert knee(torch.tensor([0.0, 3.0, 3.0, 3.0])) == 3
    assert knee(torch.zeros(4)) == 3


def test_clients_that_are_equal_or_few_are_one_cluster() -> None:
    assert linked(rows(7), 1.0).tolist() == [0]
    assert linked(rows(7, 8), 1.0).tolist() == [0, 0]
    assert linked(rows(7, 7, 7, 7), 1.0).tolist() == [0, 0, 0, 0]


# --- descriptors ------------------------------------------------------------------------------------------------------


def described(pairs: Pairs, model: Any, least: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """What clients send of the initial model, and that model."""
    engine = engine_for(fs.FLUX(), two_classes(pairs), model, solver=SGD, dtype="float64")
    engine.host.least_points = least
    with torch.no_grad():
        state = engine.start()
        engine.begin_round(state, 0)
        answer = engine("describe", engine.everyone, centers=state.centers)
    return answer["free"].gather(), answer["labelled"].gather(), state.centers


def test_moments_are_those_of_numpy() -> None:
    pairs = [*placed((0.0, 3.0)), (torch.tensor([[1.0, 2.0, 4.0]]).double(), torch.tensor([1]))]
    free, labelled, _ = described(pairs, LINEAR)
    for k, (x, y) in enumerate(pairs):
        z = x.numpy()
        whole = np.concatenate([z.mean(0), z.std(0)])
        assert free[k].numpy() == pytest.approx(whole)
        for label in range(2):
            own = z[y.numpy() == label]
            part = np.concatenate([own.mean(0), own.std(0)]) if len(own) else whole
            assert labelled[k].view(2, -1)[label].numpy() == pytest.approx(part / np.sqrt(2))


def test_labels_of_few_points_are_not_described() -> None:
    x = torch.arange(8.0).double()[:, None].repeat(1, 3)
    free, labelled, _ = described([(x, torch.tensor([0] * 6 + [1] * 2))] * 2, LINEAR, least=3)
    parts = labelled[0].view(2, -1) * 2**0.5
    assert parts[0, 0] == pytest.approx(2.5)
    assert torch.allclose(parts[1], free[0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).log_softmax(-1)


@pytest.mark.parametrize("model", [fs.models.mlp(hidden=[5, 4]), fs.models.module(Net)])
def test_latent_values_are_what_the_last_layer_is_given(model: Any) -> None:
    pairs = placed((0.0, 3.0))
    free, _, center = described(pairs, model)
    run = fitted(fs.FLUX(), two_classes(pairs), 0, SGD, model=model)
    params = run.model.layout.unflatten(center[0])
    for k, (x, _) in enumerate(pairs):
        if "body.0.weight" in params:
            z = torch.tanh(x @ params["body.0.weight"].T + params["body.0.bias"])
        else:
            z = torch.relu(x @ params["0.weight"].T + params["0.bias"])
            z = torch.relu(z @ params["1.weight"].T + params["1.bias"])
        assert torch.allclose(free[k], torch.cat([z.mean(0), z.std(0, correction=0)]), atol=1e-12)


def test_convolutions_have_latent_values_too() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(),
                        nn.Linear(3, 2))  # fmt: skip
    x = torch.rand(5, 1, 6, 6)
    fed = fs.Federation.from_clients([(x, torch.tensor([0, 1, 0, 1, 1]))] * 2, held_out=0.0)
    model = fs.models.module(net)(fed.shape)
    assert model.backend.name == "chain"
    w = model.draw(generator(0, "try"))
    assert model.module is not None
    made = model.module(model.layout.unflatten(w))
    assert isinstance(made, nn.Sequential)
    with torch.no_grad():
        found = model.latents(w[None], x[None])[0]
        assert torch.allclose(found, made[:-1](x), atol=1e-6)


def test_a_model_without_layers_is_refused() -> None:
    fed = fs.Federation.from_clients([(torch.rand(6, 2, 3), torch.tensor([0, 1] * 3))] * 3, held_out=0.0)
    with pytest.raises(InputError, match="has no layers whose values could be compared"):
        fitted(fs.FLUX(warm=0), fed, 1, SGD, model=fs.models.conditional_logit())


# --- rounds -----------------------------------------------------------------------------------------------------------


def local_sgd(w: Tensor, pair: tuple[Tensor, Tensor], k: int, t: int) -> Tensor:
    x, y = pair
    inputs = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    for i in batches(k, t, len(y), SGD):
        w = w.detach().requires_grad_()
        loss = nn.functional.cross_entropy(inputs[i] @ w.view(2, -1).T, y[i])
        w = w - SGD.lr * torch.autograd.grad(loss, w)[0]
    return w.detach()


def test_rounds_equal_the_plain_loop() -> None:
    pairs = placed(n=11)
    run = fitted(fs.FLUX(warm=2, scale=4), two_classes(pairs), 4, SGD, model=LINEAR)
    c = run.model.draw(generator(0, "center", 0)).double()
    for t in range(2):
        c = torch.stack([local_sgd(c, pair, k, t) for k, pair in enumerate(pairs)]).mean(0)
    found = {0: c, 1: c}
    for t in (2, 3):
        for s, members in enumerate((range(3), range(3, 7))):
            found[s] = torch.stack([local_sgd(found[s], pairs[k], k, t) for k in members]).mean(0)
    assert groups(run) == of_source([0, 0, 0, 1, 1, 1, 1])
    for k, s in enumerate([0, 0, 0, 1, 1, 1, 1]):
        assert torch.allclose(run.state.centers[run.state.per_client["s"][k]], found[s], atol=1e-12)
    assert torch.allclose(run.state.extra["common"][0], c, atol=1e-12)


@pytest.mark.parametrize("places", [(0.0,) * 4 + (9.0,) * 5 + (-9.0,) * 4, (0.0,) * 6 + (4.0,) * 6])
def test_the_number_of_clusters_is_found(places: tuple[float, ...]) -> None:
    run = fitted(fs.FLUX(warm=1, scale=2), two_classes(placed(places, n=200)), 2, SGD, model=LINEAR)
    assert groups(run) == of_source([int(place) for place in places])
    assert len(run.state.centers) == len(set(places))


def test_labels_that_are_swapped_part_clients_with_the_same_inputs() -> None:
    run = fitted(fs.FLUX(warm=0, scale=2), two_classes(swapped(200)), 6, SGD, model=LINEAR)
    assert groups(run) == of_source([0, 1] * 4)
    personal = run.scores().personal_train
    assert personal is not None
    assert personal.mean > 0.9


def test_before_the_clustering_it_is_fedavg() -> None:
    one, other = (fitted(a, class_clients(), 4, SGD, model=LINEAR) for a in (fs.FLUX(warm=9, K=5), fs.FedAvg(K=5)))
    assert torch.equal(one.state.centers, other.state.centers)


def test_one_cluster_stays_fedavg() -> None:
    one, other = (fitted(a, regression_clients(), 4, SGD) for a in (fs.FLUX(warm=1, scale=1e3), fs.FedAvg()))
    assert torch.allclose(one.state.centers, other.state.centers, atol=1e-12)
    assert one.state.u.tolist() == [[1.0]] * 8


def test_late_clients_are_matched_without_labels() -> None:
    """Client 2 and client 6 miss the clustering; their labels are nonsense and are not looked at."""
    pairs = placed(n=100)
    for k in (2, 6):
        pairs[k] = (pairs[k][0], 1 - pairs[k][1])
    fed = two_classes(pairs)
    engine = engine_for(fs.FLUX(warm=1, scale=4), fed, LINEAR, seed=0, solver=SGD, dtype="float64")
    engine.dropouts = silent(lambda job, t, name: name in ("2", "6") and (job == "describe" or t < 3))
    run = played(engine, fed, 3)
    assert run.state.per_client["s"][[2, 6]].tolist() == [-1, -1]
    x = pairs[2][0]
    inputs = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    assert torch.allclose(run.predict(x, client=2), (inputs @ run.state.extra["common"].view(2, -1).T).softmax(1))
    with torch.no_grad():
        state, _ = engine.round(run.state, 3)
    s = state.per_client["s"].tolist()
    assert s[2] == s[0] != s[3] == s[6]
    assert state.u[2, s[0]] == 1.0


@pytest.mark.parametrize("setting", [{"warm": -1}, {"scale": 0.0}, {"dimension": 0}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FLUX\.{next(iter(setting))} = "):
        fs.FLUX(**setting)


def test_descriptions_are_sent_once() -> None:
    run = fitted(fs.FLUX(warm=1), two_classes(placed(n=20)), 3, SGD, model=LINEAR)
    sent = [record.bytes_up for record in run.history]
    assert sent[1] - sent[0] == 7 * 8 * 2 * 3 * (1 + 2)
    assert sent[2] == sent[0]
    assert [record.evaluations for record in run.history] == [0, 7 * 20, 0]
