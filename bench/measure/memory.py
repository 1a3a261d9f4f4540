"""Peaks of memory: what each figure is, and how it is read."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import msgspec

RESET_PEAK = "5"
"""What makes Linux forget a process's peak resident size: see proc_pid_clear_refs(5)."""


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of one device in bytes; None where a figure does not exist."""

    allocated: int | None = None
    reserved: int | None = None
    driver: int | None = None
    process: int | None = None


class ResidentPeak:
    """Peak resident memory of this process since the last reset, from the kernel's own counter.

    Args:
        process: the process's folder in ``/proc``.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._process = process
        self._is_reset = False

    def reset(self) -> None:
        """Forget the peak so far. Where the system does not allow it, ``read`` returns None."""
        try:
            (self._process / "clear_refs").write_text(RESET_PEAK)
        except OSError:
            self._is_reset = False
        else:
            self._is_reset = True

    def read(self) -> int | None:
        """The peak in bytes; None if it could not be reset, or the system keeps none."""
        if not self._is_reset:
            return None
        try:
            status = (self._process / "status").read_text()
        except OSError:
            return None
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else None


def limit_private_memory(limit_bytes: int | None, process: Path = Path("/proc/self")) -> None:
    """Let this process have so much more private memory than now; None for as much as it wants.

    Of what counts as data on Linux, see setrlimit(2): the heap, and private mappings that can be
    written. Memory that is shared, and that of libraries, does not count.

    Raises:
        RuntimeError: the system does not say what the process has now.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = hard
    if limit_bytes is not None:
        found = re.search(r"^VmData:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
        if found is None:
            raise RuntimeError(f"{process / 'status'} does not say how much memory there is in use")
        soft = int(found[1]) * 1024 + limit_bytes
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def minor_faults() -> int:
    """Pages that the system has given this process so far without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
