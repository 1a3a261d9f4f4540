"""What this machine has: cores that may be used, accelerators, collective backends.

Asking for accelerators initialises their driver, which must not happen in a process that later
forks or that only plans. So the parent asks a child: ``python -m bench.measure.machine``.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from bench.errors import BenchError
from bench.measure.compiler import cannot_compile, try_compiler
from bench.measure.cores import core_speeds, cpu_flags, read_text, usable_cores
from bench.measure.linked import may_reduce_in_switch, near_order
from bench.measure.nvml import describe_devices
from bench.plan.case import DeviceInfo, Machine

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and nothing is made in it


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
    # A list of the user's own is in the order that was meant.
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
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
    devices = [_device(index) for index in range(count)]
    places = describe_devices(devices) if kind == "cuda" else []
    if "CUDA_VISIBLE_DEVICES" not in os.environ and len(places) > 1:
        devices = [
            devices[index] for index in near_order([place["links"] or {} for place in places])
        ]
    return Machine(
        cores=cores,
        core_speeds=core_speeds(cores),
        cpu_flags=tuple(cpu_flags(read_text(Path("/proc/cpuinfo"))) or ()),
        accelerator=kind,
        devices=tuple(devices),
        reduces_in_switch=bool(places) and may_reduce_in_switch(places, _capability()),
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


def _capability() -> int:
    """Major compute capability of the first device; 0 for those that have none."""
    import torch  # noqa: PLC0415 - see ``probe``

    return 0 if torch.version.hip is not None else torch.cuda.get_device_capability(0)[0]


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
