"""Arguments and options that several commands have."""

from __future__ import annotations

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
