"""Page faults: what the allocator makes of a step, which says nothing of the strategy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.analyze.rows import Row
from bench.records.record import Record, Timing

FLAG = "page_faults"
FAULT_S = 1e-6
"""What a page fault costs at least; on a virtual machine 2 us were seen, with the zeroing."""
SHARE = 0.05
"""Of a step in page faults, from which they explain differences between rows."""


def share_of(timing: Sequence[Record]) -> float | None:
    """Share of a step that page faults take, roughly, on the process that has most of them.

    Args:
        timing: launches of a case that gave a figure. The median of them counts: one launch says
            little of the others.

    Returns:
        None where nobody counted.
    """
    shares = [_share(one.timing) for one in timing if one.timing is not None]
    known = [one for one in shares if one is not None]
    return statistics.median(known) if known else None


def _share(timing: Timing) -> float | None:
    known = [one for one in timing.minor_faults_per_step or () if one is not None]
    slowest = timing.step_s[timing.window_s.index(max(timing.window_s))]
    step_s = statistics.fmean(slowest)
    return max(known) * FAULT_S / step_s if known and step_s else None


def differ(row: Row, baseline: Row) -> bool:
    """Whether page faults explain a part of a ratio of two rows."""
    if row.page_fault_share is None or baseline.page_fault_share is None:  # of early versions
        return (FLAG in row.flags) != (FLAG in baseline.flags)
    return abs(row.page_fault_share - baseline.page_fault_share) >= SHARE
