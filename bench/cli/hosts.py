"""What commands of several hosts have in common: torchrun's flags, and following node 0."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.output import say

if TYPE_CHECKING:
    from bench.plan.suite import Suite
    from bench.run.follow import RunOther
    from bench.run.rendezvous import Rendezvous

PANEL = "Several hosts: as of torchrun, whose variables and srun's are read, too"

NodesOption = Annotated[
    str | None,
    typer.Option("--nnodes", metavar="HOSTS", help="How many take part.", rich_help_panel=PANEL),
]
NodeRankOption = Annotated[
    int | None,
    typer.Option(
        "--node-rank", "--node_rank", min=0, help="Of this host, from 0.", rich_help_panel=PANEL
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        metavar="HOST:PORT",
        help="Where node 0 listens, the same on every host.",
        rich_help_panel=PANEL,
    ),
]
RunIdOption = Annotated[
    str | None,
    typer.Option(
        "--rdzv-id",
        "--rdzv_id",
        metavar="ID",
        help="Of the run; hosts of another are turned away.",
        rich_help_panel=PANEL,
    ),
]
ConfOption = Annotated[
    str | None,
    typer.Option(
        "--rdzv-conf",
        "--rdzv_conf",
        metavar="join_timeout=SECONDS",
        help="For all hosts to come; 600 by default.",
        rich_help_panel=PANEL,
    ),
]


def follow(
    rendezvous: Rendezvous, suite: Suite | None, scratch: Path, run_other: RunOther | None = None
) -> None:
    """Take part in the run of node 0, which alone writes and prints results; ends the fork server.

    Raises:
        typer.Exit: node 0's run ended otherwise than by its end.
    """
    from bench.run.follow import take_part
    from bench.run.server import stop_server

    try:
        end = take_part(rendezvous, suite, scratch, say, run_other)
    finally:
        stop_server()
    say(f"node 0 ended the run: {end.reason}")
    if end.exit_code:
        raise typer.Exit(end.exit_code)
