"""Arguments and options that several commands have."""

from __future__ import annotations

import math
import re
from typing import Annotated

import typer

from bench.errors import BenchError

SuiteArgument = Annotated[
    str, typer.Argument(metavar="SUITE", help="A suite file, or the name of a shipped suite.")
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPR", help="Only cases such as 'strategy == ddp'."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers of a list."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BenchError(f"{option}: {text!r} is no list of numbers; write 0,1")
    return tuple(int(word) for word in words)


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)?")


def size_in_bytes(option: str, text: str) -> int:
    """A size of memory.

    >>> size_in_bytes("--device-memory", "1.5GiB")
    1610612736
    """
    match = SIZE.fullmatch(text.strip())
    unit = match[2] or "B" if match is not None else ""
    if match is None or unit not in UNITS:
        raise BenchError(f"{option}: {text!r} is no size; write 24GiB, 512MiB, or bytes")
    return math.floor(float(match[1]) * UNITS[unit])
