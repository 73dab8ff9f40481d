"""Everything that the paper shows, item by item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from fedsoft.paper import published
from fedsoft.paper.item_kinds import (
    METHODS,
    SCALES,
    CentersItem,
    Column,
    ComparisonItem,
    Data,
    FigureItem,
    Item,
    Scale,
    TheoryItem,
)  # fmt: skip
from fedsoft.paper.published import PARTITIONS, Centers
from fedsoft.runs import spec as specs
from fedsoft.runs.spec import Part, RunSpec
from fedsoft.studies.methods import variant


def heads(model: str) -> Callable[[Scale], RunSpec]:
    """FedSoft on letters with a convolutional network by its head; at the fast scale with fewer clients and rounds."""

    @cache
    def spec(scale: Scale) -> RunSpec:
        small = ["clients=30", "K=18", "rounds=20"] if scale == "fast" else []
        base = specs.read("letters-10-90", small, fast=scale == "fast")
        return variant(replace(base, model=Part(model, base.model.settings)), base.algorithm.name, {})

    return spec


def _partitions(data: Data, printed: dict[str, Centers]) -> tuple[Column, ...]:
    return tuple(Column(name, f"{data}-{name.replace(':', '-')}", printed[name]) for name in PARTITIONS)


SYNTHETIC: dict[Scale, int] = {"paper": 10, "fast": 10}
LETTERS: dict[Scale, int] = {"paper": 3, "fast": 2}
CIFAR: dict[Scale, int] = {"paper": 3, "fast": 1}

PRINTED = ("FedSoft", "IFCA", "FedEM")
SMALL = ("clients=20", "K=12", "epochs=1", "solver.lr=5e-5")
"""A fifth of the clients and of the epochs at five times the rate: what one core can do in hours."""

TABLE_2 = ComparisonItem(
    "table2", "Table 2: FedSoft and other methods on letters", "letters", LETTERS,
    presets={"10:90": "letters-10-90", "linear": "letters-linear"}, printed=published.TABLE_2, order_local=True,
    variants={
        "FedSoft, convolutional network": heads("letters_cnn"),
        "FedSoft, the same with the authors' head": heads("letters_cnn_paper"),
    },
    rates={"paper": (1, 10, 100), "fast": (0.3, 1, 3)}, epochs={"paper": (1, 5), "fast": (2,)},
    tuning_seeds={"paper": 1, "fast": 1},
)  # fmt: skip

ITEMS: dict[str, Item] = {
    item.id: item
    for item in (
        FigureItem("fig1", "Fig. 1: how centers and importance weights converge, synthetic 10:90", "synthetic",
                   SYNTHETIC, runs=lambda scale: {"FedSoft": Column("", "synthetic-10-90", None).spec(scale)}),
        CentersItem("table1-synthetic", "Table 1, synthetic: centers under four partitions", "synthetic", SYNTHETIC,
                    columns=_partitions("synthetic", published.TABLE_1_SYNTHETIC), worst="30:70"),
        CentersItem("table1-letters", "Table 1, letters: centers under four partitions", "letters", LETTERS,
                    columns=_partitions("letters", published.TABLE_1_LETTERS), worst="30:70"),
        TABLE_2,
        FigureItem("fig2", "Fig. 2: every client's importance weight, letters 10:90", "letters", LETTERS,
                   runs=lambda scale: {
                       name: TABLE_2.plain("10:90", METHODS[name], scale) for name in ("FedSoft", "IFCA", "FedEM")
                   }),
        CentersItem("table3", "Table 3: eight synthetic sources", "synthetic", SYNTHETIC,
                    columns=(Column("random", "synthetic-8", published.TABLE_3["random"]),)),
        CentersItem("table4", "Table 4: four sources of letters", "letters", LETTERS,
                    columns=(Column("random", "letters-4", published.TABLE_4["random"]),)),
        CentersItem("table5", "Table 5: the regularisation weight, letters linear", "letters", LETTERS, best="λ = 0.1",
                    columns=tuple(Column(f"λ = {lam:g}", "letters-linear", printed, (f"lam={lam}",))
                                  for lam, printed in published.TABLE_5.items())),
        CentersItem("table6", "Table 6: the divergence of the sources, synthetic random", "synthetic", SYNTHETIC,
                    columns=tuple(Column(f"σ₀ = {s:g}", "synthetic-random", printed, (f"theta_variance={s}",))
                                  for s, printed in published.TABLE_6.items()),
                    beside=tuple(Column(f"σ₀ = {s:g}", "synthetic-random", printed, (f"theta_variance={s * s}",))
                                 for s, printed in published.TABLE_6.items()),
                    ordered=True, local_factor=5.0),
        CentersItem("table7", "Table 7: CIFAR-10, centers under four partitions", "cifar", CIFAR,
                    columns=_partitions("cifar", published.TABLE_7)),
        ComparisonItem("table8", "Table 8: FedSoft and other methods on CIFAR-10", "cifar", CIFAR,
                       presets={"30:70": "cifar-30-70", "linear": "cifar-linear"}, printed=published.TABLE_8,
                       rates={"paper": (0.3, 1, 3), "fast": (1, 3)}, epochs={"paper": None, "fast": (2,)},
                       tuning_seeds={"paper": 1, "fast": 1}),
        ComparisonItem("comparison-synthetic", "Methods on synthetic data (not in the paper)", "synthetic",
                       {"paper": 10, "fast": 5},
                       presets={"10:90": "synthetic-10-90", "linear": "synthetic-linear"},
                       rates=dict.fromkeys(SCALES, (0.3, 1, 3)), epochs=dict.fromkeys(SCALES, (2, 10)),
                       tuning_seeds=dict.fromkeys(SCALES, 2)),
        ComparisonItem("table2-round20", "Table 2 at the paper's settings, 10:90, to round 20 of 200", "letters",
                       {"paper": 1, "fast": 1}, presets={"10:90": "letters-10-90"},
                       printed={"10:90": published.TABLE_2["10:90"]}, order_local=True, tuned=False, methods=PRINTED,
                       changes=("rounds=20",), on_request=True),
        ComparisonItem("table2-small", "Table 2 with 20 clients: the paper's network, 200 rounds", "letters",
                       {"paper": 2, "fast": 2}, presets={"10:90": "letters-10-90", "linear": "letters-linear"},
                       printed=published.TABLE_2, order_local=True, tuned=False, methods=PRINTED, changes=SMALL,
                       on_request=True),
        CentersItem("table5-small", "Table 5 with 20 clients: the paper's network, 200 rounds", "letters",
                    {"paper": 2, "fast": 2}, best="λ = 0.1", on_request=True,
                    columns=tuple(Column(f"λ = {lam:g}", "letters-linear", printed, (*SMALL, f"lam={lam}"), "paper")
                                  for lam, printed in published.TABLE_5.items())),
        TheoryItem("theorems", "Lemmas and Theorems 1 to 5, checked", "synthetic", SYNTHETIC, apart=("tau",)),
        TheoryItem("tau", "The role of the estimation interval τ (appendix)", "synthetic", SYNTHETIC, checks=("tau",)),
    )
}  # fmt: skip
"""Everything that the paper shows, and the comparison that it leaves out."""
