"""The chart of a sweep of bucket sizes, with its optimum marked. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.ranking import Ranking, ranking_among
from bench.analyze.rows import Row
from bench.analyze.settings import BUCKET_OPTIONS, buckets_of
from bench.errors import one_line, plural
from bench.report import cells
from bench.report.drawing import COLOURS, MARKERS, OTHERS, new_figure, tell, why_missing
from bench.report.lettering import add_legend

CAP = "bucket_cap_mb"
DEFAULT = "torch's\ndefault"
DEFAULT_CAP = 25.0
"""MiB: of torch's DistributedDataParallel where no cap is given, but for the first bucket."""
LEAST, MOST = 3, 24
"""Sizes that make a sweep, and that one could read."""
LINES = (COLOURS["ddp"], "#d55e00", "#009e73", "#cc79a7", *OTHERS)


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that differ in the size of their buckets only, smallest cap first."""

    rows: list[Row]
    name: str


def sweeps_of(rows: Sequence[Row], name: Mapping[str, str]) -> list[Sweep]:
    """The sweeps among rows that have enough sizes to show something.

    Args:
        rows: of one model.
        name: of each row by its case's id.
    """
    groups: dict[object, list[Row]] = {}
    for row in rows:
        if CAP in row.case.options and row.case.world_size > 1:
            groups.setdefault(_rest(row), []).append(row)
    found = []
    for group in groups.values():
        ordered = sorted(group, key=_cap)
        if len({_place(row) for row in ordered}) >= LEAST:
            plain = next((row for row in ordered if _is_default(row)), ordered[0])
            found.append(
                Sweep(rows=ordered, name=f"{name[plain.case.id]} x{plain.case.world_size}")
            )
    return found


def _rest(row: Row) -> object:
    """All that makes a row what it is but its bucket size."""
    options = {key: value for key, value in row.case.options.items() if key not in BUCKET_OPTIONS}
    rest = msgspec.structs.replace(row.case, options=options, label="", id="")
    return msgspec.json.encode(rest, order="deterministic")


def _is_default(row: Row) -> bool:
    return row.case.options[CAP] is None and not row.case.options.get("bucket_cap_mb_list")


def _cap(row: Row) -> tuple[float, bool, str]:
    value = row.case.options[CAP]
    known = float(value) if isinstance(value, int | float) else DEFAULT_CAP
    return known, not _is_default(row), _place(row)


def _place(row: Row) -> str:
    """What stands under a point."""
    given = row.case.options.get("bucket_cap_mb_list")
    if given:
        return one_line(str(given), limit=18)
    value = row.case.options[CAP]
    return (
        DEFAULT if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
    )


def sweep_figure(rows: Sequence[Row], name: Mapping[str, str], report: Sequence[Row]) -> Any:
    """Throughput over the size of the buckets; None where no sweep that one could read is there.

    Args:
        rows: of settings.
        name: of each row by its case's id.
        report: all rows, among which a difference must be clear.
    """
    sweeps = sweeps_of(rows, name)
    measured = [row for one in sweeps for row in one.rows if _rate(row)]
    if not measured:
        return None
    caps = {_place(row): _cap(row) for one in sweeps for row in one.rows}
    places = sorted(caps, key=lambda place: caps[place])
    if len(places) > MOST:
        return None
    figure, axes = new_figure(max(6.4, 1.6 + 0.75 * len(places)), 4.2)
    for number, one in enumerate(sweeps):
        shift = (number - (len(sweeps) - 1) / 2) * 0.5 / max(len(sweeps), 4)
        at = {place: index + shift for index, place in enumerate(places)}
        look = LINES[number % len(LINES)], MARKERS[number % len(MARKERS)]
        _sweep(axes, one, at, look, report)
    axes.set_xticks(range(len(places)), [_ticks(place, sweeps) for place in places])
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_ylim(0, 1.25 * max(map(_rate, measured)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(
        "cap of DDP's buckets, MiB; under it, how many buckets torch made of the gradients"
    )
    axes.set_ylabel(f"{measured[0].unit}s per second, all devices")
    axes.grid(axis="y", alpha=0.3)
    _legend(axes)
    add_legend(figure, axes)
    return figure


def _ticks(place: str, sweeps: Sequence[Sweep]) -> str:
    counts = {
        len(buckets_of(row))
        for one in sweeps
        for row in one.rows
        if _place(row) == place and buckets_of(row)
    }
    return place + "".join(f"\n{plural(count, 'bucket')}" for count in sorted(counts)[:2])


def _rate(row: Row) -> float:
    if row.samples_per_s is None or row.is_proved_wrong:
        return 0.0
    return row.samples_per_s.value * row.units_per_sample


def _sweep(
    axes: Any,
    sweep: Sweep,
    places: Mapping[str, float],
    look: tuple[str, str],
    report: Sequence[Row],
) -> None:
    colour, _ = look
    found = ranking_among(sweep.rows, report)
    points = [(places[_place(row)], row) for row in sweep.rows]
    drawn = [(at, row) for at, row in points if _rate(row)]
    axes.plot(
        [at for at, _ in drawn], [_rate(row) for _, row in drawn], color=colour, linewidth=1.2,
        label=sweep.name, zorder=2,
    )  # fmt: skip
    for at, row in points:
        if _rate(row):
            _point(axes, at, row, look, found)
        else:
            axes.annotate(
                f"✕ {why_missing(row)}", (at, 0), (0, 3), textcoords="offset points", rotation=90,
                ha="center", va="bottom", fontsize=7, color="#a00000",
            )  # fmt: skip


def _point(axes: Any, at: float, row: Row, look: tuple[str, str], found: Ranking | None) -> None:
    colour, marker = look
    rate, scale = row.samples_per_s, row.units_per_sample
    assert rate is not None, "it was measured"
    if rate.low is not None and rate.high is not None:
        axes.plot(
            [at, at], [rate.low * scale, rate.high * scale], color=colour, linewidth=1, zorder=2
        )
    is_level = found is not None and (row is found.best or row in found.level)
    (point,) = axes.plot(
        at, rate.value * scale, marker, color=colour, markersize=7, zorder=3,
        markerfacecolor=colour if is_level else "#ffffff",
    )  # fmt: skip
    place = _place(row).replace("\n", " ")
    tell(point, f"{place}: {cells.throughput(row)} {row.unit}s/s; {cells.buckets(row)} MB")
    if found is not None and row is found.best:
        axes.plot(
            at, rate.value * scale, "o", markersize=15, markerfacecolor="none", zorder=3,
            markeredgecolor="#000000", markeredgewidth=1.2,
        )  # fmt: skip


def _legend(axes: Any) -> None:
    grey: dict[str, Any] = {"color": "#555555", "linestyle": "none", "marker": "o"}
    axes.plot(
        [], [], "o", markersize=11, markerfacecolor="none", markeredgecolor="#000000",
        markeredgewidth=1.2, label="highest figure",
    )  # fmt: skip
    axes.plot([], [], label="cannot be told from the highest", markersize=6, **grey)
    axes.plot([], [], label="clearly slower", markersize=6, markerfacecolor="#ffffff", **grey)
