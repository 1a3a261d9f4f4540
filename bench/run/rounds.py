"""Visit all cases of a plan: proofs first, then rounds of timing, communication and memory.

Every round is one independent launch of each case, in an order shuffled anew, so that a drift of
the machine meets all cases alike. Every planned case ends as a record.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.errors import Interruption, one_line
from bench.plan.case import Case, Pass, PlannedCase
from bench.plan.registry import find_strategy, find_workload
from bench.records.record import Parity, Record, Status
from bench.records.store import Store
from bench.run.launch import Launcher
from bench.run.outcome import Failure, find_culprit, to_record
from bench.run.rank import proof_size

LAUNCH_GUESS_S = 3.0
"""Start, set-up and warm-up of a launch, before any has been seen."""
WITH_WINDOW = frozenset({"timing", "communication"})
"""Passes that go on for as long as the window is."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launch to come."""

    planned: PlannedCase
    pass_: Pass
    launch: int

    @property
    def key(self) -> tuple[str, int, Pass]:
        """The key that its record will have."""
        return (self.planned.case.id, self.launch, self.pass_)


class Progress(Protocol):
    """What is told while a run goes on."""

    def started(self, steps: int, left_s: float) -> None:
        """Called once, with the number of launches and an estimate of the time."""

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        """Called after each launch."""


@dataclass(kw_only=True)
class Estimate:
    """How long the rest will take, from what the most similar launches so far took."""

    seen: dict[tuple[str, Pass], list[float]] = field(default_factory=dict)

    def add(self, step: Step, seconds: float) -> None:
        """Learn from a launch."""
        self.seen.setdefault((step.planned.case.id, step.pass_), []).append(seconds)

    def left_s(self, steps: Iterable[Step]) -> float:
        """Seconds that some launches will take one after the other."""
        return sum(self._one(step) for step in steps)

    def _one(self, step: Step) -> float:
        own = self.seen.get((step.planned.case.id, step.pass_))
        if own:
            return statistics.fmean(own)
        case = step.planned.case
        model = f"{case.workload}-{case.preset}"
        alike = [
            (pass_, times) for (id_, pass_), times in self.seen.items() if id_.startswith(model)
        ]
        same_pass = [seconds for pass_, times in alike if pass_ == step.pass_ for seconds in times]
        if same_pass:
            return statistics.fmean(same_pass)
        window_s = step.planned.effort.window.max_s if step.pass_ in WITH_WINDOW else 0.0
        of_model = [seconds for _, times in alike for seconds in times]
        return (statistics.fmean(of_model) if of_model else LAUNCH_GUESS_S) + window_s


def schedule(plan: Sequence[PlannedCase], seed: int) -> list[Step]:
    """The launches of a plan in order; the same for the same seed."""
    shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
    runnable = [planned for planned in plan if planned.skip_reason is None]
    steps: list[Step] = []

    def visit(pass_: Pass, launch: int, chosen: Iterable[PlannedCase]) -> None:
        turn = [Step(planned=planned, pass_=pass_, launch=launch) for planned in chosen]
        shuffle(turn)
        steps.extend(turn)

    visit("parity", 0, runnable)
    # Cases with the same reference come one after the other, so that one file is kept at a time.
    steps.sort(key=lambda step: _reference_key(step.planned.case))
    for launch in range(max((planned.effort.launches for planned in runnable), default=0)):
        visit("timing", launch, (one for one in runnable if launch < one.effort.launches))
    visit("communication", 0, (one for one in runnable if _has_communication(one.case)))
    visit("memory", 0, (one for one in runnable if _needs_memory_pass(one.case)))
    return steps


def _has_communication(case: Case) -> bool:
    return case.world_size > 1 and find_strategy(case.strategy).communicates


def _needs_memory_pass(case: Case) -> bool:
    """An accelerator's allocator keeps its own peak, and disturbs nothing."""
    return case.device == "cpu"


class Runner:
    """Carries a plan out.

    Args:
        launcher: starts the processes.
        store: takes the records.
        run_id: of the run.
        environment: fingerprint.
        progress: is told.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        store: Store,
        run_id: str,
        environment: str,
        progress: Progress,
    ) -> None:
        self._launcher = launcher
        self._store = store
        self._run_id = run_id
        self._environment = environment
        self._progress = progress
        self._reference: _Reference | None = None
        self._round: int | None = None
        """Of timing, that the fork server at hand was started for."""
        self.records: list[Record] = []
        """What this runner has recorded."""

    def run(
        self,
        plan: Sequence[PlannedCase],
        seed: int,
        *,
        done: frozenset[tuple[str, int, Pass]] = frozenset(),
    ) -> None:
        """Measure what is not done yet; the new records are in ``records``.

        Args:
            plan: what to run.
            seed: of the order.
            done: keys of records that are there already.

        Raises:
            Interruption: a signal arrived; the running case is recorded as interrupted.
        """
        skips = [
            (Step(planned=planned, pass_="timing", launch=0), planned.skip_reason)
            for planned in plan
            if planned.skip_reason is not None
        ]
        for step, reason in skips:
            if step.key not in done:
                self._keep(self._unmeasured(step, "skipped", reason))
        steps = [step for step in schedule(plan, seed) if step.key not in done]
        estimate = Estimate()
        self._progress.started(len(steps), estimate.left_s(steps))
        for index, step in enumerate(steps, start=1):
            begin = time.monotonic()
            record = self._keep(self._run_step(step))
            estimate.add(step, time.monotonic() - begin)
            left_s = estimate.left_s(steps[index:])
            self._progress.finished(record, done=index, steps=len(steps), left_s=left_s)

    def _keep(self, record: Record) -> Record:
        self._store.append(record)
        self.records.append(record)
        return record

    def _run_step(self, step: Step) -> Record:
        try:
            if step.pass_ == "timing" and step.launch != self._round:
                self._launcher.renew()
                self._round = step.launch
            if step.pass_ == "parity":
                return self._prove(step)
            self._forget_reference()
            return self._launch(step)
        except Interruption as interruption:
            self._keep(self._unmeasured(step, "interrupted", f"by {interruption}"))
            raise
        except Exception as error:  # noqa: BLE001 - no fault of one case may lose the others
            reason = one_line(f"outside of the ranks: {type(error).__name__}: {error}")
            return self._unmeasured(step, "failed", reason)

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

    def _launch(self, step: Step, reference: Path | None = None) -> Record:
        planned = step.planned
        assignment, outcomes = self._launcher.launch_case(
            planned.case,
            planned.effort,
            step.pass_,
            launch=step.launch,
            processes=process_count(planned.case),
            reference=reference,
        )
        return to_record(
            assignment,
            outcomes,
            run_id=self._run_id,
            environment=self._environment,
            units=_units(planned.case),
            flags=planned.flags,
        )

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
        key = _reference_key(step.planned.case)
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
    """Processes that a case needs on one host."""
    return 1 if find_strategy(case.strategy).processes == "one" else case.world_size


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What one device did, or why it could not."""

    key: str
    path: Path
    failure: Failure | None


def _reference_key(case: Case) -> str:
    """Equal for cases that train on the same samples from the same parameters."""
    options, batch = proof_size(case)
    parts: tuple[Any, ...] = (
        find_strategy(case.strategy).reference(case.options),
        case.workload,
        msgspec.to_builtins(options),
        batch,
        case.device,
        case.cores_per_device,
        case.precision,
        case.optimizer,
        case.world_size,
        case.accumulation_steps,
        case.seed,
    )
    return msgspec.json.encode(parts, order="deterministic").decode()


def _units(case: Case) -> tuple[str, int]:
    workload = find_workload(case.workload)
    facts = workload.facts(msgspec.convert(case.workload_options, workload.options))
    return facts.unit, facts.units_per_sample
