from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import Interruption
from bench.measure.allocations import Allocations
from bench.measure.trace import StepsTrace
from bench.plan.case import Case, Effort, PlannedCase
from bench.records.record import Parity, Record
from bench.records.store import Store, read_records
from bench.run.outcome import Assignment, Failure, Job, RankOutcome
from bench.run.rounds import Estimate, Runner, Step, schedule
from tests.fakes import SHORT, make_case
from tests.run.test_outcome import outcome


def planned(launches: int = 3, skip: str | None = None, **case: Any) -> PlannedCase:
    return PlannedCase(case=make_case(**case), effort=Effort(launches=launches), skip_reason=skip)


SINGLE = planned()
PAIR = planned(strategy="ddp", options={}, world_size=2)
PLAN = [SINGLE, PAIR, planned(launches=1, seed=5), planned(skip="none here", seed=6)]


def test_each_round_visits_every_case_once() -> None:
    steps = schedule(PLAN, seed=1)
    rounds = [
        [step for step in steps if step.launch == i and step.pass_ == "timing"] for i in range(3)
    ]
    assert [len(turn) for turn in rounds] == [3, 2, 2]
    # One round ends before the next begins, so that drift meets all cases alike.
    timing = [step.launch for step in steps if step.pass_ == "timing"]
    assert timing == sorted(timing)
    assert sum(step.pass_ == "parity" for step in steps) == 3
    (communication,) = [step for step in steps if step.pass_ == "communication"]
    assert communication.planned is PAIR
    assert sum(step.pass_ == "memory" for step in steps) == 3
    assert len({step.key for step in steps}) == len(steps)


def test_the_order_is_shuffled_with_the_seed() -> None:
    plan = [planned(seed=seed) for seed in range(8)]
    orders = {tuple(step.key for step in schedule(plan, seed=seed)) for seed in range(20)}
    assert len(orders) == 20
    assert schedule(plan, seed=3) == schedule(plan, seed=3)
    first, second = (
        [
            step.planned.case.id
            for step in schedule(plan, seed=3)
            if step.launch == launch and step.pass_ == "timing"
        ]
        for launch in (0, 1)
    )
    assert first != second


class FakeLauncher:
    """Answers with set outcomes, or raises."""

    def __init__(self, scratch: Path, answers: dict[str, Any]) -> None:
        self.scratch = scratch
        self.answers = answers
        self.jobs: list[tuple[Job, str]] = []
        self.renewed_before: list[int] = []

    def renew(self) -> None:
        self.renewed_before.append(len(self.jobs))

    def launch_case(
        self,
        case: Case,
        effort: Effort,
        job: Job,
        *,
        launch: int,
        processes: int,
        reference: Path | None = None,
    ) -> tuple[Assignment, tuple[RankOutcome, ...]]:
        self.jobs.append((job, case.id))
        answer = self.answers.get(job)
        if isinstance(answer, BaseException):
            raise answer
        assignment = Assignment(
            job=job,
            case=case,
            effort=effort,
            launch=launch,
            folder="",
            started_s=0.0,
            cores=(),
            environment={},
            reference=str(reference),
        )
        ranks = (
            outcome(
                rank,
                parity=Parity(verdict="exact"),
                failure=answer,
                batch_digests=[str(rank)],
                trace=StepsTrace(steps=1, step_s=0.1, spans=[], computation={}),
                allocations=Allocations(peak=[2], before=[1], after=[1]),
            )
            for rank in range(processes)
        )
        return assignment, tuple(ranks)


class Silent:
    def __init__(self) -> None:
        self.left: list[float] = []

    def started(self, steps: int, left_s: float) -> None:
        self.left.append(left_s)

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        self.left.append(left_s)


def run(tmp_path: Path, plan: list[PlannedCase], done: Any = frozenset(), **answers: Any) -> Any:
    launcher = FakeLauncher(tmp_path, answers)
    progress = Silent()
    with Store(tmp_path / "out", resume=True) as store:
        runner = Runner(
            launcher=launcher,  # type: ignore[arg-type]
            store=store,
            run_id="r",
            environment="e",
            progress=progress,
        )
        try:
            runner.run(plan, seed=0, done=done)
        except Interruption:
            progress.left.append(-1)
    return launcher, read_records(tmp_path / "out"), progress


def test_every_planned_case_becomes_a_row(tmp_path: Path) -> None:
    _, records, progress = run(tmp_path, PLAN)
    assert {record.case.id for record in records} == {one.case.id for one in PLAN}
    (skip,) = [record for record in records if record.status == "skipped"]
    assert skip.reason == "none here"
    assert progress.left[0] > 0
    assert progress.left[-1] == 0


def test_a_failure_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    failure = Failure(status="out_of_memory", reason="no memory", at_s=1.0)
    _, records, _ = run(tmp_path, [SINGLE], timing=failure)
    assert [record.status for record in records] == ["ok", *["out_of_memory"] * 3, "ok"]


def test_a_reference_is_trained_once_for_all_that_share_it(tmp_path: Path) -> None:
    alike = planned(strategy="ddp", world_size=2, options={"static_graph": True})
    launcher, _, _ = run(tmp_path, [PAIR, SINGLE, alike])
    assert sum(job == "reference" for job, _ in launcher.jobs) == 2
    assert sum(job == "parity" for job, _ in launcher.jobs) == 3


def test_without_a_reference_nothing_is_proved(tmp_path: Path) -> None:
    failure = Failure(status="out_of_memory", reason="no memory", at_s=1.0)
    _, records, _ = run(tmp_path, [PAIR], reference=failure)
    (proof,) = [record for record in records if record.pass_ == "parity"]
    assert proof.parity is None
    assert proof.status == "out_of_memory"
    assert proof.reason == "the reference on one device: no memory"


def test_a_fault_outside_of_the_ranks_is_a_row_too(tmp_path: Path) -> None:
    _, records, progress = run(tmp_path, [SINGLE], timing=ConnectionRefusedError("no server"))
    assert [record.status for record in records] == ["ok", *["failed"] * 3, "ok"]
    assert records[1].reason == "outside of the ranks: ConnectionRefusedError: no server"
    assert progress.left[-1] == 0


def test_done_keys_are_not_run_again(tmp_path: Path) -> None:
    done = frozenset({(SINGLE.case.id, 0, "timing"), (SINGLE.case.id, 2, "timing")})
    launcher, records, _ = run(tmp_path, [SINGLE], done=done)
    assert [job for job, _ in launcher.jobs] == ["reference", "parity", "timing", "memory"]
    assert [record.launch for record in records if record.pass_ == "timing"] == [1]


def test_an_interruption_is_a_row_too(tmp_path: Path) -> None:
    _, records, progress = run(tmp_path, [SINGLE], timing=Interruption(2))
    assert [record.status for record in records] == ["ok", "interrupted"]
    assert records[-1].reason == "by SIGINT"
    assert progress.left[-1] == -1


def test_estimates_learn_from_the_same_case_then_the_same_pass_then_the_same_model() -> None:
    estimate = Estimate()
    own = Step(planned=SINGLE, pass_="timing", launch=0)
    other = Step(planned=PAIR, pass_="timing", launch=0)
    window = SHORT.window.max_s
    short = PlannedCase(case=make_case(), effort=SHORT)
    first = Step(planned=short, pass_="communication", launch=0)
    proof = Step(planned=short, pass_="parity", launch=0)
    assert estimate.left_s([first, proof]) == pytest.approx(3 + window + 3)
    estimate.add(own, 4.0)
    estimate.add(own, 2.0)
    estimate.add(other, 9.0)
    assert estimate.left_s([own, other]) == pytest.approx(3 + 9)
    third = Step(planned=planned(seed=9), pass_="timing", launch=0)
    assert estimate.left_s([third]) == pytest.approx(5.0)
    assert estimate.left_s([first, proof]) == pytest.approx(5 + window + 5)


def test_each_round_of_timing_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    launcher, _, _ = run(tmp_path, [PAIR, SINGLE])
    jobs = [job for job, _ in launcher.jobs]
    first = jobs.index("timing")
    assert launcher.renewed_before == [first, first + 2, first + 4]
