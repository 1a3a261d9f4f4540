"""``bench report``: the pages of results, made again from their records, or rows for programs."""
# ruff: noqa: PLC0415 - what needs numbers is imported once it is needed

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench.cli.output import deliver, print_text, say
from bench.errors import BenchError, RecordsError

Format = Literal["pages", "csv", "json", "pytest-benchmark"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results folders.")],
    *,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="pages are written into each folder; all else is printed, a row a case.",
        ),
    ] = "pages",
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="published", help="Set figures that others have published beside ours."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A file for what --format would print.")] = None,
) -> None:
    """Make report.md, report.html and the charts again from the records, without torch."""
    from bench.report.published import check_reference

    published = check_reference(reference)
    if form != "pages" and published:
        raise BenchError("--reference goes with pages: rows for programs are ours alone")
    if form != "pages":
        deliver(_rows(folders, form), out)
        return
    if out is not None:
        raise BenchError("--out goes with --format csv, json or pytest-benchmark; pages are written"
                         " into the folders of their results")  # fmt: skip
    unreadable: list[RecordsError] = []
    for folder in folders:
        try:
            print_text(str(_write(folder, published=published)))
        except RecordsError as error:  # the others are still made
            unreadable.append(error)
    for one in unreadable[:-1]:
        say(f"bench: {one}")
    if unreadable:
        raise unreadable[-1]


def _write(folder: Path, *, published: bool) -> Path:
    from bench.records.collectives import holds_collectives
    from bench.report.collectives import write_collectives
    from bench.report.page import write_report

    write = write_collectives if holds_collectives(folder) else write_report
    return write(folder, published=published)


def _rows(folders: list[Path], form: Format) -> Any:
    """What is printed in that form.

    Raises:
        BenchError: the folders do not go into it together.
    """
    from bench.records.collectives import holds_collectives
    from bench.report.collectives import load_collectives
    from bench.report.export import as_csv, flat
    from bench.report.page import load
    from bench.report.pytest_benchmark import document

    of_comm = [folder for folder in folders if holds_collectives(folder)]
    if form == "pytest-benchmark":
        if len(folders) > 1 or of_comm:
            raise BenchError("--format pytest-benchmark takes one run of a suite: a file each")
        info, _records, rows = load(folders[0])
        return document([("", info, rows)])
    if of_comm and len(of_comm) < len(folders):
        raise BenchError(f"{of_comm[0]}: holds collectives, which have other columns than cases")
    if of_comm:
        values: list[Any] = [row for folder in folders for row in load_collectives(folder)[1]]
    else:
        values = [flat(str(folder), row) for folder in folders for row in load(folder)[2]]
    return as_csv(values) if form == "csv" else values
