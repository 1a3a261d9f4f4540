"""``bench comm``: collectives alone."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli.machine import warn_of_this_machine
from bench.cli.options import JsonOption
from bench.cli.output import print_json, print_while_read, reported, say


def comm(  # noqa: PLR0913 - options, each known by its name
    *,
    operations: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Such as all_reduce,broadcast.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Such as 1KiB,1MiB,64MiB.")
    ] = None,
    dtypes: Annotated[str | None, typer.Option(metavar="NAMES", help="Of fp32,bf16,fp16.")] = None,
    backends: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Such as nccl,gloo; or all.")
    ] = None,
    world_sizes: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Such as 2,4; also more than cores.")
    ] = None,
    device: Annotated[str, typer.Option(help="Type of device that holds the tensors.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the rows.", show_default="a new one, runs/comm-TIME"),
    ] = None,
    form: Annotated[
        Literal["text", "json", "nccl-tests"],
        typer.Option("--format", help="Of what is printed; nccl-tests is JSON as it writes it."),
    ] = "text",
    json: JsonOption = False,
) -> None:
    """Measure collectives alone: how long each takes in each size, and over which backend."""
    from bench.comm.sweep import sweep_of
    from bench.run.progress import Lines
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    sweep = sweep_of(
        operations=operations,
        sizes=sizes,
        dtypes=dtypes,
        backends=backends,
        world_sizes=world_sizes,
        device=device,
    )
    warn_of_this_machine()
    say("loading PyTorch and looking at this machine ...")
    with scratch() as private:
        start_server()
        from bench.comm.session import run_sweep

        try:
            finished = run_sweep(sweep, out=out, scratch=private, progress=Lines(sys.stderr))
        finally:
            stop_server()
    from bench.report.collectives import found, load_collectives, write_collectives
    from bench.report.nccl_tests import nccl_tests

    _info, rows, limits = load_collectives(finished.folder)
    report, is_written = reported(write_collectives, finished.folder)
    if form == "nccl-tests":
        print_json(nccl_tests(rows))
    elif json or form == "json":
        print_json(rows)
    else:
        print_while_read("\n".join(found(rows, limits)))
    say(report if is_written else f"bench: {report}")
    if finished.interruption is not None:
        raise typer.Exit(finished.interruption.exit_code)
    if finished.has_failures or not is_written:
        raise typer.Exit(1)
