"""Know the processes of a launch from outside: how they ended, and when to end them."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Self

from bench.run.outcome import Failure

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
            name = signal.Signals(-code).name
            return Failure(status="failed", reason=f"the process was ended by {name}")
        return Failure(status="failed", reason=f"the process ended with exit code {code}")


class Watch:
    """Knows the worker processes of one launch, and ends them when the time is up.

    Args:
        expected: how many there will be.
        limit_s: how long they may take; they write their stacks before they are killed.
    """

    def __init__(self, expected: int, limit_s: float) -> None:
        self.processes: list[BaseProcess] = []
        """In the order of ranks, which is the order of their start."""
        self.time_is_up = False
        self._expected = expected
        self._limit_s = limit_s
        self._over = threading.Event()
        self._before = set(_children())
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._limit_s
        while len(self.processes) < self._expected and time.monotonic() < deadline:
            started = [one for one in _children() if one not in self._before]
            self.processes = sorted(started, key=lambda one: int(one.name.rpartition("-")[2]))
            if self._over.wait(0.02):
                return
        if self._over.wait(max(0.0, deadline - time.monotonic())):
            return
        self.time_is_up = True
        for process in self.processes:
            _send(process.pid, signal.SIGUSR1)
        self._over.wait(STACK_GRACE_S)
        for process in self.processes:
            _send(process.pid, signal.SIGKILL)


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
