"""The charts of collectives alone: bus bandwidth over the size. Needs matplotlib."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.records.collectives import Collective, Limit
from bench.report.drawing import Chart, attempt, charts_in, new_figure, tell

GIGA = 1e9
"""Of bandwidths, as nccl-tests has them: 1 GB is 10^9 bytes."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
"""Of numbers of ranks and backends: Okabe and Ito's."""
MARKERS = "osD^vP*X"
NEAR = 3.0
"""Times a panel's highest point, up to which a rate to compare with is drawn in it."""
MOST_TICKS = 5
"""Parts of a panel's axis that have room for a size each."""


class Line(NamedTuple):
    """What stands in one column, or is one line of a chart."""

    backend: str
    world_size: int
    nodes: int = 1
    link: str = ""

    def __str__(self) -> str:
        hosts = f" on {self.nodes} hosts" if self.nodes > 1 else ""
        return f"{self.backend} x{self.world_size}{hosts}{', ' * bool(self.link)}{self.link}"


def line_of(row: Collective) -> Line:
    """Where a row belongs."""
    return Line(row.backend, row.world_size, row.nodes, row.link or "")


def size_of(size: int) -> str:
    """Bytes for people, in powers of 1024.

    >>> size_of(1024), size_of(67108864), size_of(100_000_000), size_of(12)
    ('1 KiB', '64 MiB', '95.4 MiB', '12 B')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def grouped(rows: Iterable[Collective], key: Any) -> Iterator[tuple[Any, list[Collective]]]:
    """Rows that agree in something, in the order in which they first came."""
    groups: dict[Any, list[Collective]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.items()


def draw(rows: Sequence[Collective], limits: Sequence[Limit], folder: Path) -> list[Chart]:
    """Bus bandwidth over the size: a chart a type, a panel an operation, a line a column."""
    with charts_in(folder, ["busbw-*"]) as charts:
        for dtype, some in grouped(rows, lambda row: row.dtype):
            if any(row.back_to_back_busbw_bytes_per_s is not None for row in some):
                title = f"Bus bandwidth of {dtype}, calls back to back"
                figure = functools.partial(_panels, some, limits)
                chart = attempt(figure, folder / f"busbw-{dtype}", title)
                charts.extend([chart] if chart is not None else [])
    return charts


def _panels(rows: Sequence[Collective], limits: Sequence[Limit]) -> Any:
    shown = [row for row in rows if row.back_to_back_busbw_bytes_per_s is not None]
    ops = list(dict.fromkeys(row.op for row in shown))
    columns = min(3, len(ops))
    figure, _ = new_figure(3.2 * columns + 0.4, 2.6 * -(-len(ops) // columns) + 0.7)
    figure.clear()
    panels = figure.subplots(-(-len(ops) // columns), columns, squeeze=False, sharex=True)
    for panel, op in itertools.zip_longest(panels.flat, ops):
        if op is None:
            panel.set_axis_off()
            continue
        _panel(panel, [row for row in rows if row.op == op], sorted(set(map(line_of, shown))))
        _beside(panel, [row for row in shown if row.op == op], limits)
        panel.set_ylim(0, None)
        panel.set_title(op, fontsize=9, loc="left")
    for panel in panels.flat[max(0, len(ops) - columns) : len(ops)]:  # nothing below has them
        panel.tick_params(axis="x", labelbottom=True)
    for panel in panels[:, 0]:
        panel.set_ylabel("busbw, GB/s")
    found = [panel.get_legend_handles_labels() for panel in panels.flat[: len(ops)]]
    entries = {label: one for some in found for one, label in zip(*some, strict=True)}
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=min(4, columns + 1),
        fontsize=8, frameon=False,
    )  # fmt: skip
    return figure


def _beside(panel: Any, shown: Sequence[Collective], limits: Sequence[Limit]) -> None:
    """What else was measured, where it is near enough to what the panel shows."""
    top = max((row.back_to_back_busbw_bytes_per_s or 0.0 for row in shown), default=0.0)
    for limit in limits:
        if limit.ranks > 1 and limit.bytes_per_s < NEAR * top:
            style = {"memory copy": ":", "loopback": "--"}.get(limit.what, "-.")
            panel.axhline(
                limit.bytes_per_s / GIGA, color="#777777", linewidth=1, linestyle=style,
                label=f"{limit.what}, {limit.ranks} ranks at once, for comparison",
            )  # fmt: skip


def _ticks(sizes: Sequence[int]) -> list[int]:
    """Sizes whose names stand far enough from each other; the largest is among them.

    >>> _ticks([2**10, 2**14, 2**18, 2**20, 2**22, 2**24, 2**26])
    [1024, 16384, 262144, 4194304, 67108864]
    """
    largest, least = sizes[-1], sizes[0]
    span = max(1.0, math.log2(largest / least))
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or math.log2(kept[-1] / size) >= span / MOST_TICKS:
            kept.append(size)
    return kept[::-1]


def _panel(panel: Any, rows: Sequence[Collective], lines: Sequence[Line]) -> None:
    """One operation: a line a backend and number of ranks, and marks for what is missing in it."""
    for number, line in enumerate(lines):
        own = sorted((row for row in rows if line_of(row) == line), key=lambda row: row.bytes)
        points = [
            (row.bytes, row.back_to_back_busbw_bytes_per_s / GIGA)
            for row in own
            if row.back_to_back_busbw_bytes_per_s is not None
        ]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        panel.plot(
            [size for size, _ in points], [rate for _, rate in points], label=str(line),
            color=colour, marker=marker, markersize=4, linewidth=1.4,
        )  # fmt: skip
        for size, rate in points:
            (point,) = panel.plot(size, rate, "o", color=colour, alpha=0.01, markersize=9)
            tell(point, f"{line}, {size_of(size)}: {rate:.3g} GB/s")
        for row in own if points else []:
            if row.status != "ok":
                status = row.status.replace("_", " ")
                (mark,) = panel.plot(
                    row.bytes, 0, "x", color="#a00000", markersize=6, clip_on=False, label=status,
                    linestyle="none",
                )  # fmt: skip
                tell(mark, f"{line}, {size_of(row.bytes)}: {status}, {row.reason}")
    panel.set_xscale("log", base=2)
    panel.grid(alpha=0.3)
    sizes = sorted({row.bytes for row in rows})
    panel.set_xticks(_ticks(sizes), [size_of(size) for size in _ticks(sizes)])
    panel.minorticks_off()
    panel.tick_params(axis="x", labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
