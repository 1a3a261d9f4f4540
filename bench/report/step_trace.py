"""A predicted step as a trace in Chrome's format, for Perfetto, HTA and whatever reads profiles."""

from __future__ import annotations

from typing import Any

from bench.records.scaling import Moment, Predicted

TRACE = "predicted-step.trace.json"
MICRO = 1e6


def trace_of(one: Predicted) -> dict[str, Any]:
    """One process, a thread a stream; times in microseconds."""
    streams = list(dict.fromkeys(moment.stream for moment in one.moments))
    name = f"predicted: {one.case.workload}, {one.case.label}, {one.case.world_size} devices"
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": name}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": stream}}
        for number, stream in enumerate(streams)
    ]
    events += [_event(moment, streams.index(moment.stream)) for moment in one.moments]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"predicted": True}}


def _event(moment: Moment, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": moment.name,
        "cat": moment.kind,
        "pid": 0,
        "tid": thread,
        "ts": MICRO * moment.begin_s,
        "dur": MICRO * (moment.end_s - moment.begin_s),
        "args": {"bytes on the bus": round(moment.bytes)},
    }
