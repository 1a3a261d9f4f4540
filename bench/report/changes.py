"""The chart of a table of settings: each one's change against plain. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import Comparison, Row
from bench.analyze.verdicts import noise_floor
from bench.errors import one_line, plural
from bench.report import cells
from bench.report.drawing import COLOURS, LONGEST_NAME, OTHERS, new_figure, why_missing
from bench.report.settings import SettingsTable

MOST_ROWS = 60
"""That a chart of settings can have, its headings included."""
LABEL = 44
"""Characters of a line of a setting's name."""
LINE = 0.17
"""Inches of each further line of it."""
WORDS = 0.4
"""Of what is drawn, left free on either side for what is written there."""
ROOM = 1.25
"""Times the largest change that is shown; an interval that goes further is cut, and marked."""
LEAST = 0.02
"""Change up to which the axis reaches in any case."""
CLEAR, UNCLEAR = "clear difference", "no clear difference"


class _Line(msgspec.Struct, frozen=True):
    """A row of the chart, or the heading of a group of them."""

    text: str
    row: Row | None = None
    floor: float | None = None


def change_figure(table: SettingsTable, noise: Sequence[Row]) -> Any:
    """A point with its interval for each row, below each other; None where that shows nothing.

    Args:
        table: of settings.
        noise: rows among which the pairs of equal cases are.
    """
    lines = list(_lines(table, noise))
    compared = [row for row in table.rows if _ends(row.setting)]
    if not compared or len(lines) > MOST_ROWS:
        return None
    heights = [0.3 + LINE * line.text.count("\n") for line in lines]
    longest = max(len(part) for line in lines for part in line.text.splitlines())
    figure, axes = new_figure(6.2 + 0.065 * longest, 1.3 + sum(heights))
    low, high = _limits(compared)
    axes.axvline(0, color="#333333", linewidth=1, zorder=1)
    place, ticks = 0.0, []
    for line, height in zip(lines, heights, strict=True):
        ticks.append(place + height / 2)
        _draw(axes, line, ticks[-1], height, (low, high))
        place += height
    axes.set_ylim(place, 0)
    words = WORDS * max(high - low, LEAST)
    axes.set_xlim(low - words * (low < 0), high + words)
    axes.set_yticks(ticks, [line.text for line in lines])
    for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if line.row is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: _percent(value))
    axes.set_xlabel("change of samples per second against plain settings, 95 % intervals")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(figure, lines)
    return figure


def _percent(change: float) -> str:
    """Of a mark of the axis; nothing is slower by more than all."""
    if change < -1:
        return ""
    return f"{100 * change:+.3g} %" if change else "0"


def _lines(table: SettingsTable, noise: Sequence[Row]) -> Iterator[_Line]:
    groups = list(dict.fromkeys(map(_group, table.rows)))
    for strategy, size in groups:
        if len(groups) > 1:
            yield _Line(f"{strategy} on {plural(size, 'device')}")
        floor = noise_floor(noise, size)
        for row in table.rows:
            if _group(row) == (strategy, size):
                name = table.names[row.case.id].removeprefix(f"{strategy}: ")
                short = one_line(name, limit=LONGEST_NAME)
                yield _Line("\n".join(textwrap.wrap(short, LABEL)) or "-", row, floor)


def _group(row: Row) -> tuple[str, int]:
    return row.case.strategy, row.case.world_size


def _ends(comparison: Comparison) -> tuple[float, float, float] | None:
    """(low, change, high), all the same without an interval."""
    ratio = comparison.ratio
    if ratio is None:
        return None
    low = ratio.value if ratio.low is None else ratio.low
    high = ratio.value if ratio.high is None else ratio.high
    return low - 1, ratio.value - 1, high - 1


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Of what is drawn: all points, and their intervals as far as is not far beyond all points."""
    found = [ends for row in rows if (ends := _ends(row.setting)) is not None]
    values = [value for _, value, _ in found]
    low, high = min(0.0, *values), max(0.0, *values)
    reach = max(high - low, LEAST)
    least = min(ends[0] for ends in found)
    most = max(ends[2] for ends in found)
    return max(low - ROOM * reach, least), min(high + ROOM * reach, most)


def _draw(axes: Any, line: _Line, place: float, height: float, limits: tuple[float, float]) -> None:
    row = line.row
    if row is None:
        return
    if line.floor is not None:
        edges = 1 / (1 + line.floor) - 1, line.floor
        axes.fill_betweenx(
            [place - height / 2, place + height / 2], *edges, color="#dddddd", linewidth=0, zorder=0
        )
    ends = None if row.is_proved_wrong else _ends(row.setting)
    if ends is None:
        has_figure = row.samples_per_s is not None and not row.is_proved_wrong
        text = "not compared" if has_figure else why_missing(row)
        axes.annotate(
            f"✕ {text}", (0, place), (6, 0), textcoords="offset points", va="center",
            fontsize=7, color="#a00000",
        )  # fmt: skip
        return
    low, value, high = ends
    colour = _colour(row.case.strategy)
    is_clear = row.setting.verdict in {"faster", "slower"} or row.setting.is_baseline
    shown = max(low, limits[0]), min(high, limits[1])
    axes.plot(shown, (place, place), color=colour, linewidth=1.5, zorder=2, solid_capstyle="butt")
    for end, cut, mark in ((low, low < limits[0], "<"), (high, high > limits[1], ">")):
        axes.plot(
            max(limits[0], min(limits[1], end)), place, mark if cut else "|", color=colour,
            markersize=6, zorder=2, clip_on=False,
        )  # fmt: skip
    axes.plot(
        value, place, "D" if row.setting.is_baseline else "o", color=colour, markersize=6,
        markerfacecolor=colour if is_clear else "white", zorder=3,
    )  # fmt: skip
    if not row.setting.is_baseline:
        outward = -1 if value < 0 else 1
        axes.annotate(
            cells.clear_change(row.setting).partition(" (")[0], (shown[outward > 0], place),
            (7 * outward, 0), textcoords="offset points", va="center",
            ha="right" if outward < 0 else "left", fontsize=7, color="#333333",
        )  # fmt: skip


def _colour(strategy: str) -> str:
    return COLOURS.get(strategy, OTHERS[sum(map(ord, strategy)) % len(OTHERS)])


def _legend(figure: Any, lines: Sequence[_Line]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - reports without charts need none
    from matplotlib.patches import Patch  # noqa: PLC0415

    grey: dict[str, Any] = {"color": "#555555", "linestyle": "none", "markersize": 6}
    handles: list[Any] = [
        Line2D([], [], marker="D", label="plain settings", **grey),
        Line2D([], [], marker="o", label=CLEAR, **grey),
        Line2D([], [], marker="o", markerfacecolor="white", label=UNCLEAR, **grey),
    ]
    if any(line.floor is not None for line in lines):
        handles.append(Patch(color="#dddddd", label="noise floor"))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
