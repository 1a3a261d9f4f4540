"""Signals that ask a run to stop: the first one raises, the others find it tidying up already."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from bench.errors import Interruption

WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GIVE_UP = signal.SIGQUIT
"""What the watch of a launch sends to this process when nothing else ends the waiting."""
AGAIN_S = 10.0
"""After which another signal raises too: tidying takes less, and an exception that is raised where
Python cannot pass it on, as in a finalizer, is lost."""
_stopped_s: list[float] = []
"""Monotonic time of the last signal that has raised; empty while none has."""


class GaveUpError(Exception):
    """The launcher did not return although its processes were killed, or never started."""


def _give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise GaveUpError("torch's launcher did not come back")


def stop(number: int, frame: FrameType | None = None) -> None:
    """Handler of ``WANTED``.

    Raises:
        Interruption: for the first signal, and for one ``AGAIN_S`` later. Another one would leave
            half of what must be tidied: processes, temporary files, the row that says why there is
            no result.
    """
    del frame
    if not _stopped_s or time.monotonic() - _stopped_s[0] > AGAIN_S:
        raise stopped_by(number)


def stopped_by(number: int) -> Interruption:
    """The interruption to raise for a signal; no other raises from now on."""
    _stopped_s[:] = [time.monotonic()]
    return Interruption(number)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn the signals that end a program into ``Interruption``, so that everything is tidied.

    Where one has come, the handlers stay: the report is still to be written.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stopped_s.clear()
    before = {number: signal.signal(number, stop) for number in WANTED}
    try:
        yield
    finally:
        for number, handler in before.items():
            if not _stopped_s:
                signal.signal(number, handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the handlers back that torch's launcher replaces, and never puts back.

    Until it does, ``GIVE_UP`` raises ``GaveUpError``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*WANTED, GIVE_UP)}
    signal.signal(GIVE_UP, _give_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
