"""compare, tune, choose and recommend in Python, for data and models made there as well as for presets and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from fedsoft.core.local_solve import Solver
from fedsoft.reports.bar import Bar
from fedsoft.reports.choice import ChoiceReport
from fedsoft.reports.comparison import ComparisonReport
from fedsoft.reports.recommendation import RecommendationReport
from fedsoft.reports.study_base import Data, Network, Study, StudyOptions, done, listed
from fedsoft.reports.trials import TuningReport
from fedsoft.studies import center_count, tuning
from fedsoft.studies.compare import Budget
from fedsoft.studies.compare import compare as run_comparison
from fedsoft.studies.methods import Algorithms, read_methods
from fedsoft.studies.recommend.clock import seconds_of
from fedsoft.studies.recommend.study import Progress
from fedsoft.studies.recommend.study import recommend as run_recommendation
from fedsoft.studies.trials import Grid
from fedsoft.training import Limit

__all__ = ["StudyOptions", "choose", "compare", "recommend", "tune"]


def compare(
    algorithms: Algorithms,
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    budget: Budget = "rounds",
    options: StudyOptions | None = None,
) -> ComparisonReport:
    """Compare algorithms on the same federations with the same initial weights.

    Arguments:
        algorithms: a list of `FedSoft(S=2)`, of names with settings such as `"ifca(S=3, solver.lr=0.1)"`, or of both.
        data: a `Federation`, a function that makes that of a seed, or a preset or TOML file by name, which has a model.
        model, solver: as for `fit`.
        rounds: communication rounds; default: those of the preset.
        seeds: every method is run with each of them.
        budget: what is the same for all: `rounds`, or the client `work` or `bytes` of the first; or `converged`: every
            method has twice the rounds as long as that helps.
        options: how runs are carried out and where they are saved.
    """
    study = Study(data, model, rounds, solver, options or StudyOptions())
    methods, seeds = read_methods(algorithms), listed(seeds)
    base, given = study.base(methods.listed[0], seeds)
    with study.pool("comparing", given) as (pool, scratch):
        return ComparisonReport.of(done(run_comparison(base, methods, seeds, pool, budget=budget)), scratch)


def tune(
    algorithms: Algorithms,
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = tuning.SEEDS,
    grid: Mapping[str, Sequence[float]] | None = None,
    options: StudyOptions | None = None,
) -> TuningReport:
    """Tune every method on held-out client points, under the client work of the first one as it is given.

    Arguments:
        algorithms, data, model, rounds, solver, options: as for `compare`.
        seeds: of the trials; none that a table of results uses.
        grid: values to try: `lr` and `epochs` of the solver, and settings of the algorithms by name. Default: around
            the rate and the epochs of the solver, and what each algorithm declares; widened where the best is at the
            edge.
    """
    study = Study(data, model, rounds, solver, options or StudyOptions())
    methods, seeds, tried = read_methods(algorithms), listed(seeds), dict(grid or {})
    base, given = study.base(methods.listed[0], seeds)
    with study.pool("tuning", given) as (pool, scratch):
        epochs = tried.pop("epochs", None)
        wanted = Grid.around(
            base, tried.pop("lr", None), None if epochs is None else [*map(int, epochs)], further=tried
        )
        return TuningReport(done(tuning.tune(base, methods, seeds, wanted, pool)), scratch)


def choose(
    S: Sequence[int],
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = center_count.SEEDS,
    algorithm: str = center_count.ALGORITHM,
    options: StudyOptions | None = None,
) -> ChoiceReport:
    """Recommend a number of centers, or say that there is no cluster structure; see docs/choose.md.

    Arguments:
        S: the numbers of centers to try.
        data, model, rounds, solver, options: as for `compare`; the federation is that of the first seed.
        seeds: of the runs.
        algorithm: one that has S.
    """
    study = Study(data, model, rounds, solver, options or StudyOptions())
    seeds = listed(seeds)
    base, given = study.base(read_methods(algorithm).listed[0], seeds)
    with study.pool("choosing", given) as (pool, scratch):
        found = center_count.choose(base, S, pool, algorithm=algorithm, seeds=seeds)
        return ChoiceReport(done(found), scratch)


def recommend(
    data: Data,
    model: Network | None = None,
    *,
    rounds: int | Limit | None = None,
    solver: Solver | None = None,
    seeds: Sequence[int] = (0,),
    metric: str | None = None,
    budget: str | float | None = None,
    options: StudyOptions | None = None,
) -> RecommendationReport:
    """Say what to ship to these clients: one model, fine-tuned copies, clusters, or personal models; how sure is it?

    See docs/recommend.md for what is chosen on which points.

    Arguments:
        data, model, rounds, solver, options: as for `compare`. Trials run one after the other in this process.
        seeds: a split of points and clients each; everything is tuned anew for each of them.
        metric: what to tune and decide by: a name, or one of `options.metrics`. Default: the model's own.
        budget: seconds for all trials, or a text such as "10m"; default: as many as it takes.
    """
    study, seeds = Study(data, model, rounds, solver, options or StudyOptions()), listed(seeds)
    base, given = study.base(read_methods("fedavg").listed[0], seeds)
    seconds = seconds_of(budget) if isinstance(budget, str) else budget
    folder, scratch = study.folder()
    with Bar(Console(stderr=True, quiet=not study.options.progress), "trials") as bar:

        def show(now: Progress) -> None:
            bar.show("recommending", now.trials, None, f"{now.stage} {now.now}")

        found = run_recommendation(
            base, seeds, folder, study.run_options(given), metric=metric, budget=seconds, only=study.options.only,
            on_progress=show if study.options.progress else id,
        )  # fmt: skip
    report = RecommendationReport(found, scratch)
    report.save(folder)
    return report
