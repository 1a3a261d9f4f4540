from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench.doctor import network, software
from bench.doctor.gather import (
    gather_quickly,
    look_at_cores,
    look_at_limits,
    look_at_memory,
    look_at_nvidia,
    look_at_place,
    look_at_places,
    read_load,
    shares,
    watch_load,
)
from bench.doctor.leftovers import find_leftovers
from bench.measure.compiler import try_compiler
from bench.measure.counters import CoresUse
from bench.run.scratch import maker_of, scratch
from bench.run.server import PARENT
from tests.measure.nvmls import FakeNvml
from tests.measure.trees import write_tree

MIB = 2**20


def test_quick_facts_are_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOME_SECRET", "no business of ours")
    facts = gather_quickly()
    assert set(facts.cores.usable) <= set(facts.cores.allowed)
    assert facts.memory.total is not None
    assert facts.variables["OMP_NUM_THREADS"] == "3"
    assert "SOME_SECRET" not in facts.variables
    assert (facts.software, facts.devices, facts.compiler) == (None, None, None)


def test_the_load_is_read_without_the_one_that_looks(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/loadavg": "1.50 1.00 0.50 3/345 678"})
    assert (read_load(root).average, read_load(root).runnable) == (1.5, 2)
    assert read_load(tmp_path / "nothing").average is None
    assert read_load(write_tree(tmp_path, {"proc/loadavg": "?"})).average is None


def test_the_look_names_what_computes() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        load = watch_load((0,), look_s=0.6)
    finally:
        busy.kill()
        busy.wait()
    assert all(one.pid != os.getpid() for one in load.busiest)
    assert load.busy is None or 0 <= load.busy <= 1


@pytest.mark.parametrize(
    "use",
    [
        CoresUse(cores=2, cpus=2),
        CoresUse(cores=2, cpus=2, counted_s=0.0, no_program_s=0.0, steal_s=0.0),
        CoresUse(cores=2, cpus=2, counted_s=9.0, no_program_s=1.0, steal_s=0.0),
    ],
)
def test_what_the_kernel_does_not_count_is_not_made_up(use: CoresUse) -> None:
    assert shares(use, 1.0, 0.0) == (None, None)


def test_a_container_has_the_memory_that_its_limit_leaves(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 8192 kB\nMemAvailable: 6144 kB\nSwapTotal: 100 kB\n"
            "SwapFree: 60 kB\nHugePages_Total: 0",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        },
    )
    (root / "dev/shm").mkdir(parents=True)
    memory = look_at_memory(root)
    assert (memory.total, memory.available, memory.swap_used) == (8 * MIB, 6 * MIB, 40 * 1024)
    assert memory.huge_pages == "madvise"
    assert memory.shm_size is not None
    write_tree(
        root,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": str(4 * MIB),
            "sys/fs/cgroup/memory.current": str(3 * MIB),
            "sys/fs/cgroup/memory.stat": f"anon {MIB}\ninactive_file {MIB}",
        },
    )
    memory = look_at_memory(root)
    assert (memory.total, memory.available) == (4 * MIB, 2 * MIB)
    nothing = look_at_memory(tmp_path / "nothing")
    assert (nothing.total, nothing.available, nothing.shm_size) == (None, None, None)


def test_threads_of_cores_that_are_not_ours_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.doctor.gather.usable_cores", lambda: (0,))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    root = write_tree(
        tmp_path,
        {
            "sys/devices/system/cpu/online": "0-3",
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,2",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        },
    )
    cores = look_at_cores(root)
    assert (cores.logical, cores.allowed, cores.foreign_siblings) == (4, (0,), (2,))
    assert cores.governors == ("powersave",)


def test_places(tmp_path: Path) -> None:
    fine = look_at_place("here", tmp_path)
    assert fine.is_writable
    assert fine.free
    assert look_at_place("gone", tmp_path / "gone").free is None
    assert look_at_limits(tmp_path).has_infiniband is False


def test_a_folder_for_temporary_files_that_is_not_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    _, used, asked = look_at_places()
    assert (used.path, used.is_used, used.is_writable) == (str(tmp_path), True, True)
    assert (asked.is_used, asked.free) == (False, None)


def test_folders_of_runs_that_are_gone_are_named_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f"bench-{gone.pid}-abcdefgh"
    reused = tmp_path / f"bench-{os.getpid()}-abcdefgh"
    for folder in (left, reused, tmp_path / "bench-of-somebody"):
        folder.mkdir()
    os.utime(reused, (1, 1))  # from before this process has started
    with scratch() as own:
        assert maker_of(own.name) == os.getpid()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert set(find_leftovers().folders) == {str(left), str(reused)}
        assert own.exists()
    assert left.exists()
    assert not own.exists()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_processes_are_told_by_the_run_they_belong_to(sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    script = [sys.executable, "-c", "import time; time.sleep(60)"]
    orphan = subprocess.Popen(script, env=os.environ | {PARENT: str(gone.pid)})
    child = subprocess.Popen(script, env=os.environ | {PARENT: str(sleeper.pid)})
    try:
        psutil.Process(orphan.pid).cmdline()
        time.sleep(0.2)
        found = find_leftovers()
    finally:
        for one in (orphan, child):
            one.kill()
            one.wait()
    assert orphan.pid in {one.pid for one in found.orphans}
    assert child.pid not in {one.pid for one in found.orphans}
    assert sleeper.pid in {one.pid for one in found.running}
    assert os.getpid() not in {one.pid for one in found.running}


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*_: object, **__: object) -> None:
        time.sleep(0.5)
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", late)
    assert network.resolve("box", patience_s=0.05) == ((), None)

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    addresses, took_s = network.resolve("box")
    assert addresses == ()
    assert took_s is not None
    monkeypatch.undo()
    assert "127.0.0.1" in network.resolve("localhost")[0]


@pytest.mark.parametrize(
    ("variable", "failure"),
    [("/bin/false", "exit code 1"), ("/bin/true", "exit code 0, and no program")],
)
def test_a_compiler_that_compiles_nothing_is_no_compiler(variable: str, failure: str) -> None:
    found = try_compiler({"CXX": variable})
    assert (found.command, found.asked_by) == (variable, "CXX")
    assert found.failure is not None
    assert found.failure.startswith(failure)


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = try_compiler({"CXX": "nowhere++ -O2"})
    assert found.failure is not None
    assert "not found" in found.failure
    monkeypatch.setenv("PATH", "/nowhere")
    assert try_compiler({}).command is None


def test_a_child_that_fails_is_a_failure_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = tmp_path / "sleeps"
    sleeps.write_text("#!/bin/sh\nexec sleep 5\n")
    sleeps.chmod(0o700)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert "no process can be started" in str(software.ask_torch().failure)
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert software.ask_torch().failure == "exit code 1: no output"
    monkeypatch.setattr(software, "PATIENCE_S", 0.2)
    monkeypatch.setattr("sys.executable", str(sleeps))
    assert "no answer within 0.2 s" in str(software.ask_torch().failure)


def test_the_child_tells_of_torch() -> None:
    found = software.ask_torch()
    assert found.failure is None
    assert found.torchvision_failure is None
    assert found.machine is not None
    assert "gloo" in found.machine.backends
    assert found.torch is not None


def test_nvidias_devices_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    root = write_tree(tmp_path, {"proc/driver/nvidia/gpus/0000:1a:00.0/information": "x"})
    alone = look_at_nvidia(root)
    assert (alone.hinted, alone.visible) == (1, None)
    nvml = FakeNvml(
        "GPU-a",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda _: "GPU-a",
        nvmlDeviceGetUUID=lambda one: one,
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:1A:00.0"),
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    core = min(os.sched_getaffinity(0))
    write_tree(
        root,
        {
            "sys/bus/pci/devices/0000:1a:00.0/numa_node": "1",
            "sys/devices/system/node/node1/cpulist": f"{core}",
        },
    )
    found = look_at_nvidia(root)
    assert found.driver_cuda == 13000
    assert found.visible is not None
    assert [one.uuid for one in found.visible] == ["GPU-a"]
    assert (found.links, found.cores_near) == (({},), (1,))
    assert nvml.opened == 0
