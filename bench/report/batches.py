"""The table of the largest batch per device: the figure for which people shard."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analyze.rows import Row
from bench.report import cells
from bench.report.style import Column
from bench.report.tables import named


def searched(rows: Sequence[Row]) -> list[Row]:
    """The rows of which the largest batch was asked for."""
    return [row for row in rows if row.max_batch is not None or row.max_batch_note is not None]


def columns(rows: Sequence[Row]) -> list[Column]:
    """What the table shows of them."""
    return [
        *named(rows),
        Column("largest batch per device", _largest, is_figure=False),
        Column("global batch", _global, is_figure=False),
        Column("least that failed", _too_large, is_figure=False),
        Column("memory of each device, GiB", _limit, is_figure=False),
        Column(_peak_heading(rows), _peak, is_figure=False),
    ]


def _largest(row: Row) -> str:
    found = row.max_batch
    if found is None:
        return (row.max_batch_note or "").partition(":")[0]
    if found.per_device_batch is None:
        return "none fits"
    return f"{found.per_device_batch:,}" + ("" if found.too_large else " or more")


def _global(row: Row) -> str:
    found = row.max_batch
    if found is None or found.per_device_batch is None:
        return cells.DASH
    case = row.case
    return f"{found.per_device_batch * case.world_size * case.accumulation_steps:,}"


def _too_large(row: Row) -> str:
    found = row.max_batch
    return cells.DASH if found is None or found.too_large is None else f"{found.too_large:,}"


def _limit(row: Row) -> str:
    found = row.max_batch
    if found is None:
        return cells.DASH
    limit = found.memory_limit_bytes
    return "all it has" if limit is None else cells.significant(limit / cells.GIB)


def _peak(row: Row) -> str:
    found = row.max_batch
    trials = found.trials if found is not None else []
    best = [one for one in trials if found and one.per_device_batch == found.per_device_batch]
    peaks = best[0].peak_bytes if best else []
    of_one = len(peaks) > 1 and not cells.known(peaks[1:])
    return cells.gib(peaks[:1] if of_one else peaks) + (" (one process)" if of_one else "")


def _peak_heading(rows: Sequence[Row]) -> str:
    what = "resident" if all(row.case.device == "cpu" for row in rows) else "tensor"
    return f"{what} peak with it, GiB/device"
