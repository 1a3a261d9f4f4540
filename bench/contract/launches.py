"""The launches of a check, each of which becomes findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.contract.finding import Finding
from bench.plan.case import Case, Machine, PlannedCase
from bench.plan.registry import find_strategy, find_workload
from bench.records.record import Record
from bench.run.culprit import find_culprit
from bench.run.handover import Job, RankOutcome
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from bench.run.saving import CannotBeSavedError
from bench.run.schedule import reference_key

UNPROVED = "it trains another model by design, which no proof can check"


class Launches:
    """Starts processes for one subject, and keeps the references of its proofs."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._references: dict[str, Path] = {}

    @property
    def machine(self) -> Machine:
        """Where it is tried."""
        return self._launcher.machine

    def looks(self, subject: str, planned: PlannedCase, job: Job) -> Iterator[Finding]:
        """What the processes of a look have seen, each thing once."""
        _, outcomes = self._launcher.launch_case(
            planned.case, planned.effort, job, launch=0, processes=process_count(planned.case)
        )
        for name in dict.fromkeys(look.name for one in outcomes for look in one.looks):
            yield _of_looks(subject, name, outcomes)
        culprit = find_culprit(outcomes)
        if culprit is not None and culprit.failure is not None:
            found = f"rank {culprit.rank}: {culprit.failure.reason}"
            yield Finding(subject=subject, name="a step", status="bad", found=found)

    def proof(self, subject: str, planned: PlannedCase, name: str) -> Finding:
        """Whether a case trains the model that one device would."""
        case = planned.case
        if find_strategy(case.strategy).reference(case.options) == "none":
            return Finding(subject=subject, name=name, status="skipped", found=UNPROVED)
        key = reference_key(case)
        if key not in self._references:
            path = self._launcher.scratch / f"reference{len(self._references)}.pt"
            _, outcomes = self._launcher.launch_case(
                case, planned.effort, "reference", launch=0, processes=1, reference=path
            )
            failure = outcomes[0].failure
            if failure is not None:
                found = f"on one device: {failure.reason}"
                return Finding(subject=subject, name=name, status="bad", found=found)
            self._references[key] = path
        record = self._record(planned, "parity", reference=self._references[key])
        return _of_proof(subject, name, record)

    def saved(self, subject: str, planned: PlannedCase, name: str) -> Finding:
        """Whether training goes on from a checkpoint as if nothing had happened."""
        with self._launcher.folder() as folder:
            return _of_saved(subject, name, self._record(planned, "checkpoint", checkpoint=folder))

    def _record(
        self,
        planned: PlannedCase,
        job: Job,
        *,
        reference: Path | None = None,
        checkpoint: Path | None = None,
    ) -> Record:
        """What becomes of one launch on all of the case's devices."""
        case = planned.case
        assignment, outcomes = self._launcher.launch_case(
            case,
            planned.effort,
            job,
            launch=0,
            processes=process_count(case),
            reference=reference,
            checkpoint=checkpoint,
        )
        return to_record(assignment, outcomes, run_id="check", environment="", units=_units(case))


def _of_looks(subject: str, name: str, outcomes: tuple[RankOutcome, ...]) -> Finding:
    for one in outcomes:
        for look in one.looks:
            if look.name == name and look.problem is not None:
                return Finding(subject=subject, name=name, status="bad", found=look.problem)
    return Finding(subject=subject, name=name, status="ok")


def _of_proof(subject: str, name: str, record: Record) -> Finding:
    if record.status != "ok" or record.parity is None:
        return Finding(
            subject=subject, name=name, status="bad", found=record.reason or record.status
        )
    if record.parity.verdict == "failed":
        found = f"it trains another model than one device: {record.parity.reason}"
        return Finding(subject=subject, name=name, status="bad", found=found)
    return Finding(subject=subject, name=name, status="ok")


def _of_saved(subject: str, name: str, record: Record) -> Finding:
    said = Finding(subject=subject, name=name, status="ok")
    found = record.checkpoint
    if found is None:
        lacks = record.fault is not None and record.fault.exception == CannotBeSavedError.__name__
        reason = record.reason or record.status
        return replace(said, status="skipped" if lacks else "bad", found=reason)
    if found.verdict == "not_checked":
        return replace(said, status="skipped", found=found.reason or "")
    if found.verdict == "failed":
        return replace(said, status="bad", found=found.reason or "")
    return said


def _units(case: Case) -> tuple[str, int]:
    workload = find_workload(case.workload)
    facts = workload.facts(msgspec.convert(case.workload_options, workload.options))
    return facts.unit, facts.units_per_sample
