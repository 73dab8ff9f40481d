"""flower: a federation on Flower, on this machine for trying and as a project for real use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsoft.cli.common import Commands, app, err, out, print_json
from fedsoft.cli.options import JsonOption, OutOption, RoundsOption, SetOption, SourceArgument, changes

flower = typer.Typer(
    cls=Commands,
    help="Run on a federation of Flower nodes: server and clients on machines of their own.",
    epilog="Example:  fedsoft flower up --nodes 4",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(flower, name="flower")

DirOption = Annotated[Path, typer.Option("--dir", help="The federation's folder.")]
HERE = Path("federation")


@flower.command(epilog="Example:  fedsoft flower init hospitals")
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")]) -> None:
    """Write a commented project for a real federation: server, nodes, certificates, keys, proxy, services."""
    from fedsoft.flower.project import write_project

    for path in write_project(folder):
        out.print(str(path), markup=False, highlight=False)
    out.print(f"read {folder / 'README.md'} next", markup=False, highlight=False)


@flower.command(epilog="Example:  fedsoft flower up --nodes 4")
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes; each holds its share of a run's clients.")] = 4,
    folder: DirOption = HERE,
) -> None:
    """Start a SuperLink and nodes on this machine, with TLS and node authentication, to try things out."""
    from fedsoft.flower.local_cluster.cluster import LocalCluster

    federation = LocalCluster(folder.absolute())
    with out.status("starting a SuperLink and its nodes ..."):
        federation.up(nodes)
    out.print(f"{nodes} nodes are up at {federation.settings.address}, in '{folder}'", markup=False, highlight=False)
    out.print(f"run something:  fedsoft flower run synthetic-10-90 --dir {folder}", markup=False, highlight=False)


@flower.command(epilog="Example:  fedsoft flower run synthetic-10-90 --rounds 5")
def run(
    source: SourceArgument,
    folder: DirOption = HERE,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of all draws.")] = None,
    rounds: RoundsOption = None,
    out_dir: OutOption = Path("runs"),
    again: Annotated[bool, typer.Option("--again", help="Run again even if this run is already saved.")] = False,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Run a preset or a TOML file on the federation. A stopped run is resumed. Terms: DIR/terms.toml."""
    from fedsoft.cli.runs import show_runs, start_or_resume
    from fedsoft.runs import spec as specs
    from fedsoft.runs.execute import place
    from fedsoft.runs.run_options import RunOptions

    spec = specs.read(source, changes(set_, rounds))
    spec = spec if seed is None else spec.with_seed(seed)
    options = RunOptions(engine="flower", address=str(folder))
    show_runs([start_or_resume(spec, place(spec, out_dir, again=again), options)], json_)


@flower.command(epilog="Example:  fedsoft flower status")
def status(folder: DirOption = HERE, json_: JsonOption = False) -> None:
    """Show which processes of the federation are running."""
    from fedsoft.flower.local_cluster.cluster import LocalCluster

    federation = LocalCluster(folder.absolute())
    settings = federation.settings
    rows = {name: "runs" if process.alive else "ended" for name, process in federation.processes.read().items()}
    if json_:
        print_json({"address": settings.address, "nodes": settings.nodes, "processes": rows})
        return
    if not rows:
        out.print(f"no process runs: start them with  fedsoft flower up --nodes {settings.nodes}", markup=False)
        return
    table = Table("process", "state", title=f"{settings.nodes} nodes at {settings.address}")
    for name, state in rows.items():
        table.add_row(name, state)
    out.print(table)


@flower.command(epilog="Example:  fedsoft flower down")
def down(folder: DirOption = HERE) -> None:
    """Stop all processes of the federation. Client state is kept, so that runs can be resumed."""
    from fedsoft.flower.local_cluster.cluster import LocalCluster

    federation = LocalCluster(folder.absolute())
    federation.settings  # noqa: B018  raises when there is none
    ended = federation.down()
    out.print(f"ended {', '.join(ended)}" if ended else "no process was running", markup=False, highlight=False)
    out.print(
        f"keys, certificates and client state stay in '{folder}'; delete it to remove them",
        markup=False, highlight=False,
    )  # fmt: skip


@flower.command(epilog="Example:  fedsoft flower register keys/hospital-a.pub")
def register(
    keys: Annotated[list[Path], typer.Argument(metavar="KEY.pub ...", help="Public keys of nodes.")],
    folder: DirOption = HERE,
) -> None:
    """Let nodes with these keys in. Prints their fingerprints, which belong in the run's file."""
    from fedsoft.flower.local_cluster import flwr
    from fedsoft.flower.local_cluster.files import ClusterFiles

    for path, fingerprint in zip(keys, flwr.register(ClusterFiles(folder.absolute()), keys), strict=True):
        out.print(f'{path.stem} = "{fingerprint}"', markup=False, highlight=False, soft_wrap=True)


NodeArgument = Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's file.")]


@flower.command(epilog="Example:  fedsoft flower worker node.toml")
def worker(node: NodeArgument) -> None:
    """Keep a node's model, data and client state loaded, and answer its SuperNode. Runs until it is stopped."""
    from fedsoft.flower.launcher import LAUNCH, NODE, PYTHON
    from fedsoft.flower.node.config import NodeConfig

    config = NodeConfig(node)
    err.print(f"{config.check()}, at {config.socket}", markup=False, highlight=False, soft_wrap=True)
    # In place of this process: it has imported torch to check the file, and a process with threads cannot be forked.
    os.execv(sys.executable, [*PYTHON, "-c", LAUNCH, NODE, f"{config.socket}.start", str(node)])


@flower.command(
    epilog="Example:  fedsoft flower supernode node.toml --superlink federation.example.org:443 "
    "--root-certificates ca.pem --key keys/hospital-a"
)
def supernode(
    node: NodeArgument,
    superlink: Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="The address of the server.")],
    authority: Annotated[Path, typer.Option("--root-certificates", help="The server's ca.pem.")],
    key: Annotated[Path, typer.Option("--key", help="The private key of this node.")],
    port: Annotated[int, typer.Option("--port", help="On this machine, for the SuperNode's own use.")] = 9094,
) -> None:  # fmt: skip
    """Start Flower's SuperNode so that it runs nothing but fedsoft: no app that a server ships. Needs the worker."""
    from fedsoft.flower.keys import check_certificate, read_private_key
    from fedsoft.flower.local_cluster import flwr
    from fedsoft.flower.node.config import NodeConfig

    check_certificate(authority)
    read_private_key(key)
    worker = NodeConfig(node).socket
    commands = worker.with_name(f"{worker.name}.bin")
    line = flwr.supernode_line(commands, worker, superlink, authority.absolute(), key.absolute())
    os.execve(line[0], [*line, "--port", str(port)], os.environ | flwr.QUIET | flwr.POLL | {"PATH": str(commands)})
