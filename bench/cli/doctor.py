"""``bench doctor``: what on this machine spoils a measurement."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from bench.cli.options import JsonOption
from bench.cli.output import print_json, print_text


def doctor(
    *,
    json: JsonOption = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Start ranks that talk to each other, or not.")
    ] = True,
) -> None:
    """Say what on this machine will spoil a measurement or a launch, why, and the remedy."""
    from bench.doctor import diagnose
    from bench.doctor.show import table

    findings = diagnose(live=live)
    if json:
        print_json(findings)
    else:
        print_text(table(findings, shutil.get_terminal_size().columns))
    if any(one.status == "bad" for one in findings):
        raise typer.Exit(1)
