"""The folder for what passes between the processes of a run, and who made it.

A run that is killed leaves its folder behind; so its name holds the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"bench-(\d+)-[a-z0-9_]+")
"""Process id, then what ``tempfile`` adds."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A private folder, which is also where temporary files go, for as long as the block runs."""
    before = tempfile.tempdir
    prefix = f"bench-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder  # torch's launcher leaves files behind where processes failed
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def maker_of(name: str) -> int | None:
    """Process that made a folder of this name; None where it is not one of ours.

    >>> maker_of("bench-417-x_0abcde"), maker_of("bench-old")
    (417, None)
    """
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None
