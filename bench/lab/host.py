"""The first lines of an emulated host: be in its namespace, on its cores, and die with the lab.

Worker processes import the main module again when they start, so nothing heavy may be imported
here.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import os
import sys

import msgspec


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a host must be before it is anything else."""

    parent: int
    """Process of the laboratory."""
    namespace: str
    cores: tuple[int, ...]
    arguments: tuple[str, ...]
    """Of the command line."""


def main(text: str) -> int:
    """Be that host; returns its exit code."""
    from bench.lab.enter import enter
    from bench.run.server import follow_parent

    start = msgspec.json.decode(text, type=Start)
    follow_parent(start.parent)
    enter(start.namespace)
    os.sched_setaffinity(0, start.cores)
    from bench.__main__ import main as run

    sys.argv = ["bench", *start.arguments]
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
