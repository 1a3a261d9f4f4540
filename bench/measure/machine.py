"""What this machine has: cores that may be used, accelerators, collective backends.

Asking for accelerators initialises their driver, which must not happen in a process that later
forks or that only plans. So the parent asks a child: ``python -m bench.measure.machine``.
"""

from __future__ import annotations

import functools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from bench.errors import BenchError
from bench.measure.compiler import cannot_compile, try_compiler
from bench.plan.case import DeviceInfo, Machine

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and nothing is made in it
CPU_FLAGS = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512(f|bw|vl|_vnni|_bf16|_fp16)|amx_(tile|int8|bf16|fp16)"
    r"|asimd|asimdhp|sve|sve2|bf16|i8mm|svebf16|sme"
)
"""Instructions that torch's kernels are chosen by, as Linux names them on x86 and Arm."""


@functools.cache
def probe_in_child() -> Machine:
    """The machine, as a child process found it. Takes the time of importing torch.

    Raises:
        BenchError: the child failed; ends with what it wrote last.
    """
    command = [sys.executable, "-m", "bench.measure.machine"]
    child = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - ourselves
    if child.returncode != 0:
        lines = child.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise BenchError(f"torch cannot look at this machine's devices: {lines[-1]}")
    return msgspec.json.decode(child.stdout.splitlines()[-1], type=Machine)


def probe() -> Machine:
    """The machine, asked directly: initialises the accelerator's driver where there is one."""
    import torch  # noqa: PLC0415 - the parent imports this module without paying for torch
    from torch import distributed  # noqa: PLC0415

    compiler = ThreadPoolExecutor(1).submit(try_compiler)  # which waits for a process of its own
    if "CUDA_VISIBLE_DEVICES" not in os.environ:  # else the order is part of what the user meant
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = accelerator.type if accelerator is not None else None
    count = torch.accelerator.device_count() if accelerator is not None else 0
    built_in = {
        "gloo": distributed.is_gloo_available(),
        "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
        "xccl": getattr(distributed, "is_xccl_available", lambda: False)(),
    }
    kinds = ["cpu", *([kind] if kind else [])]
    cores = usable_cores()
    return Machine(
        cores=cores,
        core_speeds=core_speeds(cores),
        cpu_flags=tuple(cpu_flags(read_text(Path("/proc/cpuinfo"))) or ()),
        accelerator=kind,
        devices=tuple(_device(index) for index in range(count)),
        backends=tuple(name for name, there in built_in.items() if there),
        default_backends={name: distributed.get_default_backend_for_device(name) for name in kinds},
        cannot_compile=cannot_compile(compiler.result(), kind),
        memory_bytes=psutil.virtual_memory().total,
        shared_memory_bytes=free_bytes(SHARED_MEMORY),
    )


def free_bytes(folder: Path) -> int | None:
    """That a folder's file system has left; None where there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


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


def _device(index: int) -> DeviceInfo:
    import torch  # noqa: PLC0415 - see ``probe``

    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    properties = torch.get_device_module(kind).get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "") or "") if torch.version.hip is None else ""
    return DeviceInfo(
        name=str(properties.name),
        uuid=uuid or None,
        visible_as=visible_name(index, uuid, os.environ.get("CUDA_VISIBLE_DEVICES")),
        memory_bytes=getattr(properties, "total_memory", None),
        # NVIDIA's tensor cores have TF32 since Ampere, compute capability 8.0.
        has_tf32=torch.version.hip is None and getattr(properties, "major", 0) >= 8,
    )


def visible_name(index: int, uuid: str, asked: str | None) -> str:
    """What to call a device in ``CUDA_VISIBLE_DEVICES`` so that it stays the same device.

    A UUID means one device whatever the order; a user's own list is mapped through, and a slice
    of a device (MIG) keeps the name it was asked for by.

    >>> visible_name(1, "", "3,5")
    '5'
    """
    names = [name.strip() for name in asked.split(",")] if asked else []
    own = names[index] if index < len(names) else str(index)
    if uuid and not own.startswith("MIG-"):
        return f"GPU-{uuid.removeprefix('GPU-')}"
    return own


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(probe()) + b"\n")
