"""How tables are written: their columns, and what they look like where they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from tabulate import tabulate

from bench.analyze.rows import Row
from bench.errors import one_line
from bench.report import cells
from bench.report.notes import Footnotes, Which, notes_of


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


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is written where it will be read."""

    name: str
    """Of tabulate's: ``github`` for markdown, ``simple`` for a terminal."""
    mark: Callable[[str], str] = one_line
    """Sets the numbers of a row's footnotes."""
    strike: Callable[[str], str]
    """Marks a figure that failed its proof."""
    escape: Callable[[str], str] = one_line
    """Makes text harmless."""


TERMINAL = Style(name="simple", strike=lambda cell: f"({cell})")


def render(
    rows: Sequence[Row], columns: Sequence[Column], which: Which, notes: Footnotes, style: Style
) -> str:
    """A table's text.

    Args:
        rows: of the table.
        columns: to show of them; the first of text names the row, and bears its footnotes.
        which: of a workload's tables.
        notes: takes what must be said of the rows.
        style: of the text.
    """
    body = []
    name = [column.is_text for column in columns].index(True)
    marks = notes.number([notes_of(row, which) for row in rows])
    for row, numbers in zip(rows, marks, strict=True):
        texts = []
        for column in columns:
            text = style.escape(column.cell(row))
            if row.is_proved_wrong and column.is_figure and text != cells.DASH:
                text = style.strike(text)
            texts.append(text)
        texts[name] += f" {style.mark(numbers)}" if numbers else ""
        body.append(texts)
    headings = [style.escape(column.heading) for column in columns]
    alignment = ["left" if column.is_text else "right" for column in columns]
    return tabulate(
        body,
        headings,
        tablefmt=style.name,
        disable_numparse=True,
        colalign=alignment,
        maxcolwidths=[column.width for column in columns] if body else None,
    )
