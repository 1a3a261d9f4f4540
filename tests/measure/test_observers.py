from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.measure.observers import observers
from tests.measure.trees import write_tree

NO_PROC = Path("/nowhere")


def in_a_new_thread(prepare: Callable[[], None]) -> tuple[str, ...]:
    """What is found in a thread without the hooks that the tests themselves may run under."""
    found: list[tuple[str, ...]] = []

    def look() -> None:
        sys.settrace(None)
        sys.setprofile(None)
        prepare()
        found.append(observers({}, NO_PROC))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def alone(names: tuple[str, ...]) -> set[str]:
    """Without those that belong to the test run."""
    return {name for name in names if not name.startswith("sys.monitoring")}


def test_nothing_observes_a_plain_process() -> None:
    assert alone(in_a_new_thread(lambda: None)) == set()


def test_hooks_of_python_are_seen() -> None:
    assert "sys.settrace" in in_a_new_thread(lambda: sys.settrace(lambda *_: None))
    assert "sys.setprofile" in in_a_new_thread(lambda: sys.setprofile(lambda *_: None))


def test_tracing_of_memory_is_seen() -> None:
    tracemalloc.start()
    try:
        assert "tracemalloc" in observers({}, NO_PROC)
    finally:
        tracemalloc.stop()
    assert "tracemalloc" not in observers({}, NO_PROC)


def test_torchs_own_observers_are_seen() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert "torch.profiler" in observers({}, NO_PROC)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert "autograd's anomaly mode" in observers({}, NO_PROC)
    assert not {"torch.profiler", "autograd's anomaly mode"} & set(observers({}, NO_PROC))


@pytest.mark.parametrize(
    ("name", "value", "is_seen"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("CUDA_LAUNCH_BLOCKING", "0", False),
        ("CUDA_LAUNCH_BLOCKING", "", False),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", False),
        ("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so", True),
        ("LD_PRELOAD", "/usr/lib/libasan.so.8", True),
        ("LD_PRELOAD", "/usr/lib/libclang_rt.tsan-x86_64.so", True),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2:/usr/lib/libiomp5.so", False),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_variables_that_slow_a_program(name: str, value: str, is_seen: bool) -> None:
    assert (name in observers({name: value}, NO_PROC)) is is_seen


def test_a_debugger_is_seen(tmp_path: Path) -> None:
    write_tree(tmp_path, {"self/status": "Name:\tpython\nTracerPid:\t42"})
    assert "ptrace" in observers({}, tmp_path)
    write_tree(tmp_path, {"self/status": "Name:\tpython\nTracerPid:\t0"})
    assert "ptrace" not in observers({}, tmp_path)
