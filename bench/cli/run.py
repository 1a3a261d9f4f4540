"""``bench run``: measure a suite."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from bench.plan.suite import Suite


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
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint", help="Save and restore each case's training state, and time both."
        ),
    ] = False,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(help="Where to save to: the disk that is timed.", show_default="within --out"),
    ] = None,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave the last one of each case there.")
    ] = False,
    train: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**6,
            metavar="N",
            help="Train each case for N steps on what its workload has to learn; draw the losses.",
        ),
    ] = None,
    scale_lr: Annotated[
        bool,
        typer.Option(
            "--scale-lr", help="In that training, a learning rate that grows with the devices."
        ),
    ] = False,
    nnodes: NodesOption = None,
    node_rank: NodeRankOption = None,
    rdzv_endpoint: EndpointOption = None,
    rdzv_id: RunIdOption = None,
    rdzv_conf: ConfOption = None,
) -> None:
    """Measure a suite; prints the scaling tables and where the results are."""
    described = _with_further(
        suite_of(suite, workload), checkpoint=checkpoint, train=train, scale_lr=scale_lr
    )
    _require_use(described, "train_steps", {"--scale-lr": scale_lr}, "--train N")
    folders = {"--checkpoint-dir": checkpoint_dir is not None}
    folders["--keep-checkpoints"] = keep_checkpoints
    _require_use(described, "checkpoint", folders, "--checkpoint")
    if dry_run:
        show_plan(described, only=only, launches=launches, json=False)
        return
    from bench.lab.guest import lab_of
    from bench.run.rendezvous import read_rendezvous
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    if resume and out is None:
        raise BenchError(
            "--resume needs the --out folder of the run to go on with, as it was named"
        )
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
        from bench.run.checkpoint_folder import CHECKPOINTS, Checkpoints
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
                checkpoints=lambda folder: Checkpoints(
                    folder=checkpoint_dir or folder / CHECKPOINTS, kept=keep_checkpoints
                ),
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


def _with_further(suite: Suite, *, checkpoint: bool, train: int | None, scale_lr: bool) -> Suite:
    """The suite with the passes that are asked for beside its own."""
    from bench.plan.substitute import with_effort

    asked: dict[str, Any] = {}
    if checkpoint:
        asked["checkpoint"] = True
    if train is not None:
        asked["train_steps"] = train
    if scale_lr:
        asked["learning_rate"] = "linear"
    return with_effort(suite, **asked)


def _require_use(suite: Suite, field: str, given: dict[str, bool], remedy: str) -> None:
    """Refuse options of a pass that no case asks for.

    Args:
        suite: with all that was asked for.
        field: of an effort, that asks for the pass.
        given: whether an option was given, by its name.
        remedy: what asks for the pass.
    """
    used = any(any(one.axes.get(field, ())) for one in suite.blocks)
    for option, is_given in given.items():
        if is_given and not used:
            raise BenchError(f"{option} has nothing to do without {remedy}")
