"""Arguments and options that several commands have."""
# ruff: noqa: PLC0415 - what reads suites is imported once it is needed

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import BenchError

if TYPE_CHECKING:
    from bench.plan.suite import Suite

SuiteArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE",
        help="A suite file, or the name of a shipped suite; quick where --workload is given.",
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="REF",
        help="In place of the suite's: a name, or path/to/file.py:NAME; may be repeated.",
    ),
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPR", help="Only cases such as 'strategy == ddp'."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]

DEFAULT_SUITE = "quick"


def suite_of(reference: str | None, workloads: Sequence[str] | None) -> Suite:
    """The suite that a command is to work on, of the workloads that are given, if any are.

    Raises:
        BenchError: there is none, or it cannot be read.
    """
    from bench.plan.substitute import with_workloads
    from bench.plan.suite import load_suite

    if reference is None and not workloads:
        raise BenchError("name a suite, or a model of yours with --workload path/to/file.py:NAME")
    suite = load_suite(reference or DEFAULT_SUITE)
    return with_workloads(suite, workloads, Path.cwd()) if workloads else suite


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
