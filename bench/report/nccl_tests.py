"""Rows of collectives in the form of nccl-tests' own JSON, for tools that read that.

Keys and units as its ``src/util.cu`` writes them: microseconds, and bandwidths in 10^9 bytes a
second. Its times are those of calls in a row, and so are these.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.records.collectives import Collective

TYPES = {"fp32": ("float", 4), "bf16": ("bfloat16", 2), "fp16": ("half", 2)}
"""nccl-tests' name, and bytes of an element."""
SUMS = frozenset({"all_reduce", "reduce_scatter"})
IN_PLACE = frozenset({"all_reduce", "broadcast"})
"""Operations that overwrite what they send."""


def nccl_tests(rows: Sequence[Collective]) -> dict[str, Any]:
    """A document with all rows that have a figure; what they have in common is in their name."""
    good = [row for row in rows if row.status == "ok" and row.back_to_back_s is not None]
    rates = [row.back_to_back_busbw_bytes_per_s or 0.0 for row in good]
    return {
        "results": [_result(row) for row in good],
        "average_bus_bandwidth": {
            "bandwidth": statistics.fmean(rates) / 1e9 if rates else None,
            "okay": "unchecked",
        },
    }


def _result(row: Collective) -> dict[str, Any]:
    assert row.back_to_back_s is not None, "it has a figure"
    name, size = TYPES[row.dtype]
    busbw = row.back_to_back_busbw_bytes_per_s
    body = {
        "time": row.back_to_back_s * 1e6,
        "alg_bw": row.bytes / row.back_to_back_s / 1e9,
        "bus_bw": None if busbw is None else busbw / 1e9,
        "nwrong": 0.0,  # a row with a wrong result has no figure
    }
    in_place = row.op in IN_PLACE
    return {
        "size": row.bytes,
        "count": row.bytes // size,
        "type": name,
        "redop": "sum" if row.op in SUMS else "none",
        "root": "0" if row.op == "broadcast" else "-1",
        "out_of_place": None if in_place else body,
        "in_place": body if in_place else None,
        "actual_iterations": (row.row_calls or 0) * len((row.row_s or [[]])[0]),
        "experiment_name": f"{row.op} {row.backend} {row.device} x{row.world_size}",
    }
