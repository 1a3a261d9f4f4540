from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.errors import Interruption
from bench.measure.allocations import Allocations
from bench.measure.trace import StepsTrace
from bench.plan.case import Case, Effort, PlannedCase
from bench.records.record import Parity, Record
from bench.records.store import Store, read_records
from bench.records.trained import Checkpoint
from bench.run.handover import Assignment, Failure, Job, RankOutcome, TraceWish
from bench.run.rounds import SEVERAL_HOSTS, Runner
from bench.run.schedule import Estimate, Step, further_round, schedule
from tests.analyze.test_scaling import timing
from tests.fakes import SHORT, FakeTime, make_case, make_planned
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
        self.saved_to: list[Path] = []
        self.renewed_before: list[int] = []
        self.renewed_with: list[dict[str, str]] = []

    def renew(self, variables: dict[str, str]) -> None:
        self.renewed_before.append(len(self.jobs))
        self.renewed_with.append(variables)

    def launch_case(
        self,
        case: Case,
        effort: Effort,
        job: Job,
        *,
        launch: int,
        processes: int,
        reference: Path | None = None,
        trace: TraceWish | None = None,
        checkpoint: Path | None = None,
    ) -> tuple[Assignment, tuple[RankOutcome, ...]]:
        self.jobs.append((job, case.id))
        if checkpoint is not None:
            assert not list(checkpoint.iterdir())
            (checkpoint / "file").write_text("")
            self.saved_to.append(checkpoint)
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
                checkpoint=Checkpoint(verdict="exact"),
            )
            for rank in range(processes)
        )
        return assignment, tuple(ranks)


class Silent:
    def __init__(self) -> None:
        self.left: list[float] = []

        self.widths: list[tuple[int, int]] = []

    def started(self, steps: int, left_s: float, budget_s: float) -> None:
        self.left.append(left_s)

    def widened(self, cases: int, launches: int, left_s: float) -> None:
        self.widths.append((cases, launches))

    def finished(self, record: Record, *, done: int, steps: int, left_s: float) -> None:
        assert done <= steps
        self.left.append(left_s)
        self.counts = (done, steps)


def run(
    tmp_path: Path,
    plan: list[PlannedCase],
    before: Sequence[Record] = (),
    budget_s: float = 0.0,
    **answers: Any,
) -> Any:
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
            runner.run(plan, seed=0, before=before, budget_s=budget_s)
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


def saving(**changes: Any) -> PlannedCase:
    return make_planned(make_case(**changes), msgspec.structs.replace(SHORT, checkpoint=True))


def test_a_checkpoint_has_a_folder_of_its_own_that_goes(tmp_path: Path) -> None:
    one = saving()
    launcher, records, _ = run(tmp_path, [one])
    (record,) = (record for record in records if record.pass_ == "checkpoint")
    assert record.checkpoint == Checkpoint(verdict="exact")
    (folder,) = launcher.saved_to
    assert folder == tmp_path / "checkpoints" / one.case.id
    assert not folder.parent.exists()


def test_a_checkpoint_that_fails_leaves_nothing(tmp_path: Path) -> None:
    failure = Failure(status="failed", reason="No space left on device", at_s=1.0)
    launcher, records, _ = run(tmp_path, [saving()], checkpoint=failure)
    (record,) = (record for record in records if record.pass_ == "checkpoint")
    assert record.status == "failed"
    assert record.reason is not None
    assert "No space left on device" in record.reason
    assert not launcher.saved_to[0].parent.exists()


def test_several_hosts_are_not_asked_for_a_checkpoint(tmp_path: Path) -> None:
    one = saving(strategy="ddp", options={}, world_size=2, nodes=2)
    launcher, records, _ = run(tmp_path, [one])
    (record,) = (record for record in records if record.pass_ == "checkpoint")
    assert record.status == "skipped"
    assert record.reason == SEVERAL_HOSTS
    assert not launcher.saved_to


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
    before = [timing(SINGLE.case, 100, launch) for launch in (0, 2)]
    launcher, records, _ = run(tmp_path, [SINGLE], before=before)
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
    estimate.learn(timing(SINGLE.case, 1, elapsed_s=4.0))
    estimate.learn(timing(SINGLE.case, 1, elapsed_s=2.0))
    estimate.learn(timing(PAIR.case, 1, elapsed_s=9.0))
    estimate.learn(timing(PAIR.case, 1))  # of an older version, which did not say
    assert estimate.left_s([own, other]) == pytest.approx(3 + 9)
    third = Step(planned=planned(seed=9), pass_="timing", launch=0)
    assert estimate.left_s([third]) == pytest.approx(5.0)
    assert estimate.left_s([first, proof]) == pytest.approx(5 + window + 5)


def test_each_round_of_timing_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    launcher, _, _ = run(tmp_path, [PAIR, SINGLE])
    jobs = [job for job, _ in launcher.jobs]
    first = jobs.index("timing")
    assert launcher.renewed_before == [first, first + 2, first + 4]


def test_a_twin_is_timed_and_nothing_else() -> None:
    twin = planned(strategy="ddp", options={}, world_size=2, twin=True)
    steps = schedule([PAIR, twin], seed=1)
    assert [step.pass_ for step in steps if step.planned is twin] == ["timing"] * 3


def test_without_a_breakdown_steps_are_timed_and_proved_and_nothing_more() -> None:
    plain = msgspec.structs.replace(
        PAIR, effort=msgspec.structs.replace(PAIR.effort, breakdown=False)
    )
    passes = {step.pass_ for step in schedule([plain], seed=1)}
    assert passes == {"parity", "timing"}
    assert {step.pass_ for step in schedule([PAIR], seed=1)} > passes


class Varying(FakeLauncher):
    """Launches of one case scatter, those of the others hardly."""

    def __init__(self, scratch: Path, wide: Case, factors: Iterator[float]) -> None:
        super().__init__(scratch, {})
        self.wide = wide
        self.factors = factors

    def launch_case(self, case: Case, effort: Effort, job: Job, **rest: Any) -> Any:
        assignment, ranks = super().launch_case(case, effort, job, **rest)
        if job != "timing":
            return assignment, ranks
        factor = next(self.factors) if case == self.wide else 1 + len(self.jobs) / 1e5
        return assignment, tuple(slowed(rank, factor) for rank in ranks)


def slowed(rank: RankOutcome, factor: float) -> RankOutcome:
    assert rank.measured is not None
    window_s = rank.measured.window_s * factor
    measured = msgspec.structs.replace(rank.measured, window_s=window_s)
    return msgspec.structs.replace(rank, measured=measured)


def adaptive(tmp_path: Path, factors: Iterator[float], before: Sequence[Record] = ()) -> Any:
    wide = planned(strategy="ddp", options={}, world_size=2)
    launcher = Varying(tmp_path, wide.case, factors)
    progress = Silent()
    with Store(tmp_path / "out", resume=True) as store:
        runner = Runner(
            launcher=launcher,  # type: ignore[arg-type]
            store=store,
            run_id="r",
            environment="e",
            progress=progress,
        )
        runner.run([SINGLE, wide], seed=0, before=before, budget_s=1000)
    return launcher, runner.records, progress


def test_what_is_wider_than_asked_is_launched_again_until_it_is_not(tmp_path: Path) -> None:
    generator = random.Random(0)
    factors = (generator.gauss(1, 0.03) for _ in itertools.count())
    launcher, records, progress = adaptive(tmp_path, factors)
    of_wide = [one for one in records if one.pass_ == "timing" and one.case == launcher.wide]
    of_single = [one for one in records if one.pass_ == "timing" and one.case != launcher.wide]
    assert len(of_single) == 3
    assert 6 < len(of_wide) < 20
    assert [one.launch for one in of_wide] == list(range(len(of_wide)))
    assert progress.widths == [(1, 1)] * (len(of_wide) - 3)
    # A new fork server for each further round too; the passes that take no time come last.
    assert len(launcher.renewed_before) == len(of_wide)
    assert [one.pass_ for one in records[-3:]] == ["communication", "memory", "memory"]
    assert progress.left[-1] == 0
    assert progress.counts == (len(records), len(records))


def test_no_case_gets_more_launches_than_it_may_have(tmp_path: Path) -> None:
    launcher, records, _ = adaptive(tmp_path, itertools.cycle([1.0, 1.5]))
    assert sum(one.pass_ == "timing" and one.case == launcher.wide for one in records) == 20


def test_a_resumed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    wide = planned(strategy="ddp", options={}, world_size=2).case
    before = [timing(wide, rate, launch) for launch, rate in enumerate([100, 120, 90, 100, 130])]
    _, records, _ = adaptive(tmp_path, itertools.cycle([1.0, 1.5]), before)
    launches = [one.launch for one in records if one.pass_ == "timing" and one.case == wide]
    assert launches == list(range(5, 20))


def test_without_a_budget_the_plan_is_all(tmp_path: Path) -> None:
    launcher = Varying(tmp_path, PAIR.case, itertools.cycle([1.0, 1.5]))
    with Store(tmp_path / "out", resume=True) as store:
        runner = Runner(
            launcher=launcher,  # type: ignore[arg-type]
            store=store,
            run_id="r",
            environment="e",
            progress=Silent(),
        )
        runner.run([PAIR], seed=0)
    assert sum(one.pass_ == "timing" for one in runner.records) == 3


def test_a_case_that_fails_in_a_further_round_is_not_tried_again(tmp_path: Path) -> None:
    wide = planned(strategy="ddp", options={}, world_size=2).case
    before: list[Record] = [
        *[timing(wide, rate, launch) for launch, rate in enumerate([100, 120, 90])],
        timing(wide, 1, 3, status="failed", timing=None, throughput=None),
    ]
    _, records, _ = adaptive(tmp_path, itertools.cycle([1.0, 1.5]), before)
    assert sum(one.pass_ == "timing" and one.case == wide for one in records) == 0


def test_an_interrupted_further_launch_is_made_again(tmp_path: Path) -> None:
    wide = planned(strategy="ddp", options={}, world_size=2).case
    before: list[Record] = [
        *[timing(wide, rate, launch) for launch, rate in enumerate([100, 120, 90])],
        timing(wide, 1, 3, status="interrupted", timing=None, throughput=None),
    ]
    _, records, _ = adaptive(tmp_path, itertools.cycle([1.0, 1.5]), before)
    launches = [one.launch for one in records if one.pass_ == "timing" and one.case == wide]
    assert launches == list(range(3, 20))


def test_the_budget_is_what_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(time, "monotonic", clock)

    class Slow(Varying):
        def renew(self, variables: dict[str, str]) -> None:
            super().renew(variables)
            clock.sleep(4)

        def launch_case(self, case: Case, effort: Effort, job: Job, **rest: Any) -> Any:
            clock.sleep(10)
            return super().launch_case(case, effort, job, **rest)

    launcher = Slow(tmp_path, PAIR.case, itertools.cycle([1.0, 1.5]))
    with Store(tmp_path / "out", resume=True) as store:
        runner = Runner(
            launcher=launcher,  # type: ignore[arg-type]
            store=store,
            run_id="r",
            environment="e",
            progress=Silent(),
        )
        runner.run([PAIR], seed=0, budget_s=45)
    timing_ = [one for one in runner.records if one.pass_ == "timing"]
    assert len(timing_) == 6  # three of the plan, and three times 14 s
    assert {(one.elapsed_s, one.restart_s) for one in timing_} == {(10, 4)}
    assert [one.round for one in timing_] == list(range(6))


def test_the_neediest_are_served_as_far_as_the_time_goes() -> None:
    estimate = Estimate()
    for one, seconds in ((SINGLE, 5.0), (PAIR, 20.0)):
        estimate.learn(timing(one.case, 1, elapsed_s=seconds))
    launches = {SINGLE.case.id: 3, PAIR.case.id: 4}

    def ids(affordable_s: float) -> list[tuple[str, int]]:
        steps = further_round(
            [PAIR, SINGLE], launches, round_=7, affordable_s=affordable_s, estimate=estimate
        )
        assert all(step.round == 7 for step in steps)
        return [(step.planned.case.id, step.launch) for step in steps]

    pair, single = (PAIR.case.id, 4), (SINGLE.case.id, 3)
    assert ids(25.0) == [pair, single]
    assert ids(24.0) == [pair]
    assert ids(19.0) == [single]  # what is left over serves the next
    assert ids(4.0) == []
