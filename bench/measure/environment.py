"""What a figure depends on beside the case: recorded once a run, and hashed for comparison."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import torch

import bench
from bench.measure.cores import read_text
from bench.measure.host import cpu_model, describe_host, numa_node
from bench.measure.nvml import describe_devices, driver_version
from bench.plan.case import Machine

PACKAGES = ("torch", "torchvision", "numpy", "deepspeed")
VARIABLES = re.compile(
    r"^(OMP_|MKL_|OPENBLAS_|KMP_|GOMP_|NCCL_|TORCH_|PYTORCH_|GLOO_|CUDA_|HIP_|ROCR_|ONEDNN_|DNNL_"
    r"|UCX_|FI_|ATEN_|MALLOC_|TCMALLOC_|MIMALLOC_|LD_PRELOAD$)"
)
"""Variables that change how fast, or where, training runs: GLOO_SOCKET_IFNAME and
GLOO_DEVICE_TRANSPORT, that choose what carries gloo, are among them."""

GIT_S = 5.0
"""For git to look at a checkout; on a slow disk it may take longer, and is not waited for."""


def versions() -> dict[str, str]:
    """Versions of what computes, this package and Python included.

    NCCL's is asked of the library alone, which starts no driver for that.
    """
    found = {"bench": bench.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    built_with = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    found |= {name: version for name, version in built_with.items() if version}
    if hasattr(torch._C, "_nccl_version"):
        parts = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found["nccl"] = ".".join(map(str, parts))
    return found


def collect(machine: Machine, root: Path = Path("/")) -> dict[str, Any]:
    """The environment of a run on this machine, as plain data; None where a fact does not exist.

    Args:
        machine: as a child process found it.
        root: of the file system.
    """
    return {
        "cpu": cpu_model(root) or platform.processor(),
        "cores": list(machine.cores),
        "memory_bytes": machine.memory_bytes,
        **describe_host(machine.cores, root),
        "accelerator": machine.accelerator,
        "devices": _devices(machine, root),
        "driver": _driver(machine, root),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)
        },
        "versions": versions(),
        "source": source_digest(),
        "commit": commit(Path(bench.__file__).parent.parent),
    }


def _devices(machine: Machine, root: Path) -> list[dict[str, Any]]:
    on_nvml = machine.accelerator == "cuda"
    places = describe_devices(machine.devices) if on_nvml else [{} for _ in machine.devices]
    return [
        {
            **msgspec.to_builtins(device),
            **place,
            "numa_node": numa_node(place["pci_bus"], root) if place.get("pci_bus") else None,
        }
        for device, place in zip(machine.devices, places, strict=True)
    ]


def _driver(machine: Machine, root: Path) -> str | None:
    """Version of the accelerators' driver, from NVIDIA's own file where it can be read."""
    text = read_text(root / "proc/driver/nvidia/version")
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s", text, re.MULTILINE)
    if found:
        return found[1]
    return driver_version() if machine.accelerator == "cuda" else None


def commit(checkout: Path) -> str | None:
    """Git's commit of a checkout, with ``-dirty`` behind it if the code there is another.

    None where the package does not lie in a checkout of its own, or git cannot tell.
    """
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    command = [git, "--no-optional-locks", "-C", str(checkout), "status"]
    command += ["--porcelain=v2", "--branch", "--", "bench", "workloads"]
    try:
        done = subprocess.run(  # noqa: S603 - git, with arguments of our own
            command, capture_output=True, text=True, timeout=GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    found = re.search(r"^# branch\.oid ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    if found is None:  # nothing has been committed yet
        return None
    is_dirty = any(not line.startswith("#") for line in done.stdout.splitlines())
    return f"{found[1]}-dirty" if is_dirty else found[1]


def source_digest() -> str:
    """Short hash of this package's own code and suites: tells runs of edited trees apart."""
    state = hashlib.blake2b(digest_size=6)
    site = Path(bench.__file__).parent.parent
    for package in (site / "bench", site / "workloads"):
        for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
            state.update(str(path.relative_to(site)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
