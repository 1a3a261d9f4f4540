"""Charts of what fills the memory: at the peak, and over one step. Needs matplotlib."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

from bench.analyze.rows import Row
from bench.records.record import Memory
from bench.report.cells import GIB
from bench.report.drawing import Looks, new_figure
from bench.report.lanes import stacked_figure
from bench.report.lettering import add_legend

CATEGORIES = {
    "parameters": "#0072b2",
    "master_parameters": "#4f9fd0",
    "unsharded_parameters": "#56b4e9",
    "optimizer_state": "#009e73",
    "buffers": "#999933",
    "gradients": "#d55e00",
    "unsharded_gradients": "#f0a070",
    "buckets": "#e69f00",
    "activations": "#cc79a7",
    "communication": "#882255",
    "data": "#bbbbbb",
    "workspace": "#dddddd",
    "unexplained": "#4d4d4d",
}
"""Bottom to top: what is always there first."""
MOST_PANELS, COLUMNS = 12, 3
TITLE = 42
"""Characters of a line of a panel's title."""


def has_parts(row: Row) -> bool:
    """Whether it is known what the row's peak is made of."""
    return row.memory is not None and bool(row.memory.by_category)


def parts_of(memory: Memory) -> dict[str, int]:
    """Bytes of each category on the device that holds most."""
    table = memory.by_category or {}
    totals = [sum(device) for device in zip(*table.values(), strict=True)]
    if not totals:
        return {}
    fullest = totals.index(max(totals))
    return {name: values[fullest] for name, values in table.items()}


def peak_figure(rows: Sequence[Row]) -> Any:
    """What each row's peak is made of, on the device that holds most."""
    parts = [
        parts_of(row.memory) if row.memory is not None and not row.is_proved_wrong else {}
        for row in rows
    ]
    names = _present(parts)
    bars = [{name: one[name] / GIB for name in names if name in one} for one in parts]
    return stacked_figure(
        zip(rows, bars, strict=True),
        Looks(rows),
        CATEGORIES,
        xlabel="GiB of live tensors at their peak, on the device that holds most",
        unit="GiB",
    )


def timeline_figure(rows: Sequence[Row]) -> Any:
    """What is alive over a step, a panel a row; of the first rows where there are many."""
    shown = [row for row in rows if row.memory is not None and row.memory.timeline is not None]
    shown = shown[:MOST_PANELS]
    looks = Looks(rows)
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    titles = [
        "\n".join(textwrap.wrap(f"{looks.label(row)} x{row.case.world_size}", TITLE))
        for row in shown
    ]
    highest = max(title.count("\n") for title in titles)
    figure, first = new_figure(3.4 * columns + 0.4, (2.3 + 0.14 * highest) * lines + 0.5)
    first.remove()
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True)
    found = [
        one.memory.timeline
        for one in shown
        if one.memory is not None and one.memory.timeline is not None
    ]
    names = _present([{k: max(v) for k, v in one.by_category.items() if v} for one in found])
    for panel, title, timeline in zip(panels.flat, titles, found, strict=False):
        # An empty layer would be as much of the file as a full one; the first panel has the legend.
        layers = {
            name: [
                value / GIB for value in timeline.by_category.get(name, [0] * len(timeline.at_s))
            ]
            for name in names
            if panel is panels.flat[0] or any(timeline.by_category.get(name, ()))
        }
        totals = itertools.accumulate(
            layers.values(), lambda under, layer: [a + b for a, b in zip(under, layer, strict=True)]
        )
        for depth, (name, total) in enumerate(zip(layers, totals, strict=True)):
            heights, edges = _level([at * 1e3 for at in timeline.at_s], total)
            panel.stairs(
                heights, edges, fill=True, linewidth=0, color=CATEGORIES.get(name, "#000000"),
                label=name.replace("_", " "), zorder=1 - depth,
            )  # fmt: skip
        panel.set_title(title, fontsize=8, loc="left")
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=7)
    for panel in panels.flat[len(shown) :]:
        panel.set_axis_off()
    for panel in panels[:, 0]:
        panel.set_ylabel("GiB", fontsize=8)
    for panel in panels.flat[max(0, len(shown) - columns) : len(shown)]:
        panel.set_xlabel("ms since the profiled step began,\nwhich the profile slows", fontsize=8)
    add_legend(figure, panels.flat[0])
    return figure


def _level(at: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Steps from each moment to the next, and their edges, one for moments of the same value.

    >>> _level([0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 7.0, 6.0])
    ([5.0, 7.0], [0.0, 2.0, 3.0])
    """
    runs = [
        next(run)
        for _, run in itertools.groupby(
            zip(at[:-1], values[:-1], strict=True), lambda step: step[1]
        )
    ]
    return [value for _, value in runs], [*(begin for begin, _ in runs), at[-1]]


def _present(parts: Sequence[dict[str, int]]) -> list[str]:
    """Categories that anything is in, in the order of ``CATEGORIES``, then others."""
    found = {name for one in parts for name, size in one.items() if size > 0}
    known = [name for name in CATEGORIES if name in found]
    return known + sorted(found - set(known))
