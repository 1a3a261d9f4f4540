"""Made-up machines for the checks: one with nothing to put right, to be changed in one place."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.doctor.facts import (
    Cores,
    Devices,
    Facts,
    Limits,
    Load,
    Memory,
    Network,
    Place,
    Software,
)
from bench.measure.compiler import Compiler
from bench.measure.health import DeviceHealth
from tests.fakes import EIGHT_GPUS

GIB = 2**30


def healthy(**changes: Any) -> Facts:
    """A server with two cores and no accelerator; changes are of whole groups of facts."""
    fine = Facts(
        cores=Cores(
            logical=2,
            allowed=(0, 1),
            usable=(0, 1),
            governors=("performance",),
            speeds=(100, 100),
            virtualised=False,
        ),
        load=Load(average=0.1, runnable=0, busy=0.01, steal=0.0),
        memory=Memory(
            total=16 * GIB,
            available=12 * GIB,
            swap_used=0,
            shm_size=8 * GIB,
            shm_free=8 * GIB,
            huge_pages="madvise",
            is_glibc=True,
        ),
        limits=Limits(open_files=1024, open_files_hard=4096, locked_memory=8 * 2**20),
        network=Network(
            hostname="box",
            interfaces={"lo": True, "eth0": True, "eth1": False},
            addresses=("127.0.1.1",),
            resolved_s=0.001,
        ),
        places=(
            Place(role="the current folder", path="/work", free=50 * GIB, is_writable=True),
            Place(role="TMPDIR", path="/scratch", free=50 * GIB, is_writable=True),
        ),
        compiler=Compiler(command="/usr/bin/g++"),
        software=Software(torch="2.14.1", torchvision="0.29.1", torchvision_needs="==2.14.1"),
        devices=Devices(),
    )
    return msgspec.structs.replace(fine, **changes)


def changed(group: str, **fields: Any) -> Facts:
    """The healthy machine with some fields of one group changed."""
    facts = healthy()
    return healthy(**{group: msgspec.structs.replace(getattr(facts, group), **fields)})


def health(index: int = 0, **changes: Any) -> DeviceHealth:
    """A device with nothing to put right."""
    fields: dict[str, Any] = {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": f"GPU-{index:08x}",
        "memory_used": 0,
        "memory_total": 80 * GIB,
        "utilisation": 0.0,
        "processes": 0,
        "slowed_down": False,
        "temperature_c": 35,
        "is_split": False,
        "uncorrected_errors": 0,
        "needs_reset": False,
        "is_persistent": True,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    return DeviceHealth(index=index, **(fields | changes))


def gpu_box(*devices: DeviceHealth, **changes: Any) -> Facts:
    """The healthy machine with devices: two unless they are given."""
    there = devices or (health(0), health(1))
    links = tuple(
        {str(other): "NV4" for other in range(len(there)) if other != one}
        for one in range(len(there))
    )
    fields: dict[str, Any] = {
        "hinted": len(there),
        "driver": "580.95.05",
        "driver_cuda": 13000,
        "visible": there,
        "links": links,
        "cores_near": (2,) * len(there),
    }
    software = Software(
        torch="2.14.1",
        torchvision="0.29.1",
        cuda_build="13.0",
        nccl_build="2.30.7",
        nccl_loaded="2.30.7",
        machine=msgspec.structs.replace(EIGHT_GPUS, devices=EIGHT_GPUS.devices[: len(there)]),
    )
    return healthy(devices=Devices(**(fields | changes)), software=software)
