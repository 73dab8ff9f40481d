"""The command line: reads arguments, calls the library, and prints. One file per family of commands."""

# In the order in which help lists them.
from fedsoft.cli import runs  # isort: skip
from fedsoft.cli import recommend  # isort: skip
from fedsoft.cli import compare  # isort: skip
from fedsoft.cli import tune  # isort: skip
from fedsoft.cli import choose as choose  # isort: skip
from fedsoft.cli import new_clients as new_clients  # isort: skip
from fedsoft.cli import export as export  # isort: skip
from fedsoft.cli import paper as paper  # isort: skip
from fedsoft.cli import leaderboard as leaderboard  # isort: skip
from fedsoft.cli import report  # isort: skip
from fedsoft.cli import listing  # isort: skip
from fedsoft.cli import data as data  # isort: skip
from fedsoft.cli import theory as theory  # isort: skip
from fedsoft.cli import flower as flower  # isort: skip
from fedsoft.cli.common import app  # isort: skip
from fedsoft.cli.entry import main  # isort: skip

__all__ = ["app", "compare", "listing", "main", "recommend", "report", "runs", "tune"]
