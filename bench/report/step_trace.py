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
PHASES = frozenset({"data", "forward", "backward", "optimizer"})
"""Names of a step's phases there."""
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
    document, steps = _read(path)
    begin_us = min(float(step["ts"]) for step in steps)
    added = trace_of(one, process=PROCESS, begin_us=begin_us)["traceEvents"]
    return {**document, "traceEvents": [*document["traceEvents"], *added]}


def measured_step(path: Path) -> list[Moment]:
    """The step of median length of a measured trace: its phases, and DDP's buckets.

    Args:
        path: of one rank's trace, as ``bench run --trace`` leaves it.

    Raises:
        RecordsError: it cannot be read, or holds no step.
    """
    document, steps = _read(path)
    ordered = sorted(steps, key=lambda one: float(one.get("dur", 0.0)))
    step = ordered[len(ordered) // 2]
    begin_us = float(step["ts"])
    end_us = begin_us + float(step.get("dur", 0.0))
    found = []
    for event in document["traceEvents"]:
        name = str(event.get("name", "")) if isinstance(event, Mapping) else ""
        is_bucket = name.startswith("bucket ")
        if not (is_bucket or name in PHASES) or not begin_us <= float(event["ts"]) < end_us:
            continue
        at_s = (float(event["ts"]) - begin_us) / MICRO
        found.append(
            Moment(
                name=name.partition(" (")[0],
                kind="communication" if is_bucket else "computation",
                stream="measured buckets" if is_bucket else "measured phases",
                begin_s=at_s,
                end_s=at_s + float(event["dur"]) / MICRO,
            )
        )
    return sorted(found, key=lambda one: (one.stream != "measured phases", one.begin_s))


def _read(path: Path) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """A measured trace, and its steps.

    Raises:
        RecordsError: it cannot be read, or holds no step.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordsError(f"{path}: is no trace that can be read: {error}") from error
    events = document.get("traceEvents") if isinstance(document, Mapping) else None
    steps = [
        event
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, Mapping)
        and str(event.get("name", "")).startswith(STEP)
        and isinstance(event.get("ts"), int | float)
    ]
    if not steps:
        raise RecordsError(f"{path}: holds no step; is it a trace of bench run --trace?")
    return document, steps
