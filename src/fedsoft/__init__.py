"""Soft clustered federated learning.

import fedsoft as fs

fed = fs.datasets.synthetic(partition="10:90", seed=0)
run = fs.fit(fs.FedSoft(S=2, K=60, lam=1.0), fed, model=fs.models.linear(), rounds=50, seed=0)
run.centers, run.personal(0), run.weights, run.history, run.scores()
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsoft import aggregators, algorithms, attacks, callbacks, datasets, models, partitions, solvers
    from fedsoft.algorithms.apfl import APFL
    from fedsoft.algorithms.cfl import CFL
    from fedsoft.algorithms.ditto import Ditto
    from fedsoft.algorithms.fedamp import FedAMP
    from fedsoft.algorithms.fedavg import FedAvg
    from fedsoft.algorithms.fedem import FedEM
    from fedsoft.algorithms.fedgmm import FedGMM
    from fedsoft.algorithms.fedgroup import FedGroup
    from fedsoft.algorithms.fedlevels import FedLevels
    from fedsoft.algorithms.fedprior import FedPrior
    from fedsoft.algorithms.fedprox import FedProx
    from fedsoft.algorithms.fedrc import FedRC
    from fedsoft.algorithms.fedrep import FedRep
    from fedsoft.algorithms.fedroute import FedRoute
    from fedsoft.algorithms.fedsoft import FedSoft
    from fedsoft.algorithms.fedspd import FedSPD
    from fedsoft.algorithms.fesem import FeSEM
    from fedsoft.algorithms.finetune import FineTune
    from fedsoft.algorithms.flhc import FLHC
    from fedsoft.algorithms.flux import FLUX
    from fedsoft.algorithms.hypcluster import HypCluster
    from fedsoft.algorithms.ifca import IFCA
    from fedsoft.algorithms.knnper import KNNPer
    from fedsoft.algorithms.local import Local
    from fedsoft.algorithms.mapper import MAPPER
    from fedsoft.algorithms.mocha import MOCHA
    from fedsoft.algorithms.pfedme import pFedMe
    from fedsoft.core.federation import Federation
    from fedsoft.core.schedules import Schedule
    from fedsoft.errors import CallbackError, DivergedError, FedsoftError, InputError, StoreError
    from fedsoft.exports.export import export
    from fedsoft.onboarding.new_clients import Adopted
    from fedsoft.reports.studies import StudyOptions, choose, compare, recommend, tune
    from fedsoft.runs.load import load
    from fedsoft.runs.run import Run, fit
    from fedsoft.safety.conditions import Conditions
    from fedsoft.safety.privacy import Privacy
    from fedsoft.solvers.adam import Adam
    from fedsoft.solvers.adamw import AdamW
    from fedsoft.solvers.exact import Exact
    from fedsoft.solvers.newton import Newton
    from fedsoft.solvers.sgd import SGD
    from fedsoft.solvers.torchoptimizer import TorchOptimizer
    from fedsoft.training import FitOptions, Limit

__version__ = "0.2.0"

# Loaded when first used: `fedsoft --help` should not wait for torch.
_PACKAGES = ("aggregators", "algorithms", "attacks", "callbacks", "datasets", "models", "partitions", "solvers")
_HOME = {
    "CallbackError": "errors", "DivergedError": "errors", "FedsoftError": "errors", "InputError": "errors",
    "StoreError": "errors", "Federation": "core.federation", "Conditions": "safety.conditions",
    "Privacy": "safety.privacy", "Schedule": "core.schedules",
    "Run": "runs.run", "fit": "runs.run", "FitOptions": "training", "Limit": "training", "load": "runs.load",
    "export": "exports.export", "Adopted": "onboarding.new_clients",
    "StudyOptions": "reports.studies", "choose": "reports.studies", "compare": "reports.studies",
    "recommend": "reports.studies", "tune": "reports.studies",
}  # fmt: skip

__all__ = [
    "APFL",
    "CFL",
    "FLHC",
    "FLUX",
    "IFCA",
    "MAPPER",
    "MOCHA",
    "SGD",
    "Adam",
    "AdamW",
    "Adopted",
    "CallbackError",
    "Conditions",
    "Ditto",
    "DivergedError",
    "Exact",
    "FeSEM",
    "FedAMP",
    "FedAvg",
    "FedEM",
    "FedGMM",
    "FedGroup",
    "FedLevels",
    "FedPrior",
    "FedProx",
    "FedRC",
    "FedRep",
    "FedRoute",
    "FedSPD",
    "FedSoft",
    "Federation",
    "FedsoftError",
    "FineTune",
    "FitOptions",
    "HypCluster",
    "InputError",
    "KNNPer",
    "Limit",
    "Local",
    "Newton",
    "Privacy",
    "Run",
    "Schedule",
    "StoreError",
    "StudyOptions",
    "TorchOptimizer",
    "aggregators",
    "algorithms",
    "attacks",
    "callbacks",
    "choose",
    "compare",
    "datasets",
    "export",
    "fit",
    "load",
    "models",
    "pFedMe",
    "partitions",
    "recommend",
    "solvers",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        found: Any = importlib.import_module(f"fedsoft.{name}")
    elif name in _HOME:
        found = getattr(importlib.import_module(f"fedsoft.{_HOME[name]}"), name)
    else:  # every algorithm and solver that there is, by its class name
        from fedsoft.plugins import by_class_name

        found = by_class_name("algorithms", name) or by_class_name("solvers", name)
        if found is None:
            near = difflib.get_close_matches(name, __dir__(), n=1)
            hint = f": did you mean '{near[0]}'?" if near else ""
            raise AttributeError(f"module 'fedsoft' has no attribute '{name}'{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from fedsoft.plugins import class_names

    return sorted({*__all__, *class_names("algorithms"), *class_names("solvers")})
