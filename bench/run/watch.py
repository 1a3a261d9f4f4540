"""Know the processes of a launch from outside: how they ended, and when to end them."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from bench.errors import in_words
from bench.plan.case import Limits
from bench.run import logs
from bench.run.ends import Ends, Overdue
from bench.run.phases import START, Note, limit_s, read_note
from bench.run.signals import GIVE_UP

START_S, POLL_S = 0.02, 0.25
"""Between two looks: while processes start, and while they run."""
LOOK_S = 1.0
"""Between two looks at what the ranks note and write."""
END_GRACE_S = 5.0
"""For the launcher to act on the end of one process, or for the others to follow it."""
KILLS = 6
STACK_GRACE_S = 1.0
"""For a stuck process to write the stacks of its threads before it is killed."""


class Watch:
    """Knows the worker processes of one launch, and ends the launch when it must end.

    That is when the time is up, for the launch or for a rank's phase, or when one process has ended
    and the others go on: the launcher notices a process that failed, but waits for ever for one
    that left quietly.

    Args:
        expected: how many processes there will be.
        limits: how long they may take; they write their stacks before they are killed.
        launch_s: how long all of it may take.
        folder: of the launch on this host.
        elsewhere: whether processes of other hosts have ended, which those here would wait for.
    """

    def __init__(
        self,
        expected: int,
        limits: Limits,
        launch_s: float,
        folder: Path,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        self.processes: list[BaseProcess] = []
        """In the order of ranks, which is the order of their start."""
        self.overdue: Overdue | None = None
        self.gave_up = False
        """Whether the launcher itself had to be interrupted: by a signal to this process."""
        self.problem: str | None = None
        """Why nobody watched any longer, so that the launch was ended."""
        self._ended_s: dict[BaseProcess, float] = {}
        self._ending = False
        """Whether processes that end from now on may have been killed from here."""
        self.expected = expected
        self._limits = limits
        self._launch_s = launch_s
        self._folder = folder
        self._elsewhere = elsewhere
        self._ended_elsewhere_s: float | None = None
        self._notes: dict[int, Note] = {}
        self._over = threading.Event()
        self._before = set(_children())
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def pids(self) -> list[int]:
        """Process ids of the workers that have been seen so far, ended ones included."""
        return [one.pid for one in self.processes if one.pid is not None]

    def ends(self, *, server_died: bool) -> Ends:
        """How the processes ended. To be asked when they have."""
        return Ends(
            exit_codes=[process.exitcode for process in self.processes],
            ended_s=[self._ended_s.get(process) for process in self.processes],
            overdue=self.overdue,
            server_died=server_died,
            problem=self.problem,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever ended the waiting, no process outlives it."""
        self._over.set()
        self._thread.join()
        self._look()
        if not self._ending:
            self._note_ends()
        for process in self.processes:
            if process.exitcode is None:
                _send(process.pid, signal.SIGKILL)
        connection.wait([process.sentinel for process in self.processes], END_GRACE_S)

    def _watch(self) -> None:
        try:
            self._supervise()
        except Exception as error:  # noqa: BLE001 - without it nothing would end what stands still
            self.problem = in_words(error)
            self._end()

    def _supervise(self) -> None:
        next_look_s = self._began_s
        while not self._over.wait(POLL_S if len(self.processes) == self.expected else START_S):
            self._look()
            self._note_ends()
            now = time.monotonic()
            if now >= next_look_s:
                next_look_s = now + LOOK_S
                logs.bound(self._folder)
                self.overdue = self._find_overdue(now)
            if self._ended_elsewhere_s is None and self._elsewhere():
                self._ended_elsewhere_s = now
            ends = [*self._ended_s.values(), self._ended_elsewhere_s]
            first_end = min((end for end in ends if end is not None), default=now)
            if self.overdue is not None or now - first_end > END_GRACE_S:
                self._end()
                return

    def _look(self) -> None:
        # Only ever more: those that have ended are no longer among the children.
        new = set(_children()) - self._before - set(self.processes)
        ranks = sorted(new, key=lambda one: int(one.name.rpartition("-")[2]))
        self.processes += ranks[: self.expected - len(self.processes)]

    def _running(self) -> list[BaseProcess]:
        """Those that have not ended: the number of one that has may be another's by now."""
        return [one for one in self.processes if not connection.wait([one.sentinel], 0)]

    def _note_ends(self) -> None:
        for process in self.processes:
            if process not in self._ended_s and connection.wait([process.sentinel], 0):
                self._ended_s[process] = time.monotonic()

    def _find_overdue(self, now: float) -> Overdue | None:
        """The rank that has been in its phase for too long; of several, for the longest."""
        total_s = self._launch_s
        if now - self._began_s >= total_s:
            return Overdue(rank=None, spent_s=now - self._began_s, limit_s=total_s)
        late: list[Overdue] = []
        for rank, process in enumerate(self.processes):
            if process in self._ended_s:
                continue
            note = self._note(rank)
            spent_s, limit = now - note.since_s, limit_s(self._limits, note)
            if spent_s >= limit:
                late.append(Overdue(rank=rank, spent_s=spent_s, limit_s=limit))
        return max(late, key=lambda one: one.spent_s, default=None)

    def _note(self, rank: int) -> Note:
        """A rank's last note, or that it has only been started."""
        note = read_note(self._folder, rank) or self._notes.get(rank)
        self._notes[rank] = note or Note(phase=START, since_s=self._began_s)
        return self._notes[rank]

    def _end(self) -> None:
        """Have the processes write their stacks, kill them, and then interrupt the launcher."""
        self._ending = True
        for process in self._running():
            _send(process.pid, signal.SIGUSR1)
        self._over.wait(STACK_GRACE_S)
        for _ in range(KILLS):  # again, since some may only be starting
            self._look()
            for process in self._running():
                _send(process.pid, signal.SIGKILL)
            if self._over.wait(START_S * 25):
                return
        self.gave_up = True
        os.kill(os.getpid(), GIVE_UP)


def _children() -> list[BaseProcess]:
    """Processes that this one started as ranks are, finished ones included.

    Those that it has forked are no ranks: a program that compares models may well have its own.

    Not ``active_children``, which joins those that have finished: the launcher is about to join
    them itself, and an exit code can be read once only.
    """
    children: set[BaseProcess] = set(multiprocessing.process._children)  # type: ignore[attr-defined]
    return [one for one in children if not isinstance(one, ForkProcess)]


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
