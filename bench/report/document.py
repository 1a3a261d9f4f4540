"""A page as values: what stands on it, in order, before it becomes markdown or HTML.

All text in it is plain: whoever writes it escapes it. ``Prose`` alone is ours, with marks in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from bench.report.drawing import Chart


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a table."""

    text: str
    hover: str = ""
    """What is said of it where one can point at it."""
    is_struck: bool = False
    """Whether it is a figure that failed its proof."""
    marks: tuple[int, ...] = ()
    """Numbers of the notes that it bears."""


class Text(msgspec.Struct, frozen=True):
    """A paragraph."""

    text: str
    is_strong: bool = False


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its notes."""

    caption: str
    """What it shows, for those who do not see where it stands."""
    headings: list[str]
    is_text: list[bool]
    """Of each column: set to the left, and sorted as words."""
    body: list[list[Cell]]
    below: list[Text] = []
    """What stands between it and its notes."""
    common: list[str] = []
    """What must be said of all rows."""
    notes: list[str] = []
    """What the marks refer to, from 1."""
    widths: list[int | None] = []
    """Characters of each column's lines, where a terminal limits them."""


def grid_of(
    caption: str, headings: Sequence[str], body: Iterable[Sequence[object]], *, words: int
) -> Grid:
    """A table without notes, from plain values.

    Args:
        caption: what it shows.
        headings: of its columns.
        body: of its rows.
        words: how many of the first columns are words; the others are numbers.
    """
    return Grid(
        caption=caption,
        headings=[*headings],
        is_text=[place < words for place in range(len(headings))],
        body=[[Cell(text=str(value)) for value in line] for line in body],
    )


class Heading(msgspec.Struct, frozen=True):
    """A heading within the page."""

    level: Literal[2, 3]
    text: str


class Items(msgspec.Struct, frozen=True):
    """A list."""

    texts: list[str]


class Prose(msgspec.Struct, frozen=True):
    """Paragraphs of our own, with ``*emphasis*`` and code in back quotes."""

    text: str


class Fold(msgspec.Struct, frozen=True):
    """What is shown when one asks for it."""

    summary: str
    parts: list[Grid | Text | Items]


Part = Heading | Text | Items | Prose | Grid | Fold | Chart


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole page."""

    title: str
    parts: Sequence[Part]
