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
    """Make report.md and its charts again from the records, without torch."""
    from bench.records.collectives import COLLECTIVES
    from bench.report.collectives import write_collectives
    from bench.report.page import write_report

    for folder in folders:
        is_of_comm = (folder / COLLECTIVES).is_file()
        print_text(str(write_collectives(folder) if is_of_comm else write_report(folder)))
