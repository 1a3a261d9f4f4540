from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.measure.conditions import conditions_of
from bench.measure.sampler import COST_SHARE, HostReader, Sampler, period_s
from tests.measure.nvmls import FakeNvml
from tests.measure.trees import write_tree

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  1000 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 1000 5 3 2 50 40 0
cpu1 200 0 0 2000 0 0 0 0 0 0
cpu8 1 0 0 0 0 0 0 0 0 0
intr 12345 0 0"""


def no_pids() -> list[int]:
    return []


def test_counters_are_those_of_the_cases_cores(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/stat": STAT})
    reader = HostReader([0], root)
    sample = reader.read(1.0, thorough=True)
    assert (reader.cores, reader.cpus) == (1, 1)
    assert sample.counted_s == pytest.approx(1190 * TICK_S)  # guests' time is in user's already
    assert sample.no_program_s == pytest.approx(1060 * TICK_S)
    assert sample.steal_s == pytest.approx(50 * TICK_S)
    assert (sample.frequency_hz, sample.throttled_s) == (None, None)
    assert 0.0 < sample.parent_s <= time.process_time()


def test_the_other_thread_of_a_core_is_watched_too(tmp_path: Path) -> None:
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    pairs = {siblings.format(cpu): "0,8" for cpu in (0, 8)}
    reader = HostReader([0, 1], write_tree(tmp_path, {"proc/stat": STAT, **pairs}))
    assert (reader.cores, reader.cpus) == (2, 3)
    assert reader.read(1.0, thorough=True).counted_s == pytest.approx(3391 * TICK_S)


def test_a_core_without_counters_makes_all_unknown(tmp_path: Path) -> None:
    reader = HostReader([0, 5], write_tree(tmp_path, {"proc/stat": STAT}))
    assert reader.read(1.0, thorough=True).counted_s is None
    nothing = HostReader([0], tmp_path / "none").read(1.0, thorough=True)
    assert (nothing.counted_s, nothing.frequency_hz, nothing.throttled_s) == (None, None, None)


def test_the_clock_is_the_mean_of_a_few_cores(tmp_path: Path) -> None:
    clock = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    files = {clock.format(core): str(1_000_000 + 1000 * core) for core in range(32)}
    reader = HostReader(range(32), write_tree(tmp_path, files))
    # Cores 0, 4 ... 28: eight of the 32, 1014 MHz on average.
    assert reader.read(1.0, thorough=False).frequency_hz == pytest.approx(1.014e9)


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
    reader = HostReader([0, 1], tmp_path)
    assert reader.read(1.0, thorough=True).frequency_hz == pytest.approx(2.50025e9)
    assert reader.read(1.0, thorough=False).frequency_hz is None  # reading it takes long
    write_tree(tmp_path, {"proc/cpuinfo": CPUINFO.format("")})
    reader = HostReader([0, 1], tmp_path)
    assert reader.read(1.0, thorough=True).frequency_hz is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"box/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 1500000"}, 1.5),
        ({"cpu/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_time 2500000000"}, 2.5),
        ({"box/cpu.stat": "usage_usec 5"}, None),
        ({"box/cpu.stat": "throttled_usec 1000000", "cpu.stat": "throttled_usec 500000"}, 1.5),
    ],
)
def test_time_held_back_by_a_quota(
    tmp_path: Path, files: dict[str, str], expected: float | None
) -> None:
    tree = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = write_tree(tmp_path, {"proc/self/cgroup": "0::/box", **tree})
    assert HostReader([0], root).read(1.0, thorough=False).throttled_s == expected


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
    found = conditions_of(series, began_s=times[0], ended_s=times[-1], samples=1, ranks_cpu_s=0.0)
    assert [one.power_w_mean for one in found.devices] == [100.0, None]
    load = found.host.others_load
    assert load is None or 0.0 <= load <= 1.0


def test_without_devices_nvml_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = SimpleNamespace(nvmlInit=lambda: pytest.fail("NVML was opened"))
    monkeypatch.setitem(sys.modules, "pynvml", refuse)
    with Sampler(cores=[0], devices=[], pids=no_pids) as sampler:
        pass
    assert len(sampler.series().host) >= 1
    assert sampler.series().devices == []
