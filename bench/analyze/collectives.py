"""What must be said of the times of a collective alone, beyond what its ranks saw themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bench.analyze.checks import OVER_LINK
from bench.analyze.shapes import has_two_levels
from bench.records.collectives import Collective, Limit

BIMODAL, ROWS_BIMODAL, FASTER = "bimodal", "rows_bimodal", "faster_than_loopback"


def flags_of(row: Collective, limits: Sequence[Limit]) -> Iterator[str]:
    """Flags that follow from a row's times.

    Args:
        row: of one operation and size.
        limits: what else was measured in the run.
    """
    if _has_two_levels(row.isolated_s):
        yield BIMODAL
    if _has_two_levels(row.row_s):
        yield ROWS_BIMODAL
    rates = [row.busbw_bytes_per_s or 0.0, row.back_to_back_busbw_bytes_per_s or 0.0]
    beside = [one.bytes_per_s for one in limits if _is_loopback_of(one, row)]
    if beside and max(rates) > OVER_LINK * max(beside):
        yield FASTER


def _is_loopback_of(limit: Limit, row: Collective) -> bool:
    is_here = row.nodes == 1 and row.device == "cpu"
    return is_here and limit.what.startswith("loopback") and limit.ranks == row.world_size


def _has_two_levels(ranks: Sequence[Sequence[float]] | None) -> bool:
    """Of the slowest rank's times, by factors: a short call that waits takes ten times as long."""
    times = [max(call) for call in zip(*ranks, strict=True)] if ranks else []
    if not times or min(times) <= 0:
        return False
    return has_two_levels([1 + math.log(one / min(times)) for one in times])
