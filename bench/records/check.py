"""What must hold between the fields of a record, beyond the type and range of each.

Files are written by whatever version, machine or hand: what is read is checked once, here, and all
that comes after may rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.plan.case import odd_value
from bench.records.record import Memory, Record, RunInfo, Timing


def fault_of(record: Record) -> str | None:
    """Why no figure may be made of a record; None where it is sound."""
    case = record.case
    for name, value in (("options", case.options), ("workload_options", case.workload_options)):
        odd = odd_value(value)
        if odd is not None:
            return f"case.{name}: {odd}"
    is_figure = record.pass_ == "timing" and record.status == "ok"
    if is_figure and (record.timing is None or record.throughput is None):
        return "a timing pass that succeeded, without its times or its throughput"
    if record.timing is not None:
        fault = _fault_of_timing(record.timing)
        if fault is not None:
            return f"timing: {fault}"
        if len(record.timing.window_s) > case.world_size:
            return f"timing: {len(record.timing.window_s)} processes on {case.world_size} devices"
    if record.placement is not None and len(record.placement) > case.world_size:
        return f"placement: {len(record.placement)} processes on {case.world_size} devices"
    return _fault_of_memory(record.memory, case.world_size) if record.memory is not None else None


def _fault_of_timing(timing: Timing) -> str | None:
    processes = len(timing.window_s)
    lists: dict[str, Sequence[object] | None] = {
        "setup_s": timing.setup_s,
        "first_step_s": timing.first_step_s,
        "warmup_step_s": timing.warmup_step_s,
        "step_s": timing.step_s,
        "minor_faults_per_step": timing.minor_faults_per_step,
    }
    if not processes:
        return "window_s is empty"
    for name, values in lists.items():
        if values is not None and len(values) != processes:
            return f"{name} is of {len(values)} processes, window_s of {processes}"
    if min(timing.window_s) <= 0:
        return "a window of no length"
    if not all(timing.step_s):
        return "a window without steps"
    return None


def _fault_of_memory(memory: Memory, devices: int) -> str | None:
    lists: dict[str, Sequence[object]] = {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "peak_driver_bytes": memory.peak_driver_bytes,
        "peak_process_bytes": memory.peak_process_bytes,
    }
    for name, values in lists.items():
        if len(values) > devices:
            return f"memory: {name} is of {len(values)} devices, the case of {devices}"
    tables: dict[str, Mapping[str, Sequence[object]] | None] = {
        "by_category": memory.by_category,
        "held_by_category": memory.held_by_category,
        "timeline": None if memory.timeline is None else memory.timeline.by_category,
    }
    for name, table in tables.items():
        if len({len(values) for values in (table or {}).values()}) > 1:
            return f"memory: {name} has lists of different lengths"
    if memory.timeline is not None and any(
        len(values) != len(memory.timeline.at_s) for values in memory.timeline.by_category.values()
    ):
        return "memory: timeline has other numbers of moments and of values"
    return None


def fault_of_run(info: RunInfo) -> str | None:
    """Why a run's description cannot be used; None where it is sound."""
    for name, value in (("suite", info.suite), ("environment", info.environment)):
        odd = odd_value(value)
        if odd is not None:
            return f"{name}: {odd}"
    return None
