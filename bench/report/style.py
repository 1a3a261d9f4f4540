"""How rows become tables: their columns, the cells, and the look of a terminal's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from tabulate import tabulate

from bench.analyze.rows import Row
from bench.errors import one_line
from bench.report import cells
from bench.report.document import Cell, Grid, Text
from bench.report.notes import Footnotes, Which, baseline_notes, notes_of


class Column(msgspec.Struct, frozen=True):
    """A heading, and how a row's cell is written."""

    heading: str
    cell: Callable[[Row], str]
    is_figure: bool = True
    """Struck out when the row failed its proof."""
    is_text: bool = False
    """Set to the left."""
    width: int | None = None
    """Characters of a line, where a terminal limits them."""
    hover: Callable[[Row], str] | None = None
    """What more is said where one can point at a cell."""


def grid(
    rows: Sequence[Row],
    columns: Sequence[Column],
    which: Which,
    caption: str = "",
    below: Sequence[Text] = (),
) -> Grid:
    """A table of rows with its notes.

    Args:
        rows: of the table.
        columns: to show of them; the first of text names the row, and bears its footnotes.
        which: of a workload's tables.
        caption: what it shows.
        below: stands between it and its notes.
    """
    notes = Footnotes()
    name = [column.is_text for column in columns].index(True)
    further = baseline_notes(rows) if which in {"scaling", "terminal"} else [[] for _ in rows]
    own_notes = [notes_of(row, which) for row in rows]
    marks = notes.number([[*own, *more] for own, more in zip(own_notes, further, strict=True)])
    body = []
    for row, numbers in zip(rows, marks, strict=True):
        own = [_cell(row, column) for column in columns]
        own[name] = msgspec.structs.replace(own[name], marks=numbers)
        body.append(own)
    return Grid(
        caption=caption,
        headings=[column.heading for column in columns],
        is_text=[column.is_text for column in columns],
        body=body,
        below=[*below],
        common=notes.common,
        notes=notes.texts,
        widths=[column.width for column in columns],
    )


def _cell(row: Row, column: Column) -> Cell:
    text = column.cell(row)
    return Cell(
        text=text,
        hover=column.hover(row) if column.hover is not None else "",
        is_struck=row.is_proved_wrong and column.is_figure and text != cells.DASH,
    )


def for_terminal(table: Grid) -> str:
    """The table alone, as a terminal shows it."""
    return tabulate(
        [[_plain(cell) for cell in row] for row in table.body],
        [one_line(heading) for heading in table.headings],
        tablefmt="simple",
        disable_numparse=True,
        colalign=["left" if is_text else "right" for is_text in table.is_text],
        maxcolwidths=table.widths if table.body else None,
    )


def _plain(cell: Cell) -> str:
    text = one_line(cell.text)
    text = f"({text})" if cell.is_struck else text
    return f"{text} [{', '.join(map(str, cell.marks))}]" if cell.marks else text
