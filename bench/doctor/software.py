"""Ask torch what it was built with and what it finds: in a child process of its own.

torch may start the accelerator's driver, may hang in it, or may not be importable at all; none of
which must happen to the process that looks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import itertools
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec

from bench.doctor.facts import Software
from bench.errors import one_line
from bench.measure.machine import probe

CHILD = "from bench.doctor.software import print_software; print_software()"
"""Not ``-m``: the package has imported this module by then, which Python warns of."""
PATIENCE_S = 120.0
"""For importing torch from a slow disk and starting the driver of many devices."""


def ask_torch() -> Software:
    """What torch says of itself and of the devices, asked in a child process."""
    command = [sys.executable, "-c", CHILD]
    try:
        child = subprocess.run(  # noqa: S603 - ourselves
            command, capture_output=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Software(failure=f"no answer within {PATIENCE_S:g} s: the driver may hang")
    except OSError as error:
        return Software(failure=f"no process can be started to ask it: {error.strerror}")
    lines = child.stdout.splitlines()
    if child.returncode == 0 and lines:
        return msgspec.json.decode(lines[-1], type=Software)
    said = child.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
    return Software(failure=one_line(f"exit code {child.returncode}: {said[-1]}"))


def print_software() -> None:
    """Entry of the child."""
    sys.stdout.buffer.write(msgspec.json.encode(describe_software()) + b"\n")


def describe_software() -> Software:
    """What torch says, asked directly: starts the accelerator's driver where there is one."""
    torch_version, torchvision_version = _version("torch"), _version("torchvision")
    try:
        import torch  # noqa: PLC0415 - whether it can be imported is the question
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        return Software(failure=_said(error), torch=torch_version, torchvision=torchvision_version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failure, machine = None, None
        try:
            machine = probe()
        except Exception as error:  # noqa: BLE001 - whatever a broken driver raises
            failure = _said(error)
    has_devices = machine is not None and machine.accelerator == "cuda"
    return Software(
        failure=failure,
        torch=torch_version,
        torchvision=torchvision_version,
        torchvision_needs=_needs("torchvision", "torch"),
        torchvision_failure=_torchvision_failure(),
        cuda_build=torch.version.cuda,
        hip_build=torch.version.hip,
        driver_cuda=_driver_cuda(),
        nccl_build=_nccl_build(torch),
        nccl_loaded=_nccl_loaded() if torch.version.cuda else None,
        machine=machine,
        no_peer_access=tuple(_pairs_apart(torch)) if has_devices else (),
        warnings=tuple(dict.fromkeys(one_line(str(one.message), limit=300) for one in caught)),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _needs(package: str, other: str) -> str | None:
    """What a package's metadata asks of another one's version."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires(package) or ():
            found = re.fullmatch(rf"{other}\b\s*\(?([^;()]*)\)?.*", line)
            if found:
                return found[1].strip() or None
    return None


def _torchvision_failure() -> str | None:
    """A torchvision built for another torch fails on import, or does without its operators."""
    try:
        import torch  # noqa: PLC0415 - as above
        import torchvision  # noqa: PLC0415, F401 - registers its operators

        boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        torch.ops.torchvision.nms(boxes, torch.ones(1), 0.5)
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
        return _said(error)
    return None


def _driver_cuda() -> int | None:
    """Asked of the driver's own library, which need not be started for that; None without one."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return number.value or None


def _nccl_build(torch: Any) -> str | None:
    if not hasattr(torch._C, "_nccl_version"):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()[:3]))


def _nccl_loaded() -> str | None:
    """Of the library that torch was linked to, by the loader; None where it is built in."""
    try:
        library = ctypes.CDLL("libnccl.so.2")  # the one loaded already, if torch has loaded it
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return nccl_version(number.value)


def nccl_version(number: int) -> str:
    """NCCL's number as its three parts: NCCL_VERSION in nccl.h.

    >>> nccl_version(23007), nccl_version(2708)
    ('2.30.7', '2.7.8')
    """
    major = 10_000 if number >= 10_000 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _pairs_apart(torch: Any) -> Iterator[tuple[int, int]]:
    for one, other in itertools.combinations(range(torch.cuda.device_count()), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            yield one, other


def _said(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", limit=300)
