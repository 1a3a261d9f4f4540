"""Read a profile: which collectives ran when, and what was computed meanwhile.

The profile is the chrome trace that ``torch.profiler`` exports, so that what is tested on a trace
written by hand is what reads the trace of a real device. Communication is told by name, never by
stream or thread: NCCL's kernels may run on the stream of the computation.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.measure.intervals import Interval, union, without
from bench.measure.ranges import MOVE, STEPS

GLOO = re.compile(r"^gloo:(\w+)$")
NCCL = re.compile(r"^nccl\w*Kernel_([A-Za-z]+)")
"""``ncclKernel_``, ``ncclDevKernel_``, ``ncclSymDevKernel_`` ... and the operation."""
GATHER = "c10d::_allgather_base_"
"""The operator of an all-gather into one tensor: (whole, share of this rank, group ...)."""
PEER_COPY = re.compile(r"^Memcpy (PtoP|P2P)")
COPY = "peer_copy"
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
PACKING = "fsdp::"
"""Operators with which FSDP copies parameters and gradients into and out of its messages."""
CALL, COMPILED = "c10d::", "## Call CompiledFxGraph"
"""Operators that begin a collective, and what surrounds a graph that torch.compile has made, whose
fused kernels leave no events of their own on a CPU."""
LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime")
NOT_COMPUTATION = frozenset({"c10d", "_c10d_functional", "gloo", "autograd", "torch"})
"""Namespaces of operators on a CPU that communicate, or contain others that do."""
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
    ranks: int | None = None
    """Of its group; None where the trace does not tell."""
    item_type: str | None = None
    """Of its elements, as the trace spells it."""

    @property
    def duration_s(self) -> float:
        """Waiting for peers included."""
        return self.end_s - self.begin_s


class StepsTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Communication and computation of some steps, on one process."""

    steps: int
    step_s: float
    """Mean of them, the profiler's own cost included."""
    spans: list[Span]
    computation: dict[int, list[Interval]]
    """Per device of the process, when anything was computed on it."""


Event = Mapping[str, Any]


def read_trace(path: Path) -> dict[str, Any]:
    """A trace as it was written.

    Raises:
        ValueError: it is none.
    """
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} holds no traceEvents")
    return document


def timed_events(document: Mapping[str, Any], name: str) -> list[Event]:
    """All events of a trace that have a time.

    Args:
        document: the trace.
        name: of it, for the error.

    Raises:
        ValueError: it is no trace.
    """
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise ValueError(f"{name} holds no traceEvents")
    return [event for event in events if "ts" in event and event.get("ph") in {"X", "i"}]


def read_events(path: Path) -> list[Event]:
    """Likewise, of a file.

    Raises:
        ValueError: it is no trace.
    """
    return timed_events(read_trace(path), path.name)


def read_steps(
    events: Sequence[Event], *, steps: int, world_size: int, device: int | None = None
) -> StepsTrace:
    """What was communicated and computed in the profiled steps.

    Args:
        events: of one process.
        steps: how many are in the range ``bench:steps``.
        world_size: ranks of the group that gathers, where the trace does not tell.
        device: the process's first accelerator, on which it computes and communicates; None for a
            CPU, where computation is looked for among the operators, not the kernels.
    """
    frame = find_range(events, STEPS)
    inside = [
        _clipped(event, frame)
        for event in events
        if event["ph"] == "X" and _is_within(event, frame)
    ]
    spans = sorted(_spans(inside, world_size, device or 0), key=lambda span: span.begin_s)
    if device is not None:
        computation = _kernel_computation(inside)
    else:
        computation = {0: _operator_computation(inside, frame)}
    return StepsTrace(
        steps=steps,
        step_s=frame["dur"] / 1e6 / steps,
        spans=_keyed(spans),
        computation=computation,
    )


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


def _clipped(event: Event, frame: Event) -> Event:
    """Without what lies behind the steps: a thread of gloo's may report long after its work."""
    left: float = frame["ts"] + frame["dur"] - event["ts"]
    return {**event, "dur": left} if event.get("dur", 0) > left else event


def _spans(events: Sequence[Event], world_size: int, device: int) -> Iterator[Span]:
    gathering = _gathering_ranks(events)
    for event in events:
        name, category = event["name"], event.get("cat")
        arguments = event.get("args", {})
        if category == "user_annotation" and (found := GLOO.match(name)):
            payload, ranks = _tensor_bytes(arguments), None
            if payload is not None and found[1] == "all_gather":  # whose input is a share
                ranks = gathering.get(math.prod(arguments["Input Dims"][0]), world_size)
                payload *= ranks
            types = arguments.get("Input type")
            item = str(types[0]) if types else None
            yield _span(event, found[1], payload, device=device, ranks=ranks, item_type=item)
        elif category == "user_annotation" and (found := MOVE.match(name)):
            yield _span(event, found[1], int(found[2]), device=device)
        elif category == "kernel" and (found := NCCL.match(name)):
            group, number = arguments.get("Process Group Name"), arguments.get("Seq")
            key = f"{group}/{number}" if number is not None else ""
            what = arguments.get("Collective name", found[1])
            ranks = arguments.get("Group size")
            payload, item = _message_bytes(arguments), arguments.get("dtype")
            yield _span(event, what, payload, key=key, ranks=ranks, item_type=item)
        elif category in COPIES and PEER_COPY.match(name):
            yield _span(event, COPY, arguments.get("bytes"))


def _gathering_ranks(events: Iterable[Event]) -> dict[int, int]:
    """Ranks of the group by the elements that each gives to a gather; gloo's events lack it."""
    found: dict[int, int] = {}
    for event in events:
        dims = event.get("args", {}).get("Input Dims")
        if event["name"] == GATHER and dims and len(dims) > 1:
            whole, share = math.prod(dims[0]), math.prod(dims[1])
            if share:
                found[share] = whole // share
    return found


def _span(
    event: Event,
    what: str,
    payload: int | None,
    *,
    device: int | None = None,
    key: str = "",
    ranks: int | None = None,
    item_type: str | None = None,
) -> Span:
    begin_s, end_s = _interval(event)
    return Span(
        operation=operation(what),
        key=key,
        begin_s=begin_s,
        end_s=end_s,
        payload_bytes=payload,
        device=_device(event) if device is None else device,
        ranks=ranks,
        item_type=item_type,
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

    Not by their place alone: two threads of gloo may begin two collectives in either order. What a
    process moves by itself waits for nobody, so that each device's is its own.
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
        if span.operation == COPY:
            key += f"/{span.device}"
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
    """Per device, when kernels ran that neither communicate nor pack what is communicated."""
    packing = _launched_by(events, PACKING)
    found: dict[int, list[Interval]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            intervals = found.setdefault(_device(event), [])
            packs = event.get("args", {}).get("correlation") in packing
            if not NCCL.match(event["name"]) and not packs:
                intervals.append(_interval(event))
    return {device: union(intervals) for device, intervals in found.items()}


def _launched_by(events: Sequence[Event], operators: str) -> frozenset[int]:
    """Correlations of the kernels that operators of a namespace launched."""
    ranges: dict[int, list[Interval]] = {}
    for event in events:
        if event.get("cat") == "cpu_op" and event["name"].startswith(operators):
            ranges.setdefault(event["tid"], []).append(_interval(event))
    merged = {thread: union(intervals) for thread, intervals in ranges.items()}
    found: set[int] = set()
    for event in events:
        if event.get("cat") not in LAUNCHES or event["tid"] not in merged:
            continue
        at_s = event["ts"] / 1e6
        inside = merged[event["tid"]]
        index = bisect.bisect(inside, (at_s, math.inf)) - 1
        if index >= 0 and at_s <= inside[index][1]:
            found.add(event.get("args", {}).get("correlation"))
    return frozenset(found)


def _operator_computation(events: Sequence[Event], frame: Event) -> list[Interval]:
    """When the thread that trains was inside operators, other than those that move data."""
    own: list[Interval] = []
    moving: list[Interval] = []
    for event in events:
        name = event["name"]
        if event["tid"] != frame["tid"]:
            continue
        if name.startswith((PACKING, CALL)) or MOVE.match(name):
            moving.append(_interval(event))
        elif event.get("cat") == "cpu_op" and _computes(name):
            own.append(_interval(event))
    return without(union(own), union(moving))


def _computes(operator: str) -> bool:
    if operator.startswith(COMPILED):
        return True
    namespace, separator, _ = operator.partition("::")
    return bool(separator) and namespace not in NOT_COMPUTATION
