"""All that the checks know of a machine: gathered once, at the edge, by ``bench.doctor.gather``.

Every fact is None, or empty, where the system does not tell it. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import msgspec

from bench.measure.compiler import Compiler
from bench.measure.health import DeviceHealth
from bench.plan.case import Machine


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may compute on."""

    logical: int = 1
    """Logical CPUs of the machine."""
    allowed: tuple[int, ...] = (0,)
    """Logical CPUs that the affinity mask leaves."""
    usable: tuple[int, ...] = (0,)
    """One logical CPU of each core, as many as the quota pays for: what ranks are given."""
    foreign_siblings: tuple[int, ...] = ()
    """Second threads of usable cores that this process may not use: others' programs may."""
    quota: float | None = None
    """Cores' worth of time that the container is allowed; None without a limit."""
    governors: tuple[str, ...] = ()
    speeds: tuple[int, ...] = ()
    """Of each usable core next to the others, in a unit of the system's own."""
    virtualised: bool | None = None
    container: str | None = None


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A process of whoever."""

    pid: int
    name: str
    cores: float = 0.0
    """Cores' worth of time that it took."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What others do just now."""

    average: float | None = None
    """Mean number of runnable or waiting tasks over the last minute."""
    runnable: int | None = None
    """Tasks that run or could, this moment, without the one that looks."""
    busy: float | None = None
    """Share of the usable cores' time that other programs took during the look."""
    steal: float | None = None
    """Share that the hypervisor gave to other machines."""
    busiest: tuple[Program, ...] = ()
    """Most of it first."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The host's memory, or the container's where that has less."""

    total: int | None = None
    available: int | None = None
    swap_used: int | None = None
    shm_size: int | None = None
    """Of ``/dev/shm``."""
    shm_free: int | None = None
    huge_pages: str | None = None
    """``always``, ``madvise`` or ``never``."""
    is_glibc: bool = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of this process; None without a limit, or where it is not told."""

    open_files: int | None = None
    open_files_hard: int | None = None
    locked_memory: int | None = None
    has_infiniband: bool = False


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Interfaces, and the own name."""

    hostname: str = ""
    interfaces: dict[str, bool] = {}
    """Whether each is up."""
    addresses: tuple[str, ...] | None = None
    """That the own name stands for; None where it was not asked."""
    resolved_s: float | None = None
    """How long that took; None where no answer came in time."""
    loopback: str = "lo"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a run writes to."""

    role: str
    path: str
    is_used: bool = True
    """Whether files go there: where TMPDIR cannot be used, they go elsewhere unasked."""
    free: int | None = None
    free_files: int | None = None
    """Files that may still be made; None where the file system counts none."""
    is_writable: bool = False
    is_executable: bool = True
    """Whether what is compiled there may be run."""


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of ours have left, or are still about."""

    folders: tuple[str, ...] = ()
    """Whose run is gone."""
    orphans: tuple[Program, ...] = ()
    """Processes whose run is gone."""
    running: tuple[Program, ...] = ()
    """Other runs of ours that are going on."""


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process found out from torch."""

    failure: str | None = None
    """Why torch cannot be asked, in its words."""
    torch: str | None = None
    torchvision: str | None = None
    torchvision_needs: str | None = None
    """The torch that torchvision's package asks for."""
    torchvision_failure: str | None = None
    """Why it cannot be imported, or has not registered its operators."""
    cuda_build: str | None = None
    """CUDA version that torch was built with."""
    hip_build: str | None = None
    driver_cuda: int | None = None
    """Newest CUDA that the driver supports, as 1000 times major plus 10 times minor."""
    nccl_build: str | None = None
    """NCCL version that torch was built with."""
    nccl_loaded: str | None = None
    """Version of the library that is loaded."""
    machine: Machine | None = None
    no_peer_access: tuple[tuple[int, int], ...] = ()
    """Pairs of devices that cannot read each other's memory."""
    warnings: tuple[str, ...] = ()
    """What torch said when it looked for devices."""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's devices, as NVML tells of those that are visible here."""

    hinted: int = 0
    """As many as the system shows without NVML."""
    has_package: bool = True
    """Whether NVML's Python package is installed."""
    driver: str | None = None
    driver_cuda: int | None = None
    """As in ``Software``."""
    visible: tuple[DeviceHealth, ...] | None = None
    """None where NVML cannot be asked."""
    links: tuple[dict[str, str | None], ...] = ()
    """Of each visible device: what leads to each other one, as ``bench.measure.nvml`` names it."""
    cores_near: tuple[int | None, ...] = ()
    """How many of the allowed logical CPUs are on each device's NUMA node."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A machine. What was not looked for is None."""

    cores: Cores = Cores()
    load: Load = Load()
    memory: Memory = Memory()
    limits: Limits = Limits()
    network: Network = Network()
    places: tuple[Place, ...] = ()
    leftovers: Leftovers = Leftovers()
    variables: dict[str, str] = {}
    """Of the environment, those that change how training runs."""
    observers: tuple[str, ...] = ()
    compiler: Compiler | None = None
    software: Software | None = None
    devices: Devices | None = None
