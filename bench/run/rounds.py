"""Visit all cases of a plan: proofs first, then rounds of timing, communication and memory.

After the rounds that the plan has, further ones visit the cases whose intervals are wider than
asked, while the suite's budget lasts. Every planned case ends as a record.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from bench.analyze.effort import cases_in_need, further_s, launches_by_case
from bench.errors import Interruption, in_words
from bench.plan.case import Case, PlannedCase
from bench.plan.registry import find_strategy, find_workload
from bench.records.record import Parity, Record, Status
from bench.records.store import Store, recorded
from bench.run.batch_search import find_max_batch, obstacle
from bench.run.checkpoint_folder import Checkpoints
from bench.run.culprit import find_culprit
from bench.run.handover import Failure, TraceWish
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.schedule import (
    Estimate,
    Step,
    further_round,
    in_turn,
    reference_key,
    schedule,
)
from workloads.base import Facts

SEVERAL_HOSTS = (
    "a checkpoint of several hosts needs a folder that all of them share, which cannot be told here"
)
BEFORE_FURTHER = frozenset({"parity", "timing"})
"""Passes that come before the further rounds; the others come after them."""


class Progress(Protocol):
    """What is told while a run goes on."""

    def started(self, steps: int, left_s: float, budget_s: float) -> None:
        """Called once, with the number of launches, an estimate of the time, and the budget."""

    def widened(self, cases: int, launches: int, left_s: float) -> None:
        """Called before a further round: so many cases are wider than asked."""

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        """Called after each launch."""


class Runner:
    """Carries a plan out.

    Args:
        launcher: starts the processes.
        store: takes the records.
        run_id: of the run.
        environment: fingerprint.
        progress: is told.
        traces: which to leave of the profiled steps, in a folder for each case; None for none.
        checkpoints: where they are saved; None for a private folder.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        store: Store,
        run_id: str,
        environment: str,
        progress: Progress,
        traces: TraceWish | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._traces = traces
        self._checkpoints = checkpoints or Checkpoints(folder=launcher.scratch / "checkpoints")
        self._launcher = launcher
        self._store = store
        self._run_id = run_id
        self._environment = environment
        self._progress = progress
        self._reference: _Reference | None = None
        self._round: int | None = None
        """Of timing, that the fork server at hand was started for."""
        self._variables: dict[str, str] = {}
        """That it was started with."""
        self._estimate = Estimate()
        self._before: Sequence[Record] = ()
        self._done = self._total = 0
        self.records: list[Record] = []
        """What this runner has recorded."""

    def run(
        self,
        plan: Sequence[PlannedCase],
        seed: int,
        *,
        before: Sequence[Record] = (),
        budget_s: float = 0.0,
    ) -> None:
        """Measure what is not done yet; the new records are in ``records``.

        Args:
            plan: what to run.
            seed: of the order.
            before: records that are there already.
            budget_s: seconds for launches beyond the plan's.

        Raises:
            Interruption: a signal arrived; the running case is recorded as interrupted.
        """
        self._before = [record for record in before if record.status != "interrupted"]
        done = recorded(before)
        for record in self._before:
            self._estimate.learn(record)
        skips = [
            (Step(planned=planned, pass_="timing", launch=0), planned.skip_reason)
            for planned in plan
            if planned.skip_reason is not None
        ]
        for step, reason in skips:
            if step.key not in done:
                self._keep(self._unmeasured(step, "skipped", reason))
        steps = [
            step
            for step in schedule(plan, seed, traced=self._traces is not None)
            if step.key not in done
        ]
        rounds = [step for step in steps if step.pass_ in BEFORE_FURTHER]
        last = [step for step in steps if step.pass_ not in BEFORE_FURTHER]
        self._total = len(steps)
        self._progress.started(len(steps), self._estimate.left_s(steps), budget_s)
        self._take(rounds, then=last)
        self._take_further_rounds(plan, seed, budget_s, then=last)
        self._take(last)

    def _take(self, steps: Sequence[Step], *, then: Sequence[Step] = ()) -> None:
        """Measure some steps one after the other; ``then`` follow, and take time too."""
        for index, step in enumerate(steps, start=1):
            restart_s = self._renew(step)
            begin = time.monotonic()
            record = msgspec.structs.replace(
                self._run_step(step),
                elapsed_s=time.monotonic() - begin,
                restart_s=restart_s,
                round=step.round if step.pass_ == "timing" else None,
            )
            self._keep(record)
            self._estimate.learn(record)
            self._done += 1
            self._progress.finished(
                record,
                done=self._done,
                steps=self._total,
                left_s=self._estimate.left_s([*steps[index:], *then]),
            )

    def _take_further_rounds(
        self, plan: Sequence[PlannedCase], seed: int, budget_s: float, *, then: Sequence[Step]
    ) -> None:
        """Launch cases again whose intervals are wider than asked, until the budget is spent."""
        planned = {one.case.id: one for one in plan if one.skip_reason is None}
        own = {id_: one.effort.launches for id_, one in planned.items()}
        efforts = {id_: one.effort for id_, one in planned.items()}
        shuffle = random.Random(f"{seed} further").shuffle  # noqa: S311 - an order, not a secret
        for round_ in itertools.count(max(own.values(), default=0)):
            records = [*self._before, *self.records]
            wanted = cases_in_need(records, efforts)
            steps = further_round(
                [planned[id_] for id_ in wanted],
                {id_: len(found) for id_, found in launches_by_case(records).items()},
                round_=round_,
                affordable_s=budget_s - further_s(records, own),
                estimate=self._estimate,
            )
            if not steps:
                return
            steps = in_turn(steps, shuffle)
            self._total += len(steps)
            self._progress.widened(len(wanted), len(steps), self._estimate.left_s(steps))
            self._take(steps, then=then)

    def _renew(self, step: Step) -> float | None:
        """A new fork server for a new round of timing, or another environment.

        Returns what it took, in seconds; None where the one at hand serves.
        """
        variables = step.planned.case.env
        is_same_round = step.pass_ != "timing" or step.round == self._round
        if is_same_round and variables == self._variables:
            return None
        begin = time.monotonic()
        try:
            self._launcher.renew(variables)
        except Interruption as interruption:
            self._keep(self._unmeasured(step, "interrupted", f"by {interruption}"))
            raise
        except Exception as error:  # noqa: BLE001 - the launch will fail, and say so in its row
            warnings.warn(f"the fork server did not restart: {in_words(error)}", stacklevel=2)
        self._variables = variables
        if step.pass_ == "timing":
            self._round = step.round
        return time.monotonic() - begin

    def _keep(self, record: Record) -> Record:
        self._store.append(record)
        self.records.append(record)
        return record

    def _run_step(self, step: Step) -> Record:
        try:
            if step.pass_ == "parity":
                return self._prove(step)
            self._forget_reference()
            if step.pass_ == "checkpoint":
                return self._save_and_restore(step)
            return self._search(step) if step.pass_ == "max_batch" else self._launch(step)
        except Interruption as interruption:
            self._keep(self._unmeasured(step, "interrupted", f"by {interruption}"))
            raise
        except Exception as error:  # noqa: BLE001 - no fault of one case may lose the others
            return self._unmeasured(step, "failed", f"outside of the ranks: {in_words(error)}")

    def _unmeasured(self, step: Step, status: Status, reason: str | None) -> Record:
        return Record(
            run_id=self._run_id,
            launch=step.launch,
            pass_=step.pass_,
            case=step.planned.case,
            status=status,
            reason=reason,
            environment=self._environment,
        )

    def _save_and_restore(self, step: Step) -> Record:
        """Save to a folder of the case's own, of which nothing stays unless it was asked for."""
        case = step.planned.case
        if case.nodes > 1:
            return self._unmeasured(step, "skipped", SEVERAL_HOSTS)
        with self._checkpoints.folder_of(case.id) as folder:
            return self._launch(step, checkpoint=folder)

    def _launch(
        self, step: Step, reference: Path | None = None, checkpoint: Path | None = None
    ) -> Record:
        planned = step.planned
        assignment, outcomes = self._launcher.launch_case(
            planned.case,
            planned.effort,
            step.pass_,
            launch=step.launch,
            processes=process_count(planned.case),
            reference=reference,
            trace=self._trace_of(planned.case) if step.pass_ == "communication" else None,
            checkpoint=checkpoint,
        )
        return to_record(
            assignment,
            outcomes,
            run_id=self._run_id,
            environment=self._environment,
            units=_units(planned.case),
            flags=planned.flags,
        )

    def _trace_of(self, case: Case) -> TraceWish | None:
        """Each case has a folder of its own, in which there is nothing else."""
        if self._traces is None:
            return None
        return msgspec.structs.replace(
            self._traces, folder=str(Path(self._traces.folder) / case.id)
        )

    def _search(self, step: Step) -> Record:
        """Try batches, each in fresh processes, until the largest that fits is known."""

        def launch(case: Case) -> Record:
            tried = msgspec.structs.replace(step.planned, case=case)
            return self._launch(dataclasses.replace(step, planned=tried))

        case, effort = step.planned.case, step.planned.effort
        machine = self._launcher.machine
        hosts = 1 if machine.emulated else case.nodes  # whose memory there is
        reason = obstacle(case, effort, machine.memory_bytes * hosts)
        if reason is not None:
            return self._unmeasured(step, "skipped", reason)
        least = 2 if _facts(case).has_batch_norm else 1
        return find_max_batch(case, launch, limit_gib=effort.memory_limit_gib, least=least)

    def _prove(self, step: Step) -> Record:
        """Compare with the reference, which is trained when it is first needed."""
        case = step.planned.case
        if find_strategy(case.strategy).reference(case.options) == "none":
            return self._not_proved(step, "this strategy trains another model by design")
        reference = self._reference_for(step)
        if reference.failure is not None:
            reason = f"the reference on one device: {reference.failure.reason}"
            return self._unmeasured(step, reference.failure.status, reason)
        return self._launch(step, reference.path)

    def _reference_for(self, step: Step) -> _Reference:
        """The reference of a case: the one at hand, or a new one in its place."""
        key = reference_key(step.planned.case)
        if self._reference is not None and self._reference.key == key:
            return self._reference
        path = self._launcher.scratch / "reference.pt"
        path.unlink(missing_ok=True)
        _, outcomes = self._launcher.launch_case(
            step.planned.case,
            step.planned.effort,
            "reference",
            launch=0,
            processes=1,
            reference=path,
        )
        culprit = find_culprit(outcomes)
        failure = culprit.failure if culprit is not None else None
        self._reference = _Reference(key=key, path=path, failure=failure)
        return self._reference

    def _forget_reference(self) -> None:
        """The proofs are over, and the file may be large."""
        if self._reference is not None:
            self._reference.path.unlink(missing_ok=True)
            self._reference = None

    def _not_proved(self, step: Step, reason: str) -> Record:
        proof = Parity(verdict="not_checked", reason=reason)
        return msgspec.structs.replace(self._unmeasured(step, "ok", None), parity=proof)


def process_count(case: Case) -> int:
    """Processes that a case needs on each of its hosts."""
    if find_strategy(case.strategy).processes == "one":
        return 1
    return case.world_size // case.nodes


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What one device did, or why it could not."""

    key: str
    path: Path
    failure: Failure | None


def _units(case: Case) -> tuple[str, int]:
    facts = _facts(case)
    return facts.unit, facts.units_per_sample


def _facts(case: Case) -> Facts:
    workload = find_workload(case.workload)
    return workload.facts(msgspec.convert(case.workload_options, workload.options))
