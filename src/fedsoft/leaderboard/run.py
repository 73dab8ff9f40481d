"""Fill the cells of a federation, one run after the other: what is there is not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedsoft.errors import FedsoftError, InputError
from fedsoft.evaluation.values import Scores
from fedsoft.leaderboard.data import PRESET, Board, Budget, Cell, CellName, FederationData, Tuned
from fedsoft.leaderboard.plan import Entry, Plan
from fedsoft.leaderboard.play import Clients, Player, draw_of
from fedsoft.leaderboard.tune import Search
from fedsoft.machine.resources import environment
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.compare import capped
from fedsoft.studies.converged import DOUBLINGS, Reached, improved
from fedsoft.studies.methods import read_methods
from fedsoft.studies.trials import Grid


@dataclass
class Filler:
    """Fills the cells of one federation and saves each run at once.

    Arguments:
        board: where data is.
        plan: what it is to hold.
        name: of the federation.
        say: called with what begins.
    """

    board: Board
    plan: Plan
    name: str
    say: Callable[[str], object] = id
    player: Player = field(init=False)
    base: RunSpec = field(init=False)
    data: FederationData = field(init=False)

    def __post_init__(self) -> None:
        self.player = Player(self.entry)
        self.base = self.entry.base()
        self.data = self.board.read(self.name) or FederationData(name=self.name, base=identity(self.entry))
        if self.data.base != identity(self.entry):
            raise InputError(f"the cells of '{self.name}' are of another federation than the plan has: remove its file")

    @property
    def entry(self) -> Entry:
        return self.plan.entry(self.name)

    def fill(self, methods: Sequence[str], budgets: Sequence[Budget], seeds: Sequence[int]) -> Iterator[None]:
        """Run what is missing of these cells, and yield after each run."""
        for seed in seeds:
            if seed not in self.data.draws:
                yield from self._draw(seed)
        for method in methods:
            if method != PRESET:
                for budget in budgets:
                    yield from self._cell(CellName(self.name, method, budget), self.tuned(method), seeds)

    def _cell(self, name: CellName, tuned: Tuned, seeds: Sequence[int]) -> Iterator[None]:
        cell = self.data.cells.get(name.key) or Cell(label=tuned.label)
        if cell.label != tuned.label:
            raise InputError(f"cell '{name}' was run with '{cell.label}', tuned is '{tuned.label}': remove it")
        if problem := tuned.problem or self._sends_nothing(name):
            if not cell.problem:
                self._save(self.data.with_cell(name.key, replace(cell, problem=problem)))
            return
        yield from (self._converged if name.budget == "converged" else self._seeds)(name, cell, seeds)

    def _sends_nothing(self, name: CellName) -> str:
        """Return why a budget of bytes means nothing to a method, where it does not."""
        cell = self.data.cells.get(f"{name.method}/work")
        if name.budget != "bytes" or cell is None or not cell.finished or any(run.bytes_up for run in cell.finished):
            return ""
        return "it sends no bytes"

    def _draw(self, seed: int) -> Iterator[None]:
        """Run the federation as it is: what it spends is everybody's budget."""
        self.say(f"{self.name}/{PRESET}/work, seed {seed}")
        spec = self.base.with_seed(seed)
        run, scores = self.player.result(spec, self.base.rounds)
        if scores is None:
            raise FedsoftError(f"the preset of '{self.name}' diverged with seed {seed}: {run.problem}")
        clients = self.player.clients(spec)
        draw = draw_of(seed, run, scores, len(clients.here))
        label = read_methods([self.base.algorithm.name]).listed[0].label
        cell = self.data.cells.get(f"{PRESET}/work") or Cell(label=label)
        self._save(replace(
            self._described(scores, clients), draws={**self.data.draws, seed: draw},
            cells={**self.data.cells, f"{PRESET}/work": cell.with_run(run)},
        ))  # fmt: skip
        yield

    def tuned(self, method: str) -> Tuned:
        """Return the settings of a method: those of `tuned_on`, what is saved, or what a search finds."""
        if (other := self.entry.tuned_on) is not None:
            return replace(self._of(other).tuned(method), trials={})
        if method in self.data.tuned:
            return self.data.tuned[method]
        self.say(f"{self.name}/{method}: tuning")
        spent = {seed: self._spent(seed) for seed in self.entry.tuned}
        metric, higher = self.data.metric, self.data.higher_is_better
        grid = Grid.around(self.base, epochs=self.entry.epochs, factors=self.entry.rates)
        row = self.plan.row(method)
        found = Search(self.base, row.method, spent, self.player.held_out, metric, higher).tune(grid)
        self._save(replace(self.data, tuned={**self.data.tuned, method: found}))
        return found

    def _of(self, name: str) -> Filler:
        return Filler(self.board, self.plan, name, self.say)

    def _spent(self, seed: int) -> int:
        """Return the work of the federation's own run with a seed that is tuned on."""
        if seed not in self.data.spent:
            spec = self.base.with_seed(seed)
            run, scores = self.player.result(spec, self.base.rounds)
            if scores is None:
                raise FedsoftError(f"the preset of '{self.name}' diverged with seed {seed}: {run.problem}")
            clients = self.player.clients(spec)
            work = round(run.gradients * len(clients.here))
            self._save(replace(self._described(scores, clients), spent={**self.data.spent, seed: work}))
        return self.data.spent[seed]

    def _described(self, scores: Scores, clients: Clients) -> FederationData:
        return replace(
            self.data, metric=scores.metric, higher_is_better=scores.higher_is_better, sources=len(scores.sources),
            clients=len(clients.here), newcomers=0 if clients.later is None else len(clients.later),
            environment={key: value for key, value in environment().items() if key != "command"},
        )  # fmt: skip

    def _seeds(self, name: CellName, cell: Cell, seeds: Sequence[int]) -> Iterator[None]:
        for seed in seeds:
            if seed not in {run.seed for run in cell.runs}:
                self.say(f"{name}, seed {seed}")
                run, _ = self.player.result(self.spec(name, cell, seed), self.base.rounds)
                cell = cell.with_run(run)
                self._save(self.data.with_cell(name.key, cell))
                yield

    def spec(self, name: CellName, cell: Cell, seed: int) -> RunSpec:
        """Return the run of a cell with a seed."""
        if name.method == PRESET:
            return self.base.with_seed(seed)
        spec = read_methods(cell.label).listed[0].spec(self.base).with_seed(seed)
        if cell.rounds is not None:
            return replace(spec, rounds=cell.rounds)
        draw = self.data.draws[seed]
        return capped(spec, "work", draw.work) if name.budget == "work" else capped(spec, "bytes", draw.bytes)

    def _converged(self, name: CellName, cell: Cell, seeds: Sequence[int]) -> Iterator[None]:
        """Run with twice the rounds until that no longer helps; what is kept is the run before."""
        if not seeds or (cell.runs and cell.rounds is not None):
            yield from self._seeds(name, cell, seeds)
            return
        kept = cell
        for doubling in range(DOUBLINGS + 1):
            now = replace(cell, rounds=self.base.rounds * 2**doubling, runs=())
            for seed in seeds:
                self.say(f"{name}, {now.rounds} rounds, seed {seed}")
                run, _ = self.player.result(self.spec(name, now, seed), self.base.rounds)
                now = now.with_run(run)
                yield
            if kept.runs and not improved(_reached(kept), _reached(now), self.data.higher_is_better):
                break
            kept = now
        self._save(self.data.with_cell(name.key, kept))

    def _save(self, data: FederationData) -> None:
        self.data = data
        self.board.write(data)


def fill(
    board: Board, plan: Plan, cells: Sequence[str], seeds: Sequence[int] | None = None,
    say: Callable[[str], object] = id,
) -> int | None:  # fmt: skip
    """Fill the cells of these names; return how many runs were made, None where it was stopped."""
    made = 0
    try:
        for federation, methods, budgets in plan.cells(cells):
            filler = Filler(board, plan, federation, say)
            for _ in filler.fill(methods, budgets, filler.entry.reported if seeds is None else seeds):
                made += 1
    except KeyboardInterrupt:
        return None
    return made


def _reached(cell: Cell) -> list[Reached]:
    return [Reached(run.centers, run.personal) for run in cell.runs]


def identity(entry: Entry) -> str:
    """Return a digest of what a federation is, without its seeds."""
    content = [entry.base().with_seed(0).hash, entry.newcomers]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
