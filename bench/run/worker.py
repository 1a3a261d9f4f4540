"""One rank of one launch of a case: join, run one pass, hand over the outcome."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import distributed

from bench.measure.device import is_out_of_memory, open_device
from bench.plan import own
from bench.plan.registry import find_strategy
from bench.run.checkpoint import measure_checkpoint
from bench.run.group import join_group, placement, require_carrier
from bench.run.handover import Assignment, Job, RankOutcome
from bench.run.look_strategy import look_at_strategy
from bench.run.look_workload import look_at_workload
from bench.run.passes import measure_communication, measure_memory, measure_time, try_batch
from bench.run.phases import DONE, Notebook, launch_limit_s
from bench.run.process import Place, carry_out, enter
from bench.run.proof import make_reference, prove
from bench.run.rank import Rank
from bench.run.training import measure_training
from bench.strategies.base import Session


def main(assignment_file: str) -> None:
    """Entry of every process that trains.

    Args:
        assignment_file: path of the launch's ``Assignment``.
    """
    assignment, place = enter(assignment_file, Assignment)
    carry_out(_Pass(assignment, place), Path(assignment.folder))


class _Pass:
    """See ``bench.run.process.Work``: one pass over a case."""

    def __init__(self, assignment: Assignment, place: Place) -> None:
        self._assignment = assignment
        self.place = place
        self._rank: Rank | None = None
        self._session: Session | None = None

    def do(self) -> None:
        """See ``Work``."""
        assignment, place = self._assignment, self.place
        own.tell(assignment.codes)
        own.require_unchanged(assignment.codes)
        strategy = find_strategy(assignment.case.strategy)
        one = strategy.processes == "one" and assignment.job != "reference"
        driven = range(len(assignment.cores)) if one else [place.local_rank]
        self._rank = Rank(
            assignment=assignment,
            rank=place.rank,
            local_rank=place.local_rank,
            processes=place.processes,
            strategy=strategy,
            device=open_device(assignment.case, driven, assignment.cores, assignment.used_before),
            outcome=RankOutcome(rank=place.rank),
            notebook=Notebook(Path(assignment.folder), place.local_rank),
        )
        self._session = _work(self._rank)
        self._rank.note(phase=DONE)

    def outcome(self, error: BaseException | None) -> RankOutcome:
        """See ``Work``."""
        rank = self._rank
        if rank is None:
            return RankOutcome(rank=self.place.rank)
        if error is not None:
            rank.note_compiled()
            if is_out_of_memory(error):
                _note_peak(rank)
        return rank.outcome

    def leave(self) -> None:
        """See ``Work``: a group that is destroyed while DDP still holds it aborts at exit."""
        rank = self._rank
        assert rank is not None, "its work is done"
        rank.slowest(0.0)
        if self._session is not None:
            self._session.close()
        self._session = None
        gc.collect()
        rank.device.synchronize()
        if rank.has_group:
            distributed.destroy_process_group()


def _work(rank: Rank) -> Session | None:
    """Run the assignment's job; returns the session, which must outlive the hand-over."""
    _join(rank)
    rank.device.set_precision(rank.case.precision)
    rank.watch_compiler()
    return JOBS[rank.assignment.job](rank)


JOBS: Mapping[Job, Callable[[Rank], Session | None]] = {
    "timing": measure_time,
    "communication": measure_communication,
    "memory": measure_memory,
    "max_batch": try_batch,
    "checkpoint": measure_checkpoint,
    "training": measure_training,
    "parity": prove,
    "reference": make_reference,
    "strategy": look_at_strategy,
    "workload": look_at_workload,
}


def _join(rank: Rank) -> None:
    """Claim the device, then join the group, if any."""
    rank.device.claim()
    rank.note(placement=placement())
    if rank.has_group:
        case = rank.case
        join_group(
            case.backend or "gloo",
            rank.device.torch_device,
            launch_s=launch_limit_s(case, rank.assignment.effort),
            group_device=rank.device.group_device,
        )
        if case.backend is not None:
            require_carrier(case.backend, rank.device.torch_device)
        rank.slowest(0.0)
    rank.note(joined_s=time.monotonic())


def _note_peak(rank: Rank) -> None:
    """How much memory the rank had taken when that did not suffice."""
    with contextlib.suppress(Exception):  # a device that has failed may not answer
        rank.device.limit_memory(None)
        rank.note(memory=rank.device.peaks())
