"""A recommendation in sentences and tables, from numbers made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsoft.reports.recommendation import RecommendationReport, answer, export_command, reservations
from fedsoft.studies.recommend.outcome import Cost, Recommendation, Row
from fedsoft.studies.recommend.rule import Standing, decide

MEANS = {"constant": 0.25, "fedavg": 0.479, "finetune": 0.646, "fedprior-1": 0.708, "fedprior": 0.719}


def made(means: dict[str, float], settled: dict[str, bool] | None = None, **more: Any) -> Recommendation:
    """Return candidates with these accuracies on tuning and test points; clients differ alike under all."""
    rng, rows = np.random.default_rng(0), []
    for key, mean in means.items():
        spread = 0.02 * rng.standard_normal((1, 80))
        values = mean + spread - spread.mean()
        rows.append(Row(
            key=key, settings=({"solver.lr": 0.1} | ({"S": 4} if key == "fedprior" else {}),), rounds=(60,), edges=(),
            settled=(settled or {}).get(key, True), trials=5, cut=False, tuned=values,
            test={"accuracy": values, "log_loss": 1 - values}, newcomers={5: {"accuracy": values[:, :9]}},
            cost=Cost(100.0, 2000.0, 1000.0),
        ))  # fmt: skip
    decision = decide([Standing(row.key, row.tuned, row.settled) for row in rows], higher_is_better=True)
    assert decision is not None
    given: dict[str, Any] = {
        "label": "people", "metric": "accuracy", "higher_is_better": True, "beside": {"log_loss": False}, "seeds": (0,),
        "clients": 80, "newcomers": 9, "rows": tuple(rows), "decision": decision, "folds": 3, "left_out": (),
        "seconds": 12.0, "budget": None, "folder": Path("runs/recommend-people-1"),
        "runs": {row.key: Path(f"runs/recommend-people-1/runs/{row.key}") for row in rows if row.key != "constant"},
    }  # fmt: skip
    return Recommendation(**given | more)


def test_the_answer_has_an_interval() -> None:
    ship, clusters, newcomers = answer(made(MEANS))
    assert ship.startswith(
        "Ship personal models with a learned prior (S = 4): 71.9 % against 64.6 % for fine-tuned copies of one model "
        "(+7.3, 95 % interval 6."
    )
    assert clusters.startswith("Clusters add 1.1 (0.")
    assert "over one center" in clusters
    assert "with 5 points (one model for all" in newcomers


def test_what_clusters_add_is_doubted_where_test_points_do_not_show_it() -> None:
    clear = made(MEANS)
    noisy = np.random.default_rng(1).standard_normal((1, 80))
    rows = tuple(
        replace(row, test={"accuracy": 0.71 + 0.1 * noisy}) if row.key == "fedprior" else row for row in clear.rows
    )
    told = answer(replace(clear, rows=rows))[1]
    assert told.startswith("Clusters add ")
    assert told.endswith("; on test points that is not clear, as it was on tuning points.")
    assert "not clear" not in answer(clear)[1]


def test_clusters_that_add_nothing_are_named_so() -> None:
    found = made(MEANS | {"fedprior": 0.707})
    ship, clusters, *_ = answer(found)
    assert ship.startswith("Ship personal models with a learned prior (S = 1): 70.8 %")
    assert clusters.startswith("Clusters add nothing: 70.7 % with personal models with a learned prior (S = 4), 70.8 %")
    assert "Not recommended, as one center scores better: fedprior (S = 4)." in reservations(found)


def test_clusters_that_are_recommended_are_not_said_to_add_nothing() -> None:
    """Where the single center that is as good had not converged."""
    found = made({"constant": 0.25, "fedprior-1": 0.7075, "fedprior": 0.708}, {"fedprior-1": False})
    ship, clusters, *_ = answer(found)
    assert ship.startswith("Ship personal models with a learned prior (S = 4)")
    assert clusters.startswith("Clusters add nothing that is certain: 70.8 %")


def test_what_had_not_converged_is_said() -> None:
    found = made(MEANS, {"fedprior": False})
    assert found.recommended.key == "fedprior-1"
    assert reservations(found)[:2] == [
        "Not converged: fedprior (60 rounds); give more rounds to know more.",
        "Of these fedprior scored best of all, and is not recommended before it has converged.",
    ]
    assert "fedprior S=4 ~" in str(RecommendationReport(found))
    none = made(MEANS, dict.fromkeys(MEANS, False))
    assert "None had converged" in "\n".join(reservations(none))


def test_what_was_left_out_is_said() -> None:
    found = made(MEANS, budget=600.0, left_out=("ditto",), folds=1)
    rows = (replace(found.rows[1], cut=True, edges=("lam",)), *found.rows[2:])
    told = "\n".join(reservations(replace(found, rows=rows)))
    assert (
        "Left out within 10 min: not tried: ditto; searched in part: fedavg; decided on one fold instead of 3." in told
    )
    assert "Best at the edge of what was tried, however wide: lam of fedavg." in told
    assert reservations(made(MEANS)) == []


def test_a_constant_guess_has_nothing_to_export() -> None:
    found = made({"constant": 0.5, "fedavg": 0.501, "local": 0.49})
    assert answer(found)[0].startswith("Ship a constant guess, as nothing is clearly better: 50.0 % against 50.1 %")
    assert export_command(found) is None
    shipped = made(MEANS, allow=("/home/me/mine:net",))
    assert export_command(shipped) == (
        "fedsoft export runs/recommend-people-1/runs/fedprior --what clients --allow /home/me/mine:net"
    )


def test_files_are_complete() -> None:
    report = RecommendationReport(made(MEANS))
    files = report.files()
    assert set(files) == {"recommendation.json", "recommendation.html", "candidates.csv"}
    assert json.loads(files["recommendation.json"])["candidates"][2]["behind"]["mean"] > 0.07
    assert b"behind by" in files["recommendation.html"]
    assert files["candidates.csv"].count(b"\n") == len(MEANS) + 1
