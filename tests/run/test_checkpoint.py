"""The checkpoint pass: that what is saved is gone on from, and what saving took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.plan.case import Case
from bench.records.record import Record
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from tests.fakes import SHORT
from tests.strategies.test_contract import planned_case


def saved(launcher: Launcher, case: Case, folder: Path) -> Record:
    folder.mkdir()
    assignment, outcomes = launcher.launch_case(
        case,
        msgspec.structs.replace(SHORT, timeout_s=200),
        "checkpoint",
        launch=0,
        processes=process_count(case),
        checkpoint=folder,
    )
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))


@pytest.mark.parametrize(
    ("workload", "strategy", "settings", "writers"),
    [
        ("transformer", "zero", {}, 1),
        ("transformer", "fsdp", {"precision": "bf16-amp"}, 2),
        ("embedding", "fsdp1", {}, 2),
    ],
)
def test_training_goes_on_as_if_uninterrupted(
    launcher: Launcher,
    tmp_path: Path,
    workload: str,
    strategy: str,
    settings: dict[str, Any],
    writers: int,
) -> None:
    case = planned_case(f"{workload}:tiny", strategy, 2, **settings)
    record = saved(launcher, case, tmp_path / "out")
    assert record.status == "ok", record.reason
    found = record.checkpoint
    assert found is not None
    assert found.verdict == "exact", found.reason
    assert set(found.loss_errors) == {"same ranks", "one device", "back from one device"}
    assert max(found.loss_errors.values()) <= 1e-6
    assert len(found.save_s) == len(found.restore_s) == 3
    assert sum(size > 0 for size in found.bytes_by_rank) == writers
    assert found.form == ("whole" if writers == 1 else "sharded")
