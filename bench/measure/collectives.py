"""What the collectives of a step cost: all ranks' traces together, as figures.

A collective ends on all ranks at about the same time but begins when each rank comes to it, so that
a rank's own duration contains its waiting for the others. The least duration over the ranks is what
moving the bytes took; the rest, on each rank, is waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.measure.intervals import Interval, total, union, without
from bench.measure.trace import Span, StepsTrace

RING_FACTORS = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
}
"""Times (n - 1) / n, what a rank must send of the payload in a ring: nccl-tests' PERFORMANCE.md.
The others send it once."""

NO_RANKS: Mapping[str, int] = {}


def bus_factor(operation: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth, and bytes on the wire over payload; None alone.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if ranks < 2:
        return None
    share = RING_FACTORS.get(operation)
    return 1.0 if share is None else share * (ranks - 1) / ranks


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a step."""

    operation: str
    calls: float
    """Per step."""
    payload_bytes: int | None
    """Per step."""
    wire_bytes: int | None
    """Per step: what a rank must send at least, in a ring; None where it is not told."""
    busy_s: float
    """Per step: when any call moved bytes, waiting left out."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What communication costs in a step, in seconds."""

    collectives: list[Collective]
    busy_s: float
    """When anything was moved, on the rank with the longest ``exposed_s``."""
    exposed_s: float
    """Of that, when nothing was computed; on the rank where it is longest."""
    wait_s: float
    """For peers that came late to a collective, on the rank that waited longest."""
    late_rank: int | None
    """That the others waited for most; None where nobody waited, or in one process alone."""
    late_share: float | None
    """Of all waiting, the part that this rank has caused."""

    @property
    def hidden_fraction(self) -> float | None:
        """Share of the busy time that computation hides; None where nothing is moved."""
        return 1 - self.exposed_s / self.busy_s if self.busy_s > 0 else None


def costs(
    traces: Sequence[StepsTrace], ranks: int | None, of_operations: Mapping[str, int] = NO_RANKS
) -> Costs:
    """Combine the ranks' traces.

    Args:
        traces: one per process, of the same steps.
        ranks: of the group of those collectives whose trace does not tell, if all have one size.
        of_operations: likewise, of those operations that have a group of their own.
    """
    steps = traces[0].steps
    shortest = _shortest(traces)
    busiest = (0.0, 0.0)
    wait_s = 0.0
    for trace in traces:
        for device in _devices(trace):
            spans = [span for span in trace.spans if span.device == device]
            moving = _moving(spans, shortest)
            waiting = union((span.begin_s, span.end_s - shortest[span.key]) for span in spans)
            exposed = total(without(moving, trace.computation.get(device, [])))
            busiest = max(busiest, (exposed, total(moving)))
            wait_s = max(wait_s, total(without(waiting, moving)))
    exposed_s, busy_s = busiest
    late_rank, late_share = _latest(traces)
    return Costs(
        collectives=_by_operation(traces[0], shortest, ranks, of_operations),
        busy_s=busy_s / steps,
        exposed_s=exposed_s / steps,
        wait_s=wait_s / steps,
        late_rank=late_rank,
        late_share=late_share,
    )


def _latest(traces: Sequence[StepsTrace]) -> tuple[int | None, float | None]:
    """The rank that is last at the collectives for which the others wait, and its part of that.

    A collective's last rank is the one that takes least time for it; what the one that takes most
    does so longer is the waiting that the last one has caused.
    """
    durations: dict[str, dict[int, float]] = {}
    for rank, trace in enumerate(traces):
        for span in trace.spans:
            durations.setdefault(span.key, {})[rank] = span.duration_s
    caused = dict.fromkeys(range(len(traces)), 0.0)
    for ranks in durations.values():
        last = min(ranks, key=ranks.__getitem__)
        caused[last] += max(ranks.values()) - ranks[last]
    everything = sum(caused.values())
    if everything <= 0:
        return None, None
    latest = max(caused, key=caused.__getitem__)
    return latest, caused[latest] / everything


def _devices(trace: StepsTrace) -> list[int]:
    return sorted({span.device for span in trace.spans} | set(trace.computation))


def _moving(spans: Iterable[Span], shortest: dict[str, float]) -> list[Interval]:
    """When any of the collectives of one device moved bytes."""
    return union((span.end_s - shortest[span.key], span.end_s) for span in spans)


def _shortest(traces: Sequence[StepsTrace]) -> dict[str, float]:
    """Least duration of each collective over the ranks."""
    shortest: dict[str, float] = {}
    for trace in traces:
        for span in trace.spans:
            shortest[span.key] = min(shortest.get(span.key, span.duration_s), span.duration_s)
    return shortest


def _by_operation(
    trace: StepsTrace,
    shortest: dict[str, float],
    ranks: int | None,
    of_operations: Mapping[str, int],
) -> list[Collective]:
    """The operations of one process; a collective of several of its devices counts once."""
    found: list[Collective] = []
    for operation in dict.fromkeys(span.operation for span in trace.spans):
        spans = [span for span in trace.spans if span.operation == operation]
        calls = {span.key: span for span in spans}
        expected = of_operations.get(operation, ranks)
        payloads = [one.payload_bytes for one in calls.values() if one.payload_bytes is not None]
        each = (_wire_bytes(one, expected) for one in calls.values())
        on_wire = [sent for sent in each if sent is not None]
        busy_s = max(
            total(_moving([span for span in spans if span.device == device], shortest))
            for device in _devices(trace)
        )
        found.append(
            Collective(
                operation=operation,
                calls=len(calls) / trace.steps,
                payload_bytes=sum(payloads) // trace.steps if len(payloads) == len(calls) else None,
                wire_bytes=(
                    round(sum(on_wire) / trace.steps) if len(on_wire) == len(calls) else None
                ),
                busy_s=busy_s / trace.steps,
            )
        )
    return found


def _wire_bytes(span: Span, ranks: int | None) -> float | None:
    """What a rank sends of one collective at least; None alone, or where it is not told."""
    size = span.ranks or ranks
    factor = None if size is None else bus_factor(span.operation, size)
    if factor is None or span.payload_bytes is None:
        return None
    return factor * span.payload_bytes
