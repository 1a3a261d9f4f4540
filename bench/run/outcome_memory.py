"""Memory of a launch's record: what devices held, and what their peaks are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.measure.allocations import Allocations
from bench.measure.memory import Peaks
from bench.records.record import Memory, MemoryTimeline, Record
from bench.run.compiled import captures
from bench.run.handover import Assignment, RankOutcome

UNSEEN = "allocations_unseen"
"""Flag of a plan for a case whose tensor memory no profile sees in full."""
DRIFT = 0.005
"""Share of the peak by which the bytes alive before and after steady steps may differ."""


def memory_of(assignment: Assignment, outcomes: Sequence[RankOutcome]) -> Memory | None:
    """What the devices held at most, as their allocators know it; None where nothing is known."""
    peaks = [peak for outcome in outcomes for peak in outcome.memory]
    if captures(assignment.case):  # what lives within captured graphs is not counted as allocated
        peaks = [msgspec.structs.replace(peak, allocated=None) for peak in peaks]
    return _memory(peaks, outcomes) if peaks else None


def with_memory(record: Record, outcomes: Sequence[RankOutcome]) -> Record:
    """Tensor memory, where what is alive after the steps is what was alive before them.

    Else something was released where no profile looks, and the peak is none; nor is it one where
    the plan knows that something is allocated there.
    """
    found = [outcome.allocations for outcome in outcomes if outcome.allocations is not None]
    peaks: list[Peaks] = []
    is_steady = True
    for one in found:
        for peak, before, after in zip(one.peak, one.before, one.after, strict=True):
            steady = abs(after - before) <= DRIFT * peak
            is_steady = is_steady and steady
            is_whole = steady and UNSEEN not in record.flags
            peaks.append(Peaks(allocated=peak if is_whole else None))
    memory = _memory(peaks, outcomes)
    if all(peak.allocated is not None for peak in peaks):
        memory = msgspec.structs.replace(
            memory,
            by_category=_by_name([device for one in found for device in one.by_category]) or None,
            timeline=_timeline(found[0]) if found else None,
        )
    return msgspec.structs.replace(
        record,
        memory=memory,
        flags=record.flags if is_steady else [*record.flags, "allocations_drift"],
    )


def _memory(peaks: Sequence[Peaks], outcomes: Sequence[RankOutcome]) -> Memory:
    held = [device for outcome in outcomes for device in outcome.held]
    return Memory(
        peak_allocated_bytes=[peak.allocated for peak in peaks],
        peak_reserved_bytes=[peak.reserved for peak in peaks],
        peak_driver_bytes=[peak.driver for peak in peaks],
        peak_process_bytes=[peak.process for peak in peaks],
        held_by_category=_by_name(held) or None,
    )


def _by_name(devices: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Bytes of each category on each device."""
    names = dict.fromkeys(name for device in devices for name in device)
    return {name: [device.get(name, 0) for device in devices] for name in names}


def _timeline(allocations: Allocations) -> MemoryTimeline | None:
    if not allocations.timeline:
        return None
    return MemoryTimeline(
        at_s=[at for at, _ in allocations.timeline],
        by_category=_by_name([alive for _, alive in allocations.timeline]),
    )
