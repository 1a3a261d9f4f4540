"""How the outcomes of all ranks of a launch become its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from bench.errors import one_line
from bench.plan.case import Pass
from bench.records.record import Parity, Record
from bench.records.trained import Checkpoint
from bench.run.compiled import compilation_of, flags_of_compilation
from bench.run.culprit import fault_of, find_culprit, reason_of, teardown_exits
from bench.run.handover import Assignment, RankOutcome
from bench.run.outcome_communication import with_communication
from bench.run.outcome_flags import observers_of
from bench.run.outcome_memory import memory_of, with_memory
from bench.run.outcome_timing import with_timing


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
        observers=observers_of(outcomes) or None,
        retries=list(assignment.retries) or None,
        compilation=compilation_of(assignment.case, outcomes),
    )
    if culprit is not None:
        assert culprit.failure is not None
        status = culprit.failure.status
        return msgspec.structs.replace(
            record,
            status=status,
            reason=reason_of(culprit, outcomes),
            fault=fault_of(culprit, outcomes),
            log_tail=_log_tails(outcomes),
            memory=memory_of(assignment, outcomes) if status == "out_of_memory" else None,
        )
    compiled = flags_of_compilation(assignment.case, record.compilation)
    record = msgspec.structs.replace(record, flags=[*record.flags, *compiled])
    if exits := teardown_exits(outcomes):
        record = msgspec.structs.replace(record, teardown_exit=exits, log_tail=_log_tails(outcomes))
    if job == "timing":
        return with_timing(record, assignment, outcomes, units)
    if job == "communication":
        return with_communication(record, outcomes)
    if job == "memory":
        return with_memory(record, outcomes)
    if job == "max_batch":
        return msgspec.structs.replace(record, memory=memory_of(assignment, outcomes))
    if job == "checkpoint":
        return msgspec.structs.replace(record, checkpoint=checkpoint_of(outcomes))
    if job == "training":
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
