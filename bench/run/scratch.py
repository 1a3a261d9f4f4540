"""A private folder for what passes between the processes of a run.

Its owner holds a lock on it for as long as it lives, so that the next run can tell what a run that
was killed has left behind, and remove it. Its name holds the process that made it.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.process
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

NAME = re.compile(r"bench-(\d+)-[a-z0-9_]+")
"""Process id, then what ``tempfile`` adds."""
OWNER = ".owner"
SOCKET_BYTES = 107 - len("/listener-12345678")
"""Most that the path of a folder may take in which multiprocessing makes its sockets: unix(7)."""


SHORT = Path("/tmp")  # noqa: S108 - a folder of our own is made in it
"""Where sockets go if the folder of temporary files has too long a path."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, where all temporary files of this process go meanwhile; removed at the end."""
    before = tempfile.tempdir
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    sockets = config.get("tempdir")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_private(Path(tempfile.gettempdir())))
        is_short = len(os.fsencode(folder)) <= SOCKET_BYTES or not os.access(SHORT, os.W_OK)
        own = folder if is_short else stack.enter_context(_private(SHORT))
        # torch's launcher leaves files behind where processes failed, and multiprocessing a folder
        # of sockets where its parent was killed.
        tempfile.tempdir, config["tempdir"] = str(folder), str(own)
        try:
            yield folder
        finally:
            tempfile.tempdir, config["tempdir"] = before, sockets


@contextlib.contextmanager
def _private(parent: Path) -> Iterator[Path]:
    """A folder of our own; what killed runs have left beside it goes, too."""
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{os.getpid()}-", dir=parent))
    with _owned(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _owned(folder: Path) -> IO[bytes]:
    """Lock a folder; the file appears under its name when it is locked, and not before."""
    unnamed = folder / f"{OWNER}.new"
    file = unnamed.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(folder / OWNER)
    return file


def remove_abandoned(parent: Path) -> None:
    """Remove folders of ours whose owner is gone. Others', and those in use, are left alone."""
    for owner in parent.glob(f"bench-*/{OWNER}"):
        with contextlib.suppress(OSError):  # in use, or not ours to open
            if owner.stat().st_uid != os.getuid():
                continue
            with owner.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent)


def maker_of(name: str) -> int | None:
    """Process that made a folder of this name; None where it is not one of ours.

    >>> maker_of("bench-417-x_0abcde"), maker_of("bench-old")
    (417, None)
    """
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None
