"""The paper's lemmas and theorems as executable checks on problems whose constants are known.

from fedsoft.theory import run_checks

for check in run_checks(seed=0):
    print(check.name, check.holds, check.finding)
"""

from fedsoft.theory.check import Check
from fedsoft.theory.run import run_checks

__all__ = ["Check", "run_checks"]
