"""Look at the machine: all that is read, asked and tried for the checks.

Nothing here imports torch, so that a machine on which torch is broken can be looked at, and nothing
starts an accelerator. What only torch knows, a child process asks: ``bench.doctor.software``.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from bench.doctor.facts import Cores, Devices, Facts, Limits, Load, Memory, Place, Program
from bench.doctor.leftovers import find_leftovers
from bench.doctor.network import look_at_network
from bench.doctor.software import ask_torch
from bench.measure.compiler import try_compiler
from bench.measure.cores import (
    cgroup_levels,
    own_cgroup,
    parse_cpu_list,
    read_text,
    siblings,
    usable_cores,
)
from bench.measure.cores import core_speeds as speeds_of
from bench.measure.counters import CoresUse, Counters
from bench.measure.health import driver_cuda, has_package, look_at_devices
from bench.measure.host import describe_host, memory_limit, numa_node
from bench.measure.nvml import describe_devices, driver_version
from bench.measure.observers import observers
from bench.plan.case import DeviceInfo

LOOK_S = 0.5
"""How long others' load is watched: the kernel counts in steps of 10 ms."""
COUNTED = (0.5, 1.5)
"""Between these shares of the look must lie what the kernel has counted of it; see
``bench.measure.conditions``."""
SHOWN_PROGRAMS = 3
BUSY_CORES = 0.02
"""From which a program is worth naming."""
VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMEXPR|VECLIB|KMP|GOMP|NCCL|GLOO|CUDA|MALLOC)_|LD_PRELOAD$"
)
"""That the checks look at; no others leave the environment."""
ROOT = Path("/")


def gather_quickly() -> Facts:
    """What takes some milliseconds and starts no process: no devices, no torch, no look at load."""
    return Facts(
        cores=look_at_cores(),
        load=read_load(),
        memory=look_at_memory(),
        leftovers=find_leftovers(),
        variables={name: value for name, value in os.environ.items() if VARIABLES.match(name)},
        observers=observers(),
    )


def gather_facts() -> Facts:
    """All but what needs processes that talk to each other. Takes some seconds.

    The load is watched first, before anything here makes some itself.
    """
    load = watch_load(usable_cores())
    return msgspec.structs.replace(
        gather_quickly(),
        load=load,
        limits=look_at_limits(),
        network=look_at_network(),
        places=look_at_places(),
        compiler=try_compiler(),
        devices=look_at_nvidia(),
        software=ask_torch(),
    )


def look_at_cores(root: Path = ROOT) -> Cores:
    """The cores, as the system and the container leave them to this process."""
    usable = usable_cores()
    host = describe_host(usable, root)
    allowed = host["affinity"] or list(usable)
    cpu = root / "sys/devices/system/cpu"
    threads = frozenset(one for core in usable for one in siblings(core, cpu))
    online = parse_cpu_list(read_text(cpu / "online")) or threads
    return Cores(
        logical=host["logical_cpus"] or len(allowed),
        allowed=tuple(allowed),
        usable=usable,
        foreign_siblings=tuple(sorted((threads & online) - frozenset(allowed))),
        quota=host["quota_cores"],
        governors=tuple(host["governors"] or ()),
        speeds=speeds_of(usable, cpu),
        virtualised=host["virtualised"],
        container=host["container"],
    )


def read_load(root: Path = ROOT) -> Load:
    """What the kernel says of the load without being watched: proc_loadavg(5)."""
    words = read_text(root / "proc/loadavg").split()
    try:
        average, runnable = float(words[0]), int(words[3].partition("/")[0])
    except (IndexError, ValueError):
        return Load()
    return Load(average=average, runnable=max(0, runnable - 1))


def watch_load(cores: tuple[int, ...], root: Path = ROOT, look_s: float = LOOK_S) -> Load:
    """What others do on some cores, watched for a moment."""
    programs = _programs()
    counters, began_s, own_s = Counters(cores, root), time.monotonic(), time.process_time()
    time.sleep(look_s)
    use, passed_s = counters.use(), time.monotonic() - began_s
    own_s = time.process_time() - own_s
    busy, steal = shares(use, passed_s, own_s)
    return msgspec.structs.replace(
        read_load(root), busy=busy, steal=steal, busiest=_busiest(programs, passed_s)
    )


def shares(use: CoresUse, passed_s: float, own_s: float) -> tuple[float | None, float | None]:
    """(others' programs, steal), as shares of the cores' time; None where it is not counted.

    Two cores for 1 s, of which 1.2 s without a program and 0.1 s ours, leave 0.7 s of 2 s.

    >>> use = CoresUse(cores=2, cpus=2, counted_s=2.0, no_program_s=1.2, steal_s=0.2)
    >>> shares(use, 1.0, 0.1)
    (0.35, 0.1)
    """
    if use.counted_s is None or use.no_program_s is None or use.steal_s is None:
        return None, None
    if not COUNTED[0] <= use.counted_s / (passed_s * use.cpus) <= COUNTED[1]:
        return None, None
    busy = (use.counted_s - use.no_program_s - own_s) / (passed_s * use.cores)
    steal = use.steal_s / (passed_s * use.cpus)
    return round(min(1.0, max(0.0, busy)), 3), round(min(1.0, max(0.0, steal)), 3)


def _programs() -> dict[int, tuple[str, float]]:
    """Name and CPU time of every process but this one."""
    found: dict[int, tuple[str, float]] = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.pid != os.getpid():
            found[process.pid] = (process.info["name"] or "?", times.user + times.system)
    return found


def _busiest(before: dict[int, tuple[str, float]], passed_s: float) -> tuple[Program, ...]:
    used = [
        Program(pid=pid, name=name, cores=round((total_s - before[pid][1]) / passed_s, 2))
        for pid, (name, total_s) in _programs().items()
        if pid in before
    ]
    worth = [one for one in used if one.cores >= BUSY_CORES]
    return tuple(sorted(worth, key=lambda one: -one.cores)[:SHOWN_PROGRAMS])


def look_at_memory(root: Path = ROOT) -> Memory:
    """Memory of the host, cut to what the container leaves."""
    lines = (line.split() for line in read_text(root / "proc/meminfo").splitlines())
    kib = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    total, available = kib.get("MemTotal:"), kib.get("MemAvailable:")
    groups = root / "sys/fs/cgroup"
    limit = memory_limit(groups, own_cgroup(root / "proc"))
    if limit is not None and (total is None or limit < total):
        left = limit - _used_by_group(groups, own_cgroup(root / "proc"))
        total, available = limit, min(left, available if available is not None else left)
    swap = (kib.get("SwapTotal:"), kib.get("SwapFree:"))
    shm = _usage(root / "dev/shm")
    return Memory(
        total=total,
        available=None if available is None else max(0, available),
        swap_used=None if swap[0] is None or swap[1] is None else swap[0] - swap[1],
        shm_size=None if shm is None else shm.total,
        shm_free=None if shm is None else shm.free,
        huge_pages=describe_host((), root)["huge_pages"],
        is_glibc=platform.libc_ver()[0] == "glibc",
    )


def _used_by_group(root: Path, own: str) -> int:
    """Bytes that the control group cannot give back: all but the part of its cache not in use."""
    for level in cgroup_levels(root, own, "memory"):
        for name in ("memory.current", "memory.usage_in_bytes"):
            text = read_text(level / name)
            if text.isdecimal():
                stat = dict(
                    line.split()[:2]
                    for line in read_text(level / "memory.stat").splitlines()
                    if len(line.split()) > 1
                )
                return int(text) - int(stat.get("inactive_file", 0))
    return 0


def look_at_limits(root: Path = ROOT) -> Limits:
    """What this process may open and lock."""
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    return Limits(
        open_files=soft,
        open_files_hard=hard,
        locked_memory=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        has_infiniband=any((root / "sys/class/infiniband").glob("*")),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def look_at_places() -> tuple[Place, ...]:
    """The folders that a run writes to: its results, and what passes between processes."""
    found = [look_at_place("the current folder", Path.cwd())]
    try:
        used = Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder of the usual ones can be written to
        used = Path("/tmp")  # noqa: S108 - named in the finding, not written to
    found.append(look_at_place("the folder for temporary files", used))
    wanted = os.environ.get("TMPDIR")
    if wanted and Path(wanted) != used:
        asked = look_at_place("TMPDIR", Path(wanted))
        found.append(msgspec.structs.replace(asked, is_used=False))
    return tuple(found)


def look_at_place(role: str, path: Path) -> Place:
    """Whether there is room in a folder, and whether it may be used."""
    usage = _usage(path)
    if usage is None:
        return Place(role=role, path=str(path))
    flags = os.statvfs(path)
    return Place(
        role=role,
        path=str(path),
        free=usage.free,
        free_files=flags.f_favail if flags.f_files else None,
        # access(2) also knows of file systems that are mounted to be read only.
        is_writable=os.access(path, os.W_OK | os.X_OK),
        is_executable=not flags.f_flag & getattr(os, "ST_NOEXEC", 0),
    )


def _usage(path: Path) -> shutil._ntuple_diskusage | None:
    try:
        return shutil.disk_usage(path)
    except OSError:
        return None


def look_at_nvidia(root: Path = ROOT) -> Devices:
    """NVIDIA's devices, as far as NVML tells of them."""
    hinted = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    hinted = hinted or len(list((root / "dev").glob("nvidia[0-9]*")))
    visible = look_at_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if visible is None:
        return Devices(hinted=hinted, has_package=has_package())
    infos = [DeviceInfo(name=one.name or "?", visible_as=one.uuid or "") for one in visible]
    nodes = [numa_node(one.bus, root) if one.bus else None for one in visible]
    return Devices(
        hinted=hinted,
        driver=driver_version(),
        driver_cuda=driver_cuda(),
        visible=visible,
        links=tuple(dict(place["links"] or {}) for place in describe_devices(infos)),
        cores_near=tuple(None if node is None else _cores_of(node, root) for node in nodes),
    )


def _cores_of(node: int, root: Path) -> int:
    cpus = parse_cpu_list(read_text(root / f"sys/devices/system/node/node{node}/cpulist"))
    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(cpus)
    return len(cpus & mask)
