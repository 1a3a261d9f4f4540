"""``bench check``: what is wrong with a strategy or workload of one's own."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from bench.cli.options import JsonOption
from bench.cli.output import print_json, print_text, say


def check(
    reference: Annotated[
        str, typer.Argument(metavar="PATH", help="path/to/file.py, with :NAME for one thing of it.")
    ],
    model: Annotated[
        str, typer.Option(metavar="REF", help="What a strategy is tried on.")
    ] = "transformer:tiny",
    json: JsonOption = False,
) -> None:
    """Check a strategy or workload of your own in real processes, and say what is wrong with it."""
    say(f"{reference}: loading PyTorch and trying it in processes of its own ...")
    from bench.contract import check_file
    from bench.contract.finding import lines
    from bench.run.signals import signals_raise

    with signals_raise():
        findings = check_file(reference, model=model)
    if json:
        print_json(findings)
    else:
        width = min(shutil.get_terminal_size().columns, 100)
        print_text("\n".join(lines(findings, width)))
    if any(one.status == "bad" for one in findings):
        raise typer.Exit(1)
