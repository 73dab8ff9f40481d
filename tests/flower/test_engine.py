"""The server's side and the clients' side together, over a post in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.engines.flower.terms import QuorumError
from fedsoft.engines.flower.wire import Parcel, unpack
from fedsoft.plugins import names
from fedsoft.runs.execution import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.stage import Stage

from .places import Direct, alone, node_at, run, shards, spec


def state(folder: RunFolder) -> dict[str, torch.Tensor]:
    point = folder.checkpoint()
    assert point is not None
    return dict(point.state)


def equal(a: RunFolder, b: RunFolder) -> bool:
    first, second = state(a), state(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    lines = (folder.path / "federation.jsonl").read_text("utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == kind]


@pytest.mark.parametrize("name", names("algorithms"))
def test_every_algorithm_ends_in_the_same_bits_as_in_one_process(name: str, tmp_path: Path) -> None:
    what = spec(name, rounds=4)
    local, far = alone(what, tmp_path / "local"), run(what, tmp_path / "far", Direct(shards(tmp_path)))
    assert equal(local, far)
    assert local.scores() == far.scores()
    for here, there in zip(local.records(), far.records(), strict=True):
        same = here.keys() - {"seconds"}
        assert {key: here[key] for key in same} == {key: there[key] for key in same}


def test_the_server_saves_nothing_of_what_clients_keep(tmp_path: Path) -> None:
    point = run(spec(), tmp_path / "far", Direct(shards(tmp_path))).checkpoint()
    assert point is not None
    assert not point.memory


def test_a_run_that_stops_in_the_middle_of_a_round_ends_in_the_same_bits(tmp_path: Path) -> None:
    """The server ends after half of the nodes have trained; server and nodes are started again."""
    what, whole = spec(rounds=5), alone(spec(rounds=5), tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(number: int, asked: Parcel, answer: Parcel) -> Parcel:
        if number == 3 and asked.head.get("round") == 2 and asked.head.get("job") == "train":
            raise Killed
        return answer

    with pytest.raises(Killed):
        run(what, tmp_path / "far", Direct(shards(tmp_path), kill))
    assert RunFolder.open(tmp_path / "far").records()[-1]["round"] == 1
    assert equal(whole, run(what, tmp_path / "far", Direct(shards(tmp_path))))


def test_a_message_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    nodes = shards(tmp_path)

    class Twice(Direct):
        def exchange(self, letters: Any, seconds: float) -> Any:
            list(super().exchange(letters, seconds))
            yield from super().exchange(letters, seconds)

    assert equal(alone(spec(), tmp_path / "local"), run(spec(), tmp_path / "far", Twice(nodes)))


def test_a_silent_client_is_dropped_like_one_that_drops_out(tmp_path: Path) -> None:
    def silent(number: int, asked: Parcel, answer: Parcel) -> Parcel | str:
        return "" if number == 2 and asked.head.get("round") == 1 else answer

    folder = run(spec(), tmp_path / "far", Direct(shards(tmp_path), silent))
    assert [record["dropped"] for record in folder.records()] == [0, 2, 0]
    assert [entry["clients"] for entry in events(folder, "dropped")] == [["2"], ["3"]]
    assert events(folder, "dropped")[0]["node"] == "node-1"
    assert "no answer within 600 s" in events(folder, "dropped")[0]["reason"]


def spoiled(kind: str, answer: Parcel) -> Parcel | str:
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
        return Parcel(answer.head | {"clients": ["0", "1"]}, tensors)
    elif kind == "raised":
        return "Flower error 2: the app raised"
    return Parcel(answer.head, tensors)


@pytest.mark.parametrize(
    ("kind", "told"),
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
def test_a_node_that_is_not_believed_is_left_out_and_named(kind: str, told: str, tmp_path: Path) -> None:
    what = spec({"name": "fedavg"}, local={"name": "sgd", "lr": 0.05, "epochs": 5})

    def spoil(number: int, asked: Parcel, answer: Parcel) -> Parcel | str:
        return spoiled(kind, answer) if number == 4 and asked.head.get("round") == 1 else answer

    folder = run(what, tmp_path / "far", Direct(shards(tmp_path), spoil))
    found = events(folder, "dropped")
    assert found
    assert {name for entry in found for name in entry["clients"]} <= {"6", "7"}
    assert all(entry["node"] == "node-3" and entry["round"] == 1 for entry in found)
    for entry in found:
        assert re.search(told, entry["reason"]), entry
    assert bool(torch.isfinite(state(folder)["centers"]).all())


def test_who_is_not_believed_stands_in_the_record(tmp_path: Path) -> None:
    def spoil(number: int, asked: Parcel, answer: Parcel) -> Parcel | str:
        if number != 4 or asked.head.get("job") != "estimate":
            return answer
        return Parcel(answer.head, {"u": answer.tensors["u"] * 3})

    first = run(spec(), tmp_path / "far", Direct(shards(tmp_path), spoil)).records()[0]
    assert {entry["client"] for entry in first["excluded"]} == {"6", "7"}
    assert first["excluded"][0]["reason"] == "'u' holds shares outside of 0 to 1"


def test_diverged_are_dropped(tmp_path: Path) -> None:
    for diverged, told in (("stop", "it refused: client '"), ("drop", "'w' holds values that are not finite")):
        what = spec({"name": "fedavg"}, local={"name": "sgd", "lr": 1e30, "epochs": 9}, diverged=diverged)
        with pytest.raises(QuorumError):
            run(what, tmp_path / diverged, Direct(shards(tmp_path / f"nodes-{diverged}")))
        found = events(RunFolder.open(tmp_path / diverged), "dropped")
        assert all(entry["reason"].startswith(told) for entry in found)
        assert {name for entry in found for name in entry["clients"]} == set("01234567")


def test_noise_comes_from_secrets(tmp_path: Path) -> None:
    """Server and nodes know the seed: with that alone either could take the noise of the other away again."""
    what = spec({"name": "fedsoft", "K": 4}, privacy={"counts": 1.0, "clip": 1.0, "noise": 1.0})
    seeded, post = alone(what, tmp_path / "local"), Direct(shards(tmp_path))
    far = run(what, tmp_path / "far", post)
    assert not torch.equal(state(seeded)["u"], state(far)["u"])
    assert not torch.equal(state(seeded)["centers"], state(far)["centers"])
    kept = [node.config.memory / ".secret" for node in post.there.values()]
    texts = {path.read_text("utf-8") for path in kept}
    assert len(texts) == len(kept)
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    secret = json.loads((far.path / "federation.json").read_text("utf-8"))["secret"]
    sent = [json.dumps(parcel.head) for _, asked, answer in post.sent for parcel in (asked, answer)]
    assert not any(text in head for text in {secret, *texts} for head in sent)
    assert far.records()[-1]["privacy"]["epsilon"] > 0


def test_too_few_answers_stop_the_run_which_can_be_taken_up(tmp_path: Path) -> None:
    asked_again = []

    def mute(number: int, asked: Parcel, answer: Parcel) -> Parcel | str:
        if asked.head.get("round") == 1 and number < 4:
            asked_again.append(number)
            return ""
        return answer

    with pytest.raises(QuorumError, match="2 of 8 clients answered 'train' of round 1, at least 50% should"):
        run(spec(), tmp_path / "far", Direct(shards(tmp_path), mute), patience=1)
    assert asked_again == [1, 2, 3, 1, 2, 3]
    assert equal(alone(spec(), tmp_path / "local"), run(spec(), tmp_path / "far", Direct(shards(tmp_path))))


def test_a_center_without_answers_stays(tmp_path: Path) -> None:
    def refuse(number: int, asked: Parcel, answer: Parcel) -> Parcel | str:
        return Parcel({"node": "x", "refused": "no"}, {}) if asked.head.get("job") == "train" and number > 1 else answer

    what = spec({"name": "ifca", "S": 3}, rounds=1)
    folder = run(what, tmp_path / "far", Direct(shards(tmp_path), refuse), quorum=0.1)
    first = state(run(spec({"name": "ifca", "S": 3}, rounds=0), tmp_path / "first", Direct(shards(tmp_path))))
    used = state(folder)["u"][:2].sum(0) > 0
    assert not bool(used.all())
    assert torch.equal(state(folder)["centers"][~used], first["centers"][~used])


def test_clients_that_are_missing_at_the_start_are_named(tmp_path: Path) -> None:
    nodes = shards(tmp_path)
    del nodes[2]
    with pytest.raises(QuorumError, match=r"2 of 8 clients are not there after 0\.001 s: 2, 3"):
        run(spec(), tmp_path / "far", Direct(nodes))


def test_a_node_cannot_claim_the_clients_of_another(tmp_path: Path) -> None:
    nodes = shards(tmp_path)
    nodes[9] = node_at(tmp_path / "thief", 'name = "thief"\n[data]\nshard = [0, 4]\n')
    folder = run(spec(), tmp_path / "far", Direct(nodes))
    assert "client '0' is at node 'node-0' already" in events(folder, "refused")[0]["reason"]


def test_only_named_jobs_tensors_and_scores_cross_the_wire(tmp_path: Path) -> None:
    """Nothing that is sent contains a training or held-out point."""
    post = Direct(shards(tmp_path))
    run(spec(), tmp_path / "far", post)
    points = fs.datasets.synthetic(partition="10:90", clients=8, points=(5, 16), dimension=3, test_points=20)
    raw = [row.to(kind).numpy().tobytes() for part in (points.train, points.held_out) for row in part.x
           for kind in (torch.float32, torch.float64)]  # fmt: skip
    assert len(raw) > 100
    allowed = {"hello": set(), "estimate": {"u"}, "train": {"w"}, "scores": {"train", "held_out"}}
    for _, asked, answer in post.sent:
        kind = asked.head.get("job") or asked.head["kind"]
        assert set(answer.tensors) == allowed[kind]
        assert set(answer.head) <= {"node", "clients", "sizes", "cost"}
        body = answer.packed()[1]
        assert not any(row in body for row in raw)
        assert "state/u" not in asked.tensors  # nobody is told the mixtures of others
    assert any(row in np.ascontiguousarray(points.train.x.numpy()).tobytes() for row in raw)  # they would be found


# --- nodes with data of their own -------------------------------------------------------------------------------------


def own_data(folder: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((20, 3)).astype(np.float32)
    np.savez(folder / f"{name}.npz", x=x, y=(x @ np.array([1.0, -2.0, 0.5 * seed])).astype(np.float32))


OWN = {"name": "nodes", "clients": ["a", "b", "c"], "input": [3], "task": "regression"}


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
    x = rng.standard_normal((20, 3)).astype(np.float32)
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
    assert scores["personal_train"] == like["personal_train"]
    assert scores["personal_held_out"] == like["personal_held_out"]


def test_data_at_nodes_cannot_be_run_here(tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match="have their points at nodes of their own: use --engine flower"):
        execute(spec(dataset=OWN), tmp_path / "run", Stage())


def refusal(tmp_path: Path, text: str, **changes: Any) -> str:
    node = node_at(tmp_path / "node", text)
    about = {"kind": "hello", "experiment": "e", "attempt": 1, "spec": spec(**changes).to_dict()}
    return str(node.answer(Parcel(about, {})).head.get("refused"))


def test_a_node_trains_only_what_its_owner_allowed(tmp_path: Path) -> None:
    shard = 'name = "n"\n[data]\nshard = [0, 4]\n'
    told = refusal(tmp_path, f'{shard}[model]\nname = "mlp"\nhidden = [7]\n')
    assert "node 'n' trains the model {'name': 'mlp'" in told
    node = node_at(tmp_path / "node", shard)
    about = {"kind": "hello", "experiment": "e", "attempt": 1, "spec": spec().to_dict()}
    about["spec"]["algorithm"]["name"] = "os:system"
    assert "algorithm 'os:system' is not allowed on node 'n'" in str(node.answer(Parcel(about, {})).head["refused"])
    about["experiment"] = "../../etc"
    assert "experiment = '../../etc' is not allowed" in str(node.answer(Parcel(about, {})).head["refused"])
    assert "unknown kind of message 'erase'" in str(node.answer(Parcel({"kind": "erase"}, {})).head["refused"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = 1", "^name = 1 is not allowed"),
        ('name = "n"\n[data]\n', r"\[data\] should have one of path, loader and shard, has none"),
        ('name = "n"\n[data]\nshard = [4, 4]\n', r"data.shard = \[4, 4\] is not allowed"),
        ('name = "n"\n[data]\nloader = "x"\n', "data.loader = 'x' is not allowed: should be module:function"),
        ('name = "n"\ncolour = 2\n[data]\npath = "."\n', "unknown setting 'colour'"),
        (f'name = "n"\nsocket = "{"s" * 120}"\n[data]\npath = "."\n', "is too long: should have at most 100 signs"),
    ],
)
def test_what_is_wrong_in_a_node_s_file_is_said(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match=told):
        node_at(tmp_path, text)


def test_what_is_not_a_message_is_said() -> None:
    for body in (b"", b"12345678", b"\x80\x04K\x01.", b"\xff" * 40):
        with pytest.raises(fs.InputError, match="holds no tensors"):
            unpack(body)
    for head in ("", "[1]", "{"):
        with pytest.raises(fs.InputError, match="the head of a message is not"):
            Parcel.unpacked(head, Parcel({}, {}).packed()[1])
