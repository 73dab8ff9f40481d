"""What holds always, on drawn problems; what fails, pinned to its counterexample; and the command."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsoft.cli import main
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from fedsoft.theory import Check, run_checks
from fedsoft.theory import quantities as q
from fedsoft.theory.check import STATEMENTS, tally
from fedsoft.theory.descent import gamma_of_mixture, least_K, lemma_2_sides, separation
from fedsoft.theory.library import FixedWeights
from fedsoft.theory.objective import disturbed_weights, library_gradient
from fedsoft.theory.problem import Problem, draw_copies, draw_quadratics, on_a_line, within_assumption_4
from fedsoft.theory.subproblems import theorem_2_ratio, theorem_3_ratio
from tests.theory.test_quantities import problems

# What was found about each statement; the slow ones have tests of their own.
VERDICTS = {
    "constants": "yes", "gradient": "yes", "gradient-floor": "assumptions not met", "mixture": "no",
    "decoupling": "yes", "decoupling-floor": "no", "equal-weights": "no",
    "lemma-1": "no", "theorem-1": "yes",
    "theorem-2": "yes", "theorem-2-floor": "no", "theorem-2-literal": "no",
    "theorem-3": "no", "theorem-3-corrected": "yes",
    "theorem-4": "yes", "theorem-4-counterexample": "no", "theorem-4-mixtures": "assumptions not met",
    "theorem-4-weights": "assumptions not met",
    "theorem-4-floor": "no", "lemma-2": "yes", "theorem-4-jensen": "no",
    "assumption-4": "no", "remaining-error": "no", "corollary-1": "no",
    "theorem-5": "yes", "theorem-5-sizes": "no", "theorem-5-selection": "no",
    "selected": "yes", "selected-general": "no", "selected-mean": "no", "tau": "yes",
}  # fmt: skip
SAMPLE = Check("", "", "as written", "", "", "yes", "", "", "", {}, {}, 1, 0)
SLOW = ("tau", "theorem-5", "selected", "selected-general")


def one(name: str, draws: int = 20, seed: int = 0) -> Check:
    return next(check for check in run_checks(seed, draws, only=[name]) if check.name == name)


# --- statements that hold, on any problem -----------------------------------------------------------------------------


@given(problems(), st.integers(0, 1000), st.floats(0.01, 50))
def test_the_gradient_of_the_library_is_that_of_h(problem: Problem, seed: int, lam: float) -> None:
    rng = generator(seed, "gradient")
    w, c = rng.standard_normal((problem.N, problem.c_star.shape[1])), rng.standard_normal(problem.c_star.shape)
    now = q.Round(problem, c, rng.dirichlet(np.ones(problem.S), problem.N), lam)
    got = library_gradient(now, w)
    for k in range(problem.N):
        risk = sum(u * s.gradient(w[k]) for u, s in zip(problem.u[k], problem.sources, strict=True))
        assert got[k] == pytest.approx(risk + lam * (w[k] - now.ut[k] @ c), rel=1e-9, abs=1e-9)


@given(problems(), st.integers(0, 1000), st.floats(0.01, 50))
def test_h_falls_apart_into_its_sub_problems(problem: Problem, seed: int, lam: float) -> None:
    rng = generator(seed, "decoupling")
    now = q.Round(problem, rng.standard_normal(problem.c_star.shape), problem.u, lam)
    w = rng.standard_normal(problem.c_star.shape[1])
    for k in range(problem.N):
        split = sum(u * now.h_ks(k, s, w) for s, u in enumerate(problem.u[k]) if u > 0)
        assert now.h(k, w) == pytest.approx(split, rel=1e-12)


@given(problems(soft=True), st.integers(0, 1000), st.floats(0.01, 50), st.floats(0, 1))
def test_theorem_2_holds_where_all_shares_are_positive(problem: Problem, seed: int, lam: float, off: float) -> None:
    rng = generator(seed, "theorem-2")
    c = problem.c_star + rng.standard_normal(problem.c_star.shape)
    now = q.Round(problem, c, disturbed_weights(problem, rng), lam)
    w = now.solutions() + off * rng.standard_normal((problem.N, c.shape[1]))
    assert theorem_2_ratio(now, w) <= 1 + 1e-9


@given(problems(), st.integers(0, 1000), st.floats(0.01, 100), st.floats(0.001, 0.49))
def test_the_corrected_theorem_3_holds(problem: Problem, seed: int, lam: float, alpha: float) -> None:
    c = within_assumption_4(problem.sources, alpha, generator(seed, "theorem-3"))
    now = q.Round(problem, c, problem.u, lam)
    w = now.solutions()
    gamma = q.gamma(now, w)
    assert theorem_3_ratio(now, w, q.r_corrected(problem, gamma)) <= 1 + 1e-9
    if alpha >= 0.25:
        assert theorem_3_ratio(now, w, q.r(problem, gamma)) <= 1 + 1e-9


@given(problems(soft=True), st.integers(0, 1000), st.floats(0.001, 1000), st.floats(0.001, 0.49))
def test_a_mixture_leaves_no_room_for_rho(problem: Problem, seed: int, lam: float, alpha: float) -> None:
    """gamma > 2 sqrt(1 - u_ks) for every share, so n_s < gamma m_s for every center."""
    c = within_assumption_4(problem.sources, alpha, generator(seed, "mixtures"))
    gamma = gamma_of_mixture(problem, c, lam, problem.u)
    assert gamma >= 2 * math.sqrt(1 - problem.u.min()) * (1 - 1e-9)
    for s in range(problem.S):
        m = q.masses(problem, s, 0.0, 0.0)
        assert q.rho(m, gamma=gamma, L=q.L_F(problem), mu_lambda=q.mu_F(problem) + lam, lam=lam, K=1e18, p=0,
                     p_prime=0) < 0  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0.01, 0.99)), min_size=1, max_size=4), st.floats(1e-6, 0.1))
def test_lemma_2_holds(clients: list[tuple[int, float]], sigma: float) -> None:
    n = np.array([size for size, _ in clients])
    own = [np.maximum(np.arange(size + 1) / size, sigma) for size, _ in clients]
    chance = [
        np.array([math.comb(size, i) * p**i * (1 - p) ** (size - i) for i in range(size + 1)]) for size, p in clients
    ]
    left, right = lemma_2_sides(n, own, chance, 0)
    assert left <= right * (1 + 1e-12)


@given(problems(logistic=False, soft=True), st.floats(0.05, 5), st.integers(0, 1000))
@settings(max_examples=15)
def test_theorem_5_holds_for_the_weighted_objective(problem: Problem, lam: float, seed: int) -> None:
    """No round with everybody in it leads away: the joint objective sum_k n_k h_k falls, and its minimiser stays."""
    ut = disturbed_weights(problem, generator(seed, "theorem-5"))
    goal = q.joint_minimiser(problem, ut, lam, problem.n.astype(float))
    library = FixedWeights(problem, ut, lam)
    assert library.round(goal) == pytest.approx(goal, abs=1e-8)

    def joint(c: np.ndarray) -> float:
        now = q.Round(problem, c, ut, lam)
        return float(sum(n * now.h(k, now.solve(k)) for k, n in enumerate(problem.n)))

    c = goal + generator(seed, "start").standard_normal(goal.shape)
    values = [joint(c)]
    for _ in range(4):
        c = library.round(c)
        values.append(joint(c))
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values))
    assert min(values) >= joint(goal) * (1 - 1e-9)


# --- statements that fail, recomputed by hand -------------------------------------------------------------------------


def test_theorem_3_fails_at_1_855_against_1_75() -> None:
    check = one("theorem-3")
    assert check.holds == "no"
    assert check.values["distance"] == pytest.approx(1.45 + 0.9 * 0.45)
    assert check.values["r"] == pytest.approx(1.75, abs=1e-9)
    assert check.values["alpha_0"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("alpha", "L", "fails"), [(0.12, 1.0, True), (0.13, 1.0, False), (1e-4, 1.9, True), (1e-4, 2.1, False)]
)
def test_where_theorem_3_begins_to_fail(alpha: float, L: float, fails: bool) -> None:
    """Clients of one source and lambda -> infinity: alpha_0 < 1/8 for L = mu, L < 2 mu for alpha_0 -> 0."""
    problem = Problem(on_a_line(0.0, 1.0, curvature=[1.0, L]), np.array([[1, 0], [0, 1]]))
    off = (0.5 - alpha) / math.sqrt(L)
    now = q.Round(problem, np.array([[-off], [1 + off]]), problem.u, 1e6)
    assert (theorem_3_ratio(now, now.solutions(), q.r(problem, 0.0)) > 1) == fails


def test_theorem_2_fails_with_the_floor() -> None:
    check = one("theorem-2-floor")
    assert check.holds == "no"
    assert check.values["w"] == pytest.approx(1e-4 / (2 + 1e-4))
    assert check.values["left"] == pytest.approx(2e-4 / (2 + 1e-4))
    assert check.values["beta"] == 0
    assert check.values["gamma_0"] == 0


def test_assumption_2_needs_the_other_center() -> None:
    check = one("theorem-2-literal")
    assert check.holds == "no"
    assert check.values["left"] == pytest.approx(0.9995, abs=1e-6)  # w = 0.00025: grad h_0 = w + (w - 1)
    assert check.values["beta_literal"] == pytest.approx(0.5 * 0.001**2 / 0.999999**2, rel=0.01)


def test_the_floor_breaks_gradient_and_decoupling() -> None:
    check = one("gradient-floor")
    assert check.holds == "assumptions not met"
    assert (check.values["true"], check.values["paper"]) == pytest.approx((2 + 2.0002 - 1e-4, 2 + 2 - 1e-4))
    check = one("decoupling-floor")
    assert check.holds == "no"
    assert (check.values["h_k"], check.values["sum"]) == pytest.approx((0.005, 0.0))


def test_small_findings_of_section_3() -> None:
    assert one("mixture").values["w"] == pytest.approx(2 / 3)
    assert one("equal-weights").values["v"] == pytest.approx([1 / 3, 2 / 3])


def test_lemma_1_does_not_fall_with_the_fourth_power() -> None:
    check = one("lemma-1", draws=50)
    assert check.holds == "no"
    assert check.values["p_10"] == pytest.approx(math.atan(0.2) / math.pi)
    assert check.values["power"] == pytest.approx(-1, abs=0.02)
    assert check.values["limit_quarter"] == pytest.approx(math.atan(0.5) / math.pi, abs=1e-3)
    assert check.values["chebyshev_exceeded"] == 0
    assert check.values["library_standard_errors"] < 4


def test_theorem_4_where_it_can_be_applied_and_where_not() -> None:
    check = one("theorem-4", draws=60)
    assert check.holds == "yes"
    assert check.values["smallest_rho"] > 0
    assert all(0 < share < 1 for share in check.values["shares"])  # a real descent is promised, and a larger one found
    check = one("theorem-4-mixtures")
    assert check.holds == "assumptions not met"
    assert check.values["tight_gamma"] == pytest.approx(math.sqrt(2), rel=1e-3)
    assert check.values["smallest_gamma"] > 1


def test_both_terms_of_theorem_4_matter() -> None:
    parts = one("theorem-4", draws=60).values["second_over_first"]
    assert min(parts) < 0.01
    assert max(parts) > 1


def test_theorem_4_as_written_is_false_for_mixtures() -> None:
    check = one("theorem-4-counterexample")
    assert check.holds == "no"
    found = [check.values[key] for key in ("growth", "bound", "gamma")]
    assert found == pytest.approx([0.1074, -0.0038, 0.1647], abs=1e-4)
    w = np.array([0.5, 1000 * 0.045 / 1100])  # every model: half way between the centers, pulled towards the optima
    assert check.values["growth"] == pytest.approx((w[0] ** 2 + 100 * w[1] ** 2) / 2 - 50 * 0.045**2)
    assert check.values["rho"] > 0


def test_theorem_1_is_tight_where_a_client_has_no_point_of_the_source() -> None:
    assert one("theorem-1", draws=60).values["tight"] == pytest.approx(1e-4, abs=0.01)


def test_every_statement_counts_once() -> None:
    made = {name: STATEMENTS[name] for name in VERDICTS}
    checks = [dataclasses.replace(SAMPLE, name=name, about=one.about, kind=one.kind, holds=VERDICTS[name])
              for name, one in made.items()]  # fmt: skip
    written = tally(checks, "as written")
    assert sum(written.values()) == len({one.about for one in made.values() if one.kind == "as written"})
    assert {one.about for one in made.values() if one.name.startswith("theorem-4")} == {"theorem-4", "theorem-4-jensen"}
    assert tally(checks, "corrected") == {"yes": 2, "assumptions not met": 1, "no": 0}
    assert tally(checks, "step of a proof") == {"yes": 0, "assumptions not met": 0, "no": 2}


def test_theorem_4_needs_more_clients_than_there_are() -> None:
    assert least_K(1e-4) == pytest.approx(2e8, rel=0.01)
    assert least_K(1.0) == pytest.approx(2, rel=0.01)


def test_theorem_4_fails_with_the_floor() -> None:
    check = one("theorem-4-floor")
    assert check.holds == "no"
    assert check.values["growth"] == pytest.approx((0.01 / 101.01) ** 2 / 2)
    assert check.values["bound"] == 0
    assert check.values["rho"] > 0


def test_jensen_is_used_backwards() -> None:
    check = one("theorem-4-jensen")
    assert (check.values["left"], check.values["right"]) == pytest.approx((1000.9, 1 / 0.9))


def test_assumption_4_is_not_kept() -> None:
    check = one("assumption-4")
    assert check.holds == "no"
    assert check.values["half"] == pytest.approx(0.5)
    assert check.values["alpha_10_90"] == pytest.approx(4 / 17, abs=1e-5)


@given(st.sampled_from([0.6, 0.7, 0.8, 0.9, 1.0]), st.floats(0.01, 20), st.floats(0.2, 5))
@settings(max_examples=20)
def test_the_distance_between_centers_has_a_closed_form(share: float, lam: float, curvature: float) -> None:
    a = round(10 * share)
    problem = Problem(on_a_line(0.0, 1.0, curvature=curvature), np.array([[a, 10 - a], [10 - a, a]]))
    c = q.joint_minimiser(problem, problem.u, lam, np.ones(2))
    assert float(c[1, 0] - c[0, 0]) == pytest.approx(separation(share, lam, curvature), abs=1e-9)


def test_perfect_weights_leave_an_error() -> None:
    values = one("remaining-error").values
    assert values["10:90, lambda = 1"]["error"] == pytest.approx(9 / 34)
    for found in values.values():
        assert found["error"] == pytest.approx(found["closed_form"], abs=1e-6)


def test_corollary_1_lacks_a_factor() -> None:
    check = one("corollary-1")
    assert check.values["fails_from"] == 3
    assert check.values["mean_holds"]
    assert check.values["rho_over_n_s"] == pytest.approx(0.1 - 1 / 110 - 1 / 242)


def test_theorem_5_ends_elsewhere_when_sizes_differ() -> None:
    check = one("theorem-5-sizes")
    assert check.holds == "no"
    assert check.values["limit"] == pytest.approx([0.42, 0.82])
    assert check.values["argmin"] == pytest.approx([9 / 34, 25 / 34])
    assert check.values["from_weighted_argmin"] < 1e-12


def test_theorem_5_does_not_converge_with_selection() -> None:
    values = one("theorem-5-selection").values
    assert values["all"] < 1e-12
    assert values["K = 2 with replacement"] > 0.05
    assert values["K = 2 without"] > 0.05


def test_the_mean_of_selected_models_is_biased_without_replacement() -> None:
    values = one("selected-mean", draws=100).values
    assert values["without_exact"] == pytest.approx(5 / 12, abs=1e-6)
    assert values["without"] == pytest.approx(5 / 12, abs=0.05)
    assert values["with"] == pytest.approx(1 / 2, abs=0.06)
    assert values["share_without_replacement"] < 50 / 60 < values["share_by_v"]
    assert values["share_measured"] == pytest.approx(values["share_without_replacement"], abs=0.02)


def test_theorem_1_uses_the_exact_probability() -> None:
    check = one("theorem-1", draws=40)
    assert check.holds == "yes"
    assert check.values["smallest_margin"] >= 0


@pytest.mark.slow
def test_selected_clients_are_counted_as_select_draws_them() -> None:
    check = one("selected", draws=40)
    assert check.holds == "yes"
    values = one("selected-general", draws=40).values
    assert values["uniform, with"]["exact"] == pytest.approx(100 * (1 - 0.99**120))
    for found in values.values():
        assert found["measured"] == pytest.approx(found["exact"], abs=2.5)


@pytest.mark.slow
def test_theorem_5_has_the_spectral_rate() -> None:
    check = one("theorem-5", draws=75)
    assert check.holds == "yes"
    assert check.values["largest_relative_difference"] < 1e-3
    assert all(0 < rate < 1 for pair in check.values["rates"] for rate in pair)


@pytest.mark.slow
def test_tau() -> None:
    check = one("tau")
    assert check.holds == "yes"
    down = [y for _, y in check.series["bytes down"]]
    assert down == sorted(down, reverse=True)


# --- the list and the command -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_checks_are_plain_values_and_the_same_for_the_same_seed() -> None:
    names = ["gradient", "theorem-2", "theorem-4", "theorem-5-s", "constants"]
    first, second = (run_checks(3, 20, only=names) for _ in range(2))
    assert [c.to_dict() for c in first] == [c.to_dict() for c in second]
    for check in first:
        again = json.loads(json.dumps(check.to_dict(), allow_nan=False))
        assert again["name"] == check.name
        assert again["seed"] == 3
        assert all(len(pair) == 2 for curve in again["series"].values() for pair in curve)


def test_names_may_be_beginnings_and_keep_the_order_of_the_paper() -> None:
    told = []
    found = run_checks(0, 10, only=["theorem-3", "decoupling"], on_check=lambda *now: told.append(now))
    assert [c.name for c in found] == ["decoupling", "decoupling-floor", "theorem-3", "theorem-3-corrected"]
    assert told[0] == ("decoupling", 0, 4)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"only": ["theorem-9"]}, "unknown check 'theorem-9'"),
        ({"only": [""]}, "unknown check ''"),
        ({"draws": 9}, "draws = 9 is not allowed: should be a whole number of at least 10"),
        ({"draws": True}, "draws = True"),
        ({"seed": -1}, "seed = -1 is not allowed"),
    ],
)
def test_bad_input_is_one_sentence(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        run_checks(**bad)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedsoft", "theory", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    printed = capsys.readouterr()
    return int(caught.value.code or 0), printed.out, printed.err


def test_the_command_prints_a_table_and_ends_well_though_a_theorem_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(monkeypatch, capsys, "--only", "theorem-3", "--only", "gradient", "--draws", "10")
    assert code == 0
    for words in ("theorem-3-corrected", "1.855", "r Delta = 1.750", "not met", "4 checks: yes 2, no 1, not met 1"):
        assert words in out, words
    assert max(map(len, out.splitlines())) <= 80


def test_the_command_speaks_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(monkeypatch, capsys, "--only", "corollary", "--draws", "10", "--seed", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["seed"], found["draws"]) == (2, 10)
    assert found["checks"][0]["values"]["fails_from"] == 3


@pytest.mark.parametrize("arguments", [["--only", "theorem-9"], ["--draws", "0"], ["--seed", "-3"]])
def test_the_command_refuses_bad_input(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, told = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert out == ""
    assert arguments[1] in told


@pytest.mark.parametrize("name", [name for name in VERDICTS if name not in SLOW])
def test_the_verdicts_do_not_depend_on_the_seed(name: str) -> None:
    assert one(name, draws=10, seed=7).holds == VERDICTS[name]


def test_every_statement_is_in_the_document_with_its_verdict() -> None:
    assert list(STATEMENTS) == list(VERDICTS)
    text = (Path(__file__).parents[2] / "docs" / "theory.md").read_text("utf-8")
    for name, verdict in VERDICTS.items():
        assert f"| `{name}` | {verdict} |" in text, name
        assert STATEMENTS[name].examine.__doc__


def test_soft_clients_hold_every_source() -> None:
    rng = generator(0, "soft")
    assert draw_copies(rng, 20, 3, soft=True).min() >= 1
    assert draw_copies(rng, 200, 3).sum(1).min() >= 1
    assert len(draw_quadratics(rng, S=4)) == 4
