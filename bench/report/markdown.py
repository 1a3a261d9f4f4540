"""A page as GitHub renders it."""

from __future__ import annotations

from collections.abc import Iterable

from tabulate import tabulate

from bench.report.document import (
    Cell,
    Document,
    Fold,
    Grid,
    Heading,
    Items,
    Part,
    Prose,
    Text,
)
from bench.report.drawing import Chart
from bench.report.markup import escape, picture


def markdown_of(document: Document, charts: str) -> str:
    """The page's text.

    Args:
        document: to write.
        charts: folder of its pictures, seen from the page.
    """
    return f"# {escape(document.title)}\n\n{parts_of(document.parts, charts)}\n"


def parts_of(parts: Iterable[Part], charts: str) -> str:
    """A part of a page."""
    texts = [_part(part, charts) for part in parts]
    return "\n\n".join(text for text in texts if text)


def _part(part: Part, charts: str) -> str:
    match part:
        case Heading(level=level, text=text):
            return f"{'#' * level} {escape(text)}"
        case Text():
            return _text(part)
        case Items(texts=texts):
            return "\n".join(f"- {escape(text)}" for text in texts)
        case Prose(text=text):
            return text
        case Fold(summary=summary, parts=inner):
            return (
                f"<details><summary>{escape(summary)}</summary>\n\n{parts_of(inner, charts)}\n\n"
                "</details>"
            )
        case Grid():
            return _grid(part)
        case Chart(problem=str(problem)):
            return f"*{escape(part.title)}*: {escape(problem)}"
        case Chart():
            return picture(part.title, f"{charts}/{part.svg.name}")


def _grid(grid: Grid) -> str:
    table = tabulate(
        [[_cell(cell) for cell in row] for row in grid.body],
        [escape(heading) for heading in grid.headings],
        tablefmt="github",
        disable_numparse=True,
        colalign=["left" if is_text else "right" for is_text in grid.is_text],
    )
    common = "\n".join(f"- All rows: {escape(text)}" for text in grid.common)
    notes = "\n".join(f"{n}. {escape(text)}" for n, text in enumerate(grid.notes, 1))
    below = [_text(one) for one in grid.below]
    return "\n\n".join(part for part in (table, *below, common, notes) if part)


def _text(text: Text) -> str:
    return f"**{escape(text.text)}**" if text.is_strong and text.text else escape(text.text)


def _cell(cell: Cell) -> str:
    text = f"~~{escape(cell.text)}~~" if cell.is_struck else escape(cell.text)
    numbers = ", ".join(map(str, cell.marks))
    return f"{text} <sup>[{numbers}]</sup>" if numbers else text
