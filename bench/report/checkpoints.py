"""The table of what saving and restoring takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.analyze.rows import Row
from bench.report import cells
from bench.report.document import Part, Prose
from bench.report.style import Column, grid
from bench.report.tables import Table, named

MIB = 2**20
FORMS = {"whole": "one file, by rank 0", "sharded": "a file a rank"}
ABOUT = """\
Checkpoints: the training state (parameters, buffers, the optimizer's state) saved until the disk
has it, and restored from there; medians of the saves and restores of one launch, on its slowest
rank, with the least and the most. *Round trip* is `exact` where all that was restored was what had
been saved, bit for bit, and in fp64 trained on with the losses of the uninterrupted training: on
the same ranks, on one device without a wrapper, and back from there under the strategy."""
CACHED = "The files could not be dropped from memory first, so that restores may be quicker."


def section(table: Table) -> list[Part]:
    """The table, with what must be said of it; nothing where no checkpoint was asked for."""
    rows = [row for row in table.rows if row.checkpoint is not None or row.checkpoint_note]
    if not rows:
        return []
    known = [row.checkpoint for row in rows if row.checkpoint is not None]
    is_cached = any(one.restore_s and not one.is_cold for one in known)
    about = f"{ABOUT} {CACHED}" if is_cached else ABOUT
    caption = f"{table.title}: checkpoints"
    return [Prose(about), grid(rows, columns(rows), "checkpoints", caption)]


def columns(rows: Sequence[Row]) -> list[Column]:
    """What the table shows of the rows."""
    return [
        *named(rows),
        Column("written as", _form, is_figure=False, is_text=True),
        Column("MiB", _total, is_figure=False),
        Column("MiB, largest file", _largest, is_figure=False),
        Column("save, s", lambda row: _seconds(_of(row, "save_s")), is_figure=False),
        Column("restore, s", lambda row: _seconds(_of(row, "restore_s")), is_figure=False),
        Column("round trip", _verdict, is_figure=False, is_text=True),
    ]


def _of(row: Row, name: str) -> list[float]:
    found: list[float] = [] if row.checkpoint is None else getattr(row.checkpoint, name)
    return found


def _form(row: Row) -> str:
    form = None if row.checkpoint is None else row.checkpoint.form
    return cells.DASH if form is None else FORMS[form]


def _total(row: Row) -> str:
    found = row.checkpoint
    return cells.significant(found.bytes / MIB) if found and found.bytes else cells.DASH


def _largest(row: Row) -> str:
    found = row.checkpoint
    if found is None or not found.bytes:
        return cells.DASH
    return cells.significant(max(found.bytes_by_rank) / MIB)


def _seconds(values: Sequence[float]) -> str:
    """The median, with the least and the most.

    >>> _seconds([0.5, 0.25, 1.0])
    '0.5 (0.25-1)'
    """
    if not values:
        return cells.DASH
    median, least, most = (
        f"{value:.3g}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least}-{most})"


def _verdict(row: Row) -> str:
    if row.checkpoint is None:
        return (row.checkpoint_note or "").partition(":")[0]
    return row.checkpoint.verdict.replace("_", " ")
