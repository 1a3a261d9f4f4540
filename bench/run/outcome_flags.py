"""What is wrong with a measurement that otherwise succeeded: flags of its record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from bench.analyze import page_faults
from bench.measure.conditions import flags_of
from bench.plan.case import Case
from bench.plan.registry import find_strategy
from bench.records.record import Placement
from bench.run.handover import Assignment, Measured, RankOutcome

COARSE = 0.01
"""Of a median step, from which the clock's resolution matters."""
EMULATED = "emulated_network"
"""Flag of a plan for a case whose hosts are one machine."""


def seen_flags(
    assignment: Assignment, outcomes: Sequence[RankOutcome], planned: Sequence[str]
) -> list[str]:
    """Those of a timed launch.

    Args:
        assignment: what the ranks were told.
        outcomes: one per process.
        planned: flags of the plan.
    """
    is_one_machine = EMULATED in planned
    placements = [
        msgspec.structs.replace(one.placement, host=None if is_one_machine else one.host)
        for one in outcomes
        if one.placement is not None
    ]
    measured = [one.measured for one in outcomes if one.measured is not None]
    batches = [digest for outcome in outcomes for digest in set(outcome.batch_digests)]
    seen = {
        "no_warmup": all(_is_cold(outcome.measured) for outcome in outcomes),
        "ranks_differ": len({outcome.parameter_digest for outcome in outcomes}) > 1
        or len({one.skipped_steps for one in measured}) > 1,
        "loss_not_finite": any(outcome.loss_is_finite is False for outcome in outcomes),
        "ranks_share_cores": share_cores(placements, assignment.case.device),
        "steps_skipped": (skipped_steps(measured) or 0) > 0,
        "allocator_retries": any(one.allocator_retries > 0 for one in measured),
        "profiler_on": bool(observers_of(outcomes)),
        "coarse_timer": any(_is_coarse(outcome.measured) for outcome in outcomes),
        page_faults.FLAG: any(
            _faults_cost(outcome.measured) > page_faults.SHARE for outcome in outcomes
        ),
        "nothing_to_shard": _shards_nothing(assignment.case, outcomes),
        # A rank may well see a batch again, but not another's.
        "duplicate_data": len(set(batches)) < len(batches),
    }
    flags = [flag for flag, is_seen in seen.items() if is_seen]
    for outcome in outcomes:
        if outcome.conditions is not None:
            flags += flags_of(outcome.conditions, assignment.case.device)
    return list(dict.fromkeys(flags))


def skipped_steps(measured: Sequence[Measured]) -> int | None:
    """The most of any process: a scaler that does right skips a step on all of them."""
    return max(
        (one.skipped_steps for one in measured if one.skipped_steps is not None), default=None
    )


def observers_of(outcomes: Sequence[RankOutcome]) -> list[str]:
    """Whatever was seen that slows a process down, such as a profiler."""
    return sorted({name for outcome in outcomes for name in outcome.observers})


def share_cores(placements: Sequence[Placement], device_type: str) -> bool:
    """Whether two processes have to take turns on a core.

    On a CPU, where the cores are the device, if they have one in common. Those of accelerators may
    share the cores near their devices, as long as there is one for each. Cores of the same number
    on two hosts are two.
    """
    bound = [frozenset((one.host, core) for core in one.cores) for one in placements if one.cores]
    if device_type == "cpu":
        return len(frozenset().union(*bound)) < sum(map(len, bound))
    return any(sum(other <= one for other in bound) > len(one) for one in bound)


def _shards_nothing(case: Case, outcomes: Sequence[RankOutcome]) -> bool:
    """Whether no device holds any of what the strategy is there to split."""
    category = find_strategy(case.strategy).only_shards
    held = [device for outcome in outcomes for device in outcome.held]
    return bool(category and held) and not any(device.get(category or "") for device in held)


def _is_cold(measured: Measured | None) -> bool:
    return measured is not None and measured.first_step_s is None


def _is_coarse(measured: Measured | None) -> bool:
    if measured is None or measured.clock_resolution_s is None:
        return False
    return measured.clock_resolution_s > COARSE * statistics.median(measured.step_s)


def _faults_cost(measured: Measured | None) -> float:
    """Share of the window that went into page faults, roughly."""
    if measured is None or measured.minor_faults is None:
        return 0.0
    return measured.minor_faults * page_faults.FAULT_S / measured.window_s
