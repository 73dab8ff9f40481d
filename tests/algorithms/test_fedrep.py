from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsoft as fs
from fedsoft.core.client_draws import Draws
from fedsoft.core.heads import head_of
from fedsoft.core.local_solve import Work
from fedsoft.core.site import Site
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import drawn
from tests.helpers import RAGGED, Pairs, class_clients, engine_for, federation, fitted, regression_clients, shape_of

SGD = fs.SGD(lr=0.05, epochs=3, batch=5)
MLP = fs.models.mlp(hidden=[6])
CLASSES, BODY = 4, 3 * 6 + 6  # of class_clients: the first layer has 6 units over 3 features


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.relu(x @ w[:18].view(6, 3).T + w[18:24])
    return nn.functional.cross_entropy(hidden @ w[24:48].view(CLASSES, 6).T + w[48:], y)


def passes(w: Tensor, pair: tuple[Tensor, Tensor], part: slice, label: str, epochs: int, k: int, t: int) -> Tensor:
    """Plain SGD on one part of the parameters, the rest as it is."""
    x, y = pair
    draws = Draws(3, label, t, names=[str(k)])
    for order in draws.permutations([len(y)], epochs):
        for batch in torch.from_numpy(order).split(SGD.batch):
            w = w.detach().requires_grad_()
            gradient = torch.autograd.grad(loss(w, x[batch], y[batch]), w)[0]
            w = w.detach().clone()
            w[part] -= SGD.lr * gradient[part]
    return w


def plain_loop(pairs: Pairs, w: Tensor, K: int, rounds: int, body_epochs: int) -> tuple[Tensor, list[Tensor]]:
    """The body, and everybody's head."""
    body, heads = w[:BODY].clone(), [w[BODY:].clone() for _ in pairs]
    for t in range(rounds):
        chosen, sent = drawn(t, K, len(pairs), 3), []
        for k in chosen:
            own = passes(torch.cat([body, heads[k]]), pairs[k], slice(BODY, None), "head", 3 - body_epochs, k, t)
            own = passes(own, pairs[k], slice(BODY), "batches", body_epochs, k, t)
            heads[k] = own[BODY:]
            sent.append(own[:BODY] * len(pairs[k][1]))
        body = torch.stack(sent).sum(0) / sum(len(pairs[k][1]) for k in chosen)
    for k, pair in enumerate(pairs):
        own = torch.cat([body, heads[k]])
        heads[k] = passes(own, pair, slice(BODY, None), "tune", 3 - body_epochs, k, rounds - 1)[BODY:]
    return body, heads


@pytest.mark.parametrize(("K", "body_epochs"), [(3, 1), (8, 2)])
def test_rounds_equal_the_plain_loop(K: int, body_epochs: int) -> None:
    pairs = class_clients()
    run = fitted(fs.FedRep(K=K, body_epochs=body_epochs), pairs, 3, SGD, model=MLP, seed=3)
    first = run.model.draw(generator(3, "center", 0)).double()
    body, heads = plain_loop(pairs, first, K, 3, body_epochs)
    assert torch.allclose(run.state.centers[0, :BODY], body, atol=1e-12)
    assert torch.allclose(run.engine.client_states["head"], torch.stack(heads), atol=1e-12)
    assert torch.allclose(run.state.centers[0, BODY:], first[BODY:], atol=1e-15)  # no head has left a client
    assert float((body - first[:BODY]).abs().max()) > 0.01
    personal = run.personal(1)
    assert torch.allclose(personal["0.weight"].flatten(), body[:18], atol=1e-12)
    assert torch.allclose(personal["1.bias"], heads[1][24:], atol=1e-12)


def test_two_clients_by_hand() -> None:
    """y = h b x with one number each. From b = h = 1 and x = 1: client 0 has y = 3, client 1 y = -1, one step of 1/8.

    Heads: 1 + (3 - 1) / 4 = 3/2 and 1 - 2/4 = 1/2. Bodies: 1 + (3 - 3/2) (3/2) / 4 = 25/16 and 1 - (3/2) (1/2) / 4 =
    13/16; their mean is 19/16. Heads on it: 3/2 + (3 - 57/32) (19/16) / 4 and 1/2 - (1 + 19/32) (19/16) / 4.
    """
    pairs = [(torch.ones(1, 1).double(), torch.tensor([y]).double()) for y in (3.0, -1.0)]
    engine = engine_for(
        fs.FedRep(), federation(pairs), fs.models.module(product), solver=fs.SGD(lr=0.125, epochs=2), dtype="float64"
    )
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0, last=True)
    assert state.centers.tolist() == [[19 / 16, 1.0]]
    heads = [3 / 2 + (3 - 57 / 32) * (19 / 16) / 4, 1 / 2 - (1 + 19 / 32) * (19 / 16) / 4]
    assert engine.client_states["head"].flatten().tolist() == pytest.approx(heads, abs=1e-12)


def product() -> nn.Module:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for part in net.parameters():
        nn.init.ones_(part)
    return net


# --- which parameters are the head ------------------------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out, self.first, self.norm = nn.Linear(5, CLASSES), nn.Linear(3, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x)))


def head_names(model: Any, patterns: list[str] | None = None) -> set[str]:
    built = model(shape_of(class_clients()))
    head = built.layout.unflatten(head_of(built, "FedRep.head", patterns))
    assert all(part.all() or not part.any() for part in head.values())
    return {name for name, part in head.items() if part.all()}


def test_the_head_is_the_last_module_or_what_is_named() -> None:
    assert head_names(MLP) == {"1.weight", "1.bias"}
    assert head_names(fs.models.linear()) == {"weight"}
    assert head_names(fs.models.module(Named)) == {"norm.weight", "norm.bias"}  # and no statistics
    assert head_names(fs.models.module(Named), ["out.*"]) == {"out.weight", "out.bias"}
    assert head_names(fs.models.module(Named), ["out.?ias", "first*"]) == {"out.bias", "first.weight", "first.bias"}


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_there_are() -> None:
    message = r"FedRep\.head = 'fc\.\*' matches no parameter of the network, which are 0\.weight, 0\.bias, 1\.weight"
    with pytest.raises(InputError, match=message):
        fitted(fs.FedRep(head=["fc.*"]), class_clients(), 1, SGD, model=MLP)


def test_statistics_of_batches_belong_to_the_body() -> None:
    runs = [fitted(fs.FedRep(head=["out.*"]), class_clients(), t, SGD, model=fs.models.module(Named)) for t in (0, 2)]
    run, (then, now) = runs[1], (run.model.layout.unflatten(run.state.centers) for run in runs)
    assert not torch.allclose(now["norm.running_mean"], then["norm.running_mean"])
    assert torch.allclose(now["out.weight"], then["out.weight"], atol=1e-12)
    assert run.engine.client_states["head"].shape == (8, 5 * CLASSES + CLASSES)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_model_that_is_all_head_is_trained_by_every_client_alone() -> None:
    pairs = regression_clients()
    one = fitted(fs.FedRep(), pairs, 3, fs.SGD(lr=0.02, epochs=3, batch=50))
    other = fitted(fs.Local(optimizer_state="fresh"), pairs, 4, fs.SGD(lr=0.02, epochs=2, batch=50))
    start = one.model.draw(generator(0, "center", 0)).double(), one.model.draw(generator(0, "client")).double()
    # The same linear map from where each starts.
    assert torch.equal(one.state.centers[0], start[0])
    for k, (x, _) in enumerate(pairs):
        step = torch.eye(3).double() - 0.02 * 2 * x.T @ x / len(x)
        gap = torch.linalg.matrix_power(step, 8) @ (start[0] - start[1])
        found = one.engine.client_states["head"][k] - other.engine.client_states["w"][k]
        assert torch.allclose(found, gap, atol=1e-12)


@pytest.mark.parametrize("local", [
    fs.SGD(lr=0.1, epochs=2, batch=5, weight_decay=0.5, momentum=0.5),
    fs.Adam(lr=0.1, epochs=2, batch=5, weight_decay=0.5),
    fs.AdamW(lr=0.1, epochs=2, batch=5, weight_decay=0.5, clip=0.1),
])  # fmt: skip
def test_what_is_not_trained_stays_to_the_bit_whatever_the_solver_does(local: Any) -> None:
    run = fitted(fs.FedRep(), class_clients(), 0, local, model=MLP)
    data = run.federation.train.to("cpu", torch.float64)
    site = Site(run.model, data, local, list("abcdefgh"), 0, 0, torch.float64, work=Work.none(8))
    head = head_of(run.model, "FedRep.head", None)
    w = run.state.centers.repeat(8, 1)
    with torch.no_grad():
        for part in (head, ~head):
            solved = site.solve_part(w, part, epochs=2)
            assert torch.equal(solved[:, ~part], w[:, ~part])
            assert bool((solved[:, part] != w[:, part]).any(1).all())


def test_one_epoch_is_one_pass_for_each_and_work_is_counted() -> None:
    run = fitted(fs.FedRep(), class_clients(), 2, fs.SGD(epochs=1), model=MLP)
    assert [record.gradients for record in run.history] == [2 * sum(RAGGED), 3 * sum(RAGGED)]
    run = fitted(fs.FedRep(body_epochs=2), class_clients(), 2, fs.SGD(epochs=5), model=MLP)
    assert [record.gradients for record in run.history] == [5 * sum(RAGGED), 8 * sum(RAGGED)]


def test_clients_with_other_labels_share_a_body() -> None:
    """Half of the clients count the classes backwards: one model cannot serve both, a head for each can."""
    pairs = class_clients((30,) * 6)
    local = fs.SGD(lr=0.3, epochs=5, batch=10)
    shared, pooled = (
        fitted(a, pairs, 10, local, model=MLP).scores().personal_train for a in (fs.FedRep(), fs.FedAvg())
    )
    assert shared is not None
    assert pooled is not None
    assert shared.mean > 0.9 > 0.7 > pooled.mean


@pytest.mark.parametrize("setting", [{"K": 0}, {"body_epochs": 0}, {"head": [""]}, {"head": "fc.*"}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"FedRep\.{next(iter(setting))}"):
        fs.FedRep(**setting)
