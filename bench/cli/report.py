"""``bench report``: the pages of results, made again from their records."""
# ruff: noqa: PLC0415 - what needs torch is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.output import print_text


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders.")],
) -> None:
    """Make report.md, report.html and the charts again from the records, without torch."""
    from bench.records.collectives import holds_collectives
    from bench.report.collectives import write_collectives
    from bench.report.page import write_report

    for folder in folders:
        write = write_collectives if holds_collectives(folder) else write_report
        print_text(str(write(folder)))
