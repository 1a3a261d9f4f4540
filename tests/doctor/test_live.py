"""Real ranks over gloo, and ranks that fail on purpose."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from bench.doctor.live import check_backend, judge
from bench.doctor.rank import Report, Step, expected_sum
from bench.run.server import renew_server
from tests.fakes import TWO_CORES


def wrong_on_the_second(tensor: torch.Tensor) -> None:
    distributed.all_reduce(tensor)
    if distributed.get_rank() == 1:
        tensor += 1


def dies_on_the_second(tensor: torch.Tensor) -> None:
    if distributed.get_rank() == 1:
        os._exit(17)
    distributed.all_reduce(tensor)


def sleeps_on_the_second(tensor: torch.Tensor) -> None:
    if distributed.get_rank() == 1:
        time.sleep(600)
    distributed.all_reduce(tensor)


def test_two_ranks_join_and_train_alike() -> None:
    found = check_backend(TWO_CORES, "cpu", "gloo")
    assert found.status == "ok", found.found
    assert "2 ranks joined over ProcessGroupGloo" in found.found
    assert found.name == "live: gloo on cpu"


def test_an_interface_that_is_not_there_breaks_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    renew_server()  # ranks have the environment that their server was started in
    found = check_backend(TWO_CORES, "cpu", "gloo")
    monkeypatch.undo()
    renew_server()
    assert (found.status, found.found.partition(":")[0]) == ("bad", "channel")
    assert "nowhere0" in found.found
    assert found.remedy is not None


def test_another_sum_breaks_the_agreement() -> None:
    found = check_backend(TWO_CORES, "cpu", "gloo", reduce=wrong_on_the_second)
    assert (found.status, found.found.partition(":")[0]) == ("bad", "agreement")
    assert "rank 1 got [2.0, 4.0" in found.found


def test_a_rank_that_dies_is_named() -> None:
    found = check_backend(TWO_CORES, "cpu", "gloo", reduce=dies_on_the_second)
    assert found.status == "bad"
    assert found.found == "channel: rank 1 of 2: ended with exit code 17"


def test_a_rank_that_hangs_is_ended_in_time() -> None:
    begin_s = time.monotonic()
    found = check_backend(TWO_CORES, "cpu", "gloo", reduce=sleeps_on_the_second, limit_s=6.0)
    assert time.monotonic() - begin_s < 30
    assert found.found.startswith("channel: ")
    assert found.found.endswith("1 of 2: no word within 6 s")


def test_without_a_folder_to_write_to_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    found = check_backend(TWO_CORES, "cpu", "gloo")
    assert found.status == "bad"
    assert found.found.startswith("no rank can be started: FileNotFoundError")


def done(number: int, **changes: object) -> Report:
    fields: dict[str, object] = {
        "rank": number,
        "step": "done",
        "world_size": 2,
        "device": f"cuda:{number}",
        "carried_by": "ProcessGroupNCCL",
        "total": tuple(expected_sum(2)),
        "parameters": "abc",
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "step", "words"),
    [
        ({"rank": 0}, "identity", "rank 1 of 2 takes itself for 0 of 2"),
        ({"world_size": 1}, "identity", "takes itself for 1 of 1"),
        ({"device": "cuda:0"}, "identity", "share one device"),
        ({"total": (0.0,)}, "agreement", "rank 1 got [0.0]"),
        ({"parameters": "abd"}, "agreement", "parameters differ"),
        ({"step": "identity", "failure": "CUDA error"}, "identity", "rank 1 of 2: CUDA error"),
    ],
)
def test_the_first_step_that_failed_is_named(
    change: dict[str, object], step: Step, words: str
) -> None:
    verdict = judge([done(0), done(1, **change)], "cuda", 1.0)
    assert verdict.status == "bad"
    assert verdict.found.startswith(f"{step}: ")
    assert words in verdict.found


def test_who_waits_is_not_blamed_for_who_failed_before() -> None:
    waits = done(0, step="channel", failure="timed out")
    verdict = judge([waits, done(1, step="identity", failure="no device")], "cuda", 1.0)
    assert verdict.found == "identity: rank 1 of 2: no device"


def test_one_device_alone_proves_little() -> None:
    alone = done(0, world_size=1, total=tuple(expected_sum(1)))
    verdict = judge([alone], "cuda", 1.0)
    assert verdict.status == "unknown"
    assert "1 rank joined over ProcessGroupNCCL" in verdict.found
