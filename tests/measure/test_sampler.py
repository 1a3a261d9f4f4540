from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.measure.sampler import COST_SHARE, ClockReader, Sampler, period_s
from tests.measure.nvmls import FakeNvml
from tests.measure.trees import write_tree


def no_pids() -> list[int]:
    return []


def test_the_clock_is_the_mean_of_a_few_cores(tmp_path: Path) -> None:
    clock = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    files = {clock.format(core): str(1_000_000 + 1000 * core) for core in range(32)}
    reader = ClockReader(range(32), write_tree(tmp_path, files))
    # Cores 0, 4 ... 28: eight of the 32, 1014 MHz on average.
    assert reader.read(thorough=False) == pytest.approx(1.014e9)


CPUINFO = """\
processor\t: 0
flags\t\t: fpu{}
cpu MHz\t\t: 3000.5

processor\t: 1
cpu MHz\t\t: 2000.0

processor\t: 2
cpu MHz\t\t: 1.0
"""


def test_a_nominal_clock_is_no_measurement(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/cpuinfo": CPUINFO.format(" aperfmperf")})
    reader = ClockReader([0, 1], tmp_path)
    assert reader.read(thorough=True) == pytest.approx(2.50025e9)
    assert reader.read(thorough=False) is None  # reading it takes long
    write_tree(tmp_path, {"proc/cpuinfo": CPUINFO.format("")})
    reader = ClockReader([0, 1], tmp_path)
    assert reader.read(thorough=True) is None


def test_what_costs_more_is_looked_at_less_often() -> None:
    assert period_s(0.0) == 0.25
    assert period_s(400e-6) == pytest.approx(0.8)
    assert 400e-6 / period_s(400e-6) == pytest.approx(COST_SHARE)
    assert period_s(1.0) == 2.0


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_launch_is_watched_while_its_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml("A", nvmlDeviceGetPowerUsage=lambda _: 100_000)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with Sampler(cores=os.sched_getaffinity(0), devices=["A", "B"], pids=no_pids) as sampler:
        assert "sampler" in threads()
        time.sleep(0.6)
        assert nvml.opened == 1
    assert "sampler" not in threads()
    assert nvml.opened == 0
    series = sampler.series()
    times = [one.at_s for one in series.host]
    assert len(times) >= 3
    assert times == sorted(times)
    assert [len(one) for one in series.devices] == [len(times)] * 2
    assert {one.power_w for one in series.devices[0]} == {100.0}
    assert {one.power_w for one in series.devices[1]} == {None}
    spent = [one.parent_s for one in series.host]
    assert spent == sorted(spent)


def test_without_devices_nvml_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = SimpleNamespace(nvmlInit=lambda: pytest.fail("NVML was opened"))
    monkeypatch.setitem(sys.modules, "pynvml", refuse)
    with Sampler(cores=[0], devices=[], pids=no_pids) as sampler:
        pass
    assert len(sampler.series().host) >= 1
    assert sampler.series().devices == []
