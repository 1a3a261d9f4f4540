"""What every process of a launch does around its work: it dies with its parent, and is heard.

The order of the first lines matters: the process must be bound to its parent's life, have its
environment, and own its device before anything can touch an accelerator.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, TypeVar

import msgspec

from bench.errors import one_line
from bench.measure.device import is_out_of_memory
from bench.plan.own import place_of
from bench.records.store import write_atomically
from bench.run.culprit import TRACEBACK_LINES
from bench.run.handover import Failure, RankOutcome
from bench.run.server import follow_server

LINGER_S = 2.0
"""For a process whose work is done to end by itself."""


class Place(NamedTuple):
    """This process among those of its launch, as the launcher has numbered them."""

    rank: int
    local_rank: int
    processes: int


class Work(Protocol):
    """What one process of a launch is there for."""

    place: Place

    def do(self) -> None:
        """All of it, up to a result."""

    def outcome(self, error: BaseException | None) -> RankOutcome:
        """What was found out, also by work that ended with an error."""

    def leave(self) -> None:
        """End in step with the other processes, once the outcome is handed over."""


class Told(Protocol):
    """What the parent tells a process."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the process must have before it touches a device."""


ToldT = TypeVar("ToldT", bound=Told)


def enter(assignment_file: str, kind: type[ToldT]) -> tuple[ToldT, Place]:
    """First of all: be bound to the parent's life, and have the environment.

    Args:
        assignment_file: what the process is told, as JSON.
        kind: of what is in it.
    """
    follow_server()
    # Ctrl-C reaches all processes of a terminal: a rank ends at once, and its parent says why.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()  # the stack of one that is ended by a fault of the machine code
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    told = msgspec.json.decode(Path(assignment_file).read_bytes(), type=kind)
    os.environ.update(told.environment)
    tempfile.tempdir = None  # the variable for it may be among them
    rank, local, processes = (
        int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    )
    return told, Place(rank, local, processes)


def carry_out(work: Work, folder: Path) -> None:
    """Do the work and hand over its outcome, whatever becomes of it. May end the process.

    Args:
        work: of this process.
        folder: of the launch.
    """
    try:
        work.do()
        _hand_over(folder, work.place, work.outcome(None))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        outcome = msgspec.structs.replace(work.outcome(error), failure=_failure(error))
        with contextlib.suppress(OSError):  # where no file can be written, the log is left
            _hand_over(folder, work.place, outcome)
        _give_up(error)
    try:
        work.leave()
    except BaseException as error:  # noqa: BLE001 - the outcome is handed over: the exit code says it
        _give_up(error)
    threading.Thread(target=_end_anyway, name="end anyway", daemon=True).start()


def outcome_file(folder: Path, local_rank: int) -> Path:
    """Where a rank hands over its outcome, in the folder of a launch on its host."""
    return folder / f"rank{local_rank}.json"


def _failure(error: BaseException) -> Failure:
    lines = traceback.format_exception_only(error)  # also for one whose own text cannot be had
    place = place_of(error)
    words = " ".join(lines) if place is None else f"{' '.join(lines)} ({place})"
    return Failure(
        status="out_of_memory" if is_out_of_memory(error) else "failed",
        reason=one_line(words),
        at_s=time.monotonic(),
        exception=type(error).__name__,
        traceback=_last_lines(error),
    )


def _last_lines(error: BaseException) -> list[str]:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [line for line in map(one_line, lines) if line.strip("^~ ")][-TRACEBACK_LINES:]


def _hand_over(folder: Path, place: Place, outcome: RankOutcome) -> None:
    write_atomically(outcome_file(folder, place.local_rank), msgspec.json.encode(outcome))


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
