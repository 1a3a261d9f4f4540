from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measure.device import (
    AcceleratorDevice,
    CpuDevice,
    core_sets,
    is_out_of_memory,
    near_cores,
    open_device,
    visible_devices,
)
from bench.plan.case import Machine
from tests.fakes import EIGHT_GPUS, TWO_CORES, make_case


class FakeAccelerator:
    """torch.accelerator with a device that has an allocator and other programs' memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.used = 10
        self.allocated = 0
        self.reserved = 0
        self.stats: dict[str, int] = {}

    def set_device_index(self, index: int) -> None:
        self.calls.append(("set_device_index", index))

    def synchronize(self, index: int) -> None:
        self.calls.append(("synchronize", index))

    def max_memory_allocated(self, index: int) -> int:
        del index
        return self.allocated

    def memory_allocated(self, index: int) -> int:
        del index
        return self.allocated

    def memory_reserved(self, index: int) -> int:
        del index
        return self.reserved

    def memory_stats(self, index: int) -> dict[str, int]:
        del index
        return self.stats

    def max_memory_reserved(self, index: int) -> int:
        del index
        return 0

    def reset_peak_memory_stats(self, index: int) -> None:
        self.calls.append(("reset", index))
        self.allocated = 0

    def get_memory_info(self, index: int) -> tuple[int, int]:
        del index
        return 100 - self.used, 100


class FakeModule:
    """torch.cuda with a device on a known place of the bus."""

    def __init__(self, **place: int) -> None:
        self.place = place

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name=f"device {index}", **self.place)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    fake = FakeAccelerator()
    monkeypatch.setattr(torch, "accelerator", fake)
    return fake


def test_an_accelerator_is_claimed_by_its_own_index(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_device_module", lambda _: FakeModule())
    case = make_case(device="cuda", backend="nccl", world_size=8)
    device = open_device(case, [3], [(0, 1, 2, 3)] * 4)
    device.claim()
    assert accelerator.calls == [("set_device_index", 3)]
    assert threads == [4]
    assert device.torch_device == torch.device("cuda", 3)
    assert device.group_device == torch.device("cuda", 3)


def test_only_nccl_is_told_its_device() -> None:
    for backend in ("gloo", None):
        assert AcceleratorDevice("cuda", [0], backend).group_device is None
    assert CpuDevice((0,)).group_device is None


def test_driver_use_is_the_largest_at_block_ends_less_what_was_there(
    accelerator: FakeAccelerator,
) -> None:
    device = AcceleratorDevice("cuda", [0], "nccl", used_before=[10])
    accelerator.used = 90  # warm-up
    accelerator.used = 40
    device.reset_peaks()
    for accelerator.used in (50, 70, 60):
        device.sample_memory()
    accelerator.allocated = 55
    (peaks,) = device.peaks()
    assert peaks.driver == 60
    assert peaks.allocated == 55
    assert peaks.reserved is None  # torch's 0 means that there is no such figure


def test_what_is_left_is_what_nobody_uses_and_what_the_allocator_holds(
    accelerator: FakeAccelerator,
) -> None:
    device = AcceleratorDevice("cuda", [0], "nccl")
    accelerator.used, accelerator.reserved, accelerator.allocated = 60, 50, 20
    assert device.free_bytes() == 100 - 60 + 50 - 20
    accelerator.stats = {"num_alloc_retries": 3}
    assert device.allocator_retries() == 3
    accelerator.stats = {}  # an allocator that does not count them
    assert device.allocator_retries() == 0
    assert (CpuDevice((0,)).free_bytes(), CpuDevice((0,)).allocator_retries()) == (None, 0)


def test_a_cpu_has_no_allocator_figures() -> None:
    device = CpuDevice((0,))
    device.reset_peaks()
    (peaks,) = device.peaks()
    assert (peaks.allocated, peaks.reserved, peaks.driver) == (None, None, None)
    assert peaks.process is None or peaks.process > 0


def test_a_cpu_device_is_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, tuple[int, ...]]] = []
    threads: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, cores)))
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    CpuDevice((4, 5)).claim()
    assert pinned == [(0, (4, 5))]
    assert threads == [2]


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True)])
def test_fp32_means_fp32(precision: Any, allowed: bool) -> None:
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        AcceleratorDevice("cuda", [0], "nccl").set_precision(precision)
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def test_a_rank_stays_on_its_devices_numa_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3, 9})
    device = tmp_path / "bus/pci/devices/0000:1a:00.0"
    node = tmp_path / "devices/system/node/node1"
    for folder in (device, node):
        folder.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (node / "cpulist").write_text("2-3,8\n")
    module = FakeModule(pci_domain_id=0, pci_bus_id=0x1A, pci_device_id=0)
    assert near_cores(module, 0, tmp_path) == {2, 3}
    (device / "numa_node").write_text("-1\n")  # a machine with one node
    assert near_cores(module, 0, tmp_path) == frozenset()
    assert near_cores(FakeModule(), 0, tmp_path) == frozenset()


def test_cores_are_disjoint_until_they_run_out() -> None:
    machine = Machine(cores=(0, 2, 4, 6, 8))
    assert core_sets(machine, cores_per_device=2, devices=3) == [(0, 2), (4, 6), (0, 2)]
    assert core_sets(machine, cores_per_device=8, devices=1) == [(0, 2, 4, 6, 8)]
    # On accelerators, the share of one device of the machine, however many the case uses.
    shares = [core_sets(EIGHT_GPUS, cores_per_device=None, devices=count) for count in (1, 4)]
    assert [len(one) for one in shares[1]] == [8] * 4
    assert shares[0][0] == shares[1][0]


def test_ranks_see_exactly_the_devices_of_their_case() -> None:
    two = visible_devices(make_case(device="cuda", world_size=2), EIGHT_GPUS)
    four = visible_devices(make_case(device="cuda", world_size=4), EIGHT_GPUS)
    assert two == {"CUDA_VISIBLE_DEVICES": "GPU-00000000,GPU-00000001"}
    assert four["CUDA_VISIBLE_DEVICES"].startswith(two["CUDA_VISIBLE_DEVICES"])
    assert visible_devices(make_case(), TWO_CORES) == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."), True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 9 bytes"
            ),
            True,
        ),
        (torch.distributed.DistBackendError("NCCL error: Failed to CUDA calloc 1 bytes"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_peaks_of_a_real_device_are_reset() -> None:
    device = AcceleratorDevice(torch.accelerator.current_accelerator().type, [0], None)  # type: ignore[union-attr]
    device.claim()
    big = torch.ones(2**28, device=device.torch_device)
    del big
    device.reset_peaks()
    small = torch.ones(2**20, device=device.torch_device)
    (peaks,) = device.peaks()
    del small
    assert peaks.allocated is not None
    assert 2**22 <= peaks.allocated < 2**28
    assert peaks.reserved is not None
    assert peaks.reserved >= 2**30


def test_the_accelerators_clock_uses_events_of_its_own_device(
    accelerator: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, bool]] = []

    def event(device: Any, *, enable_timing: bool) -> Any:
        made.append((device, enable_timing))
        return SimpleNamespace(record=lambda: None, elapsed_time=lambda _: 2.0)

    monkeypatch.setattr(torch, "Event", event)
    clock = AcceleratorDevice("cuda", [1], "nccl").clock()
    clock.start()
    clock.mark("optimizer")
    assert clock.stop().step_s == [0.002]
    assert made == [(torch.device("cuda", 1), True)] * 2
    assert accelerator.calls == [("synchronize", 1)] * 2


def test_one_process_that_drives_several_devices_looks_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Several(FakeAccelerator):
        """Devices whose figures tell them apart."""

        def max_memory_allocated(self, index: int) -> int:
            return 1000 + index

        def get_memory_info(self, index: int) -> tuple[int, int]:
            return 100 - self.used - index, 100

    fake = Several()
    monkeypatch.setattr(torch, "accelerator", fake)
    case = make_case(device="cuda", strategy="dp", world_size=3)
    device = open_device(case, range(3), [(0,)] * 3, used_before=(1, None, 3))
    device.synchronize()
    assert [call for call in fake.calls if call[0] == "synchronize"] == [
        ("synchronize", 0),
        ("synchronize", 1),
        ("synchronize", 2),
    ]
    device.reset_peaks()
    fake.used = 60
    device.sample_memory()
    peaks = device.peaks()
    assert [peak.allocated for peak in peaks] == [1000, 1001, 1002]
    assert [peak.driver for peak in peaks] == [
        60 - 1,
        None,
        62 - 3,
    ]  # less what the parent saw before
    assert [peak.process is not None for peak in peaks[1:]] == [False, False]
    device.enter(2)
    assert fake.calls[-1] == ("set_device_index", 2)
