"""Traces of accelerators, written by hand in the format that ``torch.profiler`` exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.measure.ranges import STEPS

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(category: str, name: str, begin_us: float, end_us: float, **more: Any) -> dict[str, Any]:
    place = {"pid": 0, "tid": 7} | {key: more.pop(key) for key in ("pid", "tid") if key in more}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin_us,
        "dur": end_us - begin_us,
        "args": more,
    } | place


def kernel(name: str, begin_us: float, end_us: float, **more: Any) -> dict[str, Any]:
    return event("kernel", name, begin_us, end_us, device=more.get("pid", 0), **more)


def all_reduce(begin_us: float, end_us: float, **more: Any) -> dict[str, Any]:
    """A million bytes in floats."""
    arguments = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 250_000,
        "Out msg nelems": 250_000,
        "Process Group Name": "0",
        "Seq": 1,
        "tid": 20,
        "name": ALL_REDUCE,
    } | more
    name = str(arguments.pop("name"))
    return kernel(name, begin_us, end_us, **arguments)


def steps(begin_us: float = 0, end_us: float = 1000) -> dict[str, Any]:
    return event("user_annotation", STEPS, begin_us, end_us, pid=1000, tid=1000)


def write(path: Path, *events: dict[str, Any]) -> Path:
    document = {"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]}
    path.write_text(json.dumps(document))
    return path
