"""What the host is that a run was measured on: read from ``/proc`` and ``/sys``.

Every fact is None where the system does not tell it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.measure.cores import (
    all_cpu_flags,
    cgroup_levels,
    cpu_flags,
    cpu_quota,
    own_cgroup,
    parse_cpu_list,
    read_text,
)

NO_LIMIT = 2**60
"""Version 1 of control groups says "no limit" with the largest multiple of a page."""
CONTAINERS = re.compile(r"\b(docker|kubepods|libpod|podman|lxc|containerd)")
"""In the names of control groups."""
CONTAINER_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
}
"""That containers of a kind always have."""
CONTAINER_FILES = {".dockerenv": "docker", "run/.containerenv": "podman"}
"""Likewise."""


def describe_host(
    cores: Iterable[int], root: Path = Path("/"), variables: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The host, as plain data.

    Args:
        cores: that the run uses.
        root: of the file system.
        variables: of the environment.
    """
    cpuinfo = read_text(root / "proc/cpuinfo")
    used = sorted(cores)
    cpu = root / "sys/devices/system/cpu"
    own = own_cgroup(root / "proc")
    return {
        "cpu_flags": cpu_flags(cpuinfo),
        "logical_cpus": len(parse_cpu_list(read_text(cpu / "online"))) or os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "quota_cores": cpu_quota(root / "sys/fs/cgroup", own),
        "numa": _numa(used, root / "sys/devices/system/node"),
        "smt": _switch(cpu / "smt/active"),
        "governors": _governors(used, cpu),
        "boost": _boost(cpu),
        "huge_pages": _huge_pages(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "memory_limit_bytes": memory_limit(root / "sys/fs/cgroup", own),
        "container": container(root, variables),
        "virtualised": _virtualised(cpuinfo),
    }


def cpu_model(root: Path = Path("/")) -> str | None:
    """What the CPU calls itself."""
    text = read_text(root / "proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _virtualised(cpuinfo: str) -> bool | None:
    """An x86 hypervisor shows itself to its guests as a flag of the CPU; Arm has no such flag."""
    flags = all_cpu_flags(cpuinfo)
    return "hypervisor" in flags if flags is not None and "fpu" in flags else None


def _numa(cores: Iterable[int], nodes: Path) -> dict[str, list[int]] | None:
    """Cores of ours on each NUMA node."""
    wanted = frozenset(cores)
    found: dict[str, list[int]] = {}
    for folder in sorted(nodes.glob("node[0-9]*")):
        here = sorted(parse_cpu_list(read_text(folder / "cpulist")) & wanted)
        if here:
            found[folder.name.removeprefix("node")] = here
    return found or None


def _switch(path: Path) -> bool | None:
    return {"1": True, "0": False}.get(read_text(path))


def _governors(cores: Iterable[int], cpu: Path) -> list[str] | None:
    found = {read_text(cpu / f"cpu{core}/cpufreq/scaling_governor") for core in cores} - {""}
    return sorted(found) or None


def _boost(cpu: Path) -> bool | None:
    """Whether clocks may rise beyond the nominal one; Intel's driver has the switch reversed."""
    no_turbo = _switch(cpu / "intel_pstate/no_turbo")
    return _switch(cpu / "cpufreq/boost") if no_turbo is None else not no_turbo


def _huge_pages(path: Path) -> str | None:
    """The setting in brackets: always [madvise] never."""
    found = re.search(r"\[(\w+)\]", read_text(path))
    return found[1] if found else None


def memory_limit(root: Path, own: str) -> int | None:
    """Bytes that the container may use; None without a limit. See ``machine.cpu_quota``."""
    limits: list[int] = []
    for level in cgroup_levels(root, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(level / name)
            if text.isdecimal() and int(text) < NO_LIMIT:
                limits.append(int(text))
    return min(limits, default=None)


def container(root: Path, variables: Mapping[str, str]) -> str | None:
    """Kind of container that this process runs in; None where nothing speaks for one."""
    by_name = [kind for name, kind in CONTAINER_VARIABLES.items() if name in variables]
    by_file = [kind for name, kind in CONTAINER_FILES.items() if (root / name).exists()]
    told = read_text(root / "run/systemd/container")  # systemd's containers, LXC among them
    grouped = CONTAINERS.search(read_text(root / "proc/self/cgroup"))
    named = {"kubepods": "kubernetes", "libpod": "podman"}
    by_group = [named.get(grouped[1], grouped[1])] if grouped else []
    return next(iter([*by_name, *by_file, *([told] if told else []), *by_group]), None)


def numa_node(bus: str, root: Path = Path("/")) -> int | None:
    """NUMA node of a device by its place on the bus; a machine without nodes says -1."""
    text = read_text(root / f"sys/bus/pci/devices/{bus}/numa_node")
    return int(text) if text.isdecimal() else None
