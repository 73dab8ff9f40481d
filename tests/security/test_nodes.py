"""What a server can make of a node: nothing that its owner's file does not allow."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.data.partition_names import parse_partition
from fedsoft.flower.node.policy import BOUNDS, SENDS_SUMS
from fedsoft.flower.node.refusals import MEANS, Refusal, meaning
from fedsoft.flower.node.worker import only_worker
from fedsoft.flower.wire import WireMessage
from fedsoft.runs.spec import KEYS
from tests.flower.places import describe, node_at, shard, spec
from tests.security.hospital import KEY, OWN, ask, described, hospital, refused, train

PARTS = ["algorithm", "dataset", "partition", "model", "solver", "aggregator", "attack"]
# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synthetic", [True, False])
@pytest.mark.parametrize("part", [*PARTS, "factory"])
def test_no_part_of_a_run_brings_code(part: str, synthetic: bool, tmp_path: Path, trap: Path) -> None:
    node = node_at(tmp_path / "shard", shard(0)) if synthetic else hospital(tmp_path)
    raw = described()
    if part == "factory":
        raw["model"] = {"name": "module", "factory": "trapped:called", "init": "own", "loss": "auto"}
    else:
        raw[part] = {"name": "trapped:called"}
    assert refused(node, raw) == Refusal.NOT_ALLOWED
    assert "trapped:called" in node.said[-1]  # the owner's log says so
    assert not (trap / "sprung").exists()


@pytest.mark.parametrize(
    "name", ["jinja2:Template", "os:abort", "sys:exit", "os:fork", "pygments.lexers:load_lexer_from_file"]
)
@pytest.mark.parametrize("part", ["dataset", "model", "partition"])
def test_what_is_installed_is_not_called_either(part: str, name: str, tmp_path: Path) -> None:
    for node in (hospital(tmp_path), node_at(tmp_path / "shard", shard(0))):
        assert refused(node, described() | {part: {"name": name, "source": "{{ 7 * 7 }}"}}) == Refusal.NOT_ALLOWED


def test_what_the_owner_lists_is_imported(tmp_path: Path, trap: Path) -> None:
    node = hospital(tmp_path, text="").config.path
    text = node.read_text("utf-8")
    node.write_text('allow = ["trapped:called"]\n' + text, "utf-8")
    fresh = node_at(tmp_path / "node", node.read_text("utf-8"))
    refused(fresh, described() | {"algorithm": {"name": "trapped:called"}})
    assert (trap / "sprung").exists()  # the trap works


FACTORY = """
from pathlib import Path
from torch import nn

def net(width: int = 4, weights: str = ""):
    if weights:
        Path(__file__).with_name("called").touch()
    return nn.Linear(3, 1)
"""


@pytest.mark.parametrize("text", ['[model]\nname = "factories:net"\n', ""])
@pytest.mark.parametrize("part", ["algorithm", "solver", "dataset", "aggregator", "attack"])
def test_what_is_allowed_as_a_model_is_called_as_nothing_else(
    part: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With settings of the server's choice: a path, for instance."""
    (tmp_path / "factories.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    node = hospital(tmp_path, text)
    if not text:
        file = node.config.path
        node = node_at(file.parent, 'allow = ["factories:net"]\n' + file.read_text("utf-8"))
    raw = described(model="linear") | ({"model": {"name": "factories:net", "width": 4, "weights": ""}} if text else {})
    ask(node, raw | {part: {"name": "factories:net", "weights": "/etc/passwd"}})
    assert not (tmp_path / "called").exists()
    if part in ("algorithm", "solver"):
        assert "factories:net" in node.said[-1]


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset",
    [
        {"name": "folder", "path": "data", "task": "classification"},
        {"name": "folder", "path": "/etc"},
        {"name": "natural", "path": "/etc/passwd"},
        {"name": "synthetic", "clients": 4, "points": [10**7, 3 * 10**7]},
        {"name": "digits"},
    ],
)
def test_a_server_describes_no_data(dataset: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on a node with data of its own, nor on one that makes its data up: only what its owner describes."""
    monkeypatch.chdir(hospital(tmp_path).config.path.parent)
    tried = node_at(tmp_path / "shard", shard(0))
    describe(spec(), tried)
    raw = described() | {"dataset": dataset}
    if dataset["name"] == "synthetic":
        raw["partition"] = {"name": "ratio", "a": 10, "b": 90}
    for node in (hospital(tmp_path), tried):
        assert refused(node, copy.deepcopy(raw)) in (Refusal.DATA, Refusal.NOT_ALLOWED)


def test_a_shard_is_of_the_preset_that_its_owner_names(tmp_path: Path) -> None:
    """Other seeds are other draws; any other setting is refused before it is made."""
    node, what = node_at(tmp_path / "n", shard(0)), spec()
    describe(what, node)
    assert ask(node, what.to_dict()).head["clients"] == ["0", "1"]
    assert "clients" in ask(node, what.to_dict() | {"seed": 5}, experiment="other").head
    more = what.to_dict()
    more["dataset"]["dimension"] = 4
    assert refused(node, more, experiment="third") == Refusal.DATA


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": OWN | {"task": "classification", "outputs": 3}},
        {"dataset": OWN | {"input": [4]}},
        {"dataset": OWN | {"clients": {"someone": KEY}}},
        {"model": {"name": "mlp", "hidden": [10**6, 10**6]}},
        {"algorithm": "fedroute"},
        {"algorithm": "fedprior"},
        {"algorithm": "fedlevels"},
        {"algorithm": "fedrc"},
        {"algorithm": "fedgmm"},
        {"algorithm": "flux"},
    ],
)
def test_nothing_of_the_data_stands_in_a_refusal(changes: dict[str, Any], tmp_path: Path) -> None:
    node = hospital(tmp_path, '[model]\nname = "linear"\n')
    sent = json.dumps(ask(node, described(**changes)).head)
    assert "refused" in sent
    for secret in ("diagnosis", "dose", "age", "2.28", "csv", str(tmp_path), "data", "Error", "["):
        assert secret not in sent.replace("other-data", ""), sent


def test_errors_of_the_owner_s_own_code_do_not_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loads.py").write_text('def clients():\n    raise KeyError("patient Miller, row 7")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    node = node_at(tmp_path / "node", 'name = "n"\n[data]\nloader = "loads:clients"\n')
    assert refused(node, described()) == Refusal.FAILED
    assert "Miller" in node.said[-1]


def test_clients_that_are_not_of_the_run_are_not_named(tmp_path: Path) -> None:
    node = hospital(tmp_path, clients={"a": 30, "b": 30, "hidden": 30})
    assert ask(node, described()).head["clients"] == ["a", "b"]
    assert refused(node, described(), "job", job="train", clients=["hidden"]) == Refusal.CLIENT


def test_codes_are_a_fixed_list() -> None:
    assert set(MEANS) == set(Refusal)
    assert meaning("other-data") == f"it refused (other-data): {MEANS[Refusal.DATA]}"
    for lie in ("x" * 10**6, "\x1b[31m", ["failed"], {"a": 1}, None, 7):
        assert meaning(lie) == "it refused, with an unknown code"  # what a node makes up is not repeated


# --- the owner's policy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({"solver": {"name": "sgd", "epochs": 10**6}}, ""),
        ({"solver": {"name": "sgd", "epochs": 201}}, ""),
        ({"algorithm": {"name": "ifca", "S": 5 * 10**7}}, ""),
        ({"algorithm": {"name": "ifca", "S": 33}}, ""),
        ({"solver": {"name": "sgd", "batch": 10**6}}, ""),
        ({"algorithm": "fedroute"}, ""),
        ({"algorithm": "fedprior"}, ""),
        ({"algorithm": "fedlevels"}, ""),
        ({"algorithm": "fedrc"}, ""),
        ({"algorithm": "fedgmm"}, ""),
        ({"algorithm": "flux"}, ""),
        ({"algorithm": "ifca"}, 'algorithms = ["fedavg"]'),
        ({"solver": "adam"}, 'solvers = ["sgd"]'),
        ({"solver": {"name": "sgd", "lr": 0.5}}, "bounds = { lr = [0, 0.1] }"),
        ({"solver": {"name": "sgd", "epochs": 1}}, "bounds = { epochs = [2, 9] }"),
    ],
)
def test_what_the_owner_did_not_agree_to_is_refused(changes: dict[str, Any], policy: str, tmp_path: Path) -> None:
    node = hospital(tmp_path, f"[policy]\n{policy}\n")
    assert refused(node, described(**changes)) == Refusal.NOT_ALLOWED
    assert "policy." in node.said[-1]  # the owner's log names the setting that decides
    assert not [*node.config.runs.glob("*/")]  # nothing was made for it


def test_bounds_hold_however_a_number_is_written(tmp_path: Path) -> None:
    """Settings are coerced: text that reads as a number is one."""
    for wrong in ("1000000", 1e6, "1e6", [10**6]):
        raw = described()
        raw["solver"]["epochs"] = wrong
        assert refused(hospital(tmp_path), raw) == Refusal.NOT_ALLOWED


def test_every_bound_is_of_a_setting_that_exists() -> None:
    known = {*KEYS} | {
        key
        for kind in ("algorithms", "solvers")
        for made in plugins.load(kind).values()
        for key in plugins.parameters(made)
    }
    assert set(BOUNDS) <= known


def test_clients_with_few_points_are_not_trained_on(tmp_path: Path) -> None:
    assert refused(hospital(tmp_path, clients={"a": 30, "b": 8}), described()) == Refusal.POINTS  # 6 for training
    assert "clients" in ask(hospital(tmp_path / "x", "[policy]\npoints = 5\n", {"a": 30, "b": 8}), described()).head


@pytest.mark.slow
def test_requests_of_a_run_are_limited(tmp_path: Path) -> None:
    """Counting queries with other centers each would reveal the order of all points. Restarts do not help."""
    raw = described(algorithm={"name": "fedsoft", "S": 2})
    answered = 0
    for number in range(200):
        node = hospital(
            tmp_path, "[policy]\nrequests_per_round = 5\nrequests_per_run = 12\n"
        )  # started again, every time
        about = {
            "job": "estimate",
            "round": number // 60,
            "ask": number % 60,
            "clients": ["a"],
            "attempt": 1 + number // 90,
        }
        answered += "refused" not in train(node, raw, **about, tensors={"shared/centers": torch.randn(2, 3)}).head
    assert answered == 12


def test_a_run_stays_what_it_was(tmp_path: Path) -> None:
    node = hospital(tmp_path)
    assert "refused" not in ask(node, described()).head
    assert refused(node, described(solver={"name": "sgd", "epochs": 7})) == Refusal.OTHER_RUN
    assert refused(hospital(tmp_path), described(seed=3)) == Refusal.OTHER_RUN  # nor after a restart


def test_runs_are_limited(tmp_path: Path) -> None:
    node = hospital(tmp_path, "[policy]\nruns = 3\n")
    found = [ask(node, described(), experiment=f"e{k}").head.get("refused", "") for k in range(5)]
    assert found == ["", "", "", Refusal.RUNS, Refusal.RUNS]


@pytest.mark.slow
def test_memory_on_disk_has_a_quota(tmp_path: Path) -> None:
    node = hospital(tmp_path, '[policy]\ndisk = "20K"\nruns = 99\n')
    raw = described(algorithm={"name": "ditto"}, model={"name": "mlp", "hidden": [4]})
    found = [ask(node, raw, experiment=f"e{k}").head.get("refused", "") for k in range(60)]
    assert found[0] == ""
    assert found[-1] == Refusal.DISK
    assert sum(path.stat().st_size for path in node.config.memory.rglob("*") if path.is_file()) < 25_000


@pytest.mark.parametrize("name", ["../../etc", "/etc/x", "a/b", "", ".hidden", "x" * 300, "a\x00b", "a\nb", "-"])
def test_experiments_have_plain_names(name: str, tmp_path: Path) -> None:
    node = hospital(tmp_path)
    answer = ask(node, described(), experiment=name)
    assert answer.head.get("refused") == Refusal.MESSAGE or name == "-"
    outside = [path for path in tmp_path.iterdir() if path.name not in ("node", "modules")]
    assert not outside


@pytest.mark.parametrize(
    "about",
    [
        {"kind": "erase"}, {"kind": None}, {"attempt": -1}, {"attempt": "1"}, {"attempt": 2**40}, {"spec": None},
        {"spec": {}}, {"extra": 1}, {"clients": "a"}, {"experiment": None}, {"chunk": True},
        *({"kind": "job", "job": job, "clients": ["a"]} for job in ("__init__", "check", "predict", "round", "")),
        *({"kind": "job", "job": "train", "clients": who} for who in ([], ["a", "a"], [1], None)),
        {"kind": "job", "job": "train", "clients": ["a"], "chunk": 0},
        {"kind": "job", "job": "train", "clients": ["a"], "round": 1.5},
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(about: dict[str, Any], tmp_path: Path) -> None:
    node = hospital(tmp_path)
    head = {"kind": "hello", "experiment": "e", "attempt": 1, "spec": described()}
    node.answer(WireMessage(head, {}))
    answer = node.answer(WireMessage(head | about, {"shared/centers": torch.zeros(1, 3)}))
    assert answer.head.get("refused") in (Refusal.MESSAGE, Refusal.FAILED, Refusal.OTHER_RUN), answer.head


@pytest.mark.parametrize(
    "tensors",
    [
        {"shared/centers": torch.zeros(40, 3)},
        {"shared/centers": torch.zeros(1, 10**6)},
        {"each/w": torch.zeros(5, 3), "shared/centers": torch.zeros(1, 3)},
        {"shared/centers": torch.tensor(1.0)},
        {"shared/centers": torch.zeros(1, 2)},
        {"shared/centers": torch.zeros(1, 3, dtype=torch.int64)},
        {},
    ],
)
def test_what_is_sent_has_the_form_of_centers(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    node = hospital(tmp_path)
    answer = train(node, described(), tensors=tensors)
    assert answer.head.get("refused") in list(Refusal), answer.head
    assert "w" in train(node, described(), experiment="after").tensors  # the node goes on


def test_scores_are_means_over_enough_points_or_not_sent(tmp_path: Path) -> None:
    node = hospital(tmp_path, clients={"a": 30, "b": 100})
    raw = described()
    train(node, raw)
    state = {"state/centers": torch.zeros(1, 3)}
    answer = ask(node, raw, "scores", clients=["a", "b"], tensors=state)
    assert bool(torch.isfinite(answer.tensors["train"]).all())
    assert torch.isfinite(answer.tensors["held_out"]).tolist() == [False, True]  # 6 points and 20
    silent = hospital(tmp_path / "other", "[policy]\nscores = false\n")
    ask(silent, raw)
    assert refused(silent, raw, "scores", clients=["a"], tensors=state) == Refusal.NOT_ALLOWED


def test_sums_over_few_points_are_not_sent(tmp_path: Path) -> None:
    """A Gram matrix of one point is that point. What is sent is a sum over as many points as the owner requires."""
    node = hospital(tmp_path, '[policy]\nalgorithms = ["fedroute"]\npoints = 10\n')
    raw = described(algorithm={"name": "fedroute", "S": 2, "first": "xavier"})
    ask(node, raw)
    found = 0
    for number in range(12):
        rng = np.random.default_rng(number)
        centers = torch.from_numpy(rng.standard_normal((2, 3)) * 3).float()
        sent = {"shared/centers": centers, "shared/s2": torch.tensor(1e-3)}
        sums = ask(node, raw, "job", job="gather", round=number, ask=0, clients=["a"], tensors=sent).tensors
        for s in range(2):
            n, gram = float(sums["n"][0, s]), sums["gram"][0, s]
            assert n == 0 or n > 9
            assert n > 0 or not bool(gram.any())
            found += n == 0
    assert found  # it would have been sent


@pytest.mark.parametrize("name", [n for n in plugins.names("algorithms") if n not in SENDS_SUMS])
def test_honest_runs_stay_within_the_default_number_of_requests(name: str, tmp_path: Path) -> None:
    """Limits that stop nobody honest: the most asks that a round of each algorithm makes."""
    from tests.flower.places import Direct, run, shards

    transport = Direct(shards(tmp_path))
    run(spec(name, rounds=4), tmp_path / "run", transport)
    asked: dict[tuple[int, int], int] = {}
    for number, message, _ in transport.sent:
        if message.head["kind"] == "job":
            key = number, message.head["round"]
            asked[key] = asked.get(key, 0) + 1
    assert max(asked.values(), default=0) <= 6  # half of what is allowed, so that each may be asked twice


def test_no_epsilon_without_an_accountant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fs.InputError, match="needs a package that is not installed"):
        hospital(tmp_path, "[policy]\nprivacy = { epsilon = 1.0 }\n")


# --- attacks that once succeeded --------------------------------------------------------------------------------------


def test_long_names_of_partitions_take_no_time(tmp_path: Path) -> None:
    raw = described()
    raw["partition"] = {"name": "a(" + " " * 10**6}
    began = time.perf_counter()
    for node in (hospital(tmp_path), node_at(tmp_path / "shard", shard(0))):
        assert refused(node, raw) in (Refusal.DATA, Refusal.NOT_ALLOWED)
    with pytest.raises(fs.InputError, match="should have at most 1000"):
        parse_partition("a(" + " " * 10**6)
    parse_partition(" dirichlet ( 0.5 ) ")
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("name", ["privacy.json", "runs", "requests.json"])
def test_experiments_take_the_place_of_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    ask(node, described(), experiment=name)
    again = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    assert "w" in train(again, described(privacy={"update_clip": 1.0, "update_noise": 9.0})).tensors


def test_bounds_of_settings_that_do_not_exist_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(fs.InputError, match=r"unknown setting in policy\.bounds 'epoch': did you mean 'epochs'"):
        hospital(tmp_path, "[policy]\nbounds = { epoch = [1, 5] }\n")


def test_scores_are_sent_a_few_times_only(tmp_path: Path) -> None:
    """They are exact means, of models that may be the server's choice."""
    node, raw = hospital(tmp_path, "[policy]\nrequests_per_round = 99\n"), described()
    train(node, raw)
    state = {"state/centers": torch.zeros(1, 3)}
    codes = [ask(node, raw, "scores", clients=["a"], round=k, tensors=state).head.get("refused") for k in range(12)]
    assert codes == [None] * 10 + [Refusal.REQUESTS] * 2


def test_two_workers_do_not_share_a_memory(tmp_path: Path) -> None:
    """They would count requests and privacy beside each other, each up to the limit."""
    memory = hospital(tmp_path).config.memory
    first = only_worker(memory)
    with pytest.raises(fs.InputError, match="is in use by another worker"):
        only_worker(memory)
    os.close(first)
    os.close(only_worker(memory))


def test_a_score_may_be_that_of_a_single_point(tmp_path: Path) -> None:
    """What is left to a server where scores are sent: a network that is 0 for all points but one, times a million."""
    node = hospital(tmp_path)
    raw = described(model={"name": "mlp", "hidden": [1]})
    train(node, raw, size=6)
    here = node.experiments.loaded["e"].host
    first = here.data.take([0]).x[here.data.take([0]).points][:, 0].sort().values
    threshold = float(first[-2:].mean())
    layout = {name: place for name, place, _ in here.model.layout.slices()} if here.model.layout else {}
    center, (w1, b1, w2, _) = torch.zeros(1, 6), layout.values()
    center[0, w1.start], center[0, b1.start], center[0, w2.start] = 1.0, -threshold, 1e6
    sent = ask(node, raw, "scores", clients=["a"], tensors={"state/centers": center}).tensors["train"]
    assert (float(sent[0]) * len(first)) ** 0.5 / 1e6 + threshold == pytest.approx(float(first[-1]), rel=1e-4)


def test_requests_of_a_round_are_limited(tmp_path: Path) -> None:
    node, raw = hospital(tmp_path, "[policy]\nrequests_per_round = 5\n"), described()
    codes = [train(node, raw, round=0, ask=k).head.get("refused") for k in range(7)]
    assert codes == [None] * 5 + [Refusal.REQUESTS] * 2
    assert "w" in train(node, raw, round=1).tensors
