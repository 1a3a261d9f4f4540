"""Rows in the JSON of pytest-benchmark, which its ``compare``, and what is built on it, reads.

A benchmark is a row, one of its rounds a launch, and the time of a round that of an optimizer step
there, on all devices together. Rows without a figure have no place in that format.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.analyze.rows import Row
from bench.records.record import RunInfo

VERSION = "5.0.0"
"""Of pytest-benchmark, whose format this is."""
FENCE = 1.5
"""Interquartile ranges beyond which a round counts as an outlier: Tukey's."""


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
        "machine_info": _machine(first.environment),
        "commit_info": {"id": "unknown", "time": None, "dirty": False, "branch": "unknown"},
        "benchmarks": [
            benchmark(row, prefix) for prefix, _, rows in found for row in rows if row.launches
        ],
        "datetime": first.started_at,
        "version": VERSION,
    }


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's environment says, flat: pytest-benchmark shows where two machines differ."""
    return {
        name: value
        for name, value in environment.items()
        if isinstance(value, str | int | float | bool)
    }


def benchmark(row: Row, prefix: str) -> dict[str, Any]:
    """One row.

    Args:
        row: with launches.
        prefix: of its full name, such as a test's.
    """
    case = row.case
    name = f"{case.workload}:{case.preset} {case.label} x{case.world_size}"
    step_s = [case.global_batch / one.figure for one in row.launches]
    return {
        "group": f"{case.workload}:{case.preset}",
        "name": name,
        "fullname": f"{prefix}::{name}" if prefix else name,
        "params": None,
        "param": None,
        "extra_info": {
            "case": case.id,
            "samples_per_s": row.samples_per_s.value if row.samples_per_s else None,
            "speedup": row.speedup.ratio.value if row.speedup.ratio else None,
            "parity": row.parity.verdict if row.parity else None,
            "flags": row.flags,
        },
        "options": {},
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
