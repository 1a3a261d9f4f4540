"""The one place that knows what a device is.

A CPU device is a set of cores; every accelerator goes through ``torch.accelerator``. The rest of
the code holds a ``Device`` and never asks what it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from bench.measure.clock import Clock, EventClock, HostClock
from bench.measure.cores import parse_cpu_list
from bench.measure.memory import Peaks, ResidentPeak, limit_private_memory
from bench.plan.case import Machine, Placed, Precision

OCCUPIED_CYCLES = 1_000_000
"""Of a device's clock: longer than a host takes to launch two kernels and record two events."""
CALL_CYCLES = 200_000
"""More for each call: longer than a host takes to launch a collective, point to point included."""
OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Failed to CUDA calloc",
    "can't allocate memory",
    "std::bad_alloc",
    "could not create a memory object",
)
"""How allocators other than torch's own, and torch's on a CPU, say it in a RuntimeError."""


class Device(Protocol):
    """The device of one process; or all of them, where one process drives several."""

    torch_device: torch.device
    """The first, which holds what is not on all."""
    group_device: torch.device | None
    """What ``init_process_group`` must be told; None where it must not be told anything."""

    def claim(self) -> None:
        """Make this process use its devices, and only them. Before anything else touches one."""

    def enter(self, index: int) -> None:
        """Make the calling thread work on the process's device of that number."""

    def clock(self) -> Clock:
        """A new clock for blocks of steps."""

    def synchronize(self) -> None:
        """Wait for all work of this process on the device."""

    def occupy(self, calls: int = 1) -> None:
        """Keep the device busy for as long as the host takes to ask it for so many calls more."""

    def profiler(self, *, shapes: bool = False, memory: bool = False) -> profile:
        """A profiler of all that this process does, on the host and on the device.

        Args:
            shapes: note the shapes of all operators' tensors.
            memory: note every allocation.
        """

    def set_precision(self, precision: Precision) -> None:
        """Allow or forbid TF32, as the precision means it."""

    def reset_peaks(self) -> None:
        """Forget all peaks so far."""

    def sample_memory(self) -> None:
        """Look at the figures that have no peak of their own. Between blocks."""

    def peaks(self) -> list[Peaks]:
        """Peaks since the last reset, one entry for each device that this process drives."""

    def allocator_retries(self) -> int:
        """How often the allocator so far gave cached memory back to find room, which waits."""

    def free_bytes(self) -> int | None:
        """What each device has left for more tensors; None where that has no limit of its own."""

    def limit_memory(self, limit_bytes: int | None) -> None:
        """Let each device have no more than that, or as much as there is again.

        What would exceed it fails as it would on a device of that size.
        """


class CpuDevice:
    """Fixed sets of cores, each of them a device.

    Args:
        sets: ids of the cores of each device that this process drives; as many threads compute.
    """

    torch_device = torch.device("cpu")
    group_device: torch.device | None = None

    def __init__(self, *sets: tuple[int, ...]) -> None:
        self.sets = sets
        self._resident = ResidentPeak()

    def claim(self) -> None:
        """Pin the process, and set torch's threads: OpenMP read its environment before the fork."""
        self.enter(0)

    def enter(self, index: int) -> None:
        """See ``Device``. On Linux a mask is a thread's own, and new threads inherit it."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.sets[index])
        torch.set_num_threads(len(self.sets[index]))

    def clock(self) -> Clock:
        """See ``Device``."""
        return HostClock()

    def synchronize(self) -> None:
        """See ``Device``: a CPU has done its work when a call returns."""

    def occupy(self, calls: int = 1) -> None:
        """See ``Device``: on a CPU, nothing is asked for beforehand."""

    def profiler(self, *, shapes: bool = False, memory: bool = False) -> profile:
        """See ``Device``."""
        return profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=shapes,
            profile_memory=memory,
            experimental_config=None if memory else _every_thread(),
        )

    def set_precision(self, precision: Precision) -> None:
        """See ``Device``: a CPU has no TF32, but its matmuls may use bf16 below "highest"."""
        assert precision != "tf32", "the plan skips tf32 on a CPU"
        torch.set_float32_matmul_precision("highest")

    def reset_peaks(self) -> None:
        """See ``Device``."""
        self._resident.reset()

    def sample_memory(self) -> None:
        """See ``Device``: the kernel keeps the peak."""

    def peaks(self) -> list[Peaks]:
        """See ``Device``: a CPU has no allocator to ask, and 0 would be a lie."""
        return [Peaks(process=self._resident.read()), *[Peaks() for _ in self.sets[1:]]]

    def allocator_retries(self) -> int:
        """See ``Device``: there is no such allocator."""
        return 0

    def free_bytes(self) -> int | None:
        """See ``Device``."""
        return None

    def limit_memory(self, limit_bytes: int | None) -> None:
        """See ``Device``: of the process's private memory, beyond what it has now.

        A process that drives several devices shares what they have together.
        """
        total = None if limit_bytes is None else limit_bytes * len(self.sets)
        limit_private_memory(total)


class AcceleratorDevice:
    """Devices of ``torch.accelerator``: CUDA, ROCm, XPU.

    Args:
        kind: torch's device type.
        indices: positions among the devices that this process can see.
        backend: backend of the case's collectives.
        threads: of computation on the host.
        used_before: bytes in use on each device before any process of the launch was there, where
            the parent could tell. Without, there is no figure of the driver: what this process
            finds once it has claimed the device holds its own context.
    """

    def __init__(
        self,
        kind: str,
        indices: Sequence[int],
        backend: str | None,
        *,
        threads: int = 1,
        used_before: Sequence[int | None] = (),
    ) -> None:
        self.torch_device = torch.device(kind, indices[0])
        # NCCL builds its communicator at once when told the device, and gloo refuses to be told.
        self.group_device = self.torch_device if backend == "nccl" else None
        self._indices = tuple(indices)
        self._threads = threads
        self._resident = ResidentPeak()
        self._used_before = dict(zip(self._indices, used_before, strict=False))
        self._largest_use: dict[int, int | None] = {}

    def claim(self) -> None:
        """See ``Device``. The process stays near the first: on the cores of its NUMA node."""
        self.enter(0)
        torch.set_num_threads(self._threads)
        near = near_cores(torch.get_device_module(self.torch_device), self._indices[0])
        if near:
            os.sched_setaffinity(0, near)

    def enter(self, index: int) -> None:
        """See ``Device``."""
        torch.accelerator.set_device_index(self._indices[index])

    def clock(self) -> Clock:
        """See ``Device``."""
        return EventClock(
            lambda: torch.Event(self.torch_device, enable_timing=True), self.synchronize
        )

    def synchronize(self) -> None:
        """See ``Device``."""
        for index in self._indices:
            torch.accelerator.synchronize(index)

    def occupy(self, calls: int = 1) -> None:
        """See ``Device``: half a millisecond and a tenth a call, where torch can wait there."""
        sleep = getattr(torch.get_device_module(self.torch_device), "_sleep", None)
        if sleep is not None:
            sleep(OCCUPIED_CYCLES + calls * CALL_CYCLES)

    def profiler(self, *, shapes: bool = False, memory: bool = False) -> profile:
        """See ``Device``. ROCm calls itself CUDA."""
        kernels = getattr(ProfilerActivity, self.torch_device.type.upper())
        return profile(
            activities=[ProfilerActivity.CPU, kernels],
            record_shapes=shapes,
            profile_memory=memory,
        )

    def set_precision(self, precision: Precision) -> None:
        """See ``Device``. torch's default is TF32 in convolutions and fp32 in matmuls."""
        allowed = precision == "tf32"
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed

    def reset_peaks(self) -> None:
        """See ``Device``."""
        self._resident.reset()
        for index in self._indices:
            torch.accelerator.reset_peak_memory_stats(index)
            self._largest_use[index] = self._used(index)

    def sample_memory(self) -> None:
        """See ``Device``: in steady state the allocator gives nothing back, so this is the peak."""
        for index in self._indices:
            used = self._used(index)
            if used is not None:
                self._largest_use[index] = max(used, self._largest_use.get(index) or 0)

    def peaks(self) -> list[Peaks]:
        """See ``Device``. torch answers 0 where it has no allocator: that becomes None."""
        self.sample_memory()
        return [self._peaks(index) for index in self._indices]

    def allocator_retries(self) -> int:
        """See ``Device``."""
        stats = (torch.accelerator.memory_stats(index) for index in self._indices)
        return sum(int(one.get("num_alloc_retries", 0)) for one in stats)

    def free_bytes(self) -> int | None:
        """See ``Device``: what nobody uses, and what the allocator holds for later."""
        free: list[int] = []
        for index in self._indices:
            found = self._info(index)
            if found is None:
                return None
            held = torch.accelerator.memory_reserved(index)
            free.append(found[0] + held - torch.accelerator.memory_allocated(index))
        return min(free)

    def limit_memory(self, limit_bytes: int | None) -> None:
        """See ``Device``: of what the allocator may hold."""
        module = torch.get_device_module(self.torch_device)
        for index in self._indices:
            total = module.get_device_properties(index).total_memory
            share = 1.0 if limit_bytes is None else min(1.0, limit_bytes / total)
            module.set_per_process_memory_fraction(share, index)

    def _peaks(self, index: int) -> Peaks:
        before, largest = self._used_before.get(index), self._largest_use.get(index)
        return Peaks(
            allocated=torch.accelerator.max_memory_allocated(index) or None,
            reserved=torch.accelerator.max_memory_reserved(index) or None,
            driver=largest - before if largest is not None and before is not None else None,
            process=self._resident.read() if index == self._indices[0] else None,
        )

    def _used(self, index: int) -> int | None:
        """Bytes in use on the whole device, by all processes; None where torch cannot tell."""
        found = self._info(index)
        return None if found is None else found[1] - found[0]

    def _info(self, index: int) -> tuple[int, int] | None:
        """(free, total) bytes of a device; None where torch cannot tell."""
        read = getattr(torch.accelerator, "get_memory_info", None) or getattr(
            torch.get_device_module(self.torch_device), "mem_get_info", None
        )
        if read is None:
            return None
        free, total = read(index)
        return int(free), int(total)


def _every_thread() -> Any:
    """Settings with which a profile sees all threads; None for a torch that has no such thing.

    Without, it sees the thread that started it, and those that autograd starts: what a hook of DDP
    sends from gloo's threads would be missing. With it, torch 2.14 notes no allocation at all.
    """
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return None


def open_device(
    case: Placed,
    driven: Sequence[int],
    cores: Sequence[tuple[int, ...]],
    used_before: Sequence[int | None] = (),
) -> Device:
    """What a rank of a case works on.

    Args:
        case: names the type.
        driven: positions, among the case's devices on this host, of those this rank drives.
        cores: the share of the host's cores of each of the case's devices: on a CPU, the device.
        used_before: see ``AcceleratorDevice``, for each of the case's devices.
    """
    if case.device == "cpu":
        return CpuDevice(*(cores[index] for index in driven))
    return AcceleratorDevice(
        case.device,
        driven,
        case.backend,
        threads=len(cores[driven[0]]),
        used_before=[used_before[index] for index in driven] if used_before else (),
    )


def near_cores(module: Any, index: int, sysfs: Path = Path("/sys")) -> frozenset[int]:
    """Cores of a device's NUMA node that this process may use; empty where nothing is known.

    Args:
        module: torch's module of the device type, which knows the device's place on the bus.
        index: of the device.
        sysfs: where Linux tells which node that place belongs to.
    """
    properties = module.get_device_properties(index)
    place = [
        getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")
    ]
    if None in place or not hasattr(os, "sched_getaffinity"):
        return frozenset()
    domain, bus, device = place
    try:
        folder = sysfs / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0"
        node = int((folder / "numa_node").read_text())
        cpus = (sysfs / f"devices/system/node/node{node}/cpulist").read_text()
    except (OSError, ValueError):  # a machine without NUMA says -1, a container may say nothing
        return frozenset()
    return parse_cpu_list(cpus) & os.sched_getaffinity(0)


def core_sets(
    machine: Machine, *, cores_per_device: int | None, devices: int
) -> list[tuple[int, ...]]:
    """Cores of every device of a case: disjoint sets, from the first again when they run out.

    Without ``cores_per_device``, as on accelerators, the cores are shared out among all devices of
    the machine, whether the case uses them or not: so a baseline has the same host as its row.

    >>> core_sets(Machine(cores=(0, 1, 2)), cores_per_device=1, devices=4)
    [(0,), (1,), (2,), (0,)]
    """
    share = max(1, len(machine.cores) // max(1, len(machine.devices)))
    size = min(cores_per_device or share, len(machine.cores))
    sets = [machine.cores[i : i + size] for i in range(0, len(machine.cores) - size + 1, size)]
    return [sets[index % len(sets)] for index in range(devices)]


def visible_devices(case: Placed, machine: Machine) -> Mapping[str, str]:
    """Environment that shows a rank exactly the case's devices, and a CPU case none.

    The first of the machine's own list, so that 2 devices are among 4, and 4 among 8.
    """
    if case.device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    if case.device != "cuda":
        return {}
    chosen = machine.devices[: case.world_size // case.nodes]
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.visible_as for device in chosen)}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory, of the device or of the host, did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return any(sign in str(error) for sign in OUT_OF_MEMORY_SIGNS)
