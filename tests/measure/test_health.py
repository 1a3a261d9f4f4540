from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench.measure.health import chosen, driver_cuda, look_at_devices
from tests.measure.nvmls import FakeNvml


def box(*names: str, **answers: Any) -> FakeNvml:
    fixed: dict[str, Any] = {
        "nvmlDeviceGetCount": lambda: len(names),
        "nvmlDeviceGetHandleByIndex": lambda index: names[index],
        "nvmlDeviceGetUUID": lambda one: one.encode(),
    }
    return FakeNvml(*names, **(fixed | answers))


def test_health_is_in_our_units(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = box(
        "GPU-a",
        nvmlDeviceGetName=lambda _: "NVIDIA A100",
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:1A:00.0"),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=7, total=80),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=50),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=1)],
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x40,
        nvmlDeviceGetTemperature=lambda _, kind: {0: 91}[kind],
        nvmlDeviceGetMigMode=lambda _: (1, 0),
        nvmlDeviceGetTotalEccErrors=lambda _, kind, counter: {(1, 0): 3}[kind, counter],
        nvmlDeviceGetRemappedRows=lambda _: (0, 0, 1, 0),
        nvmlDeviceGetPersistenceMode=lambda _: 0,
        nvmlDeviceGetComputeMode=lambda _: 3,
        nvmlDeviceGetCurrPcieLinkWidth=lambda _: 8,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _: 16,
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = look_at_devices(None)
    assert found is not None
    (one,) = found
    assert (one.name, one.uuid, one.bus) == ("NVIDIA A100", "GPU-a", "0000:1a:00.0")
    assert (one.memory_used, one.memory_total, one.utilisation, one.processes) == (7, 80, 0.5, 1)
    assert (one.slowed_down, one.temperature_c, one.is_split) == (True, 91, True)
    assert (one.uncorrected_errors, one.needs_reset, one.is_persistent) == (3, True, False)
    assert (one.forbids, one.pcie_width, one.pcie_width_max) == ("a second process", 8, 16)
    assert driver_cuda() == 12080


def test_a_device_that_says_nothing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", box("GPU-a", "GPU-b"))
    found = look_at_devices("1")
    assert found is not None
    assert [(one.index, one.uuid, one.utilisation) for one in found] == [(1, "GPU-b", None)]
    assert driver_cuda() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert look_at_devices(None) is None
    assert driver_cuda() is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-b", [1]),
        ("0,-1,1", [0]),
        ("MIG-GPU-a/1/0", []),
        ("1,9,0", [1]),
    ],
)
def test_only_visible_devices_are_looked_at(visible: str | None, expected: list[int]) -> None:
    assert chosen(["GPU-a", "GPU-b", None], visible) == expected
