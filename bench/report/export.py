"""Rows for other programs: plain values under the names of a record, and CSV of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.analyze.rows import PEAKS, Comparison, Row
from bench.analyze.stats import Estimate
from bench.report.notes import parity_of

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of one: text may not carry it there."""


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
    step_mean_s: float | None
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
        step_mean_s=row.step_mean_s,
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
