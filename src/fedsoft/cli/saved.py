"""A finished run that a command uses: options, how it is loaded, and its clients by name or number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsoft.cli.common import err, say
from fedsoft.cli.options import AllowOption, RunArgument, RunsOption
from fedsoft.errors import FilesGone, InputError
from fedsoft.escape import shown
from fedsoft.runs.names import match_run

if TYPE_CHECKING:
    from fedsoft.runs.spec import RunSpec
    from fedsoft.training import Run

FormatOption = Annotated[
    str,
    typer.Option("--format", metavar="safetensors|onnx|torch", help="Weights; whole computation; weights and code."),
]


@dataclass(frozen=True)
class Loaded:
    """A saved run."""

    run: Run
    spec: RunSpec
    name: str

    def read(self, data: Path, target: str | None, *, labelled: bool = True) -> dict[str, Any]:
        """Read points from files, by client, in the way that the files of the run were read."""
        from fedsoft.data.new_points import read_new_clients

        def warn(text: str) -> None:
            say(f"note: {shown(text)}", err)

        return read_new_clients(data, self.run.federation, target, labelled=labelled, say=warn)


@dataclass(frozen=True)
class SavedRun:
    """Which run to use."""

    name: RunArgument
    runs_dir: RunsOption = Path("runs")
    allow: AllowOption = None

    def load(self, *, measured: bool = False) -> Loaded:
        """Load the run; `measured`: with what was measured at its end, from its data where it is not finished."""
        path = match_run(self.runs_dir, self.name)
        from fedsoft.runs.folder import RunFolder
        from fedsoft.runs.load import load

        folder, allow = RunFolder.open(path), self.allow or ()
        with err.status(f"loading {folder.name} ..."):
            try:
                data = measured and folder.outcome() is None
                run = load(folder.path.absolute(), allow=allow, data=data)
            except FilesGone as error:
                raise InputError(
                    f"{error.what}: put it back, or finish the run, which measures what is usual for its clients"
                ) from None
        if not run.rounds:
            raise InputError(f"run '{folder.name}' has no rounds yet: finish it with 'fedsoft resume {folder.path}'")
        if not run.is_over:
            say(f"note: {folder.name} is not finished: used as it was after round {run.rounds}", err)
        return Loaded(run, folder.spec(allow), folder.name)


def client_of(run: Run, text: str) -> str | int:
    """Return the name of a client, or its number where names are not numbers themselves."""
    names = run.federation.names
    # Where names are numbers, a number is a name: the fourth client is not client 4.
    return int(text) if text.isdecimal() and not any(name.isdecimal() for name in names) else text
