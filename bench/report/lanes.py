"""Charts of bars that lie: a lane a row, named beside it, so that any number and length fits.

What was not measured is a marked gap in its lane, with the reason. Needs matplotlib.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.report.cells import significant
from bench.report.drawing import Looks, new_figure, tell, why_missing
from bench.report.lettering import add_legend

LABEL = 44
"""Characters of a line of a name."""
LINE, LANE, BETWEEN = 0.17, 0.3, 0.14
"""Inches of a further line of it, of a lane, and between two numbers of devices."""
CHARACTER = 0.067
"""Inches, widest."""
WIDTH, AROUND = 5.6, 1.2
"""Inches of the bars, and of all that stands above and below them."""
FILLED = 0.76
"""Of a lane."""


class Lane(msgspec.Struct, frozen=True):
    """Where a row is drawn: from its upper edge to its lower one."""

    row: Row
    name: str
    top: float
    bottom: float

    @property
    def middle(self) -> float:
        """Between the two."""
        return (self.top + self.bottom) / 2

    def part(self, begin: float, end: float) -> tuple[float, float]:
        """(upper edge, height) of a share of the lane, such as its first half: 0, 0.5."""
        height = self.bottom - self.top
        return self.top + begin * height, (end - begin) * height


def wrapped(text: str) -> str:
    """A name over as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, LABEL)) or "-"


def lanes_figure(rows: Sequence[Row], looks: Looks, xlabel: str) -> tuple[Any, Any, list[Lane]]:
    """Figure, axes, and a lane for each row.

    Args:
        rows: in their order; a space parts one number of devices from the next.
        looks: of the rows.
        xlabel: of what the bars measure.
    """
    names = [wrapped(f"{looks.label(row)}\N{NO-BREAK SPACE}x{row.case.world_size}") for row in rows]
    lanes: list[Lane] = []
    place = 0.0
    for row, name in zip(rows, names, strict=True):
        if lanes and lanes[-1].row.case.world_size != row.case.world_size:
            place += BETWEEN
        height = LANE + LINE * name.count("\n")
        edge = (height - FILLED * LANE) / 2
        plain = f"{looks.label(row)} x{row.case.world_size}"
        lanes.append(Lane(row, plain, place + edge, place + height - edge))
        place += height
    longest = max(len(line) for name in names for line in name.splitlines())
    figure, axes = new_figure(WIDTH + CHARACTER * longest, AROUND + place)
    axes.set_ylim(place, 0)
    axes.set_yticks([lane.middle for lane in lanes], names)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.set_label_coords(0, 0.5)  # it has none, for which all names would be measured
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes, lanes


def add_bar(
    axes: Any, place: tuple[float, float], size: float, left: float = 0.0, **looks: Any
) -> Any:
    """A lying bar, from ``left`` on; as matplotlib's own, which takes ten times as long.

    Args:
        axes: to draw into, whose limits of x are made to fit by ``autoscale_view``, or set.
        place: upper edge and height.
        size: of the bar, in the units of x.
        left: where it begins.
        looks: of a patch.
    """
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - reports without charts need none

    bar = Rectangle((left, place[0]), size, place[1], **{"linewidth": 0.0, **looks})
    bar.sticky_edges.x.append(left)
    axes.add_artist(bar)
    axes.update_datalim([(left, place[0]), (left + size, place[0])], updatey=False)
    return bar


def mark_gap(axes: Any, lane: Lane, text: str = "", middle: float | None = None) -> None:
    """Why there is nothing in a lane, in its place."""
    axes.annotate(
        f"✕ {text or why_missing(lane.row)}", (0, lane.middle if middle is None else middle),
        (4, 0), textcoords="offset points", va="center", fontsize=7, color="#a00000",
    )  # fmt: skip


def stack(
    axes: Any,
    place: tuple[float, float],
    parts: Mapping[str, float],
    colours: Mapping[str, str],
    *,
    said: str,
    unit: str,
) -> None:
    """One bar made of parts, from 0.

    Args:
        axes: to draw into.
        place: upper edge and height.
        parts: in their order; those of no size are left out.
        colours: of the parts; black for one that has none.
        said: of what the bar is, where one points at it.
        unit: likewise.
    """
    left = 0.0
    for name, size in parts.items():
        if size <= 0:
            continue
        colour = colours.get(name, "#000000")
        bar = add_bar(axes, place, size, left, label=name.replace("_", " "), color=colour)
        tell(bar, f"{said}: {name.replace('_', ' ')} {significant(size)} {unit}")
        left += size


def stacked_figure(
    bars: Iterable[tuple[Row, Mapping[str, float] | None]],
    looks: Looks,
    colours: Mapping[str, str],
    *,
    xlabel: str,
    unit: str,
) -> Any:
    """A bar a row, made of parts; a gap for a row that has none."""
    shown = list(bars)
    figure, axes, lanes = lanes_figure([row for row, _ in shown], looks, xlabel)
    for lane, (_, parts) in zip(lanes, shown, strict=True):
        if parts:
            stack(axes, lane.part(0, 1), parts, colours, said=lane.name, unit=unit)
        else:
            mark_gap(axes, lane)
    finish(figure, axes, order=colours)
    return figure


def finish(figure: Any, axes: Any, *, order: Iterable[str] = ()) -> None:
    """The legend, and room for the words of gaps where there is nothing but them."""
    axes.autoscale_view(scaley=False)
    axes.set_xlim(0, max(axes.get_xlim()[1], 1e-9))
    places = {name.replace("_", " "): place for place, name in enumerate(order)}
    add_legend(figure, axes, key=lambda label: places.get(label, len(places)))


def by_devices(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    """Rows on as many devices together, fewest first."""
    ordered = sorted(rows, key=lambda row: row.case.world_size)
    for size, some in itertools.groupby(ordered, lambda row: row.case.world_size):
        yield size, list(some)
