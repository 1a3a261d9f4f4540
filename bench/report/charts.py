"""Charts of a table's rows, as SVG and PNG. Never imports torch; needs matplotlib.

A strategy has one colour in every chart. Variants of a strategy share it and differ by marker or
hatch. What was not measured is a marked gap, never a bar of height 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.analyze.rows import Row
from bench.report.anatomy import has_parts, peak_figure, timeline_figure
from bench.report.cells import GIB, known, memory_of
from bench.report.changes import change_figure
from bench.report.drawing import (
    CHARACTERS_PER_INCH,
    WIDEST_FIGURE,
    Chart,
    Looks,
    add_legend,
    attempt,
    charts_in,
    mark_cut,
    new_figure,
    why_missing,
)
from bench.report.notes import variants
from bench.report.tables import Table

PHASES = {"data": "#bbbbbb", "forward": "#88ccee", "backward": "#4477aa", "optimizer": "#ccbb44"}
CHANGE = "change"
CHARTS = ("speedup", "throughput", "memory", "peak", "timeline", "step", CHANGE)
MOST_VARIANTS, MOST_ROWS = 13, 104
"""Of a table whose charts can still be read: twelve strategies and the baseline, on one to 128
devices."""
GROUP_WIDTH = 0.8
"""Of the space of one group of bars."""
WIDEST = 0.25
"""Of a bar, on the same scale."""


def write_charts(tables: Sequence[Table], folder: Path) -> list[list[Chart]]:
    """Draw the charts of each table; returns them table by table.

    Args:
        tables: of a report.
        folder: is made where it does not exist; our charts that are no longer drawn go.

    Raises:
        NoChartsError: matplotlib cannot be imported.
        OSError: the folder cannot be written.
    """
    written: list[list[Chart]] = []
    with charts_in(folder, [f"*-{name}" for name in CHARTS]) as drawn:
        for table in tables:
            charts: list[Chart] = []
            for stem, what, figure in _figures(table):
                title = f"{what}: {table.title}, {table.rows[0].case.scaling} scaling"
                chart = attempt(figure, folder / stem, title)
                charts += [chart] if chart is not None else []
            written.append(charts)
            drawn.extend(charts)
    return written


Draw = Callable[[], Any]


def _figures(table: Table) -> Iterator[tuple[str, str, Draw]]:
    """(name of the file without its ending, what is shown, what draws it)."""
    rows = table.rows
    measured = [row for row in rows if row.samples_per_s is not None and not row.is_proved_wrong]
    if not measured:
        return
    if are_readable(rows):
        for name, what, figure in _scaling_figures(table, measured):
            yield f"{table.stem}-{name}", what, figure
    for settings in table.settings:
        yield f"{settings.stem}-{CHANGE}", settings.title, partial(change_figure, settings, rows)


def _scaling_figures(table: Table, measured: Sequence[Row]) -> Iterator[tuple[str, str, Draw]]:
    rows = table.rows
    if len({row.case.world_size for row in measured if row.speedup.ratio is not None}) > 1:
        yield "speedup", "Speedup over one device", partial(_speedup, rows)
    yield "throughput", "Throughput", partial(_throughput, rows)
    if any(known(memory_of(row, table.memory)) for row in measured):
        yield "memory", "Memory of each device", partial(_memory, rows, table.memory)
    if any(map(has_parts, measured)):
        yield "peak", "What fills the memory", partial(peak_figure, measured)
        yield "timeline", "Memory over a step", partial(timeline_figure, measured)
    if any(row.phases is not None for row in measured):
        yield "step", "What a step is spent on", partial(_step, measured)


def are_readable(rows: Sequence[Row]) -> bool:
    """Whether charts of so many rows could be read."""
    name = variants(rows)
    return len(rows) <= MOST_ROWS and len({name(row.case) for row in rows}) <= MOST_VARIANTS


def _speedup(rows: Sequence[Row]) -> Any:
    figure, axes = new_figure(6.4, 4.0)
    looks = Looks(rows)
    sizes = sorted({row.case.world_size for row in rows})
    axes.plot(sizes, sizes, "--", color="#999999", linewidth=1, label="ideal", zorder=1)
    drawn: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        if row.speedup.ratio is not None:
            drawn.setdefault(looks.of(row)[0], []).append((row.case.world_size, row))
    tops: list[tuple[float, float]] = []
    for number, points in enumerate(drawn.values()):
        points.sort(key=lambda point: point[0])
        shift = (number - (len(drawn) - 1) / 2) * 0.008 * (sizes[-1] - sizes[0])
        label, colour, marker, _ = looks.of(points[0][1])
        ratios = [row.speedup.ratio for _, row in points]
        values = [ratio.value for ratio in ratios if ratio is not None]
        below = [r.value - r.low if r and r.low is not None else 0.0 for r in ratios]
        above = [r.high - r.value if r and r.high is not None else 0.0 for r in ratios]
        tops += [(size + shift, r.high) for (size, _), r in zip(points, ratios, strict=True)
                 if r and r.high is not None]  # fmt: skip
        axes.errorbar(
            [size + shift for size, _ in points], values, yerr=[below, above], label=label,
            color=colour, marker=marker, markersize=5, capsize=3, linewidth=1.5,
        )  # fmt: skip
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("devices")
    axes.set_ylabel("speedup over one device without a wrapper")
    shown = [row.speedup.ratio.value for row in rows if row.speedup.ratio is not None]
    top = 1.2 * max([*shown, min(sizes[-1], 2 * max(shown))])
    axes.set_ylim(0, top)
    mark_cut(axes, [(size, high) for size, high in tops if high > top])
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def _bars(
    rows: Sequence[Row], draw: Callable[[Any, Row, float, float, tuple[str, str, str, str]], bool]
) -> tuple[Any, Any]:
    """Groups of bars by number of devices, one place in each for every variant.

    Args:
        rows: of one table.
        draw: (axes, row, left edge, width, looks) -> whether there was anything to draw.
    """
    looks = Looks(rows)
    sizes = sorted({row.case.world_size for row in rows})
    places = len(looks.labels)
    figure, axes = new_figure(min(max(6.4, 1.5 + 0.45 * places * len(sizes)), WIDEST_FIGURE), 3.8)
    width = min(GROUP_WIDTH / places, WIDEST)
    gaps: list[tuple[float, str]] = []
    for row in rows:
        look = looks.of(row)
        group = sizes.index(row.case.world_size) - width * places / 2
        left = group + looks.labels.index(look[0]) * width
        if row.is_proved_wrong or not draw(axes, row, left, width * 0.92, look):
            gaps.append((left + width * 0.46, why_missing(row)))
    for middle, text in gaps:
        axes.annotate(
            f"✕ {text}", (middle, 0), (0, 3), textcoords="offset points", rotation=90,
            ha="center", va="bottom", fontsize=7, color="#a00000",
        )  # fmt: skip
    axes.set_xlim(-0.5, len(sizes) - 0.5)  # or what lies beyond the bars is not drawn
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlabel("devices")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    add_legend(figure, axes)
    return figure, axes


def _throughput(rows: Sequence[Row]) -> Any:
    tops: list[tuple[float, float]] = []

    def draw(
        axes: Any, row: Row, left: float, width: float, look: tuple[str, str, str, str]
    ) -> bool:
        if row.samples_per_s is None:
            return False
        label, colour, _, hatch = look
        scale = row.units_per_sample
        low, high = row.samples_per_s.low, row.samples_per_s.high
        value = row.samples_per_s.value
        ends = None
        if low is not None and high is not None:
            ends = [[(value - low) * scale], [(high - value) * scale]]
            tops.append((left + width / 2, high * scale))
        axes.bar(
            left, value * scale, width, align="edge", color=colour, hatch=hatch,
            edgecolor="white", label=label, yerr=ends, capsize=3, error_kw={"linewidth": 1},
        )  # fmt: skip
        return True

    figure, axes = _bars(rows, draw)
    rates = [
        row.samples_per_s.value * row.units_per_sample
        for row in rows
        if row.samples_per_s is not None and not row.is_proved_wrong
    ]
    top = 1.25 * max(rates)
    axes.set_ylim(0, top)
    mark_cut(axes, [point for point in tops if point[1] > top])
    axes.yaxis.set_major_formatter("{x:,g}")
    unit = next((row.unit for row in rows if row.samples_per_s is not None), "sample")
    axes.set_ylabel(f"{unit}s per second, all devices together")
    return figure


def _memory(rows: Sequence[Row], name: str) -> Any:
    def draw(
        axes: Any, row: Row, left: float, width: float, look: tuple[str, str, str, str]
    ) -> bool:
        peaks = known(memory_of(row, name))
        label, colour, _, hatch = look
        for index, peak in enumerate(peaks):
            axes.bar(
                left + index * width / len(peaks), peak / GIB, width / len(peaks), align="edge",
                color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label,
            )  # fmt: skip
        return bool(peaks)

    figure, axes = _bars(rows, draw)
    axes.set_ylabel(f"peak {name} memory, GiB; one bar a device")
    return figure


def _step(rows: Sequence[Row]) -> Any:
    shown = [row for row in rows if row.phases is not None]
    looks = Looks(rows)
    names = [f"{looks.label(row)} x{row.case.world_size}" for row in shown]
    longest = max(map(len, names))
    figure, axes = new_figure(5.4 + longest / CHARACTERS_PER_INCH, 1.2 + 0.3 * len(shown))
    left = [0.0] * len(shown)
    for phase, colour in PHASES.items():
        widths = [getattr(row.phases, f"{phase}_s") * 1e3 for row in shown]
        axes.barh(names, widths, left=left, color=colour, label=phase, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("ms of a step, median of the slowest process;\ncommunication is inside")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    add_legend(figure, axes)
    return figure
