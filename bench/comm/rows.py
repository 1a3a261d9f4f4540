"""From what the ranks found out to rows: pure arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.comm.sweep import Planned
from bench.errors import one_line
from bench.measure.collectives import bus_factor
from bench.measure.operations import is_carried_by
from bench.records.collectives import Collective
from bench.run.culprit import find_culprit
from bench.run.handover import RankOutcome, Times

LOW, HIGH = 10, 90
"""Percent of the calls that a row's spread leaves out below, and up to which it goes."""

STALLED = 3.0
"""Times the median: where a tenth of the calls takes so long, something else had the cores."""


def skipped(planned: Planned, *, run_id: str) -> Collective:
    """The row of a point that cannot be measured."""
    assert planned.skip_reason is not None, "it can be measured"
    return _row(planned, run_id, status="skipped", reason=planned.skip_reason)


def failed(planned: Planned, reason: str, *, run_id: str) -> Collective:
    """The row of a point whose processes could not be started."""
    return _row(planned, run_id, status="failed", reason=reason)


def row_of(
    planned: Planned, number: int, outcomes: Sequence[RankOutcome], *, run_id: str
) -> Collective:
    """The row of a point that was to be measured.

    Args:
        planned: the point.
        number: of it in its launch.
        outcomes: of all ranks of the launch.
        run_id: of the run.
    """
    found = [next((one for one in rank.times if one.number == number), None) for rank in outcomes]
    times = [one for one in found if one is not None]
    if len(times) < len(outcomes):
        culprit = find_culprit(outcomes)
        failure = culprit.failure if culprit is not None else None
        if culprit is None or failure is None:
            return _row(planned, run_id, status="failed", reason="the ranks ended before it")
        told = f"rank {culprit.rank} of {len(outcomes)}, in {culprit.phase}: {failure.reason}"
        return _row(planned, run_id, status=failure.status, reason=one_line(told))
    reason = next((one.reason for one in times if one.reason is not None), None)
    if any(one.out_of_memory for one in times):
        return _row(planned, run_id, status="out_of_memory", reason=reason)
    if reason is not None:
        return _row(planned, run_id, status="failed", reason=one_line(reason))
    return _measured(planned, times, run_id)


def _measured(planned: Planned, times: Sequence[Times], run_id: str) -> Collective:
    size, ranks = planned.point.bytes, planned.group.world_size
    # A call lasts as long as on the slowest rank: each leaves it at a time of its own.
    alone = [max(calls) for calls in zip(*(one.isolated_s for one in times), strict=True)]
    in_rows = [max(rows) for rows in zip(*(one.row_s for one in times), strict=True)]
    calls = times[0].row_calls
    assert calls is not None, "rows were timed"
    median_s = statistics.median(alone)
    back_to_back_s = statistics.median(in_rows) / calls
    low_s, high_s = np.percentile(alone, [LOW, HIGH])
    factor = bus_factor(planned.point.op, ranks)
    carried_by = times[0].carried_by
    known = is_carried_by(planned.group.backend, carried_by)
    stalled = ["calls_stalled"] if high_s > STALLED * median_s else []
    return _row(
        planned,
        run_id,
        flags=[*planned.flags, *stalled],
        status="ok" if known else "failed",
        reason=None if known else f"was carried by {carried_by}, not by {planned.group.backend}",
        carried_by=carried_by,
        median_s=median_s,
        low_s=float(low_s),
        high_s=float(high_s),
        algbw_bytes_per_s=size / median_s,
        busbw_bytes_per_s=None if factor is None else factor * size / median_s,
        back_to_back_s=back_to_back_s,
        back_to_back_busbw_bytes_per_s=None if factor is None else factor * size / back_to_back_s,
        isolated_s=[one.isolated_s for one in times],
        row_s=[one.row_s for one in times],
        row_calls=calls,
    )


def _row(planned: Planned, run_id: str, **found: Any) -> Collective:
    """A row with what identifies it."""
    group, point = planned.group, planned.point
    fields: dict[str, Any] = {"flags": list(planned.flags)} | found
    return Collective(
        run_id=run_id,
        op=point.op,
        backend=group.backend,
        device=group.device,
        dtype=point.dtype,
        world_size=group.world_size,
        nodes=group.nodes,
        link=group.link,
        bytes=point.bytes,
        **fields,
    )
