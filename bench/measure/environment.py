"""What a figure depends on beside the case: recorded once a run, and hashed for comparison."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import msgspec

import bench
from bench.plan.case import Machine

PACKAGES = ("torch", "torchvision", "numpy", "deepspeed")
VARIABLES = re.compile(
    r"^(OMP_|MKL_|OPENBLAS_|KMP_|GOMP_|NCCL_|TORCH_|PYTORCH_|GLOO_|CUDA_|HIP_|ROCR_|ONEDNN_|DNNL_"
    r"|MALLOC_|LD_PRELOAD$)"
)
"""Variables that change how fast, or where, training runs."""

PLACES = re.compile(r"(_HOME|_PATH|_DIR|_VISIBLE_DEVICES|_ORDER|_PORT|_ADDR)$")
"""Variables that say where something is, not how fast it runs."""


def versions() -> dict[str, str]:
    """Versions of what computes, this package and Python included."""
    found = {"bench": bench.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def collect(machine: Machine) -> dict[str, Any]:
    """The environment of a run on this machine, as plain data."""
    return {
        "cpu": _cpu_model(),
        "cores": list(machine.cores),
        "memory_bytes": machine.memory_bytes,
        "accelerator": machine.accelerator,
        "devices": [msgspec.to_builtins(device) for device in machine.devices],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)
        },
        "versions": versions(),
        "source": source_digest(),
    }


def source_digest() -> str:
    """Short hash of this package's own code and suites: tells runs of edited trees apart."""
    state = hashlib.blake2b(digest_size=6)
    site = Path(bench.__file__).parent.parent
    for package in (site / "bench", site / "workloads"):
        for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
            state.update(str(path.relative_to(site)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def fingerprint(environment: dict[str, Any]) -> str:
    """Short hash of what must be equal for two figures to be compared.

    Hardware, versions and variables, but for those that only say where something is.
    """
    devices = [device["name"] for device in environment["devices"]]
    relevant = {
        "cpu": environment["cpu"],
        "cores": len(environment["cores"]),
        "devices": devices,
        "variables": {
            name: value
            for name, value in environment["variables"].items()
            if not PLACES.search(name)
        },
        "versions": environment["versions"],
    }
    payload = msgspec.json.encode(relevant, order="deterministic")
    return hashlib.blake2b(payload, digest_size=6).hexdigest()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor()
