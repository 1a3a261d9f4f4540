"""Checks of accelerators: as NVML tells of NVIDIA's, and as torch finds any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.doctor.facts import Facts
from bench.doctor.finding import Check, Verdict, bad, ok, together, unknown, warning
from bench.errors import plural
from bench.measure.health import ALL_PROCESSES, DeviceHealth

MIB, GIB = 2**20, 2**30
INSTALL_EXTRA = "pip install '.[gpu]'"
BUSY = 0.05
"""Share of the time in which kernels of others ran."""
HELD_BYTES, HELD_SHARE = GIB, 0.02
"""In use on a device before we have started: the driver's own part is below one of them."""
SLOW_PATHS = {"SYS": "across sockets", "NODE": "across host bridges"}
"""Of ``nvidia-smi topo``: where transfers leave the PCIe root that a device hangs on."""


def present(facts: Facts) -> Verdict:
    """What there is to measure on."""
    machine = facts.software.machine if facts.software is not None else None
    if machine is not None and machine.accelerator is not None:
        kinds = ", ".join(dict.fromkeys(device.name for device in machine.devices))
        found = f"{len(machine.devices)} {machine.accelerator}: {kinds}"
        if machine.accelerator != "cuda" or (facts.software and facts.software.hip_build):
            return unknown(f"{found}; how they are doing is known of NVIDIA's alone")
        return ok(found) if _told(facts) is not None else _not_told(facts, found)
    there = facts.devices
    if there is not None and there.hinted and there.visible is None:
        return _not_told(facts, f"{plural(there.hinted, 'NVIDIA device')}")
    if there is not None and (there.visible or there.hinted):
        hidden = "CUDA_VISIBLE_DEVICES" in facts.variables and not there.visible
        return ok("hidden by CUDA_VISIBLE_DEVICES") if hidden else unknown("not seen by torch")
    return ok("no accelerator: the CPU is what is measured")


def _not_told(facts: Facts, found: str) -> Verdict:
    """NVML cannot be asked."""
    has_package = facts.devices is not None and facts.devices.has_package
    remedy = "see what nvidia-smi says" if has_package else INSTALL_EXTRA
    return unknown(f"{found}; NVML cannot be asked how they are doing", remedy)


def _told(facts: Facts) -> Sequence[DeviceHealth] | None:
    """The devices that NVML tells of; None without any."""
    return (facts.devices.visible or None) if facts.devices is not None else None


def _each(
    facts: Facts,
    judge: Callable[[DeviceHealth], Verdict | None],
    is_told: Callable[[DeviceHealth], bool],
    otherwise: str,
) -> Verdict | None:
    """One question to every device."""
    devices = _told(facts)
    if devices is None:
        return None
    problems = [judge(device) for device in devices]
    if not any(problems) and not any(map(is_told, devices)):
        return unknown("the driver does not tell")
    return together(problems, ok(otherwise))


def busy(facts: Facts) -> Verdict | None:
    """Whether others use the devices."""
    remedy = "end those processes (nvidia-smi names them), or choose other devices"

    def judge(one: DeviceHealth) -> Verdict | None:
        held = one.memory_used or 0
        much = max(HELD_BYTES, HELD_SHARE * (one.memory_total or 0))
        signs = [
            f"{one.utilisation:.0%} busy" if (one.utilisation or 0) > BUSY else "",
            f"{held / GIB:.1f} GiB in use" if held > much else "",
            plural_processes(one.processes) if one.processes else "",
        ]
        said = ", ".join(filter(None, signs))
        if not said:
            return None
        verdict = bad if (one.utilisation or 0) > 0.5 else warning
        return verdict(f"device {one.index}: {said}", remedy)

    told = ("utilisation", "memory_used", "processes")
    return _each(
        facts,
        judge,
        lambda one: any(getattr(one, name) is not None for name in told),
        "nobody uses the devices",
    )


def plural_processes(count: int) -> str:
    """A number of processes that compute.

    >>> plural_processes(1), plural_processes(2)
    ('1 process', '2 processes')
    """
    return "1 process" if count == 1 else f"{count} processes"


def slowed(facts: Facts) -> Verdict | None:
    """Whether a device slows itself down already."""

    def judge(one: DeviceHealth) -> Verdict | None:
        if not one.slowed_down:
            return None
        heat = f" at {one.temperature_c} degrees" if one.temperature_c is not None else ""
        return bad(
            f"device {one.index} is slowed down by heat or power{heat}",
            "look after its cooling and power: nvidia-smi -q -d PERFORMANCE",
        )

    return _each(facts, judge, lambda one: one.slowed_down is not None, "none is slowed down")


def alike(facts: Facts) -> Verdict | None:
    """Whether the devices are of one model, in alike slots."""
    devices = _told(facts)
    if devices is None:
        return None
    models = dict.fromkeys(one.name or "?" for one in devices)
    narrow = [
        one
        for one in devices
        if one.pcie_width and one.pcie_width_max and one.pcie_width < one.pcie_width_max
    ]
    return together(
        [
            warning(
                f"{len(models)} models: {', '.join(models)}",
                "name alike ones in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID",
            )
            if len(models) > 1
            else None,
            *(
                warning(
                    f"device {one.index} has {one.pcie_width} of {one.pcie_width_max} PCIe lanes",
                    "seat it anew, or use a slot with all lanes",
                )
                for one in narrow
            ),
        ],
        ok(f"{len(devices)} x {next(iter(models))}"),
    )


def split(facts: Facts) -> Verdict | None:
    """Whether a device is cut into slices, or refuses processes."""

    def judge(one: DeviceHealth) -> Verdict | None:
        if one.is_split:
            return warning(
                f"device {one.index} is in MIG mode: a process sees one slice, and NCCL joins none",
                "use whole devices; the mode is changed by an administrator: nvidia-smi -mig 0",
            )
        if one.forbids:
            verdict = bad if one.forbids == ALL_PROCESSES else warning
            return verdict(
                f"device {one.index} refuses {one.forbids}",
                f"sudo nvidia-smi -i {one.index} -c DEFAULT",
            )
        return None

    return _each(
        facts, judge, lambda one: one.is_split is not None or one.name is not None, "whole devices"
    )


def errors(facts: Facts) -> Verdict | None:
    """Memory errors that ECC could not correct."""

    def judge(one: DeviceHealth) -> Verdict | None:
        if one.needs_reset:
            return bad(
                f"device {one.index} has memory that waits to be remapped, or cannot be",
                "have the device reset; if it stays so, replaced",
            )
        if one.uncorrected_errors:
            return bad(
                f"device {one.index}: {one.uncorrected_errors} memory errors not corrected",
                "have the device reset, and watch nvidia-smi -q -d ECC",
            )
        return None

    return _each(
        facts,
        judge,
        lambda one: one.uncorrected_errors is not None or one.needs_reset is not None,
        "none",
    )


def persistence(facts: Facts) -> Verdict | None:
    """Whether the driver stays loaded between launches."""

    def judge(one: DeviceHealth) -> Verdict | None:
        if one.is_persistent is not False:
            return None
        return warning(f"device {one.index}: off", "sudo nvidia-smi -pm 1")

    return _each(facts, judge, lambda one: one.is_persistent is not None, "on")


def topology(facts: Facts) -> Verdict | None:
    """The slowest path between two devices, and whether they reach each other's memory."""
    devices, there = _told(facts), facts.devices
    if devices is None or there is None or len(devices) < 2:
        return None
    paths = [path for one in there.links for path in one.values() if path is not None]
    apart = facts.software.no_peer_access if facts.software is not None else ()
    slow = [path for path in SLOW_PATHS if path in paths]
    problems = [
        warning(
            f"some pairs are joined {SLOW_PATHS[slow[0]]} only ({slow[0]})",
            "choose devices that are near each other (nvidia-smi topo -m), and expect the slowest "
            "pair's rate",
        )
        if slow
        else None,
        warning(
            f"no peer access between {_pairs(apart)}: copies go through the host",
            "expected on consumer cards; else switch off ACS and the IOMMU for them",
        )
        if apart
        else None,
    ]
    if not paths and not apart:
        return unknown("the driver does not tell how the devices are joined")
    kinds = ", ".join(f"{paths.count(kind) // 2 or 1} x {kind}" for kind in dict.fromkeys(paths))
    return together(problems, ok(f"pairs: {kinds}"))


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    shown = [f"{one} and {other}" for one, other in pairs]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more pairs" if len(shown) > 4 else "")


def near(facts: Facts) -> Verdict | None:
    """Whether this process may use cores on each device's NUMA node."""
    devices, there = _told(facts), facts.devices
    if devices is None or there is None:
        return None
    told = [count for count in there.cores_near if count is not None]
    if not told:
        return ok("one NUMA node, or the system does not tell of more")
    far = [
        str(one.index) for one, count in zip(devices, there.cores_near, strict=True) if count == 0
    ]
    if not far:
        return ok(f"{min(told)} logical CPUs or more near each device")
    return warning(
        f"no core may be used on the NUMA node of devices {', '.join(far)}",
        "widen the affinity (taskset, --cpuset-cpus), or choose devices near the cores allowed",
    )


CHECKS = (
    Check(
        name="devices",
        spoils="timing",
        why="what is not known of a device cannot be flagged beside its figures",
        examine=present,
    ),
    Check(
        name="devices in use",
        spoils="timing",
        why="kernels and memory of others come between ours, and the slowest device sets the pace",
        examine=busy,
    ),
    Check(
        name="throttling",
        spoils="timing",
        why="a device that is slowed down measures its cooling",
        examine=slowed,
    ),
    Check(
        name="alike devices",
        spoils="timing",
        why="the slowest device sets the pace of all",
        examine=alike,
    ),
    Check(
        name="whole devices",
        spoils="launch",
        why="ranks need a whole device each, which lets a second process in to be asked",
        examine=split,
    ),
    Check(
        name="memory errors",
        spoils="launch",
        why="a process that touches faulty memory is ended",
        examine=errors,
    ),
    Check(
        name="persistence",
        spoils="timing",
        why="without it the driver starts anew for every launch, which takes seconds",
        examine=persistence,
    ),
    Check(
        name="topology",
        spoils="timing",
        why="a ring is as fast as its slowest pair",
        examine=topology,
    ),
    Check(
        name="nearness",
        spoils="timing",
        why="copies to a device of another NUMA node cross the link between sockets",
        examine=near,
    ),
)
