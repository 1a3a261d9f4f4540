from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.measure.cores import core_speeds, cpu_quota, one_per_core, parse_cpu_list
from bench.measure.machine import probe_in_child, visible_name
from bench.plan.case import Machine
from tests.measure.trees import write_tree


def test_the_child_finds_this_machine() -> None:
    machine = probe_in_child()
    assert set(machine.cores) <= os.sched_getaffinity(0)
    assert "gloo" in machine.backends
    assert machine.default_backends["cpu"] == "gloo"
    assert machine.memory_bytes > 2**28


def test_affinity_bounds_the_cores() -> None:
    first = min(os.sched_getaffinity(0))
    child = subprocess.run(
        ["taskset", "-c", str(first), sys.executable, "-m", "bench.measure.machine"],
        capture_output=True,
        check=True,
    )
    assert msgspec.json.decode(child.stdout, type=Machine).cores == (first,)


def test_one_thread_of_each_core() -> None:
    pairs = {0: {0, 4}, 1: {1, 5}, 4: {0, 4}, 5: {1, 5}}
    assert one_per_core([0, 1, 4, 5], lambda cpu: frozenset(pairs[cpu])) == (0, 1)
    assert one_per_core([4, 5], lambda cpu: frozenset(pairs[cpu])) == (4, 5)


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert parse_cpu_list("") == frozenset()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "400000 100000", "box/cpu.max": "200000 100000"}, 2.0),
        ({"box/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3.0),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_containers_quota(
    tmp_path: Path, files: dict[str, str], expected: float | None
) -> None:
    assert cpu_quota(write_tree(tmp_path, files), "/box") == expected


def test_cores_are_as_fast_as_the_system_says(tmp_path: Path) -> None:
    assert core_speeds([0, 1], tmp_path) == ()
    frequency = "cpu{}/cpufreq/cpuinfo_max_freq"
    write_tree(tmp_path, {frequency.format(0): "5000000", frequency.format(1): "3800000"})
    assert core_speeds([0, 1], tmp_path) == (5000000, 3800000)
    assert core_speeds([0, 1, 2], tmp_path) == ()  # not known of all
    write_tree(tmp_path, {"cpu0/cpu_capacity": "1024", "cpu1/cpu_capacity": "446"})
    assert core_speeds([1, 0], tmp_path) == (446, 1024)


def test_a_machine_written_down_by_an_earlier_version_is_read() -> None:
    assert msgspec.json.decode(b'{"cores": [0, 1]}', type=Machine).core_speeds == ()


@pytest.mark.parametrize(
    ("index", "uuid", "asked", "expected"),
    [
        (1, "abc", None, "GPU-abc"),
        (1, "GPU-abc", "3,5", "GPU-abc"),
        (1, "", None, "1"),
        (1, "", "3,5", "5"),
        (0, "abc", "MIG-123", "MIG-123"),
    ],
)
def test_a_users_list_of_devices_is_mapped_through(
    index: int, uuid: str, asked: str | None, expected: str
) -> None:
    assert visible_name(index, uuid, asked) == expected
