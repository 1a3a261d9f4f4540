"""A predicted step as a trace in Chrome's format, for Perfetto, HTA and whatever reads profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import RecordsError
from bench.records.scaling import Moment, Predicted

TRACE = "predicted-step.trace.json"
MICRO = 1e6
STEP = "ProfilerStep#"
"""What the steps of a measured trace are called, with their number behind it."""
PROCESS = "predicted"
"""Its process among those of a measured trace."""


def trace_of(one: Predicted, *, process: int | str = 0, begin_us: float = 0.0) -> dict[str, Any]:
    """One process, a thread a stream; times in microseconds.

    Args:
        one: whose step it is.
        process: its number or name.
        begin_us: of the step.
    """
    streams = list(dict.fromkeys(moment.stream for moment in one.moments))
    name = f"predicted: {one.case.workload}, {one.case.label}, {one.case.world_size} devices"
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": stream}}
        for number, stream in enumerate(streams)
    ]
    for moment in one.moments:
        event = _event(moment, streams.index(moment.stream))
        events.append({**event, "pid": process, "ts": begin_us + event["ts"]})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"predicted": True}}


def _event(moment: Moment, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": moment.name,
        "cat": moment.kind,
        "tid": thread,
        "ts": MICRO * moment.begin_s,
        "dur": MICRO * (moment.end_s - moment.begin_s),
        "args": {"bytes on the bus": round(moment.bytes)},
    }


def beside_measured(one: Predicted, path: Path) -> dict[str, Any]:
    """A measured trace, with the predicted step as a process of its own, begun with its first step.

    Args:
        one: what was predicted.
        path: of one rank's trace, as ``bench run --trace`` leaves it.

    Raises:
        RecordsError: it cannot be read, or holds no step.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordsError(f"{path}: is no trace that can be read: {error}") from error
    events = document.get("traceEvents") if isinstance(document, Mapping) else None
    begins = [
        float(event["ts"])
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, Mapping)
        and str(event.get("name", "")).startswith(STEP)
        and isinstance(event.get("ts"), int | float)
    ]
    if not begins:
        raise RecordsError(f"{path}: holds no step; is it a trace of bench run --trace?")
    added = trace_of(one, process=PROCESS, begin_us=min(begins))["traceEvents"]
    return {**document, "traceEvents": [*document["traceEvents"], *added]}
