from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench.measure.nvml import (
    DeviceReader,
    Nvml,
    describe_devices,
    driver_version,
    opened,
    used_before,
)
from bench.plan.case import DeviceInfo
from tests.fakes import EIGHT_GPUS, make_case
from tests.measure.nvmls import FakeNvml

NAMES = [device.visible_as for device in EIGHT_GPUS.devices]
FOUR = [DeviceInfo(name="a", visible_as=name) for name in "ABCD"]
BUSES = {"A": "00000000:1A:00.0", "B": "00000000:1B:00.0", "C": "00000000:3D:00.0"}
"""D is not known to NVML."""


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_what_was_used_before_is_asked_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {name: 10 * number for number, name in enumerate(NAMES)}

    def info(one: str, version: int) -> SimpleNamespace:
        assert version == FakeNvml.nvmlMemory_v2  # the first form counts the driver's own part
        return SimpleNamespace(used=used[one])

    nvml = FakeNvml(*NAMES[:3], nvmlDeviceGetMemoryInfo=info)
    install(monkeypatch, nvml)
    case = make_case(device="cuda", world_size=3)
    assert used_before(case, EIGHT_GPUS) == (0, 10, 20)
    assert used_before(make_case(), EIGHT_GPUS) == ()
    four = make_case(device="cuda", world_size=4)
    assert used_before(four, EIGHT_GPUS) == (0, 10, 20, None)
    assert nvml.opened == 0
    install(monkeypatch, None)
    assert used_before(case, EIGHT_GPUS) == ()


def test_a_driver_that_does_not_start_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError

    install(monkeypatch, Broken())
    with opened() as nvml:
        assert nvml is None
    assert driver_version() is None


def box(**answers: Any) -> FakeNvml:
    def ancestor(one: str, other: str) -> int:
        return 10 if {one, other} == {"A", "B"} else 50

    return FakeNvml(
        *BUSES,
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlDeviceGetPciInfo=lambda one: SimpleNamespace(busId=BUSES[one]),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _: 4,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _: 16,
        nvmlDeviceGetTopologyCommonAncestor=ancestor,
        **answers,
    )


def test_devices_on_pcie_are_as_fast_as_their_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, box())
    first, _, third, unknown = describe_devices(FOUR)
    assert first["pci_bus"] == "0000:1a:00.0"
    assert (first["pcie_generation"], first["pcie_width"], first["nvlinks"]) == (4, 16, 0)
    assert first["link_bytes_per_s"] == pytest.approx(31.5e9, rel=1e-3)  # 16 lanes of 1.969 GB/s
    assert first["links"] == {"1": "PIX", "2": "SYS", "3": None}
    assert third["links"]["0"] == "SYS"
    assert set(unknown.values()) == {None}
    assert driver_version() == "580.95.05"


def test_nvlinks_lead_to_a_device_or_to_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    # A and B are joined by four links; C has two to a switch.
    count = {"A": 4, "B": 4, "C": 2}
    peers = {"A": BUSES["B"], "B": BUSES["A"], "C": "00000000:FF:00.0"}
    nvml = box(
        nvmlDeviceGetNvLinkState=lambda one, link: int(link < count[one]),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda one, _: 2 if one == "C" else 0,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda one, _: SimpleNamespace(busId=peers[one].encode()),
    )
    nvml.fields[nvml.NVML_FI_DEV_NVLINK_GET_SPEED] = 25_000  # MB/s
    install(monkeypatch, nvml)
    first, second, third, _ = describe_devices(FOUR)
    assert first["links"] == {"1": "NV4", "2": "SYS", "3": None}
    assert (first["link_bytes_per_s"], third["link_bytes_per_s"]) == (100e9, 50e9)
    assert second["links"]["0"] == "NV4"
    assert third["links"] == {"0": "NVSwitch", "1": "NVSwitch", "3": None}
    nvml.fields.clear()
    first, *_ = describe_devices(FOUR)
    assert (first["nvlinks"], first["link_bytes_per_s"]) == (4, None)  # not told: no guess


def test_without_nvml_nothing_is_known_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert [set(one.values()) for one in describe_devices(FOUR)] == [{None}] * 4
    assert driver_version() is None


def reader(nvml: FakeNvml, *pids: int) -> DeviceReader:
    return DeviceReader(Nvml(nvml), "A", lambda: pids)


def busy() -> FakeNvml:
    return box(
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=75),
        nvmlDeviceGetClockInfo=lambda _, kind: {1: 1980}[kind],
        nvmlDeviceGetTemperature=lambda _, kind: {0: 61}[kind],
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: 9_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4,
        nvmlDeviceGetPcieThroughput=lambda _, way: {0: 100, 1: 200}[way],
    )


def test_a_look_at_a_device_is_in_our_units() -> None:
    nvml = busy()
    sample = reader(nvml).read(5.0, thorough=True)
    assert (sample.at_s, sample.utilisation, sample.clock_hz) == (5.0, 0.75, 1.98e9)
    assert (sample.temperature_c, sample.power_w, sample.energy_j) == (61, 350.0, 9.0)
    assert (sample.pcie_tx_bytes_per_s, sample.pcie_rx_bytes_per_s) == (100e3, 200e3)
    assert sample.pcie_rx_bytes is None
    nvml.fields |= {
        nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 7,
        nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 8,
    }
    sample = reader(nvml).read(5.0, thorough=True)
    assert (sample.pcie_tx_bytes, sample.pcie_rx_bytes) == (7, 8)
    assert sample.pcie_rx_bytes_per_s is None
    quick = reader(nvml).read(5.0, thorough=False)
    assert (quick.power_w, quick.pcie_tx_bytes, quick.other_programs) == (350.0, None, None)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (0x0, False),
        (0x1, False),
        (0x4, False),
        (0x8, True),
        (0x20, True),
        (0x44, True),
        (0x80, True),
    ],
)
def test_a_power_cap_is_normal_and_heat_is_not(reasons: int, expected: bool) -> None:
    nvml = busy()
    nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"] = lambda _: reasons
    assert reader(nvml).read(0.0, thorough=False).slowed_down is expected
    nvml.absent.add("nvmlDeviceGetCurrentClocksEventReasons")  # the older name answers 0x4
    assert reader(nvml).read(0.0, thorough=False).slowed_down is False


def test_a_device_that_says_nothing_is_no_obstacle() -> None:
    for nvml in (box(), FakeNvml()):
        sample = reader(nvml).read(1.0, thorough=True)
        assert sample.power_w is None
        assert sample.slowed_down is None
        assert sample.other_programs is None


def test_other_programs_are_those_that_are_not_ours() -> None:
    there: list[int] = [7]
    ours: list[int] = []
    nvml = box(
        nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=one) for one in there]
    )
    one = DeviceReader(Nvml(nvml), "A", lambda: ours)

    def others() -> int | None:
        return one.read(0.0, thorough=True).other_programs

    assert others() == 1
    ours += [100, 101]
    there += [100, 101]
    assert others() == 1
    there += [8]
    assert others() == 2
    # In a container, where ours have numbers that we do not know: only 7 was there before.
    there[:] = [7, 5000, 5001]
    assert others() == 1
    there[:] = [5000, 5001]
    assert others() == 0
