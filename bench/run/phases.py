"""What each rank says of its progress while it runs, and how long it may stay where it is.

A rank writes a short note into a file of its own whenever it enters a phase, and between blocks of
steps. The parent reads the notes: a rank that is killed, or stands still, says nothing any more.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bench.plan.case import Case, Effort, Limits

START, COMPILE, DONE = "start", "compile", "done"
NOTE_BYTES = 256
"""Length of a note, padded, so that a shorter one leaves nothing of the one before."""
LEAVE_S = 60.0
"""For a rank to take its group apart and end, once its outcome is handed over."""
SHARES_OF_WINDOW = frozenset({"window", "communication", "training"})
"""Phases whose length is known beforehand."""
NOTHING_COMPILED = frozenset({START, "set-up", COMPILE, "window", "check", DONE})
"""Phases in which nothing is compiled, or nothing else: others may take as much longer."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank is."""

    phase: str = START
    since_s: float
    """Monotonic time at which it entered the phase."""
    expected_s: float | None = None
    """How long it expects to stay, where it knows."""
    compiles: bool = False
    """Whether it may compile a model meanwhile, beside what else the phase is for."""
    step: int | None = None
    """Optimizer steps that it has completed since it was set up, up to the last block."""


class Notebook:
    """A rank's own side: keeps its file open, so that a note costs one call to the system.

    Args:
        folder: of the launch on this host.
        rank: among the ranks of this host.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(note_file(folder, rank), os.O_CREAT | os.O_WRONLY, 0o600)

    def write(self, note: Note) -> None:
        """Put a note in the place of the one before."""
        os.pwrite(self._file, msgspec.json.encode(note).ljust(NOTE_BYTES), 0)


def note_file(folder: Path, rank: int) -> Path:
    """Where a rank says how far it has come."""
    return folder / f"rank{rank}.phase"


def read_note(folder: Path, rank: int) -> Note | None:
    """A rank's latest note; None where there is none, or it cannot be read just now."""
    try:
        return msgspec.json.decode(note_file(folder, rank).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None


def limit_s(limits: Limits, note: Note) -> float:
    """How long a rank may stay in its phase.

    >>> limit_s(Limits(), Note(phase="window", since_s=0.0, expected_s=10.0))
    160.0
    """
    more_s = limits.compile_s if note.compiles else 0.0
    if note.phase in SHARES_OF_WINDOW and note.expected_s is not None:
        return limits.window_s + limits.window_factor * note.expected_s + more_s
    named = {
        START: limits.start_s,
        "set-up": limits.set_up_s,
        COMPILE: limits.compile_s,
        "warm-up": limits.warm_up_s,
        DONE: LEAVE_S,
    }
    return named.get(note.phase, limits.pass_s) + more_s


def launch_limit_s(case: Case, effort: Effort) -> float:
    """How long a whole launch may take."""
    return effort.timeout_s + (effort.limits.compile_s if case.compile != "none" else 0.0)
