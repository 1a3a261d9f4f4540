from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.measure.memory import ResidentPeak

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counter is Linux's")
def test_a_reset_forgets_a_larger_peak() -> None:
    resident = ResidentPeak()
    resident.reset()
    before = resident.read()
    big = torch.ones(64 * MIB)
    with_big = resident.read()
    del big
    resident.reset()
    after = resident.read()
    assert before is not None
    assert with_big is not None
    assert after is not None
    assert with_big - before > 200 * MIB
    assert after < with_big - 200 * MIB


def test_a_peak_that_cannot_be_reset_is_none_not_a_number(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmHWM:\t 1024 kB\n")
    (tmp_path / "clear_refs").mkdir()  # a folder cannot be written, whoever asks
    resident = ResidentPeak(tmp_path)
    assert resident.read() is None
    resident.reset()
    assert resident.read() is None


def test_the_counter_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmPeak:\t 9 kB\nVmHWM:\t    1024 kB\n")
    resident = ResidentPeak(tmp_path)
    resident.reset()
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert resident.read() == MIB
