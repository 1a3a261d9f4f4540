"""Throughput against the speed of the links between hosts, one line a strategy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.plan.case import bytes_per_s
from bench.report.drawing import MARKERS, Looks, new_figure
from bench.report.lettering import add_legend

DASHES = ("-", "--", "-.", ":")
"""Of variants of one strategy, which have its colour."""
SPREAD, LEAST_LINES = 0.3, 5
"""Of the space between two speeds, over which lines stand beside each other; parts of it that there
are at least."""
UNLIMITED = 4.0
"""Times the fastest limit, where the figure without any stands: at no rate of its own."""


def link_figure(rows: Sequence[Row]) -> Any:
    """A line for each way of training on several hosts; one device alone as a level.

    Args:
        rows: measured, some of them on several hosts, with links of more than one speed.
    """
    plain = [_without_link(row) for row in rows]
    looks = Looks(plain)
    across = [(row, same) for row, same in zip(rows, plain, strict=True) if row.case.nodes > 1]
    places = {(row.case.world_size, row.case.nodes) for row, _ in across}
    lines: dict[str, list[tuple[Row, Row]]] = {}
    for row, same in across:
        place = f"{row.case.world_size} devices on {row.case.nodes} hosts"
        name = looks.label(same) + (f", {place}" if len(places) > 1 else "")
        lines.setdefault(name, []).append((row, same))
    rates = sorted({bytes_per_s(row.case.link) * 8 for row in rows if row.case.link is not None})
    beyond = rates[-1] * UNLIMITED
    figure, axes = new_figure(6.4, 4.0)
    shifts = _shifts([*rates, beyond], len(lines))
    for shift, (name, points) in zip(shifts, lines.items(), strict=True):
        _, colour, marker = looks.of(points[0][1])
        dashes = DASHES[MARKERS.index(marker) % len(DASHES)]
        look = {"label": name, "color": colour, "marker": marker, "linestyle": dashes}
        _draw_line(axes, [row for row, _ in points], beyond, shift, look)
    for row in rows:
        if row.case.strategy == "single" and row.samples_per_s is not None:
            level = row.samples_per_s.value * row.units_per_sample
            axes.axhline(level, linestyle="--", linewidth=1, color="#999999", label="single")
    axes.set_xscale("log")
    ticks = {rate: _words(rate) for rate in rates}
    if any(row.case.nodes > 1 and row.case.link is None for row in rows):
        ticks[beyond] = "no limit"
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    devices, hosts = max(places)
    where = f", {devices} devices on {hosts} hosts" if len(places) == 1 else ""
    axes.set_xlabel(f"speed of each host's link{where}")
    axes.set_ylabel(f"{rows[0].unit}s/s")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def _without_link(row: Row) -> Row:
    """A row as if it had no link, so that one strategy has one name and one colour."""
    return msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, link=None))


def _shifts(rates: Sequence[float], lines: int) -> list[float]:
    """Factors by which each line stands beside the others, so that their intervals can be told.

    >>> [round(shift, 2) for shift in _shifts([1e9, 1e10], 3)]
    [0.87, 1.0, 1.15]
    """
    least = min(math.log10(high / low) for low, high in itertools.pairwise(rates))
    step = SPREAD * least / max(lines, LEAST_LINES)
    return [10 ** ((line - (lines - 1) / 2) * step) for line in range(lines)]


def _draw_line(
    axes: Any, rows: Sequence[Row], beyond: float, shift: float, look: Mapping[str, str]
) -> None:
    points = sorted(
        (
            shift * (beyond if row.case.link is None else bytes_per_s(row.case.link) * 8),
            row.samples_per_s,
        )
        for row in rows
        if row.samples_per_s is not None
    )
    scale = rows[0].units_per_sample
    values = [rate.value * scale for _, rate in points]
    below = [(r.value - r.low) * scale if r.low is not None else 0.0 for _, r in points]
    above = [(r.high - r.value) * scale if r.high is not None else 0.0 for _, r in points]
    axes.errorbar(
        [at for at, _ in points],
        values,
        yerr=[below, above],
        markersize=5,
        capsize=3,
        linewidth=1.5,
        **look,
    )


def _words(bits_per_s: float) -> str:
    """Such as: 300 Mbit/s."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:g} {unit}"
    return f"{bits_per_s / 1e3:g} kbit/s"
