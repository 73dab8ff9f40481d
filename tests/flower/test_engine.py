"""The server's side and the clients' side together, over a transport in this process."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.flower.server.terms import QuorumError
from fedsoft.flower.wire import WireMessage, unpack
from fedsoft.plugins import names
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions

from .places import Direct, alone, describe, equal, events, key_of, node_at, run, shard, shards, spec, state

QUICK = ("fedavg", "fedem", "fedlevels", "fedprior", "fedsoft", "finetune", "ifca")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names("algorithms")]
)
def test_every_algorithm_ends_in_the_same_bits_as_in_one_process(name: str, tmp_path: Path) -> None:
    what = spec(name, rounds=4)
    local, far = alone(what, tmp_path / "local"), run(what, tmp_path / "far", Direct(shards(tmp_path)))
    assert equal(local, far)
    assert local.scores() == far.scores()
    for here, there in zip(local.records(), far.records(), strict=True):
        assert replace(here, seconds=0.0) == replace(there, seconds=0.0, dropped=None, late=None)


def test_the_server_saves_nothing_of_what_clients_keep(tmp_path: Path) -> None:
    point = run(spec(), tmp_path / "far", Direct(shards(tmp_path))).checkpoint()
    assert point is not None
    assert not point.client_states


def test_a_run_that_stops_in_the_middle_of_a_round_ends_in_the_same_bits(tmp_path: Path) -> None:
    """The server ends after half of the nodes have trained; server and nodes are started again."""
    what, whole = spec(rounds=5), alone(spec(rounds=5), tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage:
        if number == 3 and asked.head.get("round") == 2 and asked.head.get("job") == "train":
            raise Killed
        return answer

    with pytest.raises(Killed):
        run(what, tmp_path / "far", Direct(shards(tmp_path), kill))
    assert RunFolder.open(tmp_path / "far").records()[-1].round == 2
    assert equal(whole, run(what, tmp_path / "far", Direct(shards(tmp_path))))


def test_a_run_does_not_go_on_where_nobody_remembers_it(tmp_path: Path) -> None:
    """Other nodes would begin anew in the middle, and end in other numbers."""

    class Killed(BaseException):
        pass

    def kill(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage:
        if asked.head.get("round") == 2:
            raise Killed
        return answer

    with pytest.raises(Killed):
        run(spec(rounds=5), tmp_path / "far", Direct(shards(tmp_path), kill))
    with pytest.raises(QuorumError, match="8 of 8 clients are not connected"):
        run(spec(rounds=5), tmp_path / "far", Direct(shards(tmp_path / "others")))
    assert "no-memory" in events(RunFolder.open(tmp_path / "far"), "refused")[0]["reason"]
    folder = run(spec(rounds=5), tmp_path / "far", Direct(shards(tmp_path)))
    assert equal(alone(spec(rounds=5), tmp_path / "whole"), folder)


def test_scores_are_not_asked_for_where_clients_hide_themselves(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    transport = Direct(shards(tmp_path))
    folder = run(spec(privacy={"counts": 2.0}), tmp_path / "far", transport)
    assert not [asked for _, asked, _ in transport.sent if asked.head["kind"] == "scores"]
    assert (folder.path / "federation.json").stat().st_mode & 0o077 == 0
    head = next(asked.head for _, asked, _ in transport.sent if asked.head["kind"] == "job")
    about = {key: head[key] for key in ("experiment", "attempt", "spec")}
    answer = transport.there[1].answer(WireMessage({"kind": "scores", "clients": ["0"], **about}, {}))
    assert answer.head["refused"] == "privacy-required"


def test_a_message_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    nodes = shards(tmp_path)

    class Twice(Direct):
        def exchange(self, messages: Any, seconds: float) -> Any:
            list(super().exchange(messages, seconds))
            yield from super().exchange(messages, seconds)

    assert equal(alone(spec(), tmp_path / "local"), run(spec(), tmp_path / "far", Twice(nodes)))


def test_a_silent_client_is_dropped_like_one_that_drops_out(tmp_path: Path) -> None:
    def silent(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        return "" if number == 2 and asked.head.get("round") == 1 else answer

    folder = run(spec(), tmp_path / "far", Direct(shards(tmp_path), silent))
    assert [record.dropped for record in folder.records()] == [0, 2, 0]
    assert [entry["clients"] for entry in events(folder, "dropped")] == [["2"], ["3"]]
    assert events(folder, "dropped")[0]["node"] == "node-1"
    assert "no answer within 600 s" in events(folder, "dropped")[0]["reason"]


def spoiled(kind: str, answer: WireMessage) -> WireMessage | str:
    tensors = {name: tensor.clone() for name, tensor in answer.tensors.items()}
    if kind == "nan":
        tensors["w"][0, 0] = torch.nan
    elif kind == "shape":
        tensors["w"] = tensors["w"][:, :2]
    elif kind == "dtype":
        tensors["w"] = tensors["w"].double()
    elif kind == "norm":
        tensors["w"] *= 10
    elif kind == "rows":
        tensors["w"] = tensors["w"][:1]
    elif kind == "names":
        tensors["v"] = tensors.pop("w")
    elif kind == "long":
        tensors["w"] = torch.zeros(2, 300_000)
    elif kind == "others":
        return WireMessage(answer.head | {"clients": ["0", "1"]}, tensors)
    elif kind == "raised":
        return "Flower error 2: the app raised"
    return WireMessage(answer.head, tensors)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "'w' holds values that are not finite"),
        ("shape", r"'w' is float32\[2\], should be float32\[3\]"),
        ("dtype", r"'w' is float64\[3\], should be float32\[3\]"),
        ("norm", "the norm of 'w' is .* times the median"),
        ("rows", "'w' has not one row for each client"),
        ("names", r"it holds \['v'\], should hold \['w'\]"),
        ("long", "its answer is far too long: 2400"),
        ("others", "it answered for other clients than those asked"),
        ("raised", "Flower error 2: the app raised"),
    ],
)
def test_a_node_that_is_not_accepted_is_left_out_and_named(kind: str, reason: str, tmp_path: Path) -> None:
    what = spec({"name": "fedavg"}, solver={"name": "sgd", "lr": 0.05, "epochs": 5})

    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        return spoiled(kind, answer) if number == 4 and asked.head.get("round") == 1 else answer

    folder = run(what, tmp_path / "far", Direct(shards(tmp_path), spoil))
    found = events(folder, "dropped")
    assert found
    assert {name for entry in found for name in entry["clients"]} <= {"6", "7"}
    assert all(entry["node"] == "node-3" and entry["round"] == 1 for entry in found)
    for entry in found:
        assert re.search(reason, entry["reason"]), entry
    assert bool(torch.isfinite(state(folder)["centers"]).all())


def test_who_is_not_accepted_is_in_the_record(tmp_path: Path) -> None:
    def spoil(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if number != 4 or asked.head.get("job") != "estimate":
            return answer
        return WireMessage(answer.head, {"u": answer.tensors["u"] * 3})

    first = run(spec(), tmp_path / "far", Direct(shards(tmp_path), spoil)).records()[0]
    assert {one.client for one in first.excluded} == {"6", "7"}
    assert first.excluded[0].text == "'u' holds shares outside of 0 to 1"


def test_diverged_are_dropped(tmp_path: Path) -> None:
    for diverged, reason in (
        ("stop", "it refused (diverged): training diverged there"),
        ("drop", "'w' holds values that are not finite"),
    ):
        what = spec({"name": "fedavg"}, solver={"name": "sgd", "lr": 1e30, "epochs": 9}, diverged=diverged)
        with pytest.raises(QuorumError):
            run(what, tmp_path / diverged, Direct(shards(tmp_path / f"nodes-{diverged}")))
        found = events(RunFolder.open(tmp_path / diverged), "dropped")
        assert all(entry["reason"].startswith(reason) for entry in found)
        assert {name for entry in found for name in entry["clients"]} == set("01234567")


def test_noise_comes_from_secrets(tmp_path: Path) -> None:
    """Server and nodes know the seed: with that alone either could take the noise of the other away again."""
    what = spec({"name": "fedsoft", "K": 4}, privacy={"counts": 1.0, "clip": 1.0, "noise": 1.0})
    seeded, transport = alone(what, tmp_path / "local"), Direct(shards(tmp_path))
    far = run(what, tmp_path / "far", transport)
    assert not torch.equal(state(seeded)["u"], state(far)["u"])
    assert not torch.equal(state(seeded)["centers"], state(far)["centers"])
    kept = [node.config.memory / ".secret" for node in transport.there.values()]
    texts = {path.read_text("utf-8") for path in kept}
    assert len(texts) == len(kept)
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    secret = json.loads((far.path / "federation.json").read_text("utf-8"))["secret"]
    sent = [json.dumps(message.head) for _, asked, answer in transport.sent for message in (asked, answer)]
    assert not any(text in head for text in {secret, *texts} for head in sent)
    spent = far.records()[-1].privacy
    assert spent is not None
    assert (spent.epsilon or 0) > 0


def test_too_few_answers_stop_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    asked_again = []

    def mute(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        if asked.head.get("round") == 1 and number < 4:
            asked_again.append(number)
            return ""
        return answer

    with pytest.raises(QuorumError, match="2 of 8 clients answered 'train' of round 1, at least 50% should"):
        run(spec(), tmp_path / "far", Direct(shards(tmp_path), mute), patience=1)
    assert asked_again == [1, 2, 3, 1, 2, 3]
    assert equal(alone(spec(), tmp_path / "local"), run(spec(), tmp_path / "far", Direct(shards(tmp_path))))


def test_a_center_without_answers_stays(tmp_path: Path) -> None:
    def refuse(number: int, asked: WireMessage, answer: WireMessage) -> WireMessage | str:
        return (
            WireMessage({"node": "x", "refused": "no"}, {})
            if asked.head.get("job") == "train" and number > 1
            else answer
        )

    what = spec({"name": "ifca", "S": 3}, rounds=1)
    folder = run(what, tmp_path / "far", Direct(shards(tmp_path), refuse), quorum=0.1)
    first = state(run(spec({"name": "ifca", "S": 3}, rounds=0), tmp_path / "first", Direct(shards(tmp_path))))
    used = state(folder)["u"][:2].sum(0) > 0
    assert not bool(used.all())
    assert torch.equal(state(folder)["centers"][~used], first["centers"][~used])


def test_clients_that_are_missing_at_the_start_are_named(tmp_path: Path) -> None:
    nodes = shards(tmp_path)
    del nodes[2]
    with pytest.raises(QuorumError, match=r"2 of 8 clients are not connected after 0\.001 s: 2, 3"):
        run(spec(), tmp_path / "far", Direct(nodes))


def test_a_node_cannot_claim_the_clients_of_another(tmp_path: Path) -> None:
    nodes = shards(tmp_path)
    nodes[9] = node_at(tmp_path / "thief", shard(0))
    folder = run(spec(), tmp_path / "far", Direct(nodes))
    assert "client '0' belongs to another key than that of this node" in events(folder, "refused")[0]["reason"]


def test_only_named_jobs_tensors_and_scores_cross_the_wire(tmp_path: Path) -> None:
    """Nothing that is sent contains a training or held-out point."""
    transport = Direct(shards(tmp_path))
    run(spec(), tmp_path / "far", transport)
    points = fs.datasets.synthetic(partition="10:90", clients=8, points=(5, 16), dimension=3, test_points=20)
    raw = [row.to(kind).numpy().tobytes() for part in (points.train, points.held_out) for row in part.x
           for kind in (torch.float32, torch.float64)]  # fmt: skip
    assert len(raw) > 100
    allowed = {"hello": set(), "estimate": {"u"}, "train": {"w"}, "scores": {"train", "held_out"}}
    for _, asked, answer in transport.sent:
        kind = asked.head.get("job") or asked.head["kind"]
        assert set(answer.tensors) == allowed[kind]
        assert set(answer.head) <= {"node", "clients", "sizes", "cost"}
        body = answer.packed()[1]
        assert not any(row in body for row in raw)
        assert "state/u" not in asked.tensors  # no node gets the mixtures of others
    assert any(row in np.ascontiguousarray(points.train.x.numpy()).tobytes() for row in raw)  # they would be found


# --- nodes with data of their own -------------------------------------------------------------------------------------


def own_data(folder: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    np.savez(folder / f"{name}.npz", x=x, y=(x @ np.array([1.0, -2.0, 0.5 * seed])).astype(np.float32))


OWN = {
    "name": "nodes", "clients": {name: key_of(k) for k, name in enumerate("abc")}, "input": [3], "task": "regression",
}  # fmt: skip


def own_nodes(tmp_path: Path) -> dict[int, Any]:
    nodes = {}
    for k, name in enumerate("abc"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        own_data(folder, name, k)
        place = f'path = "{name}.npz"' if name == "a" else 'path = "."' if name == "b" else f'loader = "{LOADER}"'
        nodes[k] = node_at(folder, f'name = "{name}"\nworkers = 1\n[data]\n{place}\n[model]\nname = "linear"\n')
    return nodes


LOADER = "tests.flower.test_engine:clients_of_c"


def clients_of_c() -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    return {"c": (x, (x @ np.array([1.0, -2.0, 1.0])).astype(np.float32))}


def test_nodes_train_on_a_file_a_folder_and_a_loader_of_their_own(tmp_path: Path) -> None:
    what = spec(dataset=OWN)
    folder = run(what, tmp_path / "far", Direct(own_nodes(tmp_path)))
    together = tmp_path / "together"
    together.mkdir()
    for k, name in enumerate("abc"):
        own_data(together, name, k)
    local = spec(dataset={"name": "folder", "path": str(together)})
    assert equal(alone(local, tmp_path / "local"), folder)
    scores, like = folder.scores(), RunFolder.open(tmp_path / "local").scores()
    assert scores is not None
    assert like is not None
    assert scores.personal_train == like.personal_train
    assert scores.personal_held_out == like.personal_held_out


def test_data_at_nodes_cannot_be_run_here(tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match="have their points at nodes of their own: use --engine flower"):
        execute(spec(dataset=OWN), tmp_path / "run", RunOptions())


def refusal(tmp_path: Path, text: str, **changes: Any) -> tuple[str, str]:
    """What a server learns, and what the node's log says."""
    node, what = node_at(tmp_path / "node", text), spec(**changes)
    describe(what, node)
    about = {"kind": "hello", "experiment": "e", "attempt": 1, "spec": what.to_dict()}
    answer = node.answer(WireMessage(about, {}))
    assert answer.head.keys() == {"node", "refused"}
    return str(answer.head["refused"]), node.said[-1]


def test_a_node_trains_only_what_its_owner_allowed(tmp_path: Path) -> None:
    code, reason = refusal(tmp_path, f'{shard(0)}[model]\nname = "mlp"\nhidden = [7]\n')
    assert code == "not-allowed"
    assert "this node trains the model {'name': 'mlp'" in reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = 1", "node.toml': name = 1 is not allowed"),
        ('name = "n"\n[data]\n', r"\[data\] should have one of path, loader and shard, has none"),
        ('name = "n"\n[data]\nshard = [0, 4]\n', "should have shard and preset together"),
        ('name = "n"\n[data]\nshard = [4, 4]\n', r"data.shard = \[4, 4\] is not allowed"),
        ('name = "n"\n[data]\nloader = "x"\n', "data.loader = 'x' is not allowed: should be package.module:name"),
        ('name = "n"\ncolour = 2\n[data]\npath = "."\n', "unknown setting 'colour'"),
        (
            f'name = "n"\nsocket = "{"s" * 120}"\n[data]\npath = "."\n',
            "is too long: should have at most 100 characters",
        ),
    ],
)
def test_what_is_wrong_in_a_node_s_file_is_said(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match=reason):
        node_at(tmp_path, text)


def test_what_is_not_a_message_is_said() -> None:
    for body in (b"", b"12345678", b"\x80\x04K\x01.", b"\xff" * 40):
        with pytest.raises(fs.InputError, match="holds no tensors"):
            unpack(body)
    for head in ("", "[1]", "{"):
        with pytest.raises(fs.InputError, match="the head of a message is not"):
            WireMessage.unpacked(head, WireMessage({}, {}).packed()[1])
