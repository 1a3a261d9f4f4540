"""``bench recommend``: what to use, why, and the program for it."""
# ruff: noqa: PLC0415 - what needs numbers is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.options import JsonOption
from bench.cli.output import deliver
from bench.errors import BenchError


def recommend(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.")],
    *,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of each device; no limit by default.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Number of them.", show_default="the most that was measured"),
    ] = None,
    json: JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="A file to write to, not stdout.")] = None,
) -> None:
    """Choose among what was measured and proved, with the reason, the runner-up and the code."""
    from bench.analyze.recommend import GIB, no_answer
    from bench.analyze.recommend import recommend as answers_of
    from bench.report.page import load
    from bench.report.recommendation import as_data, markdown

    if memory_gib is not None and not 0 < memory_gib < 2**40:
        raise BenchError(f"--memory-gib: {memory_gib:g} is no size of a memory")
    info, _records, rows = load(folder)
    limit = None if memory_gib is None else memory_gib * GIB
    answers = answers_of(rows, devices=devices, memory_bytes=limit)
    if not answers:
        raise BenchError(f"{folder}: no case was planned or measured in it")
    if not any(answer.best or answer.ruled_out for answer in answers):
        raise BenchError(f"{folder}: {no_answer(answers[0])}: run the suite on so many devices")
    found = as_data if json else markdown
    deliver(found(info, answers, memory_gib), out)
    if not any(answer.best for answer in answers):
        raise typer.Exit(1)
