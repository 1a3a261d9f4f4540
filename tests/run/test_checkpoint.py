"""The checkpoint pass: that what is saved is gone on from, and what saving it took."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.plan.case import Case, Limits
from bench.records.record import Record
from bench.records.trained import Checkpoint
from bench.run.handover import RankOutcome
from bench.run.launch import Launcher
from bench.run.outcome import checkpoint_of, to_record
from bench.run.rounds import process_count
from bench.run.schedule import schedule
from bench.run.session import is_failure
from tests.fakes import SHORT, make_case, make_planned
from tests.strategies.test_contract import planned_case


def saved(launcher: Launcher, case: Case, folder: Path, *, timeout_s: float = 200) -> Record:
    """The record of a launch; one that may take long may do so in each of its phases."""
    folder.mkdir()
    assignment, outcomes = launcher.launch_case(
        case,
        msgspec.structs.replace(SHORT, timeout_s=timeout_s, limits=Limits(pass_s=timeout_s)),
        "checkpoint",
        launch=0,
        processes=process_count(case),
        checkpoint=folder,
    )
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))


def test_training_goes_on_as_if_uninterrupted(launcher: Launcher, tmp_path: Path) -> None:
    case = planned_case("transformer:tiny", "fsdp", 2, precision="bf16-amp")
    record = saved(launcher, case, tmp_path / "out")
    found = record.checkpoint
    assert found is not None, record.reason
    assert found.verdict == "exact", found.reason
    assert set(found.loss_errors) == {"same ranks", "one device", "back from one device"}
    assert max(found.loss_errors.values()) <= 1e-6
    assert len(found.save_s) == len(found.restore_s) == 3
    assert found.form == "sharded"
    assert min(found.bytes_by_rank) > 0
    held = 3 * 4 * 118_000  # parameters and AdamW's two moments, in fp32
    assert held < found.bytes < 1.5 * held
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["timed"]


def test_what_is_not_restored_fails(launcher: Launcher, tmp_path: Path) -> None:
    case = planned_case("transformer:tiny", "tests.fakes:FORGETFUL", 1)
    record = saved(launcher, case, tmp_path / "out")
    found = record.checkpoint
    assert found is not None, record.reason
    assert found.verdict == "failed"
    assert found.reason is not None
    assert "tensors are not what was saved" in found.reason
    assert "a loss after restoring is off by" in found.reason
    assert is_failure(record)


def test_a_rank_that_finds_fault_is_heard() -> None:
    good = Checkpoint(verdict="exact", bytes_by_rank=[10, 20])
    bad = Checkpoint(verdict="failed", reason="rank 1 has not what it had")
    outcomes = [RankOutcome(rank=0, checkpoint=good), RankOutcome(rank=1, checkpoint=bad)]
    found = checkpoint_of(outcomes)
    assert (found.verdict, found.reason, found.bytes) == ("failed", bad.reason, 30)


def test_it_is_asked_for_and_no_more_than_once() -> None:
    effort = msgspec.structs.replace(SHORT, launches=2, checkpoint=True, train_steps=5)
    steps = schedule([make_planned(make_case(), effort)], 0)
    passes = [step.pass_ for step in steps]
    assert passes.count("checkpoint") == 1
    assert passes.count("training") == 2
    plain = schedule([make_planned(make_case(), SHORT)], 0)
    assert not {"checkpoint", "training"} & {step.pass_ for step in plain}
