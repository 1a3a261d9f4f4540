"""Know the processes of a launch from outside: how they ended, and when to end them."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Self

from bench.run.outcome import Failure

START_S, POLL_S = 0.02, 0.25
"""Between two looks: while processes start, and while they run."""
END_GRACE_S = 5.0
"""For the launcher to act on the end of one process, or for the others to follow it."""
KILLS = 6
STACK_GRACE_S = 1.0
"""For a stuck process to write the stacks of its threads before it is killed."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How the processes of a launch ended, as seen from outside."""

    exit_codes: list[int | None]
    """Per rank; minus the signal's number for one that was killed."""
    timed_out_s: float | None = None
    """The limit, if it was reached."""

    def failure(self, rank: int) -> Failure:
        """Why a rank that handed nothing over did not."""
        if self.timed_out_s is not None:
            return Failure(status="timeout", reason=f"not finished after {self.timed_out_s:g} s")
        code = self.exit_codes[rank] if rank < len(self.exit_codes) else None
        if code is None:
            return Failure(status="failed", reason="the process did not start")
        if code < 0:
            return Failure(status="failed", reason=f"the process was ended by {_name(-code)}")
        return Failure(
            status="failed", reason=f"the process ended with exit code {code} and no result"
        )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


class Watch:
    """Knows the worker processes of one launch, and ends the launch when it must end.

    That is when the time is up, or when one process has ended and the others go on: the launcher
    notices a process that failed, but waits for ever for one that left quietly.

    Args:
        expected: how many processes there will be.
        limit_s: how long they may take; they write their stacks before they are killed.
    """

    def __init__(self, expected: int, limit_s: float) -> None:
        self.processes: list[BaseProcess] = []
        """In the order of ranks, which is the order of their start."""
        self.time_is_up = False
        self.gave_up = False
        """Whether the launcher itself had to be interrupted: by SIGTERM to this process."""
        self._expected = expected
        self.limit_s = limit_s
        self._over = threading.Event()
        self._before = set(_children())
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def pids(self) -> list[int]:
        """Process ids of the workers that have been seen so far, ended ones included."""
        return [one.pid for one in self.processes if one.pid is not None]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        deadline = time.monotonic() + self.limit_s
        first_end: float | None = None
        while not self._over.wait(POLL_S if len(self.processes) == self._expected else START_S):
            self._look()
            now = time.monotonic()
            if first_end is None and connection.wait([p.sentinel for p in self.processes], 0):
                first_end = now
            if now >= deadline:
                self.time_is_up = True
                self._end()
                return
            if first_end is not None and now - first_end > END_GRACE_S:
                self._end()
                return

    def _look(self) -> None:
        # Only ever more: those that have ended are no longer among the children.
        new = set(_children()) - self._before - set(self.processes)
        self.processes += sorted(new, key=lambda one: int(one.name.rpartition("-")[2]))

    def _end(self) -> None:
        """Have the processes write their stacks, kill them, and then interrupt the launcher."""
        for process in self.processes:
            _send(process.pid, signal.SIGUSR1)
        self._over.wait(STACK_GRACE_S)
        for _ in range(KILLS):  # again, since some may only be starting
            self._look()
            for process in self.processes:
                _send(process.pid, signal.SIGKILL)
            if self._over.wait(START_S * 25):
                return
        self.gave_up = True
        os.kill(os.getpid(), signal.SIGTERM)


def _children() -> list[BaseProcess]:
    """Processes that this one started, finished ones included.

    Not ``active_children``, which joins those that have finished: the launcher is about to join
    them itself, and an exit code can be read once only.
    """
    return list(multiprocessing.process._children)  # type: ignore[attr-defined]


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
