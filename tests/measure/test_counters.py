from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.measure.counters import CoresUse, Counters
from tests.measure.trees import write_tree

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BEFORE = """\
cpu  1000 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 1000 5 3 2 50 40 0
cpu1 200 0 0 2000 0 0 0 0 0 0
cpu8 1 0 0 0 0 0 0 0 0 0
intr 12345 0 0"""
AFTER = """\
cpu  1000 0 0 0 0 0 0 0 0 0
cpu0 130 10 25 1060 6 4 4 52 70 0
cpu1 290 0 0 2010 0 0 0 0 0 0
cpu8 1 0 0 40 0 0 0 0 0 0
intr 12345 0 0"""


def use_of(root: Path, *cores: int) -> CoresUse:
    write_tree(root, {"proc/stat": BEFORE})
    counters = Counters(cores, root)
    write_tree(root, {"proc/stat": AFTER})
    return counters.use()


def test_time_is_that_of_the_cases_cores(tmp_path: Path) -> None:
    use = use_of(tmp_path, 0)
    assert (use.cores, use.cpus) == (1, 1)
    assert use.counted_s == pytest.approx(101 * TICK_S)  # guests' time is in user's already
    assert use.no_program_s == pytest.approx(66 * TICK_S)  # idle 60, disk 1, interrupts 3, steal 2
    assert use.steal_s == pytest.approx(2 * TICK_S)
    assert use.throttled_s is None
    assert use_of(tmp_path, 0, 1).counted_s == pytest.approx(201 * TICK_S)


def test_the_other_thread_of_a_core_is_watched_too(tmp_path: Path) -> None:
    file = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write_tree(tmp_path, {file.format(cpu): "0,8" for cpu in (0, 8)})
    use = use_of(tmp_path, 0, 1)
    assert (use.cores, use.cpus) == (2, 3)
    assert use.no_program_s == pytest.approx(116 * TICK_S)


def test_a_core_that_is_not_counted_makes_all_unknown(tmp_path: Path) -> None:
    assert use_of(tmp_path, 0, 5) == CoresUse(cores=2, cpus=2)
    assert Counters([0], tmp_path / "none").use() == CoresUse(cores=1, cpus=1)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"box/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 1500000"},
            {"box/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 1750000"},
            0.25,
        ),
        (
            {"cpu/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_time 2500000000"},
            {"cpu/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 3000000000"},
            0.5,
        ),
        (
            {"box/cpu.stat": "throttled_usec 0", "cpu.stat": "throttled_usec 500000"},
            {"box/cpu.stat": "throttled_usec 1000000", "cpu.stat": "throttled_usec 750000"},
            1.25,
        ),
        ({"box/cpu.stat": "usage_usec 5"}, {}, None),
    ],
)
def test_time_held_back_by_a_quota(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], expected: float | None
) -> None:
    cgroups = tmp_path / "sys/fs/cgroup"
    write_tree(tmp_path, {"proc/self/cgroup": "0::/box"})
    write_tree(cgroups, before)
    counters = Counters([0], tmp_path)
    write_tree(cgroups, after)
    assert counters.use().throttled_s == expected


def test_this_machines_counters_count_the_time_that_passes() -> None:
    cores = os.sched_getaffinity(0)
    counters, began_s = Counters(cores), time.monotonic()
    time.sleep(0.5)
    use, passed_s = counters.use(), time.monotonic() - began_s
    if not use.counted_s:
        pytest.skip("this system does not count")
    assert use.counted_s == pytest.approx(passed_s * use.cpus, rel=0.2)
    assert use.no_program_s is not None
    assert use.no_program_s <= use.counted_s
