"""Charts of a table's rows, as SVG and PNG. Never imports torch; needs matplotlib.

A strategy has one colour in every chart. Variants of a strategy share it. What was not measured is
a marked gap, never a bar of height 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.analyze.rows import Row
from bench.report.anatomy import MOST_PANELS, has_parts, peak_figure, timeline_figure
from bench.report.breakdown import has_phases, step_figure
from bench.report.cells import GIB, known, memory_of, significant, throughput
from bench.report.changes import change_figure
from bench.report.curves import curves_figure
from bench.report.draw_all import Wanted, attempt_all
from bench.report.drawing import Chart, Looks, charts_in, tell
from bench.report.lanes import add_bar, lanes_figure, mark_gap
from bench.report.learning_charts import Over, losses_figure
from bench.report.links import link_figure
from bench.report.notes import variants
from bench.report.settings import SettingsTable
from bench.report.sweeps import sweep_figure
from bench.report.tables import Table
from bench.report.tradeoff import tradeoff_figure
from bench.report.waterfall import waterfall_figure

CHANGE, SWEEP, WATERFALL, LINK = "change", "buckets", "waterfall", "link"
OF_LEARNING = ("loss-steps", "loss-seconds")
"""Charts that stand beside the table of learning."""
OVER: tuple[Over, ...] = ("steps", "seconds")
OF_SETTINGS = (CHANGE, SWEEP, WATERFALL)
"""Charts that stand beside a table of settings."""
CHARTS = (
    "speedup", "efficiency", "throughput", "memory", "tradeoff", "peak", "timeline", "step",
    LINK, *OF_SETTINGS, *OF_LEARNING,
)  # fmt: skip
MOST_VARIANTS, MOST_LANES, MOST_ROWS = 13, 52, 104
"""Of a table whose charts can still be read: marks that can be told apart, which are twelve
strategies and the baseline; lanes below each other; and points of all lines, up to 128 devices."""


def write_charts(tables: Sequence[Table], folder: Path) -> list[list[Chart]]:
    """Draw the charts of each table; returns them table by table.

    Args:
        tables: of a report.
        folder: is made where it does not exist; our charts that are no longer drawn go.

    Raises:
        NoChartsError: matplotlib cannot be imported.
        OSError: the folder cannot be written.
    """
    report = [row for table in tables for row in table.rows]
    wanted = [
        [
            Wanted(
                figure,
                folder / stem,
                f"{what}: {table.title}, {table.rows[0].case.scaling} scaling",
            )
            for stem, what, figure in _figures(table, report)
        ]
        for table in tables
    ]
    with charts_in(folder, [f"*-{name}" for name in CHARTS]) as drawn:
        made = iter(attempt_all(list(itertools.chain.from_iterable(wanted))))
        written = [
            [chart for chart in itertools.islice(made, len(some)) if chart is not None]
            for some in wanted
        ]
        drawn.extend(itertools.chain.from_iterable(written))
    return written


Draw = Callable[[], Any]


def _figures(table: Table, report: Sequence[Row]) -> Iterator[tuple[str, str, Draw]]:
    """(name of the file without its ending, what is shown, what draws it)."""
    rows = table.rows
    if any(row.training for row in rows):
        for name, over in zip(OF_LEARNING, OVER, strict=True):
            draw = partial(losses_figure, rows, over)
            yield f"{table.stem}-{name}", f"Loss over {over}", draw
    measured = [row for row in rows if row.samples_per_s is not None and not row.is_proved_wrong]
    if not measured:
        return
    if len(rows) <= MOST_ROWS:
        for name, what, figure in _scaling_figures(table, measured):
            yield f"{table.stem}-{name}", what, figure
    if len({row.case.link for row in measured if row.case.nodes > 1}) > 1:
        draw = partial(link_figure, measured)
        yield f"{table.stem}-{LINK}", "Throughput against link speed", draw
    for settings in table.settings:
        yield from _settings_figures(settings, rows, report)


def _settings_figures(
    table: SettingsTable, rows: Sequence[Row], report: Sequence[Row]
) -> Iterator[tuple[str, str, Draw]]:
    if table.is_ladder:
        yield f"{table.stem}-{WATERFALL}", table.title, partial(waterfall_figure, table)
        return
    yield f"{table.stem}-{CHANGE}", table.title, partial(change_figure, table, rows)
    draw = partial(sweep_figure, table.rows, table.names, report)
    yield f"{table.stem}-{SWEEP}", "Sizes of DDP's buckets", draw


def _scaling_figures(table: Table, measured: Sequence[Row]) -> Iterator[tuple[str, str, Draw]]:
    rows = table.rows
    by_marks, in_lanes = _variants(rows) <= MOST_VARIANTS, len(rows) <= MOST_LANES
    if (
        by_marks
        and len({row.case.world_size for row in measured if row.speedup.ratio is not None}) > 1
    ):
        yield "speedup", "Speedup over one device", partial(curves_figure, rows, "speedup")
        yield "efficiency", "Efficiency", partial(curves_figure, rows, "efficiency")
    if in_lanes:
        yield "throughput", "Throughput", partial(_throughput, rows)
    if any(known(memory_of(row, table.memory)) for row in measured):
        if in_lanes:
            yield "memory", "Memory of each device", partial(_memory, rows, table.memory)
        if by_marks:
            draw = partial(tradeoff_figure, rows, table.memory)
            yield "tradeoff", "Memory against throughput", draw
    if any(map(has_parts, measured)):
        if in_lanes:
            yield "peak", "What fills the memory", partial(peak_figure, rows)
        more = f", the first {MOST_PANELS} rows" if len(measured) > MOST_PANELS else ""
        yield "timeline", f"Memory over a step{more}", partial(timeline_figure, measured)
    if in_lanes and any(map(has_phases, measured)):
        yield "step", "What a step is spent on", partial(step_figure, rows)


def not_readable(rows: Sequence[Row]) -> str:
    """Which charts of so many rows nobody could read, in words; empty where all can be."""
    if len(rows) > MOST_ROWS:
        return f"No charts: {len(rows)} rows are more than one could read in them."
    texts = []
    if _variants(rows) > MOST_VARIANTS:
        texts.append(
            f"No charts of speedup, efficiency and memory against throughput: {_variants(rows)} "
            "ways of training are more than one could tell apart by their marks."
        )
    if len(rows) > MOST_LANES:
        texts.append(f"No charts with a bar a row: {len(rows)} rows are more than one could read.")
    return " ".join(texts)


def _variants(rows: Sequence[Row]) -> int:
    name = variants(rows)
    return len({name(row.case) for row in rows})


def _throughput(rows: Sequence[Row]) -> Any:
    """A bar a row, with its interval."""
    looks = Looks(rows)
    unit = next((row.unit for row in rows if row.samples_per_s is not None), "sample")
    figure, axes, lanes = lanes_figure(rows, looks, f"{unit}s per second, all devices together")
    tops: list[tuple[float, float]] = []
    rates = []
    for lane in lanes:
        row, estimate = lane.row, lane.row.samples_per_s
        if estimate is None or row.is_proved_wrong:
            mark_gap(axes, lane)
            continue
        rates.append(rate := estimate.value * row.units_per_sample)
        bar = add_bar(axes, lane.part(0, 1), rate, color=looks.of(row)[1])
        tell(bar, f"{lane.name}: {throughput(row)} {unit}s/s")
        if estimate.low is not None and estimate.high is not None:
            ends = [estimate.low * row.units_per_sample, estimate.high * row.units_per_sample]
            axes.plot(
                ends, [lane.middle] * 2, color="#000000", linewidth=1, marker="|", markersize=6
            )
            tops.append((ends[1], lane.middle))
    right = 1.25 * max(rates)
    axes.set_xlim(0, right)
    for end, middle in tops:
        if end > right:  # an interval beyond the chart, which would else show nothing but it
            axes.annotate(
                "▶", (right, middle), ha="right", va="center", fontsize=7, color="#333333",
                annotation_clip=False,
            )  # fmt: skip
    return figure


def _memory(rows: Sequence[Row], name: str) -> Any:
    """Bars of a row's devices under each other, the first on top."""
    looks = Looks(rows)
    figure, axes, lanes = lanes_figure(
        rows, looks, f"peak {name} memory, GiB; in each lane one bar a device, the first on top"
    )
    for lane in lanes:
        peaks = [] if lane.row.is_proved_wrong else memory_of(lane.row, name)
        if not known(peaks):
            mark_gap(axes, lane)
            continue
        for index, peak in enumerate(peaks):
            place = lane.part(index / len(peaks), (index + 1) / len(peaks))
            if peak is None:
                mark_gap(axes, lane, "no figure", place[0] + place[1] / 2)
                continue
            bar = add_bar(
                axes, place, peak / GIB, facecolor=looks.of(lane.row)[1],
                edgecolor="#ffffff", linewidth=0.5 if len(peaks) > 1 else 0.0,
            )  # fmt: skip
            tell(bar, f"{lane.name}, device {index}: {significant(peak / GIB)} GiB")
    axes.autoscale_view(scaley=False)
    axes.set_xlim(0, 1.05 * max(axes.get_xlim()[1], 1e-9))
    return figure
