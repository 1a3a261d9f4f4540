"""How the processes of a launch ended, as seen from outside, and what follows from it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

import msgspec

from bench.errors import one_line
from bench.run.handover import Failure

SERVER_DIED = "the fork server that starts all processes was killed, and they with it"
LAST_WORDS = re.compile(r"^(?:\w+\.)*(?P<type>\w+(?:Error|Exception))\b.*\Z", re.MULTILINE)
"""The line that ends a traceback."""
THROWN = re.compile(r"^ *what\(\): *(.+)", re.MULTILINE)
"""What a C++ exception that nobody caught says."""


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """Why a launch was ended by its parent."""

    rank: int | None
    """Whose phase took too long; None for the launch as a whole."""
    spent_s: float
    limit_s: float

    def __str__(self) -> str:
        if self.rank is None:
            return f"not finished after {self.limit_s:g} s, the limit of a launch"
        return f"no end after {self.spent_s:.3g} s, the limit of this phase is {self.limit_s:g} s"


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How the processes of a launch ended."""

    exit_codes: list[int | None]
    """Per rank; minus the signal's number for one that was killed."""
    ended_s: list[float | None]
    """Per rank, the monotonic time at which it was seen to have ended by itself."""
    overdue: Overdue | None = None
    server_died: bool = False
    """Whether the fork server did, and all processes with it."""
    problem: str | None = None
    """Why the watch over them gave up, and ended them."""

    def code(self, rank: int) -> int | None:
        """A rank's exit code; None for one that did not start."""
        return self.exit_codes[rank] if rank < len(self.exit_codes) else None

    def was_killed(self, rank: int) -> bool:
        """Whether a signal ended a rank, and neither the launcher's own nor the watch's."""
        code, by_itself = self.code(rank), self.ended_s[rank : rank + 1] != [None]
        return code is not None and code < 0 and code != -signal.SIGTERM and by_itself

    def failure(self, rank: int) -> Failure:
        """Why a rank that handed nothing over did not."""
        code = self.code(rank)
        at_s = self.ended_s[rank] if rank < len(self.ended_s) else None
        if self.server_died:
            return Failure(status="failed", reason=SERVER_DIED, is_of_launch=True)
        if code is None:
            return Failure(status="failed", reason="the process did not start")
        if at_s is None and self.problem is not None:
            reason = f"ended, since the watch over the processes failed: {self.problem}"
            return Failure(status="failed", reason=reason, is_of_launch=True)
        if at_s is None and self.overdue is not None:
            return Failure(status="timeout", reason=str(self.overdue))
        if at_s is None:
            reason = f"ended by its parent, since another process had ended: {_words(code)}"
            return Failure(status="failed", reason=reason, is_echo=True)
        return Failure(
            status="failed",
            reason=f"the process {_words(code)}{'' if code < 0 else ' and no result'}",
            at_s=at_s,
            signal=name_of(-code) if code < 0 else None,
            exit_code=code if code >= 0 else None,
        )


def explained(failure: Failure, log: str) -> Failure:
    """A failure that a process could not hand over, with the exception that it wrote last."""
    if failure.signal == "SIGABRT" and (thrown := THROWN.findall(log)):
        return msgspec.structs.replace(failure, reason=f"{failure.reason}: {one_line(thrown[-1])}")
    if failure.exit_code is None or failure.exception is not None:
        return failure
    last = LAST_WORDS.search(log.rstrip())
    if last is None:
        return failure
    reason = f"{failure.reason}: {one_line(last[0])}"
    return msgspec.structs.replace(failure, reason=reason, exception=last["type"])


def _words(code: int) -> str:
    return f"was ended by {name_of(-code)}" if code < 0 else f"ended with exit code {code}"


def name_of(number: int) -> str:
    """A signal's name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
