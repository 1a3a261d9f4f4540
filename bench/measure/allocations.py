"""Exact tensor memory from a profile: every allocation and release, device by device.

What each allocation is for is counted, never inferred from what others leave: by its address where
the process itself has said what it holds there, else by what made it, and by how long it lived.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.measure.intervals import Interval
from bench.measure.ranges import BUFFERS, DEVICE, MARK, STEPS
from bench.measure.trace import GLOO, Event, find_range

COMMUNICATION_BUFFERS = (
    "c10d::_reduce_scatter",
    "c10d::reduce_scatter",
    "c10d::allgather_",
    "FSDP::all_gather (",
    BUFFERS,
)
"""Beginnings of ranges in which buffers are made that collectives work on, and let go of."""
UNSHARDED = (
    "FSDP::all_gather_copy_out",
    "FullyShardedDataParallel._pre_forward",
    "FullyShardedDataParallel._pre_backward",
)
"""In which FSDP, and its first version, make whole parameters of what they gather."""
REDUCED = ("FSDP::post_backward_reduce", "FullyShardedDataParallel._post_backward_hook")
"""In which they copy the whole gradients of a unit into what they send, and let go of them."""
FLATTEN = "aten::flatten_dense_tensors"
"""Makes another one where a collective is the very next thing; else what it makes may stay, as the
parameters of ZeRO do."""
FORWARD = "forward"
POINTS = 100
"""Of a timeline, at most."""

Held = Mapping[int, str]
"""Category by address of what a process itself knows that it holds at some moment."""


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """Tensor memory over some steps, in bytes, per device."""

    peak: list[int]
    before: list[int]
    """Alive when the steps began."""
    after: list[int]
    """Alive when they ended: the same in a steady state."""
    by_category: list[dict[str, int]] = field(default_factory=list)
    """What the peak is made of; ``unexplained`` for what cannot be told."""
    timeline: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """Seconds since the steps began, and what is alive then: of the first device."""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One allocation, from its birth to its release, in microseconds of the profile."""

    device: int
    address: int
    size: int
    born: float
    died: float

    def is_alive(self, at: float) -> bool:
        return self.born <= at < self.died


def read_allocations(
    events: Sequence[Event],
    devices: int,
    held: Sequence[Held] = (),
    bucket_bytes: Sequence[int] = (),
) -> Allocations:
    """Tensor memory during the profiled steps, from a profile that began before the model.

    Every allocation and release names its address, so that a tensor is its device's own until it is
    released, wherever that happens; see ``_Unseen`` for releases that no profile sees.

    Args:
        events: of one process, ``profile_memory`` among them.
        devices: that the process stands for.
        held: what the process holds at each mark of a phase's end, in their order; without, no
            category is told.
        bucket_bytes: sizes of DDP's buckets.
    """
    frame = find_range(events, STEPS)
    begin, end = frame["ts"], frame["ts"] + frame["dur"]
    unseen = _Unseen([event for event in events if event["ph"] == "X"])
    blocks = list(_blocks(events, devices, unseen))
    before = [0] * devices
    changes: list[tuple[float, int, int]] = []
    for block in blocks:
        if block.is_alive(begin):
            before[block.device] += block.size
        changes += [
            (at, block.device, size)
            for at, size in ((block.born, block.size), (block.died, -block.size))
            if begin < at <= end
        ]
    live, peak, moments = list(before), list(before), [float(begin)] * devices
    for at, device, size in sorted(changes, key=lambda change: change[0]):
        live[device] += size
        if live[device] > peak[device]:
            peak[device], moments[device] = live[device], at
    found = Allocations(peak=peak, before=before, after=live)
    if not held:
        return found
    kinds = _Kinds(events, frame, unseen, held, bucket_bytes)
    named = [(block, kinds.of(block)) for block in blocks if block.died > begin]
    return Allocations(
        peak=peak,
        before=before,
        after=live,
        by_category=[_alive(named, device, at) for device, at in enumerate(moments)],
        timeline=[
            ((at - begin) / 1e6, _alive(named, 0, at))
            for at in _moments(changes, begin, moments[0])
        ],
    )


def _alive(named: Sequence[tuple[_Block, str]], device: int, at: float) -> dict[str, int]:
    """Bytes by category on a device at a moment."""
    found: dict[str, int] = {}
    for block, name in named:
        if block.device == device and block.is_alive(at):
            found[name] = found.get(name, 0) + block.size
    return found


def _moments(changes: Sequence[tuple[float, int, int]], begin: float, peak: float) -> list[float]:
    """At most ``POINTS`` of a timeline, the peak among them."""
    every = sorted({begin, *(at for at, device, _ in changes if device == 0)})
    step = max(1, math.ceil(len(every) / (POINTS - 1)))
    return sorted({*every[::step], peak})


def _blocks(events: Sequence[Event], devices: int, unseen: _Unseen) -> Iterator[_Block]:
    memory = sorted(
        (event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]
    )
    owners = [
        (*_ends(event), int(found[1]))
        for event in events
        if event["ph"] == "X"
        and (found := DEVICE.match(event["name"])) is not None
        and int(found[1]) < devices
    ]
    alive: dict[int, tuple[int, int, float]] = {}

    def block(address: int, died: float) -> _Block:
        device, size, born = alive.pop(address)
        return _Block(device=device, address=address, size=size, born=born, died=died)

    for event in memory:
        arguments = event["args"]
        address, size, time = int(arguments["Addr"]), int(arguments["Bytes"]), event["ts"]
        if size > 0:
            if address in alive:  # released where no profile looks, and now used again
                born = alive[address][2]
                yield block(address, min(unseen.release(born) or time, time))
            device = next((who for begin, end, who in owners if begin <= time <= end), 0)
            alive[address] = (device, size, time)
        elif address in alive:
            yield block(address, time)
    for address, (_, _, born) in list(alive.items()):
        yield block(address, unseen.release(born) or math.inf)


def _ends(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _ranges(events: Sequence[Event], names: tuple[str, ...]) -> list[Interval]:
    """Of these beginnings."""
    return [
        _ends(event) for event in events if event["ph"] == "X" and event["name"].startswith(names)
    ]


def _is_in(at: float, ranges: Sequence[Interval]) -> bool:
    return any(begin <= at <= end for begin, end in ranges)


class _Kinds:
    """What each block is for."""

    def __init__(
        self,
        events: Sequence[Event],
        frame: Event,
        unseen: _Unseen,
        held: Sequence[Held],
        bucket_bytes: Sequence[int],
    ) -> None:
        marks = sorted(
            (event["ts"], found[1].partition(".")[0])
            for event in events
            if event["tid"] == frame["tid"] and (found := MARK.match(event["name"])) is not None
        )
        self._begin = frame["ts"]
        self._ends = [at for at, _ in marks]
        self._phases = [phase for _, phase in marks]
        self._held = list(zip(self._ends, held, strict=True))
        self._unseen = unseen
        self._bucket_bytes = frozenset(bucket_bytes)
        self._buckets = list(bucket_bytes)
        self._unsharded = _ranges(events, UNSHARDED)
        self._reduced = _ranges(events, REDUCED)

    def of(self, block: _Block) -> str:
        """The block's category."""
        for at, known in self._held:
            if block.is_alive(at) and block.address in known:
                name = known[block.address]
                # A gradient that outlives its step is a view of its bucket.
                lasts = name == "gradients" and block.born < self._begin
                return "buckets" if lasts and block.size in self._bucket_bytes else name
        if self._unseen.is_temporary(block.born):
            return "communication"
        if _is_in(block.born, self._unsharded):
            return "unsharded_parameters"
        if _is_in(block.died, self._reduced) and not _is_in(block.born, self._reduced):
            return "unsharded_gradients"
        if block.born < self._begin:
            return self._of_old(block)
        index = bisect.bisect_left(self._ends, block.born)
        if index == len(self._ends):
            return "unexplained"
        lives_on = self._phases[index] == FORWARD and block.died > self._ends[index]
        return "activations" if lives_on else "workspace"

    def _of_old(self, block: _Block) -> str:
        """Of what was there before the steps: a bucket by its size, each once."""
        if block.size in self._buckets:
            self._buckets.remove(block.size)
            return "buckets"
        return "unexplained"


def _is_sent(made: Event, following: Iterable[Event]) -> bool:
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
            or (
                event["name"] == FLATTEN
                and _is_sent(event, itertools.islice(in_order, index, None))
            )
        ]
        self._collectives = [_ends(event) for event in in_order if GLOO.match(event["name"])]
        self._copied = [
            (*_ends(event), event["name"])
            for event in in_order
            if event["name"].startswith("FSDP::all_gather_copy_out")
        ]

    def is_temporary(self, born: float) -> bool:
        """Whether what was made then is there for a collective to work on."""
        return any(begin <= born <= end for begin, end, _ in self._temporary)

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
