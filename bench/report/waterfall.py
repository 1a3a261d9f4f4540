"""The chart of a ladder: what each rung adds to the one below, as a waterfall. Needs matplotlib."""

from __future__ import annotations

import textwrap
from typing import Any

from bench.analyze.rows import Row
from bench.report import cells
from bench.report.drawing import LONGEST_NAME, new_figure, tell, why_missing
from bench.report.lanes import CHARACTER, LABEL, LANE, LINE
from bench.report.settings import SettingsTable

FASTER, SLOWER, UNCLEAR, WHOLE = "#009e73", "#d55e00", "#bbbbbb", "#0072b2"
WORDS = 1.35
"""Times the largest figure: room for what is written beside a bar."""


def rate_of(row: Row) -> float | None:
    """Units a second, of what may be shown."""
    if row.samples_per_s is None or row.is_proved_wrong:
        return None
    return row.samples_per_s.value * row.units_per_sample


def waterfall_figure(table: SettingsTable) -> Any:
    """A lane a rung: from the figure of the rung below to its own. None without a figure."""
    rates = [rate_of(row) for row in table.rows]
    known = [rate for rate in rates if rate is not None]
    if len(known) < 2:
        return None
    names = [
        "\n".join(textwrap.wrap(table.names[row.case.id][:LONGEST_NAME], LABEL)) or "-"
        for row in table.rows
    ]
    heights = [LANE + 0.06 + LINE * name.count("\n") for name in names]
    longest = max(len(line) for name in names for line in name.splitlines())
    figure, axes = new_figure(6.0 + CHARACTER * longest, 1.3 + sum(heights))
    place, middles = 0.0, []
    for height in heights:
        middles.append(place + height / 2)
        place += height
    before: float | None = None
    last = 0.0
    for row, rate, middle, name in zip(table.rows, rates, middles, names, strict=True):
        if rate is None:
            axes.annotate(
                f"✕ {why_missing(row)}", (before or 0, middle), (4, 0), va="center",
                textcoords="offset points", fontsize=7, color="#a00000",
            )  # fmt: skip
            continue
        _rung(axes, row, (before, rate), middle, name.replace("\n", " "))
        if before is not None:
            axes.plot([before, before], [last, middle], color="#777777", linewidth=0.8, zorder=1)
        before, last = rate, middle
    axes.set_ylim(place, 0)
    axes.set_xlim(0, WORDS * max(known))
    axes.set_yticks(middles, names)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:,g}")
    unit = next(row.unit for row in table.rows if row.samples_per_s is not None)
    axes.set_xlabel(f"{unit}s per second, all devices; each bar is the change from the rung below")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(figure)
    return figure


def _rung(axes: Any, row: Row, ends: tuple[float | None, float], middle: float, name: str) -> None:
    before, rate = ends
    verdict = row.rung.verdict
    whole = before is None or row.rung.ratio is None
    colour = (
        WHOLE
        if whole
        else FASTER
        if verdict == "faster"
        else SLOWER
        if verdict == "slower"
        else UNCLEAR
    )
    start = 0.0 if before is None or whole else before
    (bar,) = axes.barh(middle, rate - start, LANE * 0.72, left=start, color=colour, zorder=2)
    text = cells.throughput(row) if whole else cells.short_change(row.rung)
    tell(bar, f"{name}: {cells.throughput(row)} {row.unit}s/s, {cells.change(row.rung)}")
    found, scale = row.samples_per_s, row.units_per_sample
    right = max(start, rate)
    if found is not None and found.low is not None and found.high is not None:
        axes.plot(
            [found.low * scale, found.high * scale],
            [middle] * 2,
            color="#333333",
            linewidth=1,
            zorder=3,
        )
        right = max(right, found.high * scale)
    axes.annotate(
        text, (right, middle), (5, 0), textcoords="offset points", va="center", fontsize=7,
        color="#333333",
    )  # fmt: skip


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - reports without charts need none

    named = {"the whole figure": WHOLE, "clearly faster": FASTER, "clearly slower": SLOWER}
    named["no clear difference"] = UNCLEAR
    handles = [Patch(color=colour, label=label) for label, colour in named.items()]
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
