"""``bench run``: measure a suite."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

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
from bench.cli.options import (
    FilterOption,
    SuiteArgument,
    WorkloadOption,
    numbers,
    suite_of,
)
from bench.cli.output import print_while_read, reported, say
from bench.cli.plan import show_plan
from bench.errors import BenchError


def run(  # noqa: PLR0913 - options, each known by its name
    suite: SuiteArgument = None,
    *,
    workload: WorkloadOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results.", show_default="a new one, runs/SUITE-TIME"),
    ] = None,
    only: FilterOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    launches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Exactly so many launches of each case; the suite's budget_s is not used.",
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Leave a trace of some steps of each case, a file a rank."),
    ] = False,
    trace_ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Such as 0,1; all by default.")
    ] = None,
    trace_mib: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest size of each file, in MiB.")
    ] = 200,
    nnodes: NodesOption = None,
    node_rank: NodeRankOption = None,
    rdzv_endpoint: EndpointOption = None,
    rdzv_id: RunIdOption = None,
    rdzv_conf: ConfOption = None,
) -> None:
    """Measure a suite; prints the scaling tables and where the results are."""
    if dry_run:
        show_plan(suite_of(suite, workload), only=only, launches=launches, json=False)
        return
    from bench.lab.guest import lab_of
    from bench.run.rendezvous import read_rendezvous
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    if resume and out is None:
        raise BenchError(
            "--resume needs the --out folder of the run to go on with, as it was named"
        )
    described = suite_of(suite, workload)
    rendezvous = read_rendezvous(
        os.environ,
        nnodes=nnodes,
        node_rank=node_rank,
        endpoint=rdzv_endpoint,
        id_=rdzv_id,
        conf=rdzv_conf,
    )
    ranks = numbers("--trace-ranks", trace_ranks) if trace_ranks is not None else None
    lab = lab_of(os.environ)
    if lab is None:  # the laboratory has done so, for all its hosts
        warn_of_this_machine()
    say(f"suite {described.name}: loading PyTorch and looking at this machine ...")
    with scratch() as private:
        start_server()  # imports torch while the next line does so here
        if rendezvous is not None and rendezvous.node_rank > 0:
            follow(rendezvous, described, private)
            return
        from bench.run.handover import TraceWish
        from bench.run.session import run_suite

        def wish(folder: Path) -> TraceWish:
            place = str((folder / "traces").absolute())
            return TraceWish(folder=place, ranks=ranks, limit_bytes=trace_mib * 2**20)

        try:
            finished = run_suite(
                described,
                out=out,
                only=only,
                resume=resume,
                launches=launches,
                scratch=private,
                traces=wish if trace or ranks is not None else None,
                rendezvous=rendezvous,
                lab=lab,
            )
        finally:
            stop_server()
    from bench.report.page import load, plain, write_report

    _info, records, rows = load(finished.folder)
    report, is_written = reported(write_report, finished.folder)
    if finished.interruption is not None:
        say(
            f"bench: stopped by {finished.interruption}; what was measured so far: {report}; "
            f"the same command with --resume --out {finished.folder} goes on"
        )
        raise typer.Exit(finished.interruption.exit_code)
    print_while_read(
        f"{plain(rows)}\n\n{len(records)} records in {finished.folder / 'records.jsonl'}\n{report}"
    )
    if not is_written:
        say(f"bench: {report}")
    if not any(row.samples_per_s is not None for row in rows):
        reasons = dict.fromkeys(str(row.reason) for row in rows)
        say(f"bench: nothing was measured: {next(iter(reasons), 'nothing was planned')}")
    if finished.has_failures or not is_written:
        raise typer.Exit(1)
