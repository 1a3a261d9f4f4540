"""Rows in the JSON of pytest-benchmark, which its ``compare``, and what is built on it, reads.

A benchmark is a row, one of its rounds a launch, and the time of a round that of an optimizer step
there, on all devices together. Rows without a figure, or whose proof failed, have no place in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.records.record import RunInfo
from bench.report.export import flat
from bench.report.summary import cores_used, device_names

VERSION = "5.0.0"
"""Of pytest-benchmark, whose format this is."""
FENCE = 1.5
"""Interquartile ranges beyond a quartile, outside of which a value is far off (J. W. Tukey,
Exploratory Data Analysis, 1977), as pytest-benchmark counts."""


def document(parts: Iterable[tuple[str, RunInfo, Sequence[Row]]]) -> dict[str, Any]:
    """A whole file of results.

    Args:
        parts: of one or more runs: what the names of its benchmarks begin with, the run, its rows.

    Raises:
        ValueError: there is no run.
    """
    found = list(parts)
    if not found:
        raise ValueError("nothing was measured")
    _, first, _ = found[0]
    return {
        "machine_info": _machine(first),
        "commit_info": {"id": first.environment.get("commit") or "unversioned", "dirty": None},
        "benchmarks": [
            benchmark(row, prefix)
            for prefix, _, rows in found
            for row in rows
            if row.launches and not row.is_proved_wrong
        ],
        "datetime": first.started_at,
        "version": VERSION,
    }


def _machine(info: RunInfo) -> dict[str, Any]:
    """What pytest-benchmark shows where two machines differ."""
    environment = info.environment
    return {
        "node": "",
        "machine": environment.get("system"),
        "python_version": info.versions.get("python"),
        "cpu": {
            "brand_raw": environment.get("cpu"),
            "count": cores_used(info),
        },
        "devices": device_names(info),
        "versions": info.versions,
    }


def benchmark(row: Row, prefix: str) -> dict[str, Any]:
    """One row.

    Args:
        row: with launches.
        prefix: of its full name, such as a test's.
    """
    case = row.case
    step_s = [case.global_batch / one.figure for one in row.launches]
    return {
        "group": f"{case.workload}:{case.preset}, {case.scaling} scaling, {case.device}",
        "name": case.id,
        "fullname": f"{prefix}::{case.id}" if prefix else case.id,
        "params": None,
        "param": None,
        "extra_info": msgspec.to_builtins(flat("", row)),
        "options": {"timer": "bench", "warmup": True},
        "stats": stats(step_s),
    }


def stats(seconds: Sequence[float]) -> dict[str, Any]:
    """What pytest-benchmark says of a row of times.

    >>> found = stats([1.0, 2.0, 3.0])
    >>> found["mean"], found["median"], found["stddev"], found["ops"], found["outliers"]
    (2.0, 2.0, 1.0, 0.5, '0;0')
    """
    ordered, mean = sorted(seconds), statistics.fmean(seconds)
    stddev = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
    if len(ordered) > 1:
        q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    else:
        q1 = median = q3 = ordered[0]
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    inside = [one for one in ordered if low <= one <= high]
    beyond = sum(abs(one - mean) > stddev for one in ordered)
    outside = len(ordered) - len(inside)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(ordered),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": beyond,
        "outliers": f"{beyond};{outside}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "ops": 1 / mean,
        "total": sum(ordered),
        "data": list(seconds),
        "iterations": 1,
    }
