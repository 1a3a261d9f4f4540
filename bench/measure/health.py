"""How NVIDIA's devices are before a run: all that spoils a figure and stands in NVML.

NVML is asked through ``bench.measure.nvml``, and starts no context on a device.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bench.measure.nvml import ENABLED, SLOWED_DOWN, Nvml, bus_of, opened, text_of

VOLATILE, UNCORRECTED = 0, 1
"""NVML_VOLATILE_ECC: since the driver was loaded. NVML_MEMORY_ERROR_TYPE_UNCORRECTED."""
PROHIBITED, EXCLUSIVE = 2, 3
"""nvmlComputeMode_t: no process, or one, may compute on the device."""
ALL_PROCESSES = "all processes"


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One device; None where NVML does not tell."""

    index: int
    """NVML's own, in the order of the bus."""
    name: str | None = None
    uuid: str | None = None
    bus: str | None = None
    memory_used: int | None = None
    """Bytes, by whichever process."""
    memory_total: int | None = None
    """Bytes."""
    utilisation: float | None = None
    """Share of the time just past in which some kernel ran."""
    processes: int | None = None
    """That compute on it."""
    slowed_down: bool | None = None
    """By heat, by a power brake, or by the hardware."""
    temperature_c: int | None = None
    is_split: bool | None = None
    """MIG: the device is cut into instances."""
    uncorrected_errors: int | None = None
    """ECC errors since the driver was loaded that could not be corrected."""
    needs_reset: bool | None = None
    """Rows of its memory wait for being remapped, or could not be."""
    is_persistent: bool | None = None
    """The driver stays loaded while nobody uses the device."""
    forbids: str | None = None
    """Compute mode other than the default."""
    pcie_width: int | None = None
    """Lanes in use."""
    pcie_width_max: int | None = None
    """Lanes that device and slot could use."""


def has_package() -> bool:
    """Whether NVML's Python package is installed: the extra named gpu."""
    return importlib.util.find_spec("pynvml") is not None


def look_at_devices(visible: str | None) -> tuple[DeviceHealth, ...] | None:
    """The devices' health; None where NVML cannot be asked.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``, or None for all devices.
    """
    with opened() as nvml:
        if nvml is None:
            return None
        count = nvml.ask("nvmlDeviceGetCount") or 0
        handles = [nvml.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        uuids = [text_of(nvml.ask("nvmlDeviceGetUUID", one)) if one else None for one in handles]
        return tuple(
            _health(nvml, index, handles[index], uuids[index]) for index in chosen(uuids, visible)
        )


def driver_cuda() -> int | None:
    """Newest CUDA that the driver supports: 13000 is 13.0, 12040 is 12.4."""
    with opened() as nvml:
        if nvml is None:
            return None
        answer = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if answer is None else int(answer)


def chosen(uuids: Sequence[str | None], visible: str | None) -> list[int]:
    """Which devices a ``CUDA_VISIBLE_DEVICES`` names, numbers counting in the order of the bus.

    As CUDA does it, the list ends before the first name that means no device. A slice of a device,
    whose name starts with MIG, is not looked at.

    >>> chosen(["GPU-a", "GPU-b", "GPU-c"], "2,GPU-a,7,1")
    [2, 0]
    """
    if visible is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for name in filter(None, (part.strip() for part in visible.split(","))):
        index = _position(name, uuids)
        if index is None:
            break
        found.append(index)
    return found


def _position(name: str, uuids: Sequence[str | None]) -> int | None:
    if name.isdecimal():
        return int(name) if int(name) < len(uuids) else None
    matching = (i for i, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(name))
    return next(matching, None)


def _health(nvml: Nvml, index: int, handle: Any, uuid: str | None) -> DeviceHealth:
    if handle is None:
        return DeviceHealth(index=index)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    utilisation = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    reasons = nvml.slow_reasons(handle)
    split = nvml.ask("nvmlDeviceGetMigMode", handle)  # (now, after the next reset)
    persistent = nvml.ask("nvmlDeviceGetPersistenceMode", handle)
    mode = nvml.ask("nvmlDeviceGetComputeMode", handle)
    return DeviceHealth(
        index=index,
        name=text_of(nvml.ask("nvmlDeviceGetName", handle)),
        uuid=uuid,
        bus=bus_of(nvml.ask("nvmlDeviceGetPciInfo", handle)),
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        utilisation=None if utilisation is None else utilisation.gpu / 100,
        processes=None if processes is None else len(processes),
        slowed_down=None if reasons is None else bool(reasons & SLOWED_DOWN),
        temperature_c=nvml.ask("nvmlDeviceGetTemperature", handle, 0),
        is_split=None if split is None else split[0] == ENABLED,
        uncorrected_errors=nvml.ask("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE),
        needs_reset=_needs_reset(nvml.ask("nvmlDeviceGetRemappedRows", handle)),
        is_persistent=None if persistent is None else persistent == ENABLED,
        forbids={PROHIBITED: ALL_PROCESSES, EXCLUSIVE: "a second process"}.get(mode),
        pcie_width=nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _needs_reset(rows: Iterable[int] | None) -> bool | None:
    """From (corrected, uncorrected, pending, failed): nvmlDeviceGetRemappedRows."""
    if rows is None:
        return None
    _, _, pending, failed = rows
    return bool(pending or failed)
