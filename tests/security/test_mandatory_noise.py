"""Noise that an owner wants: nothing leaves without it, and nothing takes it away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft import plugins
from fedsoft.flower.node.refusals import Refusal
from fedsoft.safety.noise import hidden_models
from tests.flower.places import QuietNode, node_at
from tests.security.hospital import KEY, ask, described, hospital, refused, train

NOISE = {"counts": 4.0, "update_clip": 1.0, "update_noise": 4.0}


def test_privacy_may_be_mandatory(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    policy = "[policy]\nprivacy = { counts = 2.0, update_noise = 2.0 }\n"
    assert train(hospital(tmp_path / "1", policy), described()).head["refused"] == Refusal.PRIVACY
    weak = described(privacy=NOISE | {"update_noise": 1.0})
    assert refused(hospital(tmp_path / "2", policy), weak) == Refusal.PRIVACY
    assert "w" in train(hospital(tmp_path / "3", policy), described(privacy=NOISE | {"counts": 0.0})).tensors
    node = hospital(tmp_path / "4", policy)
    assert refused(node, described(), "scores", clients=["a"]) == Refusal.NOT_ALLOWED  # scores have no noise


def test_what_has_no_noise_does_not_leave_under_any_name(tmp_path: Path) -> None:
    """IFCA's clients send the center that they chose, FedEM's a mixture called pi: neither has noise."""
    for k, name in enumerate(("ifca", "fedem", "apfl", "fesem")):
        node = hospital(tmp_path / str(k), "[policy]\nprivacy = { counts = 2.0 }\n")
        raw = described(algorithm=name)
        ask(node, raw)
        sent = {"shared/centers": torch.zeros(2, 3)}
        jobs = plugins.build("algorithms", name, {}).jobs
        assert jobs
        for number, job in enumerate(jobs):
            answer = ask(node, raw, "job", job=job, round=0, ask=number, clients=["a"], tensors=sent)
            assert set(answer.tensors) <= {"w"}, (name, job)


def test_a_budget_is_spent_over_all_runs_and_restarts(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from fedsoft.safety.accountant import gaussian_epsilon

    policy = "[policy]\nprivacy = { epsilon = 1.0 }\nruns = 100\n"
    raw = described(privacy=NOISE | {"counts": 0.0})
    codes = []
    for k in range(30):
        node = hospital(tmp_path, policy)  # started again, and asked in a new run
        codes.append(train(node, raw, experiment=f"e{k}").head.get("refused"))
    allowed = codes.index(Refusal.SPENT)
    assert gaussian_epsilon(4.0, 1e-5, allowed) <= 1.0 < gaussian_epsilon(4.0, 1e-5, allowed + 1)
    assert set(codes[:allowed]) == {None}
    assert set(codes[allowed:]) == {Refusal.SPENT}


def test_the_same_question_has_the_same_answer_and_any_other_one_fresh_noise(tmp_path: Path) -> None:
    """Otherwise the noise goes away in the difference of two answers, or in the mean of many."""
    pytest.importorskip("dp_accounting")
    raw = described(privacy=NOISE | {"counts": 0.0})

    def answer(**about: Any) -> torch.Tensor:
        return train(hospital(tmp_path), raw, **about).tensors["w"][0]

    first = answer()
    assert torch.equal(answer(), first)
    assert torch.equal(answer(attempt=2), first)  # a server that was started again
    other = [
        answer(experiment="f"),
        answer(clients=["a", "b"], attempt=2),
        answer(tensors={"shared/centers": torch.full((1, 3), 1e-7)}, attempt=2),
    ]
    for found in other:
        assert float((found - first).abs().min()) > 1e-3


@pytest.mark.slow
def test_noise_of_runs_that_differ_in_a_setting_is_not_shared(tmp_path: Path) -> None:
    """Two runs of one seed, with other lambdas: their noisy counts differ by more than their counts."""
    pytest.importorskip("dp_accounting")
    found = []
    for lam in (1.0, 1.1):
        raw = described(algorithm={"name": "fedsoft", "S": 2, "lam": lam, "sigma": 1e-9}, privacy={"counts": 1.0})
        rows = []
        for k in range(40):
            centers = torch.from_numpy(np.random.default_rng(k).standard_normal((2, 3))).float()
            about = {"job": "estimate", "clients": ["a", "b"], "experiment": f"{lam}-{k}".replace(".", "_")}
            node = hospital(tmp_path / str(lam), "[policy]\nruns = 99\n")
            node.config.memory.mkdir(exist_ok=True)
            (node.config.memory / ".secret").write_text("the same for both")
            noisy = train(node, raw, **about, tensors={"shared/centers": centers}).tensors["u"]
            about["experiment"] = f"x-{about['experiment']}"
            bare = raw | {"privacy": {"counts": 0.0}}
            exact = train(node, bare, **about, tensors={"shared/centers": centers}).tensors["u"]
            rows.append((noisy - exact)[:, 0])
        found.append(torch.cat(rows))
    correlation = float(torch.corrcoef(torch.stack(found))[0, 1])
    assert abs(correlation) < 0.35
    assert float(found[0].std()) > 0.005


def test_that_training_diverged_is_not_revealed_where_models_have_noise(tmp_path: Path) -> None:
    """It is a fact about points: a server that may ask it often finds every one of them."""
    pytest.importorskip("dp_accounting")
    noise = {"update_clip": 1.0, "update_noise": 5.0}
    fast = described(solver={"name": "sgd", "lr": 1e30, "epochs": 9}, privacy=noise)
    for diverged in ("stop", "drop"):
        node = hospital(tmp_path / diverged, "[policy]\nprivacy = { update_noise = 5.0, epsilon = 3.0 }\n")
        answer = train(node, fast | {"diverged": diverged})
        assert bool(torch.isfinite(answer.tensors["w"]).all()), answer.head
        assert node.budget.read()["a"] == pytest.approx(1 / 25)
        after = node.experiments.loaded["e"].host.client_states
        assert all(bool(torch.isfinite(after[name]).all()) for name in after)
    bare = hospital(tmp_path / "bare")
    assert train(bare, described(solver={"name": "sgd", "lr": 1e30, "epochs": 9})).head["refused"] == Refusal.DIVERGED


def test_a_spent_budget_is_refused_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 0.2 }\n")
    raw = described(privacy={"update_clip": 1.0, "update_noise": 4.0})
    ask(node, raw)
    monkeypatch.setattr(node.experiments.loaded["e"].host, "run_job", lambda *args: pytest.fail("it was computed"))
    assert train(node, raw).head["refused"] == Refusal.SPENT


def test_what_fails_is_counted_and_not_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    raw = described(privacy={"update_clip": 1.0, "update_noise": 4.0})
    ask(node, raw)

    def fails(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(node.experiments.loaded["e"].host, "run_job", fails)
    assert train(node, raw).head["refused"] == Refusal.FAILED
    assert node.budget.read()["a"] == 1.0  # more than the noise of this run would have cost


def test_what_ends_with_the_worker_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is ended by its limit of time or memory leaves nobody to count it: it is paid for in advance."""
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    raw = described(privacy={"update_clip": 1.0, "update_noise": 4.0})
    ask(node, raw)
    host, paid = node.experiments.loaded["e"].host, []
    compute = host.run_job

    def watched(*args: Any) -> Any:
        paid.append(node.budget.read()["a"])
        return compute(*args)

    monkeypatch.setattr(host, "run_job", watched)
    for k in range(3):
        assert "w" in train(node, raw, round=k).tensors
    assert paid == [1.0, 1.0 + 1 / 16, 1.0 + 2 / 16]
    assert node.budget.read()["a"] == 3 / 16  # an answer costs what its noise is worth

    def stopped(*args: Any) -> None:
        raise SystemExit(0)  # by the owner: nothing leaves

    monkeypatch.setattr(host, "run_job", stopped)
    with pytest.raises(SystemExit):
        train(node, raw, round=3)
    assert node.budget.read()["a"] == 3 / 16


def test_noise_changes_when_a_point_changes(tmp_path: Path) -> None:
    """Otherwise the difference of two answers is the change itself."""
    pytest.importorskip("dp_accounting")
    raw = described(privacy={"update_clip": 1.0, "update_noise": 50.0})
    first = train(hospital(tmp_path), raw).tensors["w"]
    path = tmp_path / "node" / "data" / "a.csv"
    node = node_at(tmp_path / "node", (tmp_path / "node" / "node.toml").read_text("utf-8"))
    assert torch.equal(train(node, raw).tensors["w"], first)
    path.write_text(path.read_text("utf-8").replace("2.", "3.", 1), "utf-8")
    node = node_at(tmp_path / "node", (tmp_path / "node" / "node.toml").read_text("utf-8"))
    assert float((train(node, raw).tensors["w"] - first).norm()) > 10


def test_what_cannot_be_stated_is_refused_at_a_node_too(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    for changes in ({"algorithm": "ifca", "privacy": {"update_clip": 1.0, "update_noise": 1.0}},
                    {"algorithm": "fedem", "privacy": {"counts": 1.0}}):  # fmt: skip
        assert refused(hospital(tmp_path), described(**changes), experiment=str(changes["algorithm"])) == Refusal.FAILED


def test_noise_is_one_for_each_number_that_leaves(tmp_path: Path) -> None:
    """Centers of another shape would have the same noise stand on several numbers, and so cancel."""
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    raw = described(privacy={"update_clip": 1.0, "update_noise": 5.0})
    wide = torch.tensor([[[[-10.0] * 3, [10.0] * 3]]])
    for sent in (
        {"shared/centers": wide, "each/centers": torch.zeros(1, 3)},
        {"shared/centers": wide},
        {"shared/centers": torch.zeros(1, 2, 3)},
        {"shared/centers": torch.zeros(1, 3, dtype=torch.complex64)},
        {"shared/centers": torch.zeros(1, 3, dtype=torch.float64)},
    ):
        assert train(node, raw, tensors=sent).head.get("refused") == Refusal.MESSAGE
    with pytest.raises(fs.InputError, match=r"should be \[m, P\] around \[P\]"):
        hidden_models(torch.zeros(1, 3), torch.zeros(2, 3), fs.Privacy(update_clip=1.0, update_noise=1.0), [])


@pytest.mark.parametrize("privacy", [None, {"counts": 1000.0}])
def test_no_code_reveals_whether_training_diverged_where_noise_is_mandatory(
    privacy: dict[str, float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before any point is looked at: otherwise the code is an answer without noise."""
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 1.0 }\n")
    raw = described(algorithm={"name": "fedsoft", "S": 1}, **({"privacy": privacy} if privacy else {}))
    ask(node, raw)
    monkeypatch.setattr(node.experiments.loaded["e"].host, "run_job", lambda *args: pytest.fail("it was computed"))
    for exponent in (0, 30, 38):
        centers = torch.full((1, 3), 10.0**exponent)
        assert train(node, raw, tensors={"shared/centers": centers}).head["refused"] == Refusal.PRIVACY


# --- one point, or one number, that outweighs the noise ---------------------------------------------------------------


def labelled(tmp_path: Path, far: float) -> QuietNode:
    """A node whose client has 600 points, one of them `far` from the others."""
    x = np.random.default_rng(0).standard_normal((600, 3)).astype(np.float32)
    x[7] *= far
    (tmp_path / "node" / "data").mkdir(parents=True)
    np.savez(tmp_path / "node" / "data" / "a.npz", x=x, y=np.arange(600) % 2)
    return node_at(tmp_path / "node", 'name = "n"\nworkers = 1\n[data]\npath = "data"\nheld_out = 0.0\n')


@pytest.mark.parametrize("weights", ["soft", "hard"])
def test_no_point_moves_the_counts_of_the_others(weights: str, tmp_path: Path) -> None:
    """Centers so large that the loss of a single point has no value: the shares of all points were lost with it."""
    pytest.importorskip("dp_accounting")
    dataset = {"name": "nodes", "clients": {"a": KEY}, "input": [3], "task": "classification", "outputs": 2}
    algorithm = {"name": "fedsoft", "S": 2, "weights": weights, "sigma": 0.0}
    raw = described(dataset=dataset, algorithm=algorithm, privacy={"counts": 1e-3})
    for exponent in (36, 37, 38):
        found = []
        for far in (1.0, 1e3):
            node = labelled(tmp_path / f"{exponent} {far}", far)
            ask(node, raw)
            centers = torch.zeros(2, node.experiments.loaded["e"].host.model.size)
            centers[0, :3] = 3 * 10.0**exponent
            answer = ask(node, raw, "job", job="estimate", clients=["a"], tensors={"shared/centers": centers})
            found.append(600 * answer.tensors["u"][0].double())
        assert float((found[0] - found[1]).norm()) < 1.5  # sqrt 2, and almost no noise


def test_an_update_is_hidden_before_it_is_rounded() -> None:
    """A server chooses the model around which updates are clipped: beside a large one they would be rounded first."""
    privacy = fs.Privacy(update_clip=1.0, update_noise=0.25)
    around = torch.full((100,), 2.0**50, dtype=torch.float64)  # the next number is 0.25 away
    w = (around + 0.25)[None]  # 100 times 0.25, which is clipped to 100 times 0.1
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(100)) / 2
    found = hidden_models(w, around, privacy, [np.random.default_rng(0)])[0]
    assert torch.equal(found, around + (0.1 + noise))
    assert not torch.equal(found, around + 0.1 + noise)  # 0.1 would be nothing there


def test_updates_are_not_clipped_to_the_smallest_numbers_there_are(tmp_path: Path) -> None:
    """There rounding makes a clipped update several times as long as the noise was chosen for."""
    pytest.importorskip("dp_accounting")
    node = hospital(tmp_path, "[policy]\nprivacy = { epsilon = 3.0 }\n")
    for clip in (5e-324, 1e-310, 1e-40):
        raw = described(dtype="float64", privacy={"update_clip": clip, "update_noise": 4.0})
        assert refused(node, raw, experiment=f"e{clip}".replace(".", "_")) == Refusal.FAILED
        assert "should be at least 1e-30" in node.said[-1]
