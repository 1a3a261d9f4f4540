"""Read a profile: which collectives ran when, what was computed meanwhile, what was allocated.

The profile is the chrome trace that ``torch.profiler`` exports, so that what is tested on a trace
written by hand is what reads the trace of a real device. Communication is told by name, never by
stream or thread: NCCL's kernels may run on the stream of the computation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.measure.intervals import Interval, union, without

STEPS = "bench:steps"
"""Range around the profiled steps, from one synchronise to the next."""
DEVICE = re.compile(r"^device:(\d+)$")
"""Range whose allocations are a device's own. See ``strategies.base.on_device``."""
OWN_RANGE = re.compile(r"^move:(\w+):(\d+)$")
"""Range in which a strategy moves data itself: operation, bytes. See ``strategies.base.moving``."""

GLOO = re.compile(r"^gloo:(\w+)$")
NCCL = re.compile(r"^nccl\w*Kernel_([A-Za-z]+)")
"""``ncclKernel_``, ``ncclDevKernel_``, ``ncclSymDevKernel_`` ... and the operation."""
PEER_COPY = re.compile(r"^Memcpy (PtoP|P2P)")
COPIES = ("gpu_memcpy", "gpu_memset")
OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
}
"""Beginnings of spellings without underscores, and the field's name."""
NOT_COMPUTATION = frozenset({"c10d", "_c10d_functional", "gloo", "autograd", "torch", "fsdp"})
"""Namespaces of operators on a CPU that communicate, or contain others that do."""
COMMUNICATION_BUFFERS = (
    "c10d::_reduce_scatter",
    "c10d::reduce_scatter",
    "FSDP::all_gather (",
    "aten::flatten_dense_tensors",
)
"""Beginnings of ranges in which buffers are made that collectives work on, and let go of."""
ITEM_BYTES = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "short int": 2, "bool": 1,
    "unsigned char": 1, "signed char": 1, "c10::half": 2, "c10::bfloat16": 2, "half": 2,
    "bfloat16": 2, "byte": 1, "char": 1,
}  # fmt: skip
"""Bytes of a number by the type's name in a trace, lower case; CPU and NCCL events spell it
differently."""


class Span(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One collective as one rank saw it."""

    operation: str
    key: str
    """Equal on all ranks for the same collective."""
    begin_s: float
    end_s: float
    payload_bytes: int | None
    """Largest of input and output on one rank; None where the trace does not tell."""
    device: int

    @property
    def duration_s(self) -> float:
        """Waiting for peers included."""
        return self.end_s - self.begin_s


class StepsTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Communication and computation of some steps, on one process."""

    steps: int
    spans: list[Span]
    computation: dict[int, list[Interval]]
    """Per device of the process, when anything was computed on it."""


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """Tensor memory over some steps, in bytes, per device."""

    peak: list[int]
    before: list[int]
    """Alive when the steps began."""
    after: list[int]
    """Alive when they ended: the same in a steady state."""


Event = Mapping[str, Any]


def read_events(path: Path) -> list[Event]:
    """All events of a trace that have a time.

    Raises:
        ValueError: it is no trace.
    """
    document = json.loads(path.read_bytes())
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise ValueError(f"{path.name} holds no traceEvents")
    return [event for event in events if "ts" in event and event.get("ph") in {"X", "i"}]


def read_steps(
    events: Sequence[Event], *, steps: int, world_size: int, on_accelerator: bool
) -> StepsTrace:
    """What was communicated and computed in the profiled steps.

    Args:
        events: of one process.
        steps: how many are in the range ``bench:steps``.
        world_size: ranks of the group.
        on_accelerator: look for computation among the kernels, not the operators.
    """
    frame = find_range(events, STEPS)
    inside = [event for event in events if event["ph"] == "X" and _is_within(event, frame)]
    spans = sorted(_spans(inside, world_size), key=lambda span: span.begin_s)
    if on_accelerator:
        computation = _kernel_computation(inside)
    else:
        computation = {0: _operator_computation(inside, frame)}
    return StepsTrace(steps=steps, spans=_keyed(spans), computation=computation)


def find_range(events: Iterable[Event], name: str) -> Event:
    """The range of that name.

    Raises:
        ValueError: there is none.
    """
    for event in events:
        if event["name"] == name and event.get("cat") == "user_annotation":
            return event
    raise ValueError(f"the trace has no range {name}")


def _interval(event: Event) -> Interval:
    return event["ts"] / 1e6, (event["ts"] + event.get("dur", 0)) / 1e6


def _is_within(event: Event, frame: Event) -> bool:
    begin: float = frame["ts"]
    return bool(begin <= event["ts"] <= begin + frame["dur"])


def _spans(events: Iterable[Event], world_size: int) -> Iterator[Span]:
    for event in events:
        name, category = event["name"], event.get("cat")
        arguments = event.get("args", {})
        if category == "user_annotation" and (found := GLOO.match(name)):
            payload = _tensor_bytes(arguments)
            if payload is not None and found[1] == "all_gather":  # whose input is a share
                payload *= world_size
            yield _span(event, found[1], payload)
        elif category == "user_annotation" and (found := OWN_RANGE.match(name)):
            yield _span(event, found[1], int(found[2]))
        elif category == "kernel" and (found := NCCL.match(name)):
            group, number = arguments.get("Process Group Name"), arguments.get("Seq")
            key = f"{group}/{number}" if number is not None else ""
            what = arguments.get("Collective name", found[1])
            yield _span(event, what, _message_bytes(arguments), key)
        elif category in COPIES and PEER_COPY.match(name):
            yield _span(event, "peer_copy", arguments.get("bytes"))


def _span(event: Event, what: str, payload: int | None, key: str = "") -> Span:
    begin_s, end_s = _interval(event)
    return Span(
        operation=operation(what),
        key=key,
        begin_s=begin_s,
        end_s=end_s,
        payload_bytes=payload,
        device=_device(event) if event.get("cat") != "user_annotation" else 0,
    )


def operation(spelling: str) -> str:
    """The field's name of a collective, from any spelling of a backend.

    >>> operation("_allgather_base"), operation("ReduceScatter"), operation("all_reduce")
    ('all_gather', 'reduce_scatter', 'all_reduce')
    """
    plain = re.sub(r"[^a-z]", "", spelling.lower())
    for begin in sorted(OPERATIONS, key=len, reverse=True):
        if plain.startswith(begin):
            return OPERATIONS[begin]
    return spelling


def _keyed(spans: Sequence[Span]) -> list[Span]:
    """Spans without a number of their backend's are told by what they are, and how often it came.

    Not by their place alone: two threads of gloo may begin two collectives in either order.
    """
    seen: dict[tuple[str, int | None, int], int] = {}
    keyed: list[Span] = []
    for span in spans:
        if span.key:
            keyed.append(span)
            continue
        kind = (span.operation, span.payload_bytes, span.device)
        seen[kind] = seen.get(kind, 0) + 1
        key = f"{span.operation}/{span.payload_bytes}/{seen[kind]}"
        keyed.append(msgspec.structs.replace(span, key=key))
    return keyed


def _tensor_bytes(arguments: Mapping[str, Any]) -> int | None:
    """Bytes of a gloo event's first tensor."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not dims or not types:
        return None
    size = ITEM_BYTES.get(str(types[0]).lower())
    return None if size is None else size * math.prod(dims[0])


def _message_bytes(arguments: Mapping[str, Any]) -> int | None:
    """Payload of an NCCL kernel: the larger of what goes in and what comes out."""
    counts = [arguments.get("In msg nelems"), arguments.get("Out msg nelems")]
    size = ITEM_BYTES.get(str(arguments.get("dtype", "")).lower())
    known = [int(count) for count in counts if count is not None]
    return max(known) * size if known and size is not None else None


def _device(event: Event) -> int:
    return int(event.get("args", {}).get("device", event["pid"]))


def _kernel_computation(events: Sequence[Event]) -> dict[int, list[Interval]]:
    """Per device, when kernels ran that are not communication, nor the copies around it."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    carriers = {(_device(event), event["tid"]) for event in kernels if NCCL.match(event["name"])}
    found: dict[int, list[Interval]] = {}
    for event in kernels:
        device, name = _device(event), event["name"]
        found.setdefault(device, [])
        is_copy = (device, event["tid"]) in carriers and _is_packing(name)
        if not NCCL.match(name) and not is_copy:
            found[device].append(_interval(event))
    return {device: union(intervals) for device, intervals in found.items()}


def _is_packing(name: str) -> bool:
    """Whether a kernel packs or unpacks what FSDP communicates."""
    return any(word in name for word in ("CatArray", "chunk_cat", "split_with_sizes", "copy_"))


def _operator_computation(events: Sequence[Event], frame: Event) -> list[Interval]:
    """When the thread that trains was inside operators, other than those that move data."""
    own = union(
        _interval(event)
        for event in events
        if event.get("cat") == "cpu_op"
        and event["tid"] == frame["tid"]
        and "::" in event["name"]
        and event["name"].partition("::")[0] not in NOT_COMPUTATION
    )
    moving = [event for event in events if OWN_RANGE.match(event["name"])]
    return without(own, union(_interval(event) for event in moving))


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
            for event in in_order
            if event["name"].startswith(COMMUNICATION_BUFFERS)
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
