"""Communication of a launch's record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from bench.measure.collectives import costs
from bench.plan.case import Case
from bench.plan.fit import IN_SWITCH
from bench.plan.registry import find_strategy
from bench.records.record import CollectiveCost, Communication, Record
from bench.run.handover import RankOutcome

NO_ROOM = "sync_cost_unmeasured"


def with_communication(record: Record, outcomes: Sequence[RankOutcome]) -> Record:
    """What communication costs; flagged where steps without it found no room."""
    problems = [one.trace_problem for one in outcomes if one.trace_problem is not None]
    has_cost = find_strategy(record.case.strategy).has_sync_cost(record.case.options)
    is_short = has_cost and outcomes[0].sync_pairs_s is None
    return msgspec.structs.replace(
        record,
        reason=next(iter(problems), None),
        communication=_communication(record.case, outcomes, record.flags),
        flags=[*record.flags, *([NO_ROOM] if is_short else [])],
    )


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
    # gloo's traces do not name the group: whose ranks wait for whom is not known of several.
    has_parts = min(strategy.group_sizes(case), default=case.world_size) < case.world_size
    knows_ranks = case.backend != "gloo" or not (has_parts or strategy.operation_ranks(case))
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
        late_rank=found.late_rank if knows_ranks else None,
        late_share=found.late_share if knows_ranks else None,
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
