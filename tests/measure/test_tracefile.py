from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.measure.ranges import mark_range
from bench.measure.tracefile import write_trace
from tests.measure.traces import all_reduce, event, kernel, steps

SIZES = [2**20, 2 * 2**20]


def host_runs_ahead() -> list[dict[str, Any]]:
    """Two steps that the host has marked by 200, whose kernels run until 900."""
    marks = [(50, "forward"), (90, "backward"), (100, "optimizer")]
    marks += [(150, "forward"), (190, "backward"), (200, "optimizer")]
    launches = [(60, 1), (80, 2), (160, 3), (180, 4)]
    return [
        steps(0, 1000),
        *(
            event("user_annotation", mark_range(name), at, at, pid=1000, tid=1000)
            for at, name in marks
        ),
        *(
            event("cuda_runtime", "cudaLaunchKernel", at, at + 1, pid=1000, tid=9, correlation=one)
            for at, one in launches
        ),
        all_reduce(90, 120, Seq=1, correlation=1),
        all_reduce(150, 300, Seq=2, correlation=2),
        all_reduce(320, 500, Seq=3, correlation=3),
        all_reduce(600, 800, Seq=4, correlation=4),
        kernel("gemm", 820, 900, correlation=99),  # of a launch that the trace lacks
    ]


def written(tmp_path: Path, **told: Any) -> list[dict[str, Any]]:
    path = tmp_path / "rank0.json"
    document = {"traceEvents": host_runs_ahead(), "hostName": "someone"}
    write_trace(document, path, rank=0, ranks=2, **told)
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def test_buckets_are_numbered_by_their_order_and_not_by_the_hosts_steps(tmp_path: Path) -> None:
    events = written(tmp_path, bucket_bytes=SIZES)
    labels = [(one["ts"], one["name"]) for one in events if one["name"].startswith("bucket")]
    assert labels == [
        (90, "bucket 0 (1 MiB)"),
        (150, "bucket 1 (2 MiB)"),
        (320, "bucket 0 (1 MiB)"),
        (600, "bucket 1 (2 MiB)"),
    ]


@pytest.mark.parametrize("sizes", [[], [2**20] * 3])
def test_buckets_that_do_not_go_with_the_all_reduces_have_no_names(
    tmp_path: Path, sizes: list[int]
) -> None:
    events = written(tmp_path, bucket_bytes=sizes)
    assert not [one for one in events if one["name"].startswith("bucket")]


def test_a_trace_that_is_cut_keeps_what_its_steps_have_the_device_do(tmp_path: Path) -> None:
    whole = len(json.dumps(written(tmp_path)))
    events = written(tmp_path, limit_bytes=whole - 100)
    ranges = {one["name"] for one in events}
    assert "ProfilerStep#0" in ranges
    assert "ProfilerStep#1" not in ranges
    kernels = [one["args"]["correlation"] for one in events if one.get("cat") == "kernel"]
    assert kernels == [1, 2]  # the second ends long after the host's step
