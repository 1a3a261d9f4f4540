"""Charts of predictions: speedup with its band, what a step is spent on, and one step drawn.

Never imports torch; needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.records.scaling import Moment, Predicted
from bench.report.drawing import (
    COLOURS,
    MARKERS,
    OTHERS,
    Chart,
    attempt,
    charts_in,
    new_figure,
)

NAMES = ("predicted-speedup", "predicted-split-*", "predicted-step")
PARTS = {
    "only computed": "#4477aa",
    "computed and communicated": "#88ccee",
    "only communicated": "#d55e00",
}
KINDS = {"computation": "#4477aa", "communication": "#d55e00"}
MOST_SPLITS = 6
LEAST_FRAMED = 0.004
"""Of the step: a frame would hide what is narrower."""
NARROWEST_LABEL = 0.03
"""Of the step: what is narrower has no room for its name."""


def draw(rows: Sequence[Predicted], folder: Path, measured: Sequence[Moment] = ()) -> list[Chart]:
    """All charts of some predictions of one workload.

    Args:
        rows: the predictions.
        folder: for the files.
        measured: a step that the predicted one is to stand beside.

    Raises:
        OSError: the folder cannot be written.
    """
    labels = list(dict.fromkeys(one.case.label for one in rows))
    what = rows[0].case.workload
    wanted: list[tuple[str, str, Callable[[], Any]]] = []
    if len({one.case.world_size for one in rows}) > 1:
        wanted.append(("speedup", f"Speedup, predicted: {what}", partial(speedup, rows)))
    for number, label in enumerate(labels[:MOST_SPLITS]):
        some = [one for one in rows if one.case.label == label]
        title = f"What a step is spent on, predicted: {what}, {label}"
        wanted.append((f"split-{number + 1}", title, partial(split, some)))
    shown = shown_step(rows)
    title = f"One step, predicted: {what}, {shown.case.label} on {shown.case.world_size} devices"
    if measured:
        title += ", beside a measured one"
    wanted.append(("step", title, partial(timeline, shown, measured)))
    with charts_in(folder, NAMES) as charts:
        for name, title, draw_it in wanted:
            chart = attempt(draw_it, folder / f"predicted-{name}", title)
            charts.extend([chart] if chart is not None else [])
    return charts


def shown_step(rows: Sequence[Predicted]) -> Predicted:
    """The row whose step is drawn: of the first case, that with the most communication."""
    first = [one for one in rows if one.case.label == rows[0].case.label]
    return max(first, key=lambda one: one.communicated_s)


def speedup(rows: Sequence[Predicted]) -> Any:
    """Speedup and efficiency over the number of devices, a line a case, with the band of errors."""
    figure, _ = new_figure(9.6, 4.4)
    figure.clear()
    left, right = figure.subplots(1, 2)
    sizes = sorted({one.case.world_size for one in rows})
    left.plot(sizes, sizes, "--", color="#999999", linewidth=1, label="ideal")
    right.axhline(100, linestyle="--", color="#999999", linewidth=1)
    seen: dict[str, int] = {}
    for label in dict.fromkeys(one.case.label for one in rows):
        points = sorted(
            (one for one in rows if one.case.label == label), key=lambda one: one.case.world_size
        )
        strategy = points[0].case.strategy
        number = seen[strategy] = seen.get(strategy, -1) + 1
        colour = COLOURS.get(strategy, OTHERS[0]) if not number else OTHERS[number % len(OTHERS)]
        for axes, read in (
            (left, lambda one: one.speedup),
            (right, lambda one: 100 * one.efficiency),
        ):
            _line(axes, points, read, colour, MARKERS[number % len(MARKERS)], label)
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_ylabel("speedup over one device without a wrapper")
    right.set_ylabel("efficiency, %")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45, fontsize=8)
        axes.set_xlabel("devices")
        axes.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _line(  # noqa: PLR0917 - each known by its name
    axes: Any,
    points: Sequence[Predicted],
    read: Callable[[Predicted], float],
    colour: str,
    marker: str,
    label: str,
) -> None:
    """One case, with the band in which eight in ten published figures lie."""
    x, y = [one.case.world_size for one in points], [read(one) for one in points]
    axes.plot(
        x, y, color=colour, marker=marker, markersize=4, linewidth=1.4, label=f"{label}, predicted"
    )
    # One device has no error: it is what the others are compared with.
    low = [value * (1 - _error(one.error_low, one)) for value, one in zip(y, points, strict=True)]
    high = [value * (1 + _error(one.error_high, one)) for value, one in zip(y, points, strict=True)]
    if low != high:
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def _error(value: float | None, one: Predicted) -> float:
    return 0.0 if value is None or one.case.world_size == 1 else value


def _parts(points: Sequence[Predicted]) -> dict[str, list[float]]:
    """Milliseconds of each part of a step, for each number of devices."""
    both = [one.communicated_s - one.exposed_s for one in points]
    return {
        "only computed": [
            1e3 * max(one.computed_s - part, 0.0) for one, part in zip(points, both, strict=True)
        ],
        "computed and communicated": [1e3 * max(part, 0.0) for part in both],
        "only communicated": [1e3 * one.exposed_s for one in points],
    }


def split(rows: Sequence[Predicted]) -> Any:
    """A bar a number of devices: only computed, both at once, only communicated."""
    figure, axes = new_figure(6.4, 3.8)
    points = sorted(rows, key=lambda one: one.case.world_size)
    places = range(len(points))
    bottoms = [0.0] * len(points)
    for name, heights in _parts(points).items():
        axes.bar(places, heights, 0.7, bottom=bottoms, color=PARTS[name], label=name)
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(list(places), [str(one.case.world_size) for one in points])
    axes.set_xlabel("devices")
    axes.set_ylabel("ms of a step")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def timeline(one: Predicted, measured: Sequence[Moment] = ()) -> Any:
    """One step of one rank: a row a stream, a bar a piece of work; below it a measured one."""
    mark = "predicted " if measured else ""
    own = [msgspec.structs.replace(m, stream=f"{mark}{m.stream}") for m in one.moments]
    moments = [*own, *measured]
    streams = list(dict.fromkeys(moment.stream for moment in moments))
    figure, axes = new_figure(9.0, 1.2 + 0.75 * len(streams))
    for moment in moments:
        width = moment.end_s - moment.begin_s
        row = streams.index(moment.stream)
        colour = KINDS[moment.kind]
        edge = "white" if width > LEAST_FRAMED * one.step_s else colour
        axes.barh(
            row, 1e3 * width, left=1e3 * moment.begin_s, height=0.6, color=colour,
            edgecolor=edge, linewidth=0.5,
        )  # fmt: skip
        if width > NARROWEST_LABEL * one.step_s:
            axes.text(
                1e3 * (moment.begin_s + width / 2), row, _short(moment.name), ha="center",
                va="center", fontsize=6, color="white", clip_on=True,
            )  # fmt: skip
    axes.axvline(1e3 * one.single_step_s, color="#333333", linestyle=":", linewidth=1)
    axes.annotate(
        "one device", (1e3 * one.single_step_s, len(streams) - 0.5), fontsize=7,
        ha="right", va="bottom", xytext=(-2, 0), textcoords="offset points",
    )  # fmt: skip
    axes.set_yticks(range(len(streams)), streams)
    axes.set_ylim(len(streams) - 0.5, -0.5)
    last_s = max(one.step_s, one.single_step_s, *(moment.end_s for moment in measured))
    axes.set_xlim(0, 1e3 * last_s * 1.01)
    axes.set_xlabel("ms")
    return figure


def _short(name: str) -> str:
    """A bar's name without what its place says anyway.

    >>> _short("backward to bucket 3"), _short("bucket 3")
    ('to 3', '3')
    """
    return name.removeprefix("backward ").replace("bucket ", "")
