from __future__ import annotations

from pathlib import Path

import pytest

from bench.measure.host import container, cpu_model, describe_host, memory_limit, numa_node
from tests.measure.trees import write_tree

CPU = "sys/devices/system/cpu"
SERVER = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"
    "flags\t\t: fpu sse4_2 avx2 avx512f avx512_bf16 amx_bf16 rdtscp hypervisor\n",
    "proc/self/cgroup": "0::/box",
    f"{CPU}/online": "0-7",
    f"{CPU}/smt/active": "1",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave",
    f"{CPU}/cpu2/cpufreq/scaling_governor": "ondemand",
    f"{CPU}/intel_pstate/no_turbo": "0",
    "sys/devices/system/node/node0/cpulist": "0,2-3",
    "sys/devices/system/node/node1/cpulist": "1,4-7",
    "sys/devices/system/node/node2/cpulist": "",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/fs/cgroup/box/cpu.max": "150000 100000",
    "sys/fs/cgroup/box/memory.max": "1073741824",
    "sys/fs/cgroup/memory.max": "max",
    "sys/bus/pci/devices/0000:1a:00.0/numa_node": "1",
    "sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1",
}


def test_what_a_server_tells(tmp_path: Path) -> None:
    root = write_tree(tmp_path, SERVER)
    found = describe_host([0, 1], root, {})
    affinity = found.pop("affinity")
    assert affinity is None or affinity == sorted(affinity)
    assert found == {
        "cpu_flags": ["amx_bf16", "avx2", "avx512_bf16", "avx512f", "sse4_2"],
        "logical_cpus": 8,
        "quota_cores": 1.5,
        "numa": {"0": [0], "1": [1]},
        "smt": True,
        "governors": ["performance", "powersave"],
        "boost": True,
        "huge_pages": "madvise",
        "memory_limit_bytes": 2**30,
        "container": None,
        "virtualised": True,
    }
    assert cpu_model(root) == "A CPU @ 2 GHz"
    assert numa_node("0000:1a:00.0", root) == 1
    assert numa_node("0000:1b:00.0", root) is None  # a machine with one node
    assert numa_node("0000:ff:00.0", root) is None


def test_what_a_system_does_not_tell_is_unknown(tmp_path: Path) -> None:
    found = describe_host([0, 1], tmp_path, {})
    del found["affinity"], found["logical_cpus"]
    assert set(found.values()) == {None}
    assert cpu_model(tmp_path) is None


def test_an_arm_machine_names_its_flags_otherwise(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/cpuinfo": "Features\t: fp asimd sve bf16 i8mm crc32"})
    found = describe_host([0], root, {})
    assert found["cpu_flags"] == ["asimd", "bf16", "i8mm", "sve"]
    assert found["virtualised"] is None  # no flag says so there


def test_boost_has_two_switches(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {f"{CPU}/cpufreq/boost": "0"})
    assert describe_host([0], root, {})["boost"] is False
    write_tree(tmp_path, {f"{CPU}/intel_pstate/no_turbo": "1", f"{CPU}/cpufreq/boost": "1"})
    assert describe_host([0], root, {})["boost"] is False


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"box/memory.max": "max"}, None),
        ({"box/memory.max": "2000", "memory.max": "1000"}, 1000),
        ({"memory/memory.limit_in_bytes": "3000"}, 3000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_containers_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert memory_limit(write_tree(tmp_path, files), "/box") == expected


@pytest.mark.parametrize(
    ("files", "variables", "expected"),
    [
        ({}, {"HOME": "/root"}, None),
        ({"proc/self/cgroup": "0::/user.slice/user-0.slice"}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": "4:cpu:/kubepods/burstable/x"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "0::/machine.slice/libpod-1.scope"}, {}, "podman"),
        ({"run/systemd/container": "lxc"}, {}, "lxc"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
    ],
)
def test_containers_by_what_they_leave(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], expected: str | None
) -> None:
    assert container(write_tree(tmp_path, files), variables) == expected
