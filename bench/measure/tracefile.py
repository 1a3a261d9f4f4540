"""Traces for people's tools: one file a rank, in the format that Perfetto reads.

What torch exports is kept as it is, but for what says where it was made. Added are the steps, under
the name by which tools know them, the phases of each step, and DDP's buckets, each as a range of
its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import plural
from bench.measure.clock import LAST_PHASE
from bench.measure.ranges import MARK, STEPS
from bench.measure.trace import (
    COPIES,
    GLOO,
    LAUNCHES,
    NCCL,
    Event,
    find_range,
    operation,
    timed_events,
)

STEP = "ProfilerStep#{}"
"""What torch's own schedule of profiles calls a step: tools look for it."""
ON_DEVICE = ("kernel", *COPIES)
PLACES = ("host_name", "hostName", "traceName", "profilerArgs")
"""Keys of a trace that say where it was made."""


def write_trace(
    document: Mapping[str, Any],
    path: Path,
    *,
    rank: int,
    ranks: int,
    limit_bytes: int | None = None,
    bucket_bytes: Sequence[int] | None = None,
) -> str | None:
    """Write one rank's trace of its marked steps; returns why it does not hold all, or None.

    Args:
        document: as torch has exported it.
        path: of the file, in a folder with nothing but traces.
        rank: of the process.
        ranks: of the group.
        limit_bytes: of the file: as many whole steps as fit.
        bucket_bytes: of DDP's buckets in their order.
    """
    events = timed_events(document, path.name)
    frame = find_range(events, STEPS)
    added = list(_phases(events, frame))
    steps = [one for one in added if one["name"].startswith(STEP.format(""))]
    head = {key: value for key, value in document.items() if key not in PLACES}
    # Tools look for this text, spaces included.
    head["distributedInfo"] = {
        **_plain(document.get("distributedInfo")),
        "rank": rank,
        "world_size": ranks,
    }
    every = [*document["traceEvents"], *added]
    for count in range(len(steps), 0, -1):
        end = steps[count - 1]["ts"] + steps[count - 1]["dur"]  # steps that follow only wind down
        buckets = _buckets(_until(end, events), steps[:count], bucket_bytes or [])
        text = json.dumps({**head, "traceEvents": [*_until(end, every), *buckets]})
        if limit_bytes is None or len(text) <= limit_bytes:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if count == len(steps):
                return None
            return f"the trace was cut to {count} of {plural(len(steps), 'step')} by its limit"
    return "no trace: a single step is larger than its limit"


def _plain(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _until(end: float, events: Sequence[Event]) -> list[Event]:
    """What the host did up to then, and what it had the device do, which may be behind."""
    kept = [one for one in events if "ts" not in one or float(one["ts"]) < end]
    launched = {_correlation(one) for one in kept if one.get("cat") in LAUNCHES}
    late = (one for one in events if "ts" in one and float(one["ts"]) >= end)
    return kept + [
        one for one in late if one.get("cat") in ON_DEVICE and _correlation(one) in launched
    ]


def _correlation(event: Event) -> object:
    return event.get("args", {}).get("correlation")


def _phases(events: Sequence[Event], frame: Event) -> Iterator[dict[str, Any]]:
    """Each step, and each phase of it, between the marks on the thread that trains."""
    marks = sorted(
        (event["ts"], found[1])
        for event in events
        if (found := MARK.match(event["name"])) is not None and event["tid"] == frame["tid"]
    )
    begin = step_begin = frame["ts"]
    count = itertools.count()
    for end, phase in marks:
        yield _range(frame, phase, begin, end)
        begin = end
        if phase == LAST_PHASE:
            yield _range(frame, STEP.format(next(count)), step_begin, end)
            step_begin = end


def _buckets(
    events: Sequence[Event], steps: Sequence[Event], bucket_bytes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """DDP's buckets: the all-reduces of all steps, in their order, where they are as many.

    Not by the steps' times, which are the host's: a device is behind.
    """
    if not steps or not bucket_bytes:
        return
    begin = steps[0]["ts"]
    sent = sorted(
        (one for one in events if _is_all_reduce(one) and one["ts"] >= begin),
        key=lambda event: event["ts"],
    )
    if len(sent) != len(steps) * len(bucket_bytes):
        return
    for place, event in enumerate(sent):
        number = place % len(bucket_bytes)
        name = f"bucket {number} ({bucket_bytes[number] / 2**20:.3g} MiB)"
        yield _range(event, name, event["ts"], event["ts"] + event["dur"])


def _is_all_reduce(event: Event) -> bool:
    found = GLOO.match(event["name"]) or NCCL.match(event["name"])
    return found is not None and operation(found[1]) == "all_reduce"


def _range(beside: Event, name: str, begin: float, end: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": beside["pid"],
        "tid": beside["tid"],
        "ts": begin,
        "dur": end - begin,
        "args": {},
    }
