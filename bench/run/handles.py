"""File handles of this process: torch's launcher, short of them, may end the whole process."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

BASE, PER_RANK = 32, 8
"""For one launch, beyond those in use: about twice what launches of 1, 2 and 4 ranks came to with
torch 2.14."""


def require_handles(ranks: int) -> None:
    """Refuse a launch that would run out of them. Linux only: nothing is checked elsewhere.

    The event loop of torch's store ends the process where it gets none, and no row would tell.

    Args:
        ranks: that this process is to start.

    Raises:
        OSError: "Too many open files", with how many are open, allowed and needed.
    """
    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415 - Unix only

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    needed = BASE + PER_RANK * ranks
    used = _used()
    if used + needed > soft:
        raise OSError(
            errno.EMFILE,
            f"{os.strerror(errno.EMFILE)}: {used} of {soft} in use, {needed} more needed to start "
            f"{ranks} ranks; raise it with 'ulimit -n'",
        )


def _used() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
