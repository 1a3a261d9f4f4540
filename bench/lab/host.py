"""The first lines of an emulated host: be in its namespace, on its cores, and die with the lab.

Then it becomes the program itself, which has all of that from here.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import msgspec

from bench.lab.enter import enter
from bench.run.server import follow_parent


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a host must be before it is anything else."""

    parent: int
    """Process of the laboratory."""
    namespace: str
    cores: tuple[int, ...]
    arguments: tuple[str, ...]
    """Of the command line."""


def main(text: str) -> NoReturn:
    """Be that host."""
    start = msgspec.json.decode(text, type=Start)
    follow_parent(start.parent)
    enter(start.namespace)
    os.sched_setaffinity(0, start.cores)
    os.execv(sys.executable, [sys.executable, "-m", "bench", *start.arguments])  # noqa: S606 - us


if __name__ == "__main__":
    main(sys.argv[1])
