"""Holistic Trace Analysis reads the files of ``--trace``, and finds in them what we find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.measure.collectives import costs
from bench.measure.ranges import STEPS, mark_range
from bench.measure.trace import read_events, read_steps
from bench.measure.tracefile import write_trace
from tests.measure.traces import ALL_REDUCE, event

pytestmark = [pytest.mark.hta, pytest.mark.filterwarnings("ignore")]

PHASES = {"data": 50, "forward": 300, "backward": 750, "optimizer": 1000}
"""Ends of a step's phases, in microseconds."""


def launched(
    number: int, rank: int, name: str, begin: float, end: float, **more: Any
) -> Iterator[dict[str, Any]]:
    """A kernel, and the call of the host that launched it."""
    stream = 20 if name == ALL_REDUCE else 7
    host = {"pid": 1000 + rank, "tid": 1000 + rank}
    link = {"External id": number, "correlation": number}
    yield event("cuda_runtime", "cudaLaunchKernel", begin - 50, begin - 45, **host, **link)
    details = {"device": rank, "context": 1, "stream": stream, **link, **more}
    yield event("kernel", name, begin, end, pid=rank, tid=stream, **details)
    flow = {"cat": "ac2g", "name": "ac2g", "id": number}
    yield {"ph": "s", "ts": begin - 50, **host, **flow}
    yield {"ph": "f", "ts": begin, "pid": rank, "tid": stream, "bp": "e", **flow}


def two_steps(rank: int) -> Iterator[dict[str, Any]]:
    """On each, 400 us of computation and 400 us of communication, half of it at once."""
    host = {"pid": 1000 + rank, "tid": 1000 + rank}
    yield event("user_annotation", STEPS, 0, 2000, **host)
    for step in (0, 1):
        start = 1000 * step
        collective = {
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 262144,
            "Out msg nelems": 262144, "Group size": 2, "Process Group Name": "0",
            "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
            "Seq": step + 1, "Rank": rank,
        }  # fmt: skip
        yield from launched(10 * step + 1, rank, "sm80_gemm", start + 100, start + 500)
        yield from launched(10 * step + 2, rank, ALL_REDUCE, start + 300, start + 700, **collective)
        for phase, end in PHASES.items():
            yield event("user_annotation", mark_range(phase), start + end - 1, start + end, **host)


def document(rank: int) -> dict[str, Any]:
    """As torch exports it on a device."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA H100", "computeMajor": 9, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": list(two_steps(rank)),
        "traceName": "/home/someone/trace.json",
    }


def test_it_finds_the_same_overlap_as_we_do(tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    folder = tmp_path / "traces"
    for rank in (0, 1):
        why = write_trace(
            document(rank), folder / f"rank{rank}.json", rank=rank, ranks=2, bucket_bytes=[2**20]
        )
        assert why is None
        (tmp_path / f"{rank}.json").write_text(json.dumps(document(rank)))
    ours = costs(
        [
            read_steps(read_events(tmp_path / f"{rank}.json"), steps=2, world_size=2, device=rank)
            for rank in (0, 1)
        ],
        2,
    )
    assert ours.hidden_fraction == pytest.approx(0.5)

    found = analysis.TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    overlap = found.get_comm_comp_overlap(visualize=False)
    assert list(overlap["rank"]) == [0, 1]
    assert list(overlap["comp_comm_overlap_pctg"]) == pytest.approx([50, 50], abs=0.1)
    times = found.get_temporal_breakdown(visualize=False)
    # From the first kernel to the last: 600 busy microseconds a step, and 400 between the two.
    assert list(times["compute_time(us)"]) == [800, 800]
    assert list(times["non_compute_time(us)"]) == [400, 400]
    assert list(times["idle_time(us)"]) == [400, 400]
