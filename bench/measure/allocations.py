"""Exact tensor memory from a profile: every allocation and release, device by device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.measure.intervals import Interval
from bench.measure.ranges import DEVICE, STEPS
from bench.measure.trace import GLOO, Event, find_range

COMMUNICATION_BUFFERS = (
    "c10d::_reduce_scatter",
    "c10d::reduce_scatter",
    "FSDP::all_gather (",
)
"""Beginnings of ranges in which buffers are made that collectives work on, and let go of."""
FLATTEN = "aten::flatten_dense_tensors"
"""Makes another one where a collective is the very next thing; else what it makes may stay, as the
parameters of ZeRO do."""


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """Tensor memory over some steps, in bytes, per device."""

    peak: list[int]
    before: list[int]
    """Alive when the steps began."""
    after: list[int]
    """Alive when they ended: the same in a steady state."""


def read_allocations(events: Sequence[Event], devices: int) -> Allocations:
    """Tensor memory during the profiled steps, from a profile that began before the model.

    Every allocation and release names its address, so that a tensor is its device's own until it is
    released, wherever that happens; see ``_Unseen`` for releases that no profile sees.

    Args:
        events: of one process, ``profile_memory`` among them.
        devices: that the process stands for.
    """
    frame = find_range(events, STEPS)
    begin, end = frame["ts"], frame["ts"] + frame["dur"]
    changes = sorted(_changes(events, devices), key=lambda change: change[0])
    before = [0] * devices
    for time, device, size in changes:
        if time <= begin:
            before[device] += size
    live, peak = list(before), list(before)
    for time, device, size in changes:
        if begin < time <= end:
            live[device] += size
            peak[device] = max(peak[device], live[device])
    return Allocations(peak=peak, before=before, after=live)


def _changes(events: Sequence[Event], devices: int) -> Iterator[tuple[float, int, int]]:
    """(time, device, bytes) of every allocation and release."""
    memory = sorted(
        (event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]
    )
    ranges = [event for event in events if event["ph"] == "X"]
    owners = [
        (*_ends(event), int(found[1]))
        for event in ranges
        if (found := DEVICE.match(event["name"])) is not None and int(found[1]) < devices
    ]
    unseen = _Unseen(ranges)
    alive: dict[int, tuple[int, int, float]] = {}
    for event in memory:
        arguments = event["args"]
        address, size, time = int(arguments["Addr"]), int(arguments["Bytes"]), event["ts"]
        if size > 0:
            if address in alive:  # released where no profile looks, and now used again
                device, old, born = alive[address]
                yield min(unseen.release(born) or time, time), device, -old
            device = next((who for begin, end, who in owners if begin <= time <= end), 0)
            alive[address] = (device, size, time)
            yield time, device, size
        elif address in alive:
            device, old, _ = alive.pop(address)
            yield time, device, -old
    for device, size, born in alive.values():
        release = unseen.release(born)
        if release is not None:
            yield release, device, -size


def _ends(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _is_sent(made: Event, following: Sequence[Event]) -> bool:
    """Whether the next operator of the same thread is a collective."""
    _, end = _ends(made)
    later = (one for one in following if one["ts"] >= end and one["tid"] == made["tid"])
    return next((one["name"].startswith("c10d::") for one in later), False)


class _Unseen:
    """Releases by gloo's own threads, which no profile sees.

    What a collective works on is released by whoever lets go of it last: sometimes the thread that
    trains, which is seen, and sometimes gloo's. In the second case it is taken to have happened
    when the first was done with it: when FSDP had copied a gathered unit out, and for the copies
    that a reduce-scatter or a broadcast works on, when the next collective had ended.
    """

    def __init__(self, ranges: Sequence[Event]) -> None:
        in_order = sorted(ranges, key=lambda event: event["ts"])
        self._temporary = [
            (*_ends(event), event["name"])
            for index, event in enumerate(in_order)
            if event["name"].startswith(COMMUNICATION_BUFFERS)
            or (event["name"] == FLATTEN and _is_sent(event, in_order[index:]))
        ]
        self._collectives = [_ends(event) for event in in_order if GLOO.match(event["name"])]
        self._copied = [
            (*_ends(event), event["name"])
            for event in in_order
            if event["name"].startswith("FSDP::all_gather_copy_out")
        ]

    def release(self, born: float) -> float | None:
        """When that was; None for an allocation that no collective works on."""
        made_in = [name for begin, end, name in self._temporary if begin <= born <= end]
        if not made_in:
            return None
        unit = made_in[-1].partition(" ")[2]
        copied = (end for begin, end, name in self._copied if begin > born and name.endswith(unit))
        if unit and (end := next(copied, None)) is not None:
            return end
        return next((end for begin, end in self._collectives if begin >= born), None)
