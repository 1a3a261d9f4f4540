"""How the outcomes of all ranks of a launch become its record."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from bench.errors import one_line
from bench.measure.allocations import Allocations
from bench.measure.collectives import costs
from bench.measure.conditions import flags_of
from bench.measure.memory import Peaks
from bench.plan.case import Case, Pass
from bench.plan.fit import IN_SWITCH
from bench.plan.registry import find_strategy
from bench.records.record import (
    CollectiveCost,
    Communication,
    Compute,
    Memory,
    MemoryTimeline,
    Parity,
    Phases,
    Placement,
    Record,
    Throughput,
    Timing,
)
from bench.records.trained import Checkpoint
from bench.run.compiled import captures, compilation_of, flags_of_compilation
from bench.run.culprit import fault_of, find_culprit, reason_of, teardown_exits
from bench.run.handover import Assignment, Failure, Measured, RankOutcome
from bench.run.input import all_input

FAULT_S = 1e-6
"""What a page fault costs at least; on a virtual machine 2 us were seen, with the zeroing."""
FAULTS_SHARE = 0.05
"""Of a window in page faults, from which they explain differences between rows."""
COARSE = 0.01
"""Of a median step, from which the clock's resolution matters."""
UNSEEN = "allocations_unseen"
"""Flag of a plan for a case whose tensor memory no profile sees in full."""
EMULATED = "emulated_network"
"""Flag of a plan for a case whose hosts are one machine."""
NO_ROOM = "sync_cost_unmeasured"
DRIFT = 0.005
"""Share of the peak by which the bytes alive before and after steady steps may differ."""


def to_record(
    assignment: Assignment,
    outcomes: Sequence[RankOutcome],
    *,
    run_id: str,
    environment: str,
    units: tuple[str, int],
    flags: Sequence[str] = (),
) -> Record:
    """Combine the ranks' outcomes into the record of their launch.

    Args:
        assignment: what they were told.
        outcomes: one per process, in the order of ranks.
        run_id: of the run.
        environment: fingerprint.
        units: name of the unit that throughput counts, and how many a sample has.
        flags: what the plan already knows.
    """
    job = assignment.job
    assert job not in {"reference", "strategy", "workload"}, f"a {job} is no record"
    culprit = find_culprit(outcomes)
    conditions = [one.conditions for one in outcomes if one.conditions is not None]
    record = Record(
        run_id=run_id,
        launch=assignment.launch,
        pass_=cast("Pass", job),
        case=assignment.case,
        status="ok",
        placement=[
            msgspec.structs.replace(one.placement, host=one.host)
            for one in outcomes
            if one.placement is not None
        ]
        or None,
        hosts=_hosts(outcomes),
        flags=list(flags),
        environment=environment,
        conditions=next(iter(conditions), None),
        conditions_elsewhere=conditions[1:] or None,
        observers=_observers(outcomes) or None,
        retries=list(assignment.retries) or None,
        compilation=compilation_of(assignment.case, outcomes),
    )
    if culprit is not None:
        assert culprit.failure is not None
        return msgspec.structs.replace(
            record,
            status=culprit.failure.status,
            reason=reason_of(culprit, outcomes),
            fault=fault_of(culprit, outcomes),
            log_tail=_log_tails(outcomes),
            memory=_reached(culprit.failure, assignment, outcomes),
        )
    compiled = flags_of_compilation(assignment.case, record.compilation)
    record = msgspec.structs.replace(record, flags=[*record.flags, *compiled])
    if exits := teardown_exits(outcomes):
        record = msgspec.structs.replace(record, teardown_exit=exits, log_tail=_log_tails(outcomes))
    if assignment.job == "timing":
        return _with_timing(record, assignment, outcomes, units)
    if assignment.job == "communication":
        problems = [one.trace_problem for one in outcomes if one.trace_problem is not None]
        case = assignment.case
        has_cost = find_strategy(case.strategy).has_sync_cost(case.options)
        is_short = has_cost and outcomes[0].sync_pairs_s is None
        return msgspec.structs.replace(
            record,
            reason=next(iter(problems), None),
            communication=_communication(case, outcomes, record.flags),
            flags=[*record.flags, *([NO_ROOM] if is_short else [])],
        )
    if assignment.job == "memory":
        return _with_memory(record, outcomes)
    if assignment.job == "max_batch":
        return msgspec.structs.replace(
            record, memory=_memory(_peaks(assignment, outcomes), outcomes)
        )
    if assignment.job == "checkpoint":
        return msgspec.structs.replace(record, checkpoint=checkpoint_of(outcomes))
    if assignment.job == "training":
        return msgspec.structs.replace(record, training=outcomes[0].training)
    views = [outcome.parity for outcome in outcomes if outcome.parity is not None]
    return msgspec.structs.replace(record, parity=max(views, key=_badness))


def checkpoint_of(outcomes: Sequence[RankOutcome]) -> Checkpoint:
    """The first rank's, with what any other has found wrong."""
    views = [outcome.checkpoint for outcome in outcomes if outcome.checkpoint is not None]
    failed = [view.reason for view in views if view.verdict == "failed" and view.reason]
    if not failed:
        return views[0]
    reason = one_line("; ".join(dict.fromkeys(failed)))
    return msgspec.structs.replace(views[0], verdict="failed", reason=reason)


def _hosts(outcomes: Sequence[RankOutcome]) -> list[str] | None:
    names = [one.host for one in outcomes if one.host is not None]
    return names if len(set(names)) > 1 else None


def _log_tails(outcomes: Sequence[RankOutcome]) -> dict[str, list[str]] | None:
    return {str(one.rank): one.log_tail for one in outcomes if one.log_tail} or None


def _badness(view: Parity) -> tuple[bool, float]:
    """Orders the ranks' views, the worst last."""
    return view.verdict == "failed", max(view.error or 0.0, view.gradient_error or 0.0)


def _phases(phase_s: Mapping[str, float]) -> Phases:
    """The four phases that every strategy has, and the pieces of them that some mark."""
    names = ("data", "forward", "backward", "optimizer")
    return Phases(
        **{f"{name}_s": phase_s.get(name, 0.0) for name in names},
        pieces_s={name: value for name, value in phase_s.items() if "." in name} or None,
    )


def _with_timing(
    record: Record,
    assignment: Assignment,
    outcomes: Sequence[RankOutcome],
    units: tuple[str, int],
) -> Record:
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
            skipped_steps=_skipped_steps(found),
        ),
        throughput=Throughput(
            samples_per_s=samples_per_s(samples, [one.window_s for one in found]),
            unit=unit,
            units_per_sample=units_per_sample,
        ),
        phases=_phases(slowest.phase_s),
        input=all_input(assignment.case, outcomes),
        compute=_compute(assignment.case, outcomes),
        memory=_memory(_peaks(assignment, outcomes), outcomes),
        flags=[*record.flags, *_seen_flags(assignment, outcomes, record.flags)],
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


def _reached(
    failure: Failure, assignment: Assignment, outcomes: Sequence[RankOutcome]
) -> Memory | None:
    """How much the devices held when memory did not suffice."""
    peaks = _peaks(assignment, outcomes)
    return _memory(peaks, outcomes) if failure.status == "out_of_memory" and peaks else None


def _peaks(assignment: Assignment, outcomes: Sequence[RankOutcome]) -> list[Peaks]:
    """Of each device; what lives within captured graphs is not counted as allocated."""
    peaks = [peak for outcome in outcomes for peak in outcome.memory]
    if captures(assignment.case):
        return [msgspec.structs.replace(peak, allocated=None) for peak in peaks]
    return peaks


def _memory(peaks: Sequence[Peaks], outcomes: Sequence[RankOutcome]) -> Memory:
    held = [device for outcome in outcomes for device in outcome.held]
    return Memory(
        peak_allocated_bytes=[peak.allocated for peak in peaks],
        peak_reserved_bytes=[peak.reserved for peak in peaks],
        peak_driver_bytes=[peak.driver for peak in peaks],
        peak_process_bytes=[peak.process for peak in peaks],
        held_by_category=_by_name(held) or None,
    )


def _by_name(devices: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Bytes of each category on each device."""
    names = dict.fromkeys(name for device in devices for name in device)
    return {name: [device.get(name, 0) for device in devices] for name in names}


def _timeline(allocations: Allocations) -> MemoryTimeline | None:
    if not allocations.timeline:
        return None
    return MemoryTimeline(
        at_s=[at for at, _ in allocations.timeline],
        by_category=_by_name([alive for _, alive in allocations.timeline]),
    )


def _with_memory(record: Record, outcomes: Sequence[RankOutcome]) -> Record:
    """Tensor memory, where what is alive after the steps is what was alive before them.

    Else something was released where no profile looks, and the peak is none; nor is it one where
    the plan knows that something is allocated there.
    """
    found = [outcome.allocations for outcome in outcomes if outcome.allocations is not None]
    peaks: list[Peaks] = []
    is_steady = True
    for one in found:
        for peak, before, after in zip(one.peak, one.before, one.after, strict=True):
            steady = abs(after - before) <= DRIFT * peak
            is_steady = is_steady and steady
            is_whole = steady and UNSEEN not in record.flags
            peaks.append(Peaks(allocated=peak if is_whole else None))
    memory = _memory(peaks, outcomes)
    if all(peak.allocated is not None for peak in peaks):
        memory = msgspec.structs.replace(
            memory,
            by_category=_by_name([device for one in found for device in one.by_category]) or None,
            timeline=_timeline(found[0]) if found else None,
        )
    return msgspec.structs.replace(
        record,
        memory=memory,
        flags=record.flags if is_steady else [*record.flags, "allocations_drift"],
    )


def samples_per_s(samples: int, window_s: Sequence[float]) -> float:
    """Samples of all devices together over the time of the slowest process.

    >>> samples_per_s(100 * 2, [9.0, 10.0])  # 100 steps of 2 samples; the slowest took 10 s
    20.0
    """
    return samples / max(window_s)


def _seen_flags(
    assignment: Assignment, outcomes: Sequence[RankOutcome], planned: Sequence[str]
) -> list[str]:
    """What is wrong with a measurement that otherwise succeeded."""
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
        "steps_skipped": (_skipped_steps(measured) or 0) > 0,
        "allocator_retries": any(one.allocator_retries > 0 for one in measured),
        "profiler_on": bool(_observers(outcomes)),
        "coarse_timer": any(_is_coarse(outcome.measured) for outcome in outcomes),
        "page_faults": any(_faults_cost(outcome.measured) > FAULTS_SHARE for outcome in outcomes),
        "nothing_to_shard": _shards_nothing(assignment.case, outcomes),
        # A rank may well see a batch again, but not another's.
        "duplicate_data": len(set(batches)) < len(batches),
    }
    flags = [flag for flag, is_seen in seen.items() if is_seen]
    for outcome in outcomes:
        if outcome.conditions is not None:
            flags += flags_of(outcome.conditions, assignment.case.device)
    return list(dict.fromkeys(flags))


def _skipped_steps(measured: Sequence[Measured]) -> int | None:
    """The most of any process: a scaler that does right skips a step on all of them."""
    return max(
        (one.skipped_steps for one in measured if one.skipped_steps is not None), default=None
    )


def _shards_nothing(case: Case, outcomes: Sequence[RankOutcome]) -> bool:
    """Whether no device holds any of what the strategy is there to split."""
    category = find_strategy(case.strategy).only_shards
    held = [device for outcome in outcomes for device in outcome.held]
    return bool(category and held) and not any(device.get(category or "") for device in held)


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


def _is_cold(measured: Measured | None) -> bool:
    return measured is not None and measured.first_step_s is None


def _is_coarse(measured: Measured | None) -> bool:
    if measured is None or measured.clock_resolution_s is None:
        return False
    return measured.clock_resolution_s > COARSE * statistics.median(measured.step_s)


def _observers(outcomes: Sequence[RankOutcome]) -> list[str]:
    return sorted({name for outcome in outcomes for name in outcome.observers})


def _faults_cost(measured: Measured | None) -> float:
    """Share of the window that went into page faults, roughly."""
    if measured is None or measured.minor_faults is None:
        return 0.0
    return measured.minor_faults * FAULT_S / measured.window_s


def _communication(
    case: Case, outcomes: Sequence[RankOutcome], flags: Sequence[str]
) -> Communication:
    pairs = outcomes[0].sync_pairs_s
    cost = None
    if pairs:
        cost = statistics.median(with_sync - without for with_sync, without in pairs)
    traces = [outcome.trace for outcome in outcomes if outcome.trace is not None]
    strategy = find_strategy(case.strategy)
    sizes = set(strategy.group_sizes(case))
    ranks = sizes.pop() if len(sizes) == 1 else None
    found = costs(traces, ranks, strategy.operation_ranks(case))
    is_alone = len(traces) == 1 and case.device == "cpu"
    return Communication(
        sync_cost_s=cost,
        sync_pairs_s=pairs,
        bucket_bytes=outcomes[0].bucket_bytes,
        collectives=[
            CollectiveCost(
                op=one.operation,
                calls=one.calls,
                payload_bytes=one.payload_bytes,
                wire_bytes_minimum=None if IN_SWITCH in flags else one.wire_bytes,
                busy_s=one.busy_s,
            )
            for one in found.collectives
        ],
        busy_s=found.busy_s,
        exposed_s=found.exposed_s,
        # A process that moves everything itself, in turn, waits for nobody and hides nothing.
        wait_s=None if is_alone else found.wait_s,
        late_rank=found.late_rank,
        late_share=found.late_share,
        hidden_fraction=None if is_alone else found.hidden_fraction,
        profiled_step_s=max(trace.step_s for trace in traces),
        standalone_s=_standalone_s(case, outcomes),
    )


def _standalone_s(case: Case, outcomes: Sequence[RankOutcome]) -> float | None:
    """A step's collectives alone, on the slowest rank: median of the repeats; None without any."""
    repeats = list(zip(*(outcome.alone_s for outcome in outcomes), strict=False))
    if not repeats:
        return None
    period = find_strategy(case.strategy).rhythm(case.options).period
    return statistics.median(max(map(sum, ranks)) for ranks in repeats) / period
