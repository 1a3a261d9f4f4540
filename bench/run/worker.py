"""One rank of one launch: join, run one pass, hand over the outcome.

The order of the first lines matters: the process must be bound to its parent's life, have its
environment, and own its device before anything can touch an accelerator.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
from torch import distributed

from bench.errors import one_line
from bench.measure.device import is_out_of_memory, open_device
from bench.plan.registry import find_strategy
from bench.records.record import Placement
from bench.records.store import write_atomically
from bench.run.culprit import TRACEBACK_LINES
from bench.run.handover import Assignment, Failure, RankOutcome
from bench.run.passes import measure_communication, measure_memory, measure_time, try_batch
from bench.run.phases import DONE, Notebook, launch_limit_s
from bench.run.proof import make_reference, prove
from bench.run.rank import Rank, outcome_file
from bench.run.server import follow_server
from bench.strategies.base import Session

LINGER_S = 2.0
"""For a process whose work is done to end by itself."""


def main(assignment_file: str) -> None:
    """Entry of every worker process.

    Args:
        assignment_file: path of the launch's ``Assignment``.
    """
    follow_server()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent decides what an interrupt means
    faulthandler.enable()  # the stack of one that is ended by a fault of the machine code
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    assignment = msgspec.json.decode(Path(assignment_file).read_bytes(), type=Assignment)
    os.environ.update(assignment.environment)
    tempfile.tempdir = None  # the variable for it may be among them
    number, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    rank: Rank | None = None
    try:
        strategy = find_strategy(assignment.case.strategy)
        one = strategy.processes == "one" and assignment.job != "reference"
        driven = range(len(assignment.cores)) if one else [local]
        rank = Rank(
            assignment=assignment,
            rank=number,
            local_rank=local,
            processes=int(os.environ["WORLD_SIZE"]),
            strategy=strategy,
            device=open_device(assignment.case, driven, assignment.cores, assignment.used_before),
            outcome=RankOutcome(rank=number),
            notebook=Notebook(Path(assignment.folder), number),
        )
        session = _work(rank)
        rank.note(phase=DONE)
        _hand_over(assignment, rank.outcome)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        if rank is not None:
            rank.note_compiled()
        outcome = RankOutcome(rank=number) if rank is None else _with_peak(rank, error)
        with contextlib.suppress(OSError):  # where no file can be written, the log is left
            _hand_over(assignment, msgspec.structs.replace(outcome, failure=_failure(error)))
        _give_up(error)
    try:
        _leave(rank, session)
    except BaseException as error:  # noqa: BLE001 - the outcome is handed over: the exit code says it
        _give_up(error)
    threading.Thread(target=_end_anyway, name="end anyway", daemon=True).start()


def _work(rank: Rank) -> Session | None:
    """Run the assignment's job; returns the session, which must outlive the hand-over."""
    _join(rank)
    rank.device.set_precision(rank.case.precision)
    rank.watch_compiler()
    match rank.assignment.job:
        case "timing":
            return measure_time(rank)
        case "communication":
            return measure_communication(rank)
        case "memory":
            return measure_memory(rank)
        case "max_batch":
            return try_batch(rank)
        case "parity":
            return prove(rank)
        case "reference":
            make_reference(rank)
            return None
    raise AssertionError(f"no job {rank.assignment.job}")


def _join(rank: Rank) -> None:
    """Claim the device, then join the group, if any. Control messages always go over gloo."""
    rank.device.claim()
    rank.note(placement=_placement())
    rank.device.start_memory()
    if not rank.has_group:
        rank.note(joined_s=time.monotonic())
        return
    case = rank.case
    backend = case.backend or "gloo"
    if backend != "gloo" and case.device != "cpu":
        backend = f"cpu:gloo,{case.device}:{backend}"
    distributed.init_process_group(
        backend,
        # The parent ends a stuck launch, with stacks; the group must not do it first.
        timeout=timedelta(seconds=2 * launch_limit_s(case, rank.assignment.effort) + 60),
        device_id=rank.device.group_device,
    )
    rank.slowest(0.0)
    rank.note(joined_s=time.monotonic())


def _placement() -> Placement:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return Placement(cores=sorted(cores), threads=torch.get_num_threads())


def _with_peak(rank: Rank, error: BaseException) -> RankOutcome:
    """What the rank found out; if its memory did not suffice, with how much it had taken."""
    if is_out_of_memory(error):
        with contextlib.suppress(Exception):  # a device that has failed may not answer
            rank.device.limit_memory(None)
            rank.note(memory=rank.device.peaks())
    return rank.outcome


def _failure(error: BaseException) -> Failure:
    lines = traceback.format_exception_only(error)  # also for one whose own text cannot be had
    return Failure(
        status="out_of_memory" if is_out_of_memory(error) else "failed",
        reason=one_line(" ".join(lines)),
        at_s=time.monotonic(),
        exception=type(error).__name__,
        traceback=_last_lines(error),
    )


def _last_lines(error: BaseException) -> list[str]:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [line for line in map(one_line, lines) if line.strip("^~ ")][-TRACEBACK_LINES:]


def _hand_over(assignment: Assignment, outcome: RankOutcome) -> None:
    content = msgspec.json.encode(outcome)
    write_atomically(outcome_file(Path(assignment.folder), outcome.rank), content)


def _give_up(error: BaseException) -> NoReturn:
    """End at once, and never through the group's destructor.

    That would wait for peers that sit in a collective. Nor may the launcher pickle the exception
    into a file of its own.
    """
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _end_anyway() -> None:
    """End the process although threads or children that it has started go on.

    Nothing runs any more when the process ends without that.
    """
    time.sleep(LINGER_S)
    os._exit(0)


def _leave(rank: Rank, session: Session | None) -> None:
    """End in step with the others: a group destroyed while DDP still holds it aborts at exit."""
    rank.slowest(0.0)
    if session is not None:
        session.close()
    gc.collect()
    rank.device.synchronize()
    if rank.has_group:
        distributed.destroy_process_group()
