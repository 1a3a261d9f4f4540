"""Time and throughput of a launch's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.errors import one_line
from bench.plan.case import Case
from bench.records.record import Compute, Phases, Record, Throughput, Timing
from bench.run.handover import Assignment, RankOutcome
from bench.run.input import all_input
from bench.run.outcome_flags import seen_flags, skipped_steps
from bench.run.outcome_memory import memory_of


def with_timing(
    record: Record,
    assignment: Assignment,
    outcomes: Sequence[RankOutcome],
    units: tuple[str, int],
) -> Record:
    """What a launch's window has measured, and what is to be said of it.

    Args:
        record: without it.
        assignment: what the ranks were told.
        outcomes: one per process, none of which has failed.
        units: name of the unit that throughput counts, and how many a sample has.
    """
    measured = [outcome.measured for outcome in outcomes]
    assert all(one is not None for one in measured), "a rank without failure has measured"
    found = [one for one in measured if one is not None]
    slowest = max(found, key=lambda one: one.window_s)
    joined = [outcome.joined_s for outcome in outcomes if outcome.joined_s is not None]
    unit, units_per_sample = units
    samples = assignment.case.global_batch * len(slowest.step_s)
    return msgspec.structs.replace(
        record,
        timing=Timing(
            launch_s=max(joined) - assignment.started_s if joined else None,
            setup_s=[outcome.setup_s or 0.0 for outcome in outcomes],
            first_step_s=[one.first_step_s for one in found],
            warmup_step_s=[one.warmup_step_s for one in found],
            step_s=[one.step_s for one in found],
            block_steps=slowest.block_steps,
            window_s=[one.window_s for one in found],
            stopped_by=slowest.stopped_by,
            minor_faults_per_step=[
                None if one.minor_faults is None else one.minor_faults / len(one.step_s)
                for one in found
            ],
            clock_resolution_s=slowest.clock_resolution_s,
            skipped_steps=skipped_steps(found),
        ),
        throughput=Throughput(
            samples_per_s=samples_per_s(samples, [one.window_s for one in found]),
            unit=unit,
            units_per_sample=units_per_sample,
        ),
        phases=_phases(slowest.phase_s),
        input=all_input(assignment.case, outcomes),
        compute=_compute(assignment.case, outcomes),
        memory=memory_of(assignment, outcomes),
        flags=[*record.flags, *seen_flags(assignment, outcomes, record.flags)],
    )


def samples_per_s(samples: int, window_s: Sequence[float]) -> float:
    """Samples of all devices together over the time of the slowest process.

    >>> samples_per_s(100 * 2, [9.0, 10.0])  # 100 steps of 2 samples; the slowest took 10 s
    20.0
    """
    return samples / max(window_s)


def _phases(phase_s: Mapping[str, float]) -> Phases:
    """The four phases that every strategy has, and the pieces of them that some mark."""
    names = ("data", "forward", "backward", "optimizer")
    return Phases(
        **{f"{name}_s": phase_s.get(name, 0.0) for name in names},
        pieces_s={name: value for name, value in phase_s.items() if "." in name} or None,
    )


def _compute(case: Case, outcomes: Sequence[RankOutcome]) -> Compute | None:
    """Of all devices; None for launches that did not look at it."""
    found = [outcome.work for outcome in outcomes if outcome.work is not None]
    if not found:
        return None
    counted, rates = found[0], [one.matrix_flops_per_s for one in found]
    flops = counted.micro_step_flops
    known = [rate for rate in rates if rate is not None]
    micro_steps = case.world_size * case.accumulation_steps
    return Compute(
        step_flops=None if flops is None else float(flops) * micro_steps,
        reason=None if counted.reason is None else one_line(counted.reason),
        matrix_flops_per_s=min(known, default=None),
    )
