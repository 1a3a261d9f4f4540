"""Segments of shared memory that loaders' workers leave where they are killed.

torch makes a segment, named after the process, and takes its name away at once; a worker that dies
between the two leaves memory in use that nobody has.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bench.measure.machine import SHARED_MEMORY

WORKERS = "workers"
"""Folder of a launch's folder, with an empty file for each worker, named by its process id."""


def note_worker(folder: Path) -> None:
    """In a worker: leave word of its process id.

    Args:
        folder: of the launch.
    """
    place = folder / WORKERS
    with contextlib.suppress(OSError):  # a full disk ends no worker: at worst its segment is left
        place.mkdir(exist_ok=True)
        (place / str(os.getpid())).touch()


def remove_segments(folder: Path, where: Path = SHARED_MEMORY) -> None:
    """Remove what a launch's workers have left. To be called when none of them is alive.

    Args:
        folder: of the launch.
        where: segments are, as files.
    """
    place = folder / WORKERS
    if not place.is_dir():
        return
    for worker in place.iterdir():
        for segment in where.glob(f"torch_{worker.name}_*"):
            with contextlib.suppress(OSError):  # another user's, of a process of the same number
                segment.unlink()
