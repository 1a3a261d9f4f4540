"""Files that a source writes itself, once for all ranks of a host."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def written_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """A folder that the first process to come fills, while the others wait.

    What a process that was killed has left unfinished is written anew.

    Args:
        folder: appears under its name once it is complete.
        write: fills an empty folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write(unfinished)
            unfinished.rename(folder)
    return folder
