"""Collectives of real ranks over gloo, from the plan to the rows and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from bench.cli import run_command_line
from bench.comm import rank, session
from bench.comm.sweep import OPERATIONS, Sweep, plan
from bench.measure import operations
from bench.measure.operations import make_call
from bench.records.collectives import Collective
from bench.run.launch import Launcher
from bench.run.progress import Lines


class NoLines(Lines):
    def __init__(self) -> None: ...

    def say(self, text: str) -> None: ...


def measured(launcher: Launcher, **asked: Any) -> list[Collective]:
    planned = plan(Sweep(**asked), launcher.machine)
    return list(session._measured(launcher, planned, "r", NoLines()))


@pytest.mark.parametrize(("ranks", "dtypes"), [(2, ["fp32"]), (3, ["bf16"])])
def test_every_operation_is_right_and_timed(
    launcher: Launcher, ranks: int, dtypes: list[str]
) -> None:
    rows = measured(
        launcher,
        sizes=[16, 2**18],
        dtypes=dtypes,
        backends=["gloo"],
        world_sizes=[ranks],
        device="cpu",
    )
    assert {row.op for row in rows} == set(OPERATIONS)
    assert {(row.status, row.reason) for row in rows} == {("ok", None)}
    assert {row.carried_by for row in rows} == {"gloo"}
    for row in rows:
        assert row.median_s is not None
        assert row.isolated_s is not None
        assert len(row.isolated_s) == ranks
        assert len(row.isolated_s[0]) >= 7
        assert row.algbw_bytes_per_s == row.bytes / row.median_s
        assert row.low_s is not None
        assert row.high_s is not None
        assert row.low_s <= row.median_s <= row.high_s


def test_a_rank_that_dies_costs_the_points_that_are_left(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank, "main", die_in_the_second)
    rows = measured(
        launcher,
        operations=["all_reduce"],
        dtypes=["fp32"],
        sizes=[64, 128],
        backends=["gloo"],
        world_sizes=[2],
        device="cpu",
    )
    assert [row.status for row in rows] == ["failed", "failed"]
    assert all("rank 1 of 2" in str(row.reason) for row in rows)
    assert all("SIGKILL" in str(row.reason) for row in rows)


def die_in_the_second(assignment_file: str) -> None:
    from tests.comm.deadly import main  # noqa: PLC0415 - in the rank

    main(assignment_file)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.usefixtures("alone")
def test_a_result_that_is_off_anywhere_is_found(op: str) -> None:
    call = make_call(op, size=4 * 12, dtype="fp32", device=torch.device("cpu"), rank=0, ranks=1)
    call.fill(0)
    if op != "send_recv":  # which one rank does not do with itself
        call.run()
    else:
        call.received.copy_(call.sent)
    assert call.is_right()
    for place in range(len(call.received)):
        before = call.received[place].item()
        call.received[place] = before + 1
        assert not call.is_right()
        call.received[place] = before


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_sums_differ_from_what_fewer_ranks_would_sum(ranks: int) -> None:
    whole = [sum((index + one) % operations.PERIOD for one in range(ranks)) for index in range(3)]
    for missing in range(ranks):
        others = [one for one in range(ranks) if one != missing]
        part = [sum((index + one) % operations.PERIOD for one in others) for index in range(3)]
        assert part != whole


def test_the_command_writes_rows_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "comm --operations all_reduce --sizes 1KiB --dtypes fp32 --device cpu"
    code = run_command_line([*command.split(), "--out", "out", "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    rows = json.loads(printed.out)
    keys = {"op", "backend", "device", "dtype", "world_size", "bytes", "median_s"}
    assert keys | {"algbw_bytes_per_s", "busbw_bytes_per_s"} <= rows[0].keys()
    assert {row["status"] for row in rows if row["backend"] == "gloo"} == {"ok"}
    assert {row["status"] for row in rows if row["backend"] == "nccl"} == {"skipped"}
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "NCCL: n/a" in page
    assert "memory copy" in page
    assert "1.2 ms over NCCL against 87 ms over gloo" in page
    assert run_command_line(["report", "out"]) == 0
    assert run_command_line([*command.split(), "--out", "out"]) == 2
    assert "holds results already" in capsys.readouterr().err
