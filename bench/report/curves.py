"""Charts of how far a strategy scales: speedup and efficiency over devices. Needs matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from bench.analyze.rows import Row
from bench.analyze.stats import Estimate
from bench.report.cells import span
from bench.report.drawing import Looks, mark_cut, missing_entries, new_figure, tell
from bench.report.lettering import add_legend

What = Literal["speedup", "efficiency"]
YLABELS: dict[What, str] = {
    "speedup": "speedup over one device without a wrapper",
    "efficiency": "efficiency: speedup over devices",
}
SPREAD = 0.5
"""Of the space between two numbers of devices, over which lines stand beside each other."""
MANY = 5
"""Lines from which a chart is made wider for each."""


def estimate_of(row: Row, what: What) -> Estimate | None:
    """What is drawn of a row."""
    return (
        None if row.is_proved_wrong else row.speedup.ratio if what == "speedup" else row.efficiency
    )


def curves_figure(rows: Sequence[Row], what: What) -> Any:
    """A line a strategy, its points a little beside each other, with their intervals.

    Devices stand at equal steps where they double. What is missing is named below, with its reason.
    """
    looks = Looks(rows)
    sizes = sorted({row.case.world_size for row in rows})
    drawn: dict[str, list[Row]] = {}
    for row in rows:
        if estimate_of(row, what) is not None:
            drawn.setdefault(looks.of(row)[0], []).append(row)
    figure, axes = new_figure(6.4 + 0.25 * max(0, len(drawn) - MANY), 4.2)
    _ideal(axes, sizes, what)
    least = min(math.log2(b / a) for a, b in itertools.pairwise(sizes))
    tops: list[tuple[float, float]] = []
    values: list[float] = []
    places = _places(drawn.values(), SPREAD * least)
    for line in drawn.values():
        points = sorted(line, key=lambda row: row.case.world_size)
        tops += _line(axes, points, looks, what, places)
        values += [found.value for row in points if (found := estimate_of(row, what))]
    axes.set_xticks([math.log2(size) for size in sizes], [str(size) for size in sizes])
    axes.set_xlim(-SPREAD * least, math.log2(sizes[-1]) + SPREAD * least)
    axes.set_xlabel("devices")
    axes.set_ylabel(YLABELS[what])
    ideal = sizes[-1] if what == "speedup" else 1
    top = 1.2 * max([*values, min(ideal, 2 * max(values))])
    axes.set_ylim(0, top)
    if what == "efficiency":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    mark_cut(axes, [(at, high) for at, high in tops if high > top])
    axes.grid(alpha=0.3)
    missing_entries(axes, [row for row in rows if estimate_of(row, what) is None], looks)
    order = {label: place for place, label in enumerate(["ideal", *looks.labels])}
    add_legend(figure, axes, key=lambda label: order.get(label, len(order)))
    return figure


def _places(lines: Iterable[Sequence[Row]], width: float) -> dict[str, float]:
    """Where each row stands, by its id: beside the others on as many devices."""
    beside: dict[int, list[Row]] = {}
    for line in lines:
        for row in line:
            beside.setdefault(row.case.world_size, []).append(row)
    return {
        row.case.id: math.log2(size) + (n - (len(some) - 1) / 2) * width / max(len(some), 8)
        for size, some in beside.items()
        for n, row in enumerate(some)
    }


def _ideal(axes: Any, sizes: Sequence[int], what: What) -> None:
    last = math.log2(sizes[-1])
    places = [last * step / 60 for step in range(61)]
    heights = [2**place if what == "speedup" else 1.0 for place in places]
    axes.plot(places, heights, "--", color="#777777", linewidth=1, label="ideal", zorder=1)


def _line(
    axes: Any, points: Sequence[Row], looks: Looks, what: What, at: Mapping[str, float]
) -> list[tuple[float, float]]:
    """Draw one strategy's points; returns where their intervals end."""
    found = [(row, one) for row in points if (one := estimate_of(row, what)) is not None]
    places = [at[row.case.id] for row, _ in found]
    values = [one.value for _, one in found]
    below = [one.value - one.low if one.low is not None else 0.0 for _, one in found]
    above = [one.high - one.value if one.high is not None else 0.0 for _, one in found]
    label, colour, marker = looks.of(points[0])
    axes.errorbar(
        places, values, yerr=[below, above], label=label, color=colour, marker=marker,
        markersize=6, capsize=2, linewidth=1.2, elinewidth=1, markeredgewidth=0,
    )  # fmt: skip
    for place, (row, one) in zip(places, found, strict=True):
        (point,) = axes.plot(place, one.value, "o", color=colour, alpha=0.01, markersize=9)
        tell(point, f"{label} x{row.case.world_size}: {span(one)}")
    ends = [one.high for _, one in found]
    return [(place, end) for place, end in zip(places, ends, strict=True) if end is not None]
