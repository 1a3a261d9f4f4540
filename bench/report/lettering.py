"""Texts of charts that must fit: legends, and titles. Never imports torch; needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

FONT_SIZE = 8.0
"""Points, of a legend."""
LONGEST_LINE = 52
"""Characters."""
ROW = 0.19
"""Inches, of a line of a legend."""
HANDLE, BETWEEN, AROUND = 2.8, 2.0, 1.8
"""Parts of a legend's row, in times the size of its font, as matplotlib has them: a line or marker
with what parts it from its text; what is between two columns; what is around all of them."""
POINTS = 72
"""Of an inch."""


def width_of(figure: Any, text: str, size: float) -> float:
    """Inches that the longest line of a text takes in a figure.

    Args:
        figure: it belongs to.
        text: any.
        size: points, of the font.
    """
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 - see ``charts_in``

    font = FontProperties(size=size)
    measure = figure.canvas.get_renderer().get_text_width_height_descent
    widths = [measure(line, font, ismath=False)[0] for line in text.splitlines()]
    return float(max(widths, default=0.0) / figure.dpi)


def wrapped(figure: Any, text: str, size: float, width: float) -> str:
    """A text in as many lines as it takes to be no wider.

    Args:
        figure: it belongs to.
        text: any; a word that alone is wider is cut in two.
        size: points, of the font.
        width: inches.
    """
    shown, longest = text, len(text)
    while longest > 1 and (found := width_of(figure, shown, size)) > width:
        longest = max(1, min(longest - 1, int(longest * width / found)))
        shown = "\n".join(textwrap.wrap(text, longest))
    return shown


def add_legend(figure: Any, axes: Any, *, key: Callable[[str], int] | None = None) -> None:
    """Below the axes, where it hides nothing; the figure grows by what it needs.

    Args:
        figure: of the axes.
        axes: whose labels are shown, each once.
        key: what labels are sorted by; as they were drawn without it.
    """
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))  # bars of one label count once
    if not entries:
        return
    if key is not None:
        entries = {label: entries[label] for label in sorted(entries, key=key)}
    width, height = figure.get_size_inches()
    shown = ["\n".join(textwrap.wrap(label, LONGEST_LINE)) or "-" for label in entries]
    columns = _columns([width_of(figure, label, FONT_SIZE) for label in shown], width)
    heights = [ROW * (1 + 0.8 * label.count("\n")) for label in shown]
    figure.set_size_inches(width, height + max(map(sum, _dealt(heights, columns))))
    figure.legend(
        [*entries.values()], shown, loc="outside lower center", ncols=columns, frameon=False,
        fontsize=FONT_SIZE,
    )  # fmt: skip


def _columns(widths: Sequence[float], width: float) -> int:
    """As many as fit beside each other: each is as wide as its widest entry.

    >>> _columns([1.0, 1.0, 1.0, 1.0], 10.0), _columns([1.0, 1.0, 1.0, 1.0], 3.5), _columns([9], 3)
    (4, 2, 1)
    """
    em = FONT_SIZE / POINTS
    for columns in range(len(widths), 1, -1):
        taken = sum(max(column) + HANDLE * em for column in _dealt(widths, columns))
        if taken + (BETWEEN * (columns - 1) + AROUND) * em <= width:
            return columns
    return 1


def _dealt(sizes: Sequence[float], columns: int) -> Iterator[Sequence[float]]:
    """As matplotlib deals entries of a legend to columns: the first ones have one more.

    >>> [*_dealt([1.0, 2.0, 3.0, 4.0, 5.0], 3)]
    [[1.0, 2.0], [3.0, 4.0], [5.0]]
    """
    each, with_one_more = divmod(len(sizes), columns)
    begin = 0
    for number in range(columns):
        end = begin + each + (number < with_one_more)
        yield sizes[begin:end]
        begin = end
