"""The CPU's cores as the system tells of them: which may be used, how fast they are, what they can.

Read from files of the kernel; nothing here imports torch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
CPU_FLAGS = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512(f|bw|vl|_vnni|_bf16|_fp16)|amx_(tile|int8|bf16|fp16)"
    r"|asimd|asimdhp|sve|sve2|bf16|i8mm|svebf16|sme"
)
"""Instructions that torch's kernels are chosen by, as Linux names them on x86 and Arm."""


def all_cpu_flags(cpuinfo: str) -> frozenset[str] | None:
    """What ``/proc/cpuinfo`` says of the first core; None where it says nothing."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return frozenset(found[1].split()) if found else None


def cpu_flags(cpuinfo: str) -> list[str] | None:
    """Those of them that say how fast torch's kernels can be."""
    flags = all_cpu_flags(cpuinfo)
    return None if flags is None else sorted(filter(CPU_FLAGS.fullmatch, flags))


def usable_cores() -> tuple[int, ...]:
    """Physical cores that this process may use, as one logical CPU of each.

    The affinity mask, one thread of each core, as many as the container's quota pays for.
    """
    allowed: Iterable[int] = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else range(psutil.cpu_count(logical=False) or 1)
    )
    cores = one_per_core(sorted(allowed), siblings)
    quota = cpu_quota(CGROUP, own_cgroup())
    return cores if quota is None else cores[: max(1, math.floor(quota))]


def one_per_core(cpus: Iterable[int], siblings: Callable[[int], frozenset[int]]) -> tuple[int, ...]:
    """The first of every set of logical CPUs that share a core.

    >>> one_per_core([0, 1, 2, 3], lambda cpu: frozenset({cpu % 2, cpu % 2 + 2}))
    (0, 1)
    """
    taken: set[int] = set()
    chosen: list[int] = []
    for cpu in cpus:
        if cpu not in taken:
            chosen.append(cpu)
            taken |= siblings(cpu)
    return tuple(chosen)


def cpu_quota(root: Path, own: str) -> float | None:
    """Cores that the container may use at once; None without a limit.

    The smallest limit on the way from our control group up to the root, in version 2's format,
    or version 1's.
    """
    limits: list[float] = []
    for level in cgroup_levels(root, own, "cpu"):
        limits += _limit_v2(level / "cpu.max")
        limits += _limit_v1(level)
    return min(limits, default=None)


def cgroup_levels(root: Path, own: str, controller: str) -> Iterator[Path]:
    """Folders of our control group and of all above it, the innermost first.

    Args:
        root: where control groups are mounted.
        own: name of our group.
        controller: whose folder stands for the root in version 1 of control groups.
    """
    folder = root / own.lstrip("/")
    for level in [folder, *folder.parents]:
        if not level.is_relative_to(root):
            break
        yield level
    yield root / controller


def _limit_v2(path: Path) -> list[float]:
    words = read_text(path).split()
    if len(words) != 2 or words[0] == "max":
        return []
    return [int(words[0]) / int(words[1])]


def _limit_v1(folder: Path) -> list[float]:
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    if not quota or not period or int(quota) <= 0:
        return []
    return [int(quota) / int(period)]


def own_cgroup(proc: Path = Path("/proc")) -> str:
    """Name of our control group in version 2; empty where there is none."""
    found = re.search(r"^0::(.*)$", read_text(proc / "self/cgroup"), re.MULTILINE)
    return found[1] if found else ""


def siblings(cpu: int, folder: Path = CPU_FOLDER) -> frozenset[int]:
    """Logical CPUs on the same core as one of them, itself included."""
    text = read_text(folder / f"cpu{cpu}/topology/thread_siblings_list")
    return parse_cpu_list(text) | {cpu}


def core_speeds(cores: Iterable[int], folder: Path = CPU_FOLDER) -> tuple[int, ...]:
    """How fast each core can be next to the others; empty where the system does not tell of all.

    The kernel's own measure of capacity, which tells big cores from little ones, or the highest
    frequency in kHz.
    """
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        found = [read_text(folder / f"cpu{core}" / name) for core in cores]
        if found and all(text.isdecimal() for text in found):
            return tuple(map(int, found))
    return ()


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's notation for a set of CPUs.

    >>> sorted(parse_cpu_list("0-1,8"))
    [0, 1, 8]
    """
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def read_text(path: Path) -> str:
    """What a file of the system says; empty where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:  # much is read, and often
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
