"""The chart of memory against throughput, with its Pareto front. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.analyze.ranking import is_comparable, place, way
from bench.analyze.rows import Row
from bench.report import cells
from bench.report.drawing import Looks, missing_entries, new_figure, tell
from bench.report.lanes import by_devices
from bench.report.lettering import add_legend

FRONT, NOT_RANKED = "nothing ranked is better in both", "hollow: not ranked"
ALIKE = 0.02
"""Relative difference of memory up to which there is nothing to weigh."""


def peak_of(row: Row, memory: str) -> int | None:
    """Of the device that holds most, in bytes."""
    return max(cells.known(cells.memory_of(row, memory)), default=None)


def has_both(row: Row, memory: str) -> bool:
    """Whether a row has a place in the chart."""
    has_rate = row.samples_per_s is not None and not row.is_proved_wrong
    return has_rate and peak_of(row, memory) is not None


def front(rows: Sequence[Row], memory: str) -> list[Row]:
    """The rows that no other beats in memory without losing throughput, least memory first.

    Only what may be compared is among them; of equal rows the first is.
    """
    able = [row for row in rows if has_both(row, memory) and is_comparable(row)]
    able.sort(key=lambda row: (peak_of(row, memory) or 0, -_rate(row)))
    found: list[Row] = []
    for row in able:
        if not found or _rate(row) > _rate(found[-1]):
            found.append(row)
    return found


def _by_place(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that may be ranked with each other: of one way, hosts, and speed of links."""
    places: dict[object, list[Row]] = {}
    for row in rows:
        places.setdefault((*way(row.case), place(row.case)), []).append(row)
    return list(places.values())


def _rate(row: Row) -> float:
    return 0.0 if row.samples_per_s is None else row.samples_per_s.value * row.units_per_sample


def shown_rows(rows: Sequence[Row], memory: str) -> list[Row]:
    """Those on most devices on which memory differs, so that there is something to weigh."""
    for _, some in reversed(list(by_devices(rows))):
        able = [row for row in some if has_both(row, memory)]
        peaks = [peak_of(row, memory) or 0 for row in able]
        if peaks and max(peaks) > (1 + ALIKE) * min(peaks):
            return some
    return []


def tradeoff_figure(rows: Sequence[Row], memory: str) -> Any:
    """A point a row on as many devices; None where there is nothing to weigh."""
    shown = shown_rows(rows, memory)
    if not shown:
        return None
    looks = Looks(rows)
    figure, axes = new_figure(6.8, 4.4)
    best = []
    for some in _by_place(shown):
        edge = front(some, memory)
        best += edge
        if len(edge) > 1:
            axes.step(
                [(peak_of(row, memory) or 0) / cells.GIB for row in edge], list(map(_rate, edge)),
                "--", where="post", color="#777777", linewidth=1, label=FRONT, zorder=1,
            )  # fmt: skip
    points = [row for row in shown if has_both(row, memory)]
    for row in points:
        _point(axes, row, memory, looks, is_best=row in best)
    if not all(map(is_comparable, points)):
        axes.plot(
            [], [], "o", color="#555555", markerfacecolor="none", linestyle="none",
            label=NOT_RANKED,
        )  # fmt: skip
    missing_entries(axes, [row for row in shown if not has_both(row, memory)], looks)
    top = 1.15 * max(map(_rate, points))
    ends = [row.samples_per_s.high for row in points if row.samples_per_s is not None]
    reach = max((end * points[0].units_per_sample for end in ends if end is not None), default=0)
    axes.set_ylim(0, max(top, min(1.05 * reach, 1.5 * top)))
    axes.set_xlim(0, 1.12 * max((peak_of(row, memory) or 0) / cells.GIB for row in points))
    axes.set_xlabel(f"peak {memory} memory, GiB, on the device that holds most")
    size = shown[0].case.world_size
    axes.set_ylabel(f"{points[0].unit}s per second, x{size}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def _point(axes: Any, row: Row, memory: str, looks: Looks, *, is_best: bool) -> None:
    label, colour, marker = looks.of(row)
    x, y = (peak_of(row, memory) or 0) / cells.GIB, _rate(row)
    found = row.samples_per_s
    if found is not None and found.low is not None and found.high is not None:
        ends = [found.low * row.units_per_sample, found.high * row.units_per_sample]
        axes.plot([x, x], ends, color=colour, linewidth=0.9, alpha=0.5, zorder=2)
    (point,) = axes.plot(
        x, y, marker, color=colour, label=label, markersize=8 if is_best else 6, zorder=3,
        markeredgecolor="#000000" if is_best else colour,
        markeredgewidth=0.5 if is_comparable(row) and not is_best else 1.2,
        linestyle="none", markerfacecolor=colour if is_comparable(row) else "none",
    )  # fmt: skip
    tell(point, f"{label}: {cells.significant(x)} GiB, {cells.throughput(row)} {row.unit}s/s")
