"""flower: a true federation, on this machine for trying and as a project for real."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsoft.cli.common import (
    JsonOption,
    OutOption,
    RoundsOption,
    SetOption,
    SourceArgument,
    app,
    changes,
    out,
    print_json,
)

flower = typer.Typer(
    help="Run on a federation of Flower nodes: server and clients on machines of their own.",
    epilog="Example:  fedsoft flower up --nodes 4",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(flower, name="flower")

DirOption = Annotated[Path, typer.Option("--dir", help="The federation's folder.")]
HERE = Path("federation")


@flower.command(epilog="Example:  fedsoft flower init hospitals")
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.")]) -> None:
    """Write a commented project for a real federation: server, nodes, certificates, keys, proxy, services."""
    from fedsoft.engines.flower.project import write_project

    for path in write_project(folder):
        out.print(str(path), markup=False, highlight=False)
    out.print(f"read {folder / 'README.md'} next", markup=False, highlight=False)


@flower.command(epilog="Example:  fedsoft flower up --nodes 4")
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="How many; each holds its share of a run's clients.")] = 4,
    folder: DirOption = HERE,
) -> None:
    """Start a SuperLink and nodes on this machine, with TLS and node authentication, for trying."""
    from fedsoft.engines.flower.loopback import Loopback

    federation = Loopback(folder.absolute())
    with out.status("starting a SuperLink and its nodes ..."):
        federation.up(nodes)
    out.print(f"{nodes} nodes are up at {federation.address}, in '{folder}'", markup=False, highlight=False)
    out.print(f"run something:  fedsoft flower run synthetic-10-90 --dir {folder}", markup=False, highlight=False)


@flower.command(epilog="Example:  fedsoft flower run synthetic-10-90 --rounds 5")
def run(
    source: SourceArgument,
    folder: DirOption = HERE,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of all draws.")] = None,
    rounds: RoundsOption = None,
    out_dir: OutOption = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Run anew even if this very run is saved already.")] = False,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Run a preset or a TOML file on the federation. A run that was stopped is taken up. Rules: DIR/rules.toml."""
    from fedsoft.cli.runs import carry_out, show_runs
    from fedsoft.runs import spec as specs
    from fedsoft.runs.execution import place

    spec = specs.read(source, changes(set_, rounds))
    spec = spec if seed is None else spec.with_seed(seed)
    share = {"device": "cpu", "workers": None, "memory": None, "engine": "flower", "address": str(folder)}
    show_runs([carry_out(spec, place(spec, out_dir, again=again), share)], json_)


@flower.command(epilog="Example:  fedsoft flower status")
def status(folder: DirOption = HERE, json_: JsonOption = False) -> None:
    """Tell which processes of the federation run."""
    from fedsoft.engines.flower.loopback import Loopback

    federation = Loopback(folder.absolute())
    about = {"address": federation.address, "nodes": federation.settings["nodes"]}
    rows = {name: "runs" if process.alive else "ended" for name, process in federation.processes().items()}
    if json_:
        print_json(about | {"processes": rows})
        return
    if not rows:
        out.print(f"nothing runs: start it again with  fedsoft flower up --nodes {about['nodes']}", markup=False)
        return
    table = Table("process", "state", title=f"{about['nodes']} nodes at {about['address']}")
    for name, state in rows.items():
        table.add_row(name, state)
    out.print(table)


@flower.command(epilog="Example:  fedsoft flower down")
def down(folder: DirOption = HERE) -> None:
    """End all processes of the federation. What clients remember stays, so that runs can be taken up."""
    from fedsoft.engines.flower.loopback import Loopback

    federation = Loopback(folder.absolute())
    federation.settings  # noqa: B018  complains when there is none
    ended = federation.down()
    out.print(f"ended {', '.join(ended)}" if ended else "nothing was running", markup=False, highlight=False)
    out.print(
        f"keys, certificates and what clients remember stay in '{folder}'; delete it to forget them",
        markup=False, highlight=False,
    )  # fmt: skip


@flower.command(epilog="Example:  fedsoft flower worker node.toml")
def worker(
    node: Annotated[Path, typer.Argument(metavar="NODE.toml", help="What this node is.")],
    starter: Annotated[
        str | None,
        typer.Option("--starter", metavar="SOCKET", help="Also start Flower's app quickly; see the project."),
    ] = None,
) -> None:
    """Keep a node's model, data and memory loaded, and answer its app. Runs until it is ended."""
    from fedsoft.engines.flower.nodefile import NodeConfig

    NodeConfig(node)
    if starter is None:
        from fedsoft.engines.flower.worker import main

        main(str(node))
    # In place of this process: it has imported torch to check the file, and what has threads cannot be forked.
    from fedsoft.engines.flower.loopback import STARTER
    from fedsoft.engines.flower.starter import NODE

    os.execv(sys.executable, [sys.executable, "-c", STARTER, NODE, starter, str(node)])


@flower.command(epilog="Example:  fedsoft flower shim /etc/fedsoft/bin /run/fedsoft/starter.sock")
def shim(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that comes first on the SuperNode's path.")],
    starter: Annotated[Path, typer.Argument(metavar="SOCKET", help="The --starter of the node's worker.")],
) -> None:
    """Write the small command that has Flower's app started by the worker, in milliseconds."""
    from fedsoft.engines.flower.loopback import command
    from fedsoft.engines.flower.starter import NODE, write_shim

    write_shim(folder, starter, command(NODE))
    out.print(str(folder / NODE), markup=False, highlight=False)
