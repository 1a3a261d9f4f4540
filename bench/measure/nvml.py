"""All that is asked of NVML: what NVIDIA's devices are, how they are linked, how they are doing.

NVML starts no context on a device in the process that asks, so the parent of a run may ask it. Its
Python package is the extra named gpu; where that, the driver or one answer is missing, there is a
None. Numbers and units are those of nvml.h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure.conditions import DeviceSample
from bench.plan.case import DeviceInfo, Machine, Placed

VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Of a field's value, by the number of its type: nvmlValueType_t."""
PATHS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Nearest common ancestor of two devices, nvmlGpuTopologyLevel_t, in the words of
``nvidia-smi topo``: one PCIe switch, several, a host bridge, a NUMA node, the whole system."""
MAX_NVLINKS = 36
ENABLED = 1
TO_SWITCH = 2
"""nvmlIntNvLinkDeviceType_t of an NVSwitch."""
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One PCIe lane, one way, by generation: the line rate less its encoding."""
SM_CLOCK, TEMPERATURE = 1, 0
"""NVML_CLOCK_SM, NVML_TEMPERATURE_GPU."""
PCIE_TX, PCIE_RX = 0, 1
"""nvmlPcieUtilCounter_t."""
SLOWED_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Reasons for low clocks that are faults of the place: hardware slowdown, thermal slowdown by
software and by hardware, power brake. The software's power cap is normal under load."""


class Nvml:
    """The library, opened.

    Args:
        module: ``pynvml``.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def ask(self, name: str, *arguments: Any) -> Any:
        """What a function answers; None where this package, driver or device has no answer."""
        function = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._module.NVMLError:
            return None

    def scaled(self, factor: float, name: str, *arguments: Any) -> float | None:
        """A number that a function answers, in another unit."""
        answer = self.ask(name, *arguments)
        return None if answer is None else answer * factor

    def field(self, handle: Any, name: str, scope: int = 0) -> int | None:
        """A field's value, of one link where it has one for each."""
        number = getattr(self._module, name, None)
        values = self.ask("nvmlDeviceGetFieldValues", handle, [(number, scope)]) if number else None
        if not values or values[0].nvmlReturn != 0:
            return None
        return int(getattr(values[0].value, VALUE_MEMBERS[values[0].valueType]))

    def used_bytes(self, handle: Any) -> int | None:
        """Memory of a device that is in use, without what the driver keeps for itself.

        Of the second form of NVML's answer: the first counts the driver's part as used, and the
        device's own answer, ``cudaMemGetInfo``, counts it in neither.
        """
        version = getattr(self._module, "nvmlMemory_v2", None)
        if version is None:
            return None
        info = self.ask("nvmlDeviceGetMemoryInfo", handle, version)
        return None if info is None else int(info.used)

    def slow_reasons(self, handle: Any) -> int | None:
        """Why a device's clocks are low, as bits; see ``SLOWED_DOWN``."""
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name of older drivers
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if reasons is None else int(reasons)

    def device(self, name: str) -> Any:
        """Handle of a device by its UUID."""
        return self.ask("nvmlDeviceGetHandleByUUID", name)


@contextlib.contextmanager
def opened() -> Iterator[Nvml | None]:
    """The library for as long as the block runs; None where there is none."""
    try:
        import pynvml  # noqa: PLC0415 - the extra named gpu
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield Nvml(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def used_before(case: Placed, machine: Machine) -> tuple[int | None, ...]:
    """Bytes in use on each of a case's devices while none of its processes is there yet.

    Returns:
        None for a device that cannot be asked; nothing at all where none can.
    """
    if case.device != "cuda":
        return ()
    with opened() as nvml:
        if nvml is None:
            return ()
        handles = [
            nvml.device(one.visible_as) for one in machine.devices[: case.world_size // case.nodes]
        ]
        return tuple(nvml.used_bytes(one) if one else None for one in handles)


def driver_version() -> str | None:
    """Version of NVIDIA's driver."""
    with opened() as nvml:
        return None if nvml is None else text_of(nvml.ask("nvmlSystemGetDriverVersion"))


def describe_devices(devices: Sequence[DeviceInfo]) -> list[dict[str, Any]]:
    """Place and links of each device, as plain data.

    ``link_bytes_per_s`` is what a device can send to the others at once: the sum of its active
    NVLinks, as raw line rates, or else its PCIe link at its best. ``links`` says per other device,
    by its position, what leads there: ``NV4`` for four NVLinks, ``NVSwitch``, or one of ``PATHS``.
    """
    with opened() as nvml:
        if nvml is None:
            return [_facts() for _ in devices]
        handles = [nvml.device(one.visible_as) for one in devices]
        buses = [bus_of(nvml.ask("nvmlDeviceGetPciInfo", one)) if one else None for one in handles]
        return [_describe(nvml, index, handles, buses) for index in range(len(devices))]


def _facts(**known: Any) -> dict[str, Any]:
    names = ("pci_bus", "pcie_generation", "pcie_width", "nvlinks", "links", "link_bytes_per_s")
    return dict.fromkeys(names) | known


def _describe(
    nvml: Nvml, index: int, handles: Sequence[Any], buses: Sequence[str | None]
) -> dict[str, Any]:
    handle = handles[index]
    if handle is None:
        return _facts()
    # The best, not the present: an idle device lets its link fall to the first generation.
    generation = nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
    nvlinks = _nvlinks(nvml, handle)
    return _facts(
        pci_bus=buses[index],
        pcie_generation=generation,
        pcie_width=width,
        nvlinks=len(nvlinks),
        links={
            str(other): _path(nvml, nvlinks, handle, handles[other], buses[other])
            for other in range(len(handles))
            if other != index
        },
        link_bytes_per_s=_rate(nvlinks, generation, width),
    )


@dataclass(frozen=True, kw_only=True)
class _NvLink:
    """One active link of a device."""

    bytes_per_s: float | None
    to_switch: bool
    remote_bus: str | None


def _nvlinks(nvml: Nvml, handle: Any) -> list[_NvLink]:
    found: list[_NvLink] = []
    for link in range(MAX_NVLINKS):
        if nvml.ask("nvmlDeviceGetNvLinkState", handle, link) != ENABLED:
            continue
        speed = nvml.field(handle, "NVML_FI_DEV_NVLINK_GET_SPEED", link) or nvml.field(
            handle, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"
        )
        remote = nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        found.append(
            _NvLink(
                bytes_per_s=speed * 1e6 if speed else None,
                to_switch=remote == TO_SWITCH,
                remote_bus=bus_of(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)),
            )
        )
    return found


def _path(
    nvml: Nvml, nvlinks: Sequence[_NvLink], handle: Any, other: Any, other_bus: str | None
) -> str | None:
    if other is None:
        return None
    direct = sum(link.remote_bus == other_bus is not None for link in nvlinks)
    if direct:
        return f"NV{direct}"
    if any(link.to_switch for link in nvlinks):
        return "NVSwitch"
    return PATHS.get(nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handle, other))


def _rate(nvlinks: Sequence[_NvLink], generation: int | None, width: int | None) -> float | None:
    if nvlinks:
        rates = [link.bytes_per_s for link in nvlinks if link.bytes_per_s is not None]
        return sum(rates) if len(rates) == len(nvlinks) else None
    lane = LANE_BYTES_PER_S.get(generation or 0)
    return lane * width if lane is not None and width is not None else None


def bus_of(info: Any) -> str | None:
    """A place on the bus as ``/sys`` spells it: NVML's domain has eight digits, not four."""
    text = None if info is None else text_of(info.busId)
    if text is None:
        return None
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def text_of(answer: Any) -> str | None:
    """Old packages answer with bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


class DeviceReader:
    """Looks at one device again and again.

    Args:
        nvml: opened.
        name: UUID of the device.
        pids: our processes, as far as they have started.
    """

    def __init__(self, nvml: Nvml, name: str, pids: Callable[[], Iterable[int]]) -> None:
        self._nvml = nvml
        self._handle = nvml.device(name)
        self._pids = pids
        self._there_before: frozenset[int] | None = None

    def read(self, at_s: float, *, thorough: bool) -> DeviceSample:
        """How the device is doing.

        Args:
            at_s: monotonic time.
            thorough: also ask what takes long: PCIe, for which old drivers count during 20 ms a
                direction, and the processes.
        """
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return DeviceSample(at_s=at_s)
        utilisation = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        reasons = nvml.slow_reasons(handle)
        return DeviceSample(
            at_s=at_s,
            utilisation=None if utilisation is None else utilisation.gpu / 100,
            clock_hz=nvml.scaled(1e6, "nvmlDeviceGetClockInfo", handle, SM_CLOCK),
            temperature_c=nvml.ask("nvmlDeviceGetTemperature", handle, TEMPERATURE),
            power_w=nvml.scaled(1e-3, "nvmlDeviceGetPowerUsage", handle),
            energy_j=nvml.scaled(1e-3, "nvmlDeviceGetTotalEnergyConsumption", handle),
            slowed_down=None if reasons is None else bool(reasons & SLOWED_DOWN),
            other_programs=self._others() if thorough else None,
            **(self._pcie() if thorough else {}),
        )

    def _pcie(self) -> dict[str, float | None]:
        """Counters of bytes, or rates where the driver keeps no counters."""
        nvml, handle = self._nvml, self._handle
        received = nvml.field(handle, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES")
        sent = nvml.field(handle, "NVML_FI_DEV_PCIE_COUNT_TX_BYTES")
        if received is not None and sent is not None:
            return {"pcie_rx_bytes": received, "pcie_tx_bytes": sent}
        return {
            "pcie_rx_bytes_per_s": nvml.scaled(1e3, "nvmlDeviceGetPcieThroughput", handle, PCIE_RX),
            "pcie_tx_bytes_per_s": nvml.scaled(1e3, "nvmlDeviceGetPcieThroughput", handle, PCIE_TX),
        }

    def _others(self) -> int | None:
        """Processes of others that compute on the device.

        In a container NVML may number processes as the host does, so that ours are not told from
        others'. Then only those count that were there before ours had started.
        """
        processes = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        if processes is None:
            return None
        there = frozenset(int(one.pid) for one in processes)
        ours = frozenset(self._pids())
        if self._there_before is None:
            self._there_before = frozenset() if ours else there
        return len(there - ours) if there & ours else len(there & self._there_before)
