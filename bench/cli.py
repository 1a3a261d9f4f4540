"""The command line: parse, then call the stages in order.

Commands that need torch import what they need themselves, so that ``bench report`` works on a
machine without it and ``bench --help`` answers at once.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

import bench
from bench.errors import BenchError, Interruption, OutputError, one_line

app = typer.Typer(
    name="bench",
    help="Compare ways of training one model in parallel, and say how far to trust each figure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SuiteArgument = Annotated[
    str, typer.Argument(metavar="SUITE", help="A suite file, or the name of a shipped suite.")
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPR", help="Only cases such as 'strategy == ddp'."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def run_command_line(arguments: list[str]) -> int:
    """Run one command; returns its exit code, as the README lists them."""
    warnings.showwarning = _show_warning
    for name in ("stdout", "stderr"):  # None where the caller closed it
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        app(arguments, prog_name="bench")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BenchError as error:
        _say(f"bench: {error}")
        return error.exit_code
    except KeyboardInterrupt:  # before or after a run, when nothing is at stake
        return 128 + signal.SIGINT
    except Interruption as interruption:
        _say(f"bench: stopped by {interruption}")
        return interruption.exit_code
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing fails again
        return 141
    except OSError as error:  # what could be foreseen is a BenchError by now
        _say(f"bench: {error}")
        return 1
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        _print(f"bench {bench.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compare ways of training one model in parallel, and say how far to trust each figure."""


@app.command()
def run(  # noqa: PLR0913 - options, each known by its name
    suite: SuiteArgument,
    *,
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
) -> None:
    """Measure a suite; prints the scaling tables and where the results are."""
    if dry_run:
        _show_plan(suite, only=only, launches=launches, json=False)
        return
    from bench.plan.suite import load_suite
    from bench.run.scratch import scratch
    from bench.run.server import start_server, stop_server

    if resume and out is None:
        raise BenchError(
            "--resume needs the --out folder of the run to go on with, as it was named"
        )
    described = load_suite(suite)
    ranks = _numbers("--trace-ranks", trace_ranks) if trace_ranks is not None else None
    _warn_of_this_machine()
    _say(f"suite {described.name}: loading PyTorch and looking at this machine ...")
    with scratch() as private:
        start_server()  # imports torch while the next line does so here
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
            )
        finally:
            stop_server()
    from bench.report.page import load, plain, write_report

    _info, records, rows = load(finished.folder)
    report, is_written = _reported(write_report, finished.folder)
    if finished.interruption is not None:
        _say(
            f"bench: stopped by {finished.interruption}; what was measured so far: {report}; "
            f"the same command with --resume --out {finished.folder} goes on"
        )
        raise typer.Exit(finished.interruption.exit_code)
    _print_while_read(
        f"{plain(rows)}\n\n{len(records)} records in {finished.folder / 'records.jsonl'}\n{report}"
    )
    if not is_written:
        _say(f"bench: {report}")
    if not any(row.samples_per_s is not None for row in rows):
        reasons = dict.fromkeys(str(row.reason) for row in rows)
        _say(f"bench: nothing was measured: {next(iter(reasons), 'nothing was planned')}")
    if finished.has_failures or not is_written:
        raise typer.Exit(1)


@app.command()
def plan(suite: SuiteArgument, only: FilterOption = None, json: JsonOption = False) -> None:
    """Show the cases of a suite in order, and every skip with its reason."""
    _show_plan(suite, only=only, launches=None, json=json)


def _show_plan(suite: str, *, only: str | None, launches: int | None, json: bool) -> None:
    from bench.measure.machine import probe_in_child
    from bench.plan.suite import load_suite

    described = load_suite(suite)
    from bench.plan.matrix import expand

    planned = expand(described, probe_in_child(), only=only, launches=launches)
    if json:
        _print_json(planned)
        return
    for number, one in enumerate(planned, start=1):
        twin = "   twin" if one.case.twin else "   rung" if one.rung_below else ""
        note = f"{twin}   skipped: {one_line(one.skip_reason)}" if one.skip_reason else twin
        note += "" if one.skip_reason else "".join(f"   {flag}" for flag in one.flags)
        _print(f"{number:4}  {one.case.id}  launches {one.effort.launches}{note}")
    from bench.run.schedule import schedule

    skips = sum(one.skip_reason is not None for one in planned)
    _print(
        f"cases: {len(planned)}, {skips} of them skipped; launches: {len(schedule(planned, 0))}, "
        "proofs and the passes for communication and memory included"
    )
    if described.budget_s and launches is None:
        _print(f"and up to {described.budget_s:g} s more where intervals are wider than asked")


@app.command("list")
def list_(
    what: Annotated[
        Literal["workloads", "strategies", "settings", "suites"],
        typer.Argument(help="What to list."),
    ],
    json: JsonOption = False,
) -> None:
    """List what a suite can name."""
    from bench.plan import catalogue

    entries = getattr(catalogue, what)()
    if json:
        _print_json(entries)
        return
    width = min(shutil.get_terminal_size().columns, 100)
    for entry in entries:
        for line in catalogue.lines(entry, width):
            _print(line)


@app.command()
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
    _warn_of_this_machine()
    _say("loading PyTorch and looking at this machine ...")
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
    report, is_written = _reported(write_collectives, finished.folder)
    if form == "nccl-tests":
        _print_json(nccl_tests(rows))
    elif json or form == "json":
        _print_json(rows)
    else:
        _print_while_read("\n".join(found(rows, limits)))
    _say(report if is_written else f"bench: {report}")
    if finished.interruption is not None:
        raise typer.Exit(finished.interruption.exit_code)
    if finished.has_failures or not is_written:
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders.")],
) -> None:
    """Make report.md and its charts again from the records, without torch."""
    from bench.records.collectives import COLLECTIVES
    from bench.report.collectives import write_collectives
    from bench.report.page import write_report

    for folder in folders:
        is_of_comm = (folder / COLLECTIVES).is_file()
        _print(str(write_collectives(folder) if is_of_comm else write_report(folder)))


@app.command()
def doctor(
    *,
    json: JsonOption = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Start ranks that talk to each other, or not.")
    ] = True,
) -> None:
    """Say what on this machine will spoil a measurement or a launch, why, and the remedy."""
    from bench.doctor import diagnose
    from bench.doctor.show import table

    findings = diagnose(live=live)
    if json:
        _print_json(findings)
    else:
        _print(table(findings, shutil.get_terminal_size().columns))
    if any(one.status == "bad" for one in findings):
        raise typer.Exit(1)


def _reported(write: Callable[[Path], Path], folder: Path) -> tuple[str, bool]:
    """Write a report: what is to be said of it, and whether it is there. No row is lost to that."""
    try:
        return f"report in {write(folder)}", True
    except OutputError as error:
        return f"no report: {error}; bench report {folder} makes it once it can", False


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers of a list."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BenchError(f"{option}: {text!r} is no list of numbers; write 0,1")
    return tuple(int(word) for word in words)


def _warn_of_this_machine() -> None:
    """What speaks against figures measured here and now, a line each. It stops nothing."""
    from bench.doctor import what_spoils_timing
    from bench.doctor.show import line

    try:
        findings = what_spoils_timing()
    except Exception as error:  # noqa: BLE001 - a look at the machine must never cost a run
        _say(f"warning: this machine cannot be looked at: {type(error).__name__}: {error}")
        return
    for one in findings:
        _say(line(one))


def _print(text: str) -> None:
    """To stdout, with marks that its encoding has."""
    encoding = sys.stdout.encoding or "ascii"
    plain = text.replace("±", "+/-").replace("–", "-")
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = plain.encode(encoding, errors="replace").decode(encoding)
    sys.stdout.write(text + "\n")


def _print_while_read(text: str) -> None:
    """To stdout, if anybody still reads there: what a run has found is on the disk."""
    try:
        _print(text)
        sys.stdout.flush()
    except OSError as error:
        _say(f"bench: the tables could not be printed: {error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or closing fails again


def _print_json(value: object) -> None:
    _print(msgspec.json.format(msgspec.json.encode(value)).decode())


def _say(text: str) -> None:
    """To stderr, on one line; a terminal that is gone is no reason to stop."""
    with contextlib.suppress(OSError):
        sys.stderr.write(one_line(text, limit=1000) + "\n")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the place in our code."""
    _say(f"bench: warning: {message}")
