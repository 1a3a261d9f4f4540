"""Rows for other programs: as CSV, as JSON, and as pytest-benchmark writes its results."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import PEAKS, Comparison, Row
from bench.analyze.stats import Estimate
from bench.records.record import RunInfo
from bench.report.notes import parity_of
from bench.report.summary import device_names

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of one: text may not carry it there."""
FENCE = 1.5
"""Interquartile ranges beyond a quartile, outside of which a value is far off (J. W. Tukey,
Exploratory Data Analysis, 1977), as pytest-benchmark counts."""


class Flat(msgspec.Struct, frozen=True, kw_only=True):
    """A case with its figures, under the names that a record has for them.

    ``low`` and ``high`` are the ends of 95 % intervals over launches; rates are of all devices.
    """

    run: str
    id: str
    workload: str
    preset: str
    strategy: str
    label: str
    world_size: int
    nodes: int
    device: str
    backend: str | None
    precision: str
    compile: str
    compile_scope: str
    optimizer: str
    optimizer_kernels: str
    activation_checkpointing: bool
    scaling: str
    per_device_batch: int
    global_batch: int
    accumulation_steps: int
    accumulation_sync: str
    options: dict[str, Any]
    workload_options: dict[str, Any]
    env: dict[str, str]
    status: str
    reason: str | None
    parity: str
    is_struck_out: bool
    """Its proof failed, or its ranks differed: the figure is none of the strategy."""
    unit: str
    units_per_s: float | None
    units_per_s_low: float | None
    units_per_s_high: float | None
    units_per_s_per_device: float | None
    samples_per_s: float | None
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    launches: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_verdict: str | None
    speedup_reason: str | None
    efficiency: float | None
    against_ddp: float | None
    against_ddp_low: float | None
    against_ddp_high: float | None
    against_ddp_verdict: str | None
    step_median_s: float | None
    step_p90_s: float | None
    peak_tensor_bytes: list[int | None]
    peak_reserved_bytes: list[int | None]
    peak_driver_bytes: list[int | None]
    peak_resident_bytes: list[int | None]
    communication_busy_s: float | None
    communication_exposed_s: float | None
    communication_wait_s: float | None
    communication_standalone_s: float | None
    sync_cost_s: float | None
    sync_cost_low_s: float | None
    sync_cost_high_s: float | None
    flags: list[str]


def flat(run: str, row: Row) -> Flat:
    """A row as plain values.

    Args:
        run: how its run is called.
        row: of it.
    """
    case, cost = row.case, row.communication
    names = [name for name in Flat.__struct_fields__ if hasattr(case, name)]
    copied: dict[str, Any] = {name: getattr(case, name) for name in names}
    peaks: dict[str, Any] = {f"peak_{name}_bytes": row.peaks.get(name, []) for name in PEAKS}
    return Flat(
        **copied,
        run=run,
        status=row.status,
        reason=row.reason,
        parity=parity_of(row),
        is_struck_out=row.is_proved_wrong,
        unit=row.unit,
        **_ends("units_per_s", row.samples_per_s, row.units_per_sample),
        units_per_s_per_device=None
        if row.samples_per_s is None
        else row.samples_per_s.value * row.units_per_sample / case.world_size,
        **_ends("samples_per_s", row.samples_per_s),
        launches=len(row.launches),
        **_ends("speedup", row.speedup.ratio),
        speedup_verdict=row.speedup.verdict,
        speedup_reason=row.speedup.reason,
        efficiency=None if row.efficiency is None else row.efficiency.value,
        **_peer(row.peer),
        step_median_s=row.step_median_s,
        step_p90_s=row.step_p90_s,
        **peaks,
        communication_busy_s=None if cost is None else cost.busy_s,
        communication_exposed_s=None if cost is None else cost.exposed_s,
        communication_wait_s=None if cost is None else cost.wait_s,
        communication_standalone_s=None if cost is None else cost.standalone_s,
        sync_cost_s=None if row.sync_cost is None else row.sync_cost.value,
        sync_cost_low_s=None if row.sync_cost is None else row.sync_cost.low,
        sync_cost_high_s=None if row.sync_cost is None else row.sync_cost.high,
        flags=row.flags,
    )


def _ends(name: str, estimate: Estimate | None, scale: float = 1) -> dict[str, Any]:
    values = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    names = (name, f"{name}_low", f"{name}_high")
    return {
        key: None if value is None else value * scale
        for key, value in zip(names, values, strict=True)
    }


def _peer(compared: Comparison) -> dict[str, Any]:
    return _ends("against_ddp", compared.ratio) | {"against_ddp_verdict": compared.verdict}


def as_csv(values: Sequence[msgspec.Struct]) -> str:
    """Values of one kind, a line each under their names; lists and mappings are JSON.

    Text that a spreadsheet would take for a formula has a quote before it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if values:
        writer.writerow(values[0].__struct_fields__)
    for value in values:
        writer.writerow([_cell(getattr(value, name)) for name in value.__struct_fields__])
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(FORMULA) else text


def pytest_benchmark(info: RunInfo, rows: Iterable[Row]) -> dict[str, Any]:
    """A run as pytest-benchmark writes its own: ``pytest-benchmark compare`` reads it.

    A round is a launch, and its time that of one optimizer step. Rows without a figure, or whose
    proof failed, have no place in it.
    """
    kept = [row for row in rows if row.launches and not row.is_proved_wrong]
    environment = info.environment
    return {
        "machine_info": {
            "node": "",
            "machine": environment.get("system"),
            "python_version": info.versions.get("python"),
            "cpu": {"brand_raw": environment.get("cpu"), "count": _count(environment.get("cores"))},
            "devices": device_names(info),
            "versions": info.versions,
        },
        "commit_info": {"id": environment.get("commit") or "unversioned", "dirty": None},
        "benchmarks": [_benchmark(row) for row in kept],
        "datetime": info.started_at,
        "version": "parallel-bench",
    }


def _count(found: object) -> int | None:
    return len(found) if isinstance(found, list) else None


def _benchmark(row: Row) -> dict[str, Any]:
    case = row.case
    step_s = [case.global_batch / launch.figure for launch in row.launches]
    return {
        "group": f"{case.workload} {case.preset}, {case.scaling} scaling, {case.device}",
        "name": case.id,
        "fullname": case.id,
        "params": None,
        "param": None,
        "extra_info": msgspec.to_builtins(flat("", row)),
        "options": {"timer": "bench", "warmup": True},
        "stats": _stats(step_s),
    }


def _stats(values: Sequence[float]) -> dict[str, Any]:
    """As pytest-benchmark has them; quartiles interpolate between the nearest values."""
    ordered, mean = sorted(values), statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if spread else ordered[:1]
    q1, q3 = quartiles[0], quartiles[-1]
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    near = [value for value in ordered if low <= value <= high]
    odd = sum(abs(value - mean) > spread for value in values)
    far = len(values) - len(near)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": spread,
        "rounds": len(values),
        "median": statistics.median(values),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": far,
        "stddev_outliers": odd,
        "outliers": f"{odd};{far}",
        "ld15iqr": near[0],
        "hd15iqr": near[-1],
        "ops": 1 / mean,
        "total": sum(values),
        "data": list(values),
        "iterations": 1,
    }
