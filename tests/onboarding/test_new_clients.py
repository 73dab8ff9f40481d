"""New clients: their mixture, their model, and whether anything fits them, against a run whose centers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.text import Text

import fedsoft as fs
from fedsoft.core.federation import Federation
from fedsoft.data.new_points import read_new_clients
from fedsoft.errors import InputError
from fedsoft.onboarding.learning_curve import counts, learning_curve
from fedsoft.onboarding.usual import Usual
from fedsoft.reports.new_clients import adopted_table

THETA = torch.tensor([[3.0, 0.0, -2.0], [-1.0, 4.0, 1.0]])
NOISE = 0.5


def draw(shares: list[float], points: int, seed: int, theta: torch.Tensor = THETA) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of linear sources."""
    rng = np.random.default_rng([7, seed])
    x = torch.from_numpy(rng.standard_normal((points, 3))).float()
    source = torch.from_numpy(rng.choice(len(theta), points, p=shares))
    return x, (x * theta[source]).sum(1) + NOISE * torch.from_numpy(rng.standard_normal(points)).float()


@pytest.fixture(scope="module")
def run() -> fs.Run:
    """A run whose centers are the truth: what is tested is what comes after training."""
    clients = [draw([0.1, 0.9] if k % 2 else [0.9, 0.1], 60, k) for k in range(20)]
    fed = Federation.from_clients(clients, held_out=0.5)
    made = fs.fit(fs.FedEM(S=2), fed, fs.models.linear(), rounds=1, solver=fs.Exact())
    made.state = made.state.update(centers=THETA.clone())
    return made


def test_the_mixture_is_found_and_the_interval_widens_with_few_points(run: fs.Run) -> None:
    many, few = (run.adopt(draw([0.3, 0.7], n, 100)) for n in (400, 8))
    assert many.shares.tolist() == pytest.approx([0.3, 0.7], abs=0.06)
    assert bool((many.low <= many.shares).all() and (many.shares <= many.high).all())
    assert float((few.high - few.low)[0]) > 3 * float((many.high - many.low)[0])
    assert (many.best, many.points, many.name) == (1, 400, "new client")
    narrow = run.adopt(draw([0.3, 0.7], 400, 100), level=0.5)
    assert float((narrow.high - narrow.low)[0]) < float((many.high - many.low)[0])


def test_the_noise_scale_is_that_of_the_clients_held_out_points(run: fs.Run) -> None:
    assert run.new_clients().usual.s2 == pytest.approx(NOISE**2, rel=0.15)


def test_each_way_hands_over_what_it_says(run: fs.Run) -> None:
    data, x = draw([0.3, 0.7], 40, 101), torch.eye(3)
    center, mixture, personal = (run.adopt(data, how=how) for how in ("center", "mixture", "personal"))
    assert torch.allclose(center.predict(x), THETA[1])
    assert torch.allclose(mixture.predict(x), mixture.shares.float() @ THETA, atol=1e-5)
    # (2/n X'X + lam) w = 2/n X'y + lam sum_s u_s c_s, with lam = 1 where the algorithm has none
    gram = 2 / 40 * data[0].T @ data[0] + torch.eye(3)
    expected = torch.linalg.solve(gram, 2 / 40 * data[0].T @ data[1] + personal.shares.float() @ THETA)
    assert torch.allclose(personal.predict(x), expected, atol=1e-4)
    free = run.adopt(data, how="personal", lam=0.0)
    assert torch.allclose(free.predict(x), torch.linalg.lstsq(*data).solution, atol=1e-4)
    assert torch.allclose(
        run.adopt(data, how="personal", lam=1e6).predict(x), personal.shares.float() @ THETA, atol=1e-2
    )


def test_nothing_of_the_run_changes_and_the_same_data_gives_the_same_bits(run: fs.Run) -> None:
    before = {name: value.clone() for name, value in run.state.tensors().items()}
    first, second = (run.adopt(draw([0.3, 0.7], 30, 3), how="personal") for _ in range(2))
    assert all(torch.equal(run.state.tensors()[name], value) for name, value in before.items())
    assert torch.equal(first.predict(torch.eye(3)), second.predict(torch.eye(3)))
    assert first.to_dict() == second.to_dict()


def test_nothing_fits_only_an_unseen_source(run: fs.Run) -> None:
    """Also an even mixture fits, which no client of the run has; a source that was never there does not."""
    desk = run.new_clients()
    for points in (10, 60):
        known = [desk.adopt(*draw(shares, points, seed)) for seed in range(15) for shares in ([0.1, 0.9], [0.5, 0.5])]
        assert sum(not one.fit.fits for one in known) <= 2  # a false alarm in 100
        strange = [desk.adopt(*draw([1.0], points, seed, torch.tensor([[0.0, -4.0, 4.0]]))) for seed in range(15)]
        assert all(not one.fit.fits and one.fit.chance < 0.01 for one in strange)
        assert "fits NO center" in strange[0].fit.sentence()
        assert known[0].fit.limit > known[0].fit.typical > 0


def test_the_limit_is_that_of_simulated_clients(run: fs.Run) -> None:
    """With one point each, they are the losses of the clients' points themselves."""
    usual = run.new_clients().usual
    fit = usual.judge(0.0, 1)
    data = run.federation.held_out
    each = ((data.x @ THETA.T) - data.y[:, None]).square().min(1).values.numpy()  # a point's own center is plain
    assert fit.limit == pytest.approx(np.quantile(each, 0.99), rel=0.35)
    assert fit.typical == pytest.approx(np.median(each), rel=0.25)
    assert fit.chance == 1
    assert usual.judge(1e9, 1).chance == pytest.approx(1 / 2000)
    assert usual.judge(fit.typical, 1).chance == pytest.approx(0.5, abs=0.01)
    assert usual.judge(0.0, 400).limit < fit.limit  # many points: the mean hardly varies
    limits = [usual.judge(0.0, n).limit for n in (30, 40, 50)]
    assert limits == sorted(limits, reverse=True)  # between the counts that are kept


def test_classes_take_the_loss_as_it_is() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((40, 2))).float()
    y = (x[:, 0] > 0).long()
    fed = Federation.from_clients([(x, y), (x, 1 - y)], held_out=0.5)
    run = fs.fit(fs.IFCA(S=2), fed, fs.models.linear(), rounds=1)
    right = torch.tensor([[-9.0, 0.0], [9.0, 0.0]]).flatten()
    run.state = run.state.update(centers=torch.stack([right, -right]))
    assert run.new_clients().usual.s2 is None
    found = run.adopt((x, torch.where(torch.arange(40) < 30, y, 1 - y)))
    assert found.shares.tolist() == pytest.approx([0.75, 0.25], abs=0.05)
    assert torch.allclose(found.predict(x).sum(1), torch.ones(40))


def test_bad_new_clients_are_one_sentence(run: fs.Run) -> None:
    x, y = draw([0.5, 0.5], 5, 0)
    for data, words in (
        ((x[:, :2], y), r"x of a point is \[2\], but that of the run's clients is \[3\]"),
        ((x, y[:3]), "x has shape"),
        ((x[:0], y[:0]), "has no points"),
        ((x, y.clone().fill_(float("nan"))), "NaN"),
        ((x.to(torch.uint8), y), "x is uint8"),
    ):
        with pytest.raises(InputError, match=words):
            run.adopt(data)
    with pytest.raises(InputError, match="how = 'magic' is not allowed"):
        run.adopt((x, y), how="magic")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"level = 1.5 is not allowed"):
        run.adopt((x, y), level=1.5)
    with pytest.raises(InputError, match=r"lam = -1 is not allowed"):
        run.adopt((x, y), lam=-1)
    alone = fs.fit(fs.Local(), run.federation, fs.models.linear(), rounds=1, solver=fs.Exact())
    with pytest.raises(InputError, match="no centers"):
        alone.adopt((x, y))


def test_labels_out_of_range_are_refused() -> None:
    fed = Federation.from_clients([(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))])
    with pytest.raises(InputError, match="label 3 is out of range, should be 0 to 2"):
        fed.new_client(torch.zeros(1, 2), torch.tensor([3]))
    with pytest.raises(InputError, match="not whole"):
        fed.new_client(torch.zeros(1, 2), torch.tensor([0.5]))


def test_the_curve_has_a_place_for_each_number_of_points(run: fs.Run) -> None:
    assert counts(5) == [5]
    assert counts(60) == [5, 10, 20, 50, 60]
    seen: list[tuple[int, int]] = []
    people = [draw([0.0, 1.0], 60, 5), draw([1.0, 0.0], 60, 6)]
    curve = learning_curve(
        run.new_clients(), people, rounds=1, repeats=3, on_step=lambda done, total: seen.append((done, total))
    )
    assert curve.points == [5, 10, 20, 40]
    assert seen[-1] == (24, 24)
    errors = curve.errors
    assert errors["best center"] == [errors["best center"][0]] * 4
    assert errors["center"] == pytest.approx(errors["best center"])  # 5 points are enough to tell these two apart
    assert errors["alone"][0] > errors["alone"][-1] > NOISE**2 / 2  # exact least squares on 5, then on 40 points
    assert errors["mixture"][-1] == pytest.approx(errors["center"][-1], rel=0.1)
    assert curve.to_csv().splitlines()[0] == "points,center,mixture,personal,alone,best center"
    with pytest.raises(InputError, match="at least 8 points"):
        learning_curve(run.new_clients(), [draw([1.0, 0.0], 7, 0)], rounds=1)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Federation]:
    folder = tmp_path / "clients"
    folder.mkdir()
    for name, rows in (("a", "1,2,yes\n3,4,no\n"), ("b", "5,6,no\n7,8,maybe\n")):
        (folder / f"{name}.csv").write_text(f"u,v,outcome\n{rows}")
    return tmp_path, fs.datasets.folder(folder, label="outcome", held_out=0.0)


def test_new_clients_are_read_by_the_columns_and_classes_of_the_run(tables: tuple[Path, Federation]) -> None:
    path, fed = tables
    assert fed.columns.features == ("u", "v")
    assert fed.columns.classes == ("maybe", "no", "yes")
    (path / "new.csv").write_text("outcome,v,u\nyes,2,1\n")
    ((x, y),) = read_new_clients(path / "new.csv", fed).values()
    assert (x.tolist(), None if y is None else y.tolist()) == ([[1, 2]], [2])
    (path / "bare.csv").write_text("v,u\n2,1\n")
    ((x, y),) = read_new_clients(path / "bare.csv", fed, labelled=False).values()
    assert (x.tolist(), y) == ([[1, 2]], None)
    assert [*read_new_clients(path / "clients", fed)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("new.csv", "u,v,outcome\n1,2,yes\n1,2,never\n", "in line 3, column 'outcome' .* unknown class 'never'"),
        ("new.csv", "u,v,outcome\n1,2,yes\n1,two,no\n", "'new.csv' has text 'two' in line 3, column 'v'"),
        ("new.csv", "u,v,outcome\n1,2,3\n", "has numbers as labels, but the run's data has text"),
        (
            "new.csv",
            "u,w,outcome\n1,2,yes\n",
            "should have the columns of the run's data, but lacks 'v' and adds 'w'",
        ),
        ("new.csv", "u,v\n1,2\n", "lacks the labels"),
        ("new.txt", "", "should be a folder, or a file ending in"),
        ("gone.csv", None, "does not exist"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(
    tables: tuple[Path, Federation], name: str, text: str | None, words: str
) -> None:
    path, fed = tables
    if text is not None:
        (path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_new_clients(path / name, fed)


def test_numbered_classes_that_the_run_has_not_are_named(tmp_path: Path) -> None:
    fed = Federation.from_clients([(np.eye(3, 2), np.array([0, 1, 2]))], held_out=0.0)
    (tmp_path / "new.csv").write_text("u,v,y\n1,2,0\n1,2,3\n")
    with pytest.raises(InputError, match=r"'new\.csv' has 3 in line 3, column 'y', but classes should be 0 to 2"):
        read_new_clients(tmp_path / "new.csv", fed)
    (tmp_path / "new.csv").write_text("u,v,y\n1,2,1\n1,2,many\n")
    with pytest.raises(InputError, match=r"'many' in line 3, column 'y'.*the run's data has numbers"):
        read_new_clients(tmp_path / "new.csv", fed)


def test_arrays_without_labels_are_read_for_prediction(tmp_path: Path, run: fs.Run) -> None:
    np.savez(tmp_path / "p.npz", x=np.ones((2, 3)))
    ((x, y),) = read_new_clients(tmp_path / "p.npz", run.federation, labelled=False).values()
    assert (x.shape, y) == ((2, 3), None)
    with pytest.raises(InputError, match="lacks an array"):
        read_new_clients(tmp_path / "p.npz", run.federation)


def test_a_run_without_held_out_points_is_judged_by_training_points() -> None:
    fed = Federation.from_clients([draw([1.0, 0.0], 30, k) for k in range(3)], held_out=0.0)
    usual = Usual.of(fed, fs.models.linear()(fed.shape), THETA, 0)
    data = fed.train
    losses = ((data.x @ THETA[0]) - data.y).square()
    assert usual.mean == pytest.approx(float(losses.mean()), rel=0.05)


def test_centers_that_are_no_better_than_guessing_are_named(run: fs.Run) -> None:
    usual, held_out = run.new_clients().usual, run.federation.held_out
    assert usual.guess == pytest.approx(float(held_out.y.double().var(correction=0)), rel=1e-6)
    assert "guessing" not in usual.judge(0.0, 10).sentence()
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((40, 3)), rng.integers(0, 4, 40)) for _ in range(6)]  # nothing to be learnt
    local = fs.SGD(lr=1.0, epochs=20)
    noise = fs.fit(fs.FedSoft(S=2), fs.Federation.from_clients(pairs), fs.models.linear(), rounds=3, solver=local)
    desk = noise.new_clients()
    y = noise.federation.held_out.y
    share = np.bincount(y.numpy()) / len(y)
    assert desk.usual.guess == pytest.approx(-(share * np.log(share)).sum())
    found = desk.adopt(*pairs[0])
    assert "no center is better than guessing" in found.fit.sentence()
    assert not found.fit.fits  # a small loss is no merit then
    assert found.to_dict()["fit"]["verdict"] == "no better than guessing"
    assert list(adopted_table([found]).columns[-1].cells) == [Text("no (guessing)", style="bold red")]


@pytest.mark.slow
def test_centers_that_points_do_not_tell_apart_are_named(run: fs.Run) -> None:
    known = run.adopt(*draw([0.5, 0.5], 40, 9))
    assert (known.alike, len(known.sentences())) == ((), 1)
    copies = replace(run.new_clients(), centers=THETA[[0, 1, 1]] + torch.tensor([[0.0], [0.0], [1e-4]]))
    found = copies.adopt(*draw([0.5, 0.5], 40, 9))
    assert found.alike == ((1, 2),)
    assert "its 40 points do not tell c1 and c2 apart" in found.sentences()[1]
    assert found.to_dict()["alike"] == [[1, 2]]
    assert copies.adopt(*draw([1.0, 0.0], 40, 9)).alike == ()  # it has next to nothing of these two


def test_points_are_given_as_a_pair_or_as_two_arguments(run: fs.Run) -> None:
    x, y = draw([0.3, 0.7], 20, 4)
    assert run.adopt(x, y).to_dict() == run.adopt((x, y)).to_dict()
    with pytest.raises(InputError, match=r"adopt needs points with their targets"):
        run.adopt(x)


def test_a_point_that_says_nothing_about_the_shares_is_no_fit(run: fs.Run) -> None:
    """At x = 0 both centers predict the same: any mixture explains it."""
    found = run.adopt(torch.zeros(2, 3), torch.zeros(2))
    assert (float(found.high[0] - found.low[0]), found.fit.fits) == (pytest.approx(1.0, abs=0.01), True)
    assert (found.verdict, found.fits, found.to_dict()["fit"]["fits"]) == ("cannot tell", False, False)
    assert "a share could be anything from 0 to 1" in found.sentences()[0]
    assert list(adopted_table([found]).columns[-1].cells) == [Text("cannot tell")]


@pytest.mark.parametrize("algorithm", [fs.FedPrior(S=2), fs.FedLevels(S=2)])
@pytest.mark.parametrize("solver", [fs.Newton(), fs.SGD(lr=0.1, epochs=5, batch=10)])
def test_a_personal_model_is_pulled_by_the_prior_that_was_learned(algorithm: fs.Algorithm, solver: fs.Solver) -> None:
    """A new client with the points of a client of the run gets its model, and one with 2 points stays near a center."""
    rng = np.random.default_rng(0)
    ways = [THETA[k % 2].numpy() + 0.1 * rng.standard_normal(3) for k in range(30)]
    fed = Federation.from_clients([draw([1.0], 12, k, torch.tensor(way[None]).float()) for k, way in enumerate(ways)])
    made, x = fs.fit(algorithm, fed, fs.models.linear(), rounds=12, solver=solver), torch.eye(3)
    for k in range(4):
        found = made.adopt(*fed.train.client(k), how="personal", name=str(k)).predict(x)
        assert torch.allclose(found, torch.as_tensor(made.predict(x, client=k)), atol=0.1)
    few = [made.adopt(*draw([1.0, 0.0], 2, 50 + k), how="personal").predict(x) for k in range(5)]
    if isinstance(algorithm, fs.FedPrior):  # under fedlevels two points may as well be of both sources
        assert max(float((one - THETA[0]).abs().max()) for one in few) < 0.5
    if isinstance(solver, fs.Newton):  # a strength that is given counts
        free = made.adopt(*fed.train.client(0), how="personal", lam=0.0).predict(x)
        own = torch.linalg.lstsq(*(part if part.ndim > 1 else part[:, None] for part in fed.train.client(0))).solution
        assert torch.allclose(free, own[:, 0], atol=1e-3)
