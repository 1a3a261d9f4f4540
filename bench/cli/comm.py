"""``bench comm``: collectives alone."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli.hosts import (
    ConfOption,
    EndpointOption,
    NodeRankOption,
    NodesOption,
    RunIdOption,
    follow,
)
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
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="1 KiB to 1 GiB in every type, one rank too; on a CPU without it, 1 KiB to 64 MiB"
            " in fp32 on several, in about two minutes on two cores.",
        ),
    ] = False,
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
    nnodes: NodesOption = None,
    node_rank: NodeRankOption = None,
    rdzv_endpoint: EndpointOption = None,
    rdzv_id: RunIdOption = None,
    rdzv_conf: ConfOption = None,
) -> None:
    """Measure collectives alone: how long each takes in each size, and over which backend."""
    from bench.comm.sweep import sweep_of
    from bench.lab.guest import lab_of
    from bench.run.progress import Lines
    from bench.run.rendezvous import read_rendezvous
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    sweep = sweep_of(
        operations=operations,
        sizes=sizes,
        dtypes=dtypes,
        backends=backends,
        world_sizes=world_sizes,
        device=device,
        full=full,
    )
    rendezvous = read_rendezvous(
        os.environ,
        nnodes=nnodes,
        node_rank=node_rank,
        endpoint=rdzv_endpoint,
        id_=rdzv_id,
        conf=rdzv_conf,
    )
    lab = lab_of(os.environ)
    if lab is None:  # the laboratory has done so, for all its hosts
        warn_of_this_machine()
    say("loading PyTorch and looking at this machine ...")
    with scratch() as private:
        start_server()
        from bench.comm.session import run_share, run_sweep

        if rendezvous is not None and rendezvous.node_rank > 0:
            follow(rendezvous, None, private, run_share)
            return
        try:
            finished = run_sweep(
                sweep,
                out=out,
                scratch=private,
                progress=Lines(sys.stderr),
                rendezvous=rendezvous,
                lab=lab,
            )
        finally:
            stop_server()
    from bench.report.collectives import found, load_collectives, write_collectives
    from bench.report.nccl_tests import nccl_tests
    from bench.report.pairs import read_pairs, words_of

    info, rows, limits = load_collectives(finished.folder)
    report, is_written = reported(write_collectives, finished.folder)
    if form == "nccl-tests":
        print_json(nccl_tests(rows))
    elif json or form == "json":
        print_json(rows)
    else:
        pairs = (
            words for one in read_pairs(info.suite.get("pairs", [])) for words in words_of(one)
        )
        print_while_read("\n".join([*pairs, *found(rows, limits)]))
    say(report if is_written else f"bench: {report}")
    if finished.interruption is not None:
        raise typer.Exit(finished.interruption.exit_code)
    if finished.has_failures or not is_written:
        raise typer.Exit(1)
