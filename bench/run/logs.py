"""What the ranks of a launch wrote: the end of it, and never more on the disk than is of use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from bench.errors import one_line

TAIL_LINES = 60
"""A deep stack, and what came before it."""
TAIL_BYTES = 64 * 1024
LOG_BYTES = 64 * 1024 * 1024
"""What one log may take of the disk before its beginning is given back."""
PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01
"""From linux/falloc.h."""


def read_tail(folder: Path, rank: int) -> str:
    """The last that a rank wrote, errors last."""
    texts: list[str] = []
    for name in ("stdout.log", "stderr.log"):
        for path in folder.glob(f"logs/*/attempt_0/{rank}/{name}"):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                texts.append(file.read().decode(errors="replace"))
    return "\n".join(texts)


def tail_lines(text: str) -> list[str]:
    """Last lines of a text, harmless to a terminal; empty ones say nothing."""
    lines = (one_line(line) for line in text.splitlines())
    return [line for line in lines if line][-TAIL_LINES:]


def bound(folder: Path) -> None:
    """Give the beginning of logs that have grown too long back to the disk. Linux only.

    The process that writes one goes on where it was, and the log's end stays where it is.
    """
    if sys.platform != "linux":
        return
    for path in folder.glob("logs/*/attempt_0/*/std*.log"):
        with contextlib.suppress(OSError):  # gone, or no handle is left: there is a next time
            if path.stat().st_blocks * 512 > LOG_BYTES:
                _punch(path)


def _punch(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file:
        size = ctypes.c_longlong(file.seek(0, os.SEEK_END) - TAIL_BYTES)
        # A file system that cannot do it has more room than this log, or the launch soon fails.
        libc.fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, ctypes.c_longlong(0), size)
