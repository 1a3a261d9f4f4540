from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.doctor import CHECKS, what_spoils_timing
from bench.doctor.check_system import nccl_interfaces
from bench.doctor.facts import (
    Devices,
    Facts,
    Leftovers,
    Load,
    Place,
    Program,
    Software,
)
from bench.doctor.finding import Finding, examine, ok, together, unknown, warning
from bench.measure.compiler import Compiler
from tests.doctor.machines import GIB, changed, gpu_box, health, healthy
from tests.fakes import EIGHT_GPUS, TWO_CORES


def findings(facts: Facts) -> dict[str, Finding]:
    return {one.name: one for one in examine(CHECKS, facts)}


def with_variables(**variables: str) -> Facts:
    return healthy(variables=variables)


def with_place(**fields: Any) -> Facts:
    return healthy(places=(Place(role="TMPDIR", path="/scratch", **fields),))


@pytest.mark.parametrize("facts", [healthy(), gpu_box()])
def test_a_machine_without_faults_has_none(facts: Facts) -> None:
    assert {one.name: one.found for one in findings(facts).values() if one.status != "ok"} == {}
    assert what_spoils_timing(facts) == []


def test_of_a_machine_that_tells_nothing_nothing_is_said_that_is_bad() -> None:
    found = findings(Facts())
    assert {one.status for one in found.values()} <= {"ok", "unknown", "warning"}
    assert found["torch"].status == "unknown"
    assert found["memory"].status == "unknown"


HOST_FAULTS = [
    ("cores", changed("cores", usable=(0,)), "warning", "one core"),
    ("cores", changed("cores", quota=2.0), "ok", "a quota of 2"),
    ("cores", changed("cores", quota=2.5), "warning", "a quota of 2.5 cores: 2 are used"),
    ("cores", changed("cores", quota=0.5), "bad", "stops each rank"),
    ("cores", changed("cores", foreign_siblings=(4, 5)), "warning", "2 cores with a second"),
    ("cores", changed("cores", speeds=(1024, 446)), "warning", "446 to 1024"),
    ("cores", changed("cores", logical=64), "ok", "2 cores to compute on of 64 logical CPUs"),
    ("threads", with_variables(OMP_NUM_THREADS="2"), "ok", "OMP_NUM_THREADS=2"),
    ("threads", with_variables(OMP_NUM_THREADS="8"), "warning", "more than the 2 cores"),
    ("threads", with_variables(MKL_NUM_THREADS="8,2"), "warning", "MKL_NUM_THREADS=8,2"),
    ("threads", with_variables(OMP_PROC_BIND="close"), "warning", "OMP_PROC_BIND=close"),
    ("threads", with_variables(OMP_PROC_BIND="false"), "ok", "no variable"),
    ("threads", with_variables(OMP_THREAD_LIMIT="1"), "warning", "OMP_THREAD_LIMIT=1"),
    ("governor", changed("cores", governors=("powersave",)), "warning", "powersave"),
    ("governor", changed("cores", governors=()), "unknown", "does not tell"),
    ("load", changed("load", busy=0.2), "warning", "take 20% of the cores"),
    ("load", changed("load", busy=0.9), "bad", "take 90% of the cores"),
    (
        "load",
        changed("load", busy=0.2, busiest=(Program(pid=7, name="make", cores=0.4),)),
        "warning",
        "make (7) 40% of a core",
    ),
    ("load", healthy(load=Load(average=1.5, runnable=2, steal=0)), "warning", "average 1.50"),
    ("load", healthy(load=Load(average=1.5, runnable=0, steal=0)), "ok", "average 1.50"),
    ("load", healthy(load=Load(steal=0)), "unknown", "does not tell"),
    ("virtualisation", changed("cores", virtualised=True), "ok", "virtual machine"),
    ("virtualisation", changed("load", steal=0.05), "warning", "5% of the cores' time"),
    ("virtualisation", changed("load", steal=0.5), "bad", "50% of the cores' time"),
    ("virtualisation", changed("load", steal=None), "unknown", "not told"),
    ("memory", changed("memory", available=3 * GIB), "warning", "3.0 of 16.0 GiB"),
    ("memory", changed("memory", available=GIB // 2), "bad", "0.5 of 16.0 GiB"),
    ("memory", changed("memory", swap_used=2 * GIB), "warning", "2.0 GiB are swapped out"),
    ("allocator", healthy(), "ok", "glibc's malloc as it is; huge pages: madvise"),
    ("allocator", with_variables(MALLOC_ARENA_MAX="1"), "ok", "MALLOC_ARENA_MAX set"),
    ("observers", healthy(observers=("ptrace",)), "warning", "ptrace"),
]


SYSTEM_FAULTS = [
    (
        "shared memory",
        changed("memory", shm_size=64 * 2**20, shm_free=64 * 2**20),
        "warning",
        "64 MiB free of 64 MiB in /dev/shm, Docker's default",
    ),
    ("shared memory", changed("memory", shm_free=0), "warning", "0 MiB free of 8.0 GiB"),
    ("shared memory", changed("memory", shm_size=None), "unknown", "no /dev/shm"),
    ("limits", changed("limits", open_files=512), "warning", "512 open files"),
    ("limits", changed("limits", open_files=64), "bad", "64 open files"),
    ("limits", changed("limits", open_files=None), "ok", "any number of open files"),
    ("limits", changed("limits", has_infiniband=True), "warning", "only 8 MiB of memory"),
    ("names", changed("network", addresses=()), "warning", "box has no address"),
    ("names", changed("network", resolved_s=None), "warning", "no answer about box"),
    ("names", changed("network", resolved_s=2.0), "warning", "known after 2.0 s"),
    ("names", changed("network", addresses=None), "unknown", "not looked up"),
    ("interfaces", changed("network", interfaces={"lo": False}), "bad", "lo is not up"),
    ("interfaces", changed("network", interfaces={}), "unknown", "does not tell"),
    ("interfaces", with_variables(GLOO_SOCKET_IFNAME="lo,eth0"), "ok", "up: lo, eth0"),
    ("interfaces", with_variables(GLOO_SOCKET_IFNAME="eth1"), "bad", "GLOO_SOCKET_IFNAME=eth1"),
    ("interfaces", with_variables(GLOO_SOCKET_IFNAME="eth"), "bad", "GLOO_SOCKET_IFNAME=eth"),
    ("interfaces", with_variables(NCCL_SOCKET_IFNAME="eth"), "ok", "up: lo, eth0"),
    ("interfaces", with_variables(NCCL_SOCKET_IFNAME="ib"), "bad", "NCCL_SOCKET_IFNAME=ib"),
    ("disk", with_place(), "bad", "TMPDIR, /scratch, is not there"),
    ("disk", with_place(free=GIB), "bad", "cannot be written to"),
    ("disk", with_place(is_used=False), "warning", "is not there"),
    ("disk", with_place(free=GIB // 2, is_writable=True), "warning", "has room for 512 MiB"),
    ("disk", with_place(free=2**20, is_writable=True), "bad", "has room for 1 MiB"),
    ("disk", with_place(free=GIB, free_files=0, is_writable=True), "bad", "no more files"),
    ("disk", with_place(free=GIB, is_writable=True, is_executable=False), "warning", "noexec"),
    (
        "leftovers",
        healthy(leftovers=Leftovers(folders=("/tmp/bench-1-ab",))),
        "warning",
        "1 folder of a run that is gone",
    ),
    (
        "leftovers",
        healthy(leftovers=Leftovers(orphans=(Program(pid=8, name="python"),))),
        "bad",
        "processes of a run that is gone: 8",
    ),
    (
        "other runs",
        healthy(leftovers=Leftovers(running=(Program(pid=9, name="python"),))),
        "warning",
        "process 9",
    ),
]


SOFTWARE_FAULTS = [
    (
        "torch",
        changed("software", failure="ImportError: libcudart.so.13"),
        "bad",
        "torch 2.14.1: ImportError",
    ),
    ("torch", changed("software", failure="no", torch=None), "bad", "is not installed"),
    ("torch", changed("software", warnings=("too old",)), "warning", "says: too old"),
    (
        "torchvision",
        changed("software", torchvision_failure="operator torchvision::nms does not exist"),
        "bad",
        "torchvision 0.29.1, which needs torch ==2.14.1, beside torch 2.14.1: operator",
    ),
    ("NCCL", changed("software", nccl_build="2.30.7"), "ok", "built into torch"),
    (
        "NCCL",
        changed("software", nccl_build="2.30.7", nccl_loaded="2.19.3"),
        "warning",
        "NCCL 2.19.3 is loaded, torch was built with 2.30.7",
    ),
    ("compiler", healthy(compiler=Compiler()), "warning", "no g++"),
    (
        "compiler",
        healthy(compiler=Compiler(command="/bin/false", asked_by="CXX", failure="no program")),
        "warning",
        "CXX=/bin/false fails",
    ),
    ("compiler", healthy(compiler=Compiler(command="/usr/bin/clang++")), "warning", "g++"),
    ("compiler", changed("compiler", has_python_headers=False), "warning", "no Python.h"),
]


def boxed(*changes: dict[str, Any], **of_all: Any) -> Facts:
    return gpu_box(*(health(index, **one) for index, one in enumerate(changes)), **of_all)


def with_software(facts: Facts, **changes: Any) -> Facts:
    assert facts.software is not None
    software = msgspec.structs.replace(facts.software, **changes)
    return msgspec.structs.replace(facts, software=software)


DEVICE_FAULTS = [
    ("devices", gpu_box(), "ok", "2 cuda: NVIDIA A100"),
    ("devices", gpu_box(visible=None, has_package=False), "unknown", "NVML cannot be asked"),
    ("devices in use", boxed({}, {"utilisation": 0.3}), "warning", "device 1: 30% busy"),
    ("devices in use", boxed({"utilisation": 0.9}), "bad", "device 0: 90% busy"),
    ("devices in use", boxed({"memory_used": 3 * GIB}), "warning", "3.0 GiB in use"),
    ("devices in use", boxed({"processes": 1}), "warning", "device 0: 1 process"),
    ("throttling", boxed({"slowed_down": True}), "bad", "at 35 degrees"),
    ("throttling", boxed({"slowed_down": None}), "unknown", "does not tell"),
    ("alike devices", boxed({}, {"name": "NVIDIA A10"}), "warning", "2 models"),
    ("alike devices", boxed({"pcie_width": 8}), "warning", "8 of 16 PCIe lanes"),
    ("whole devices", boxed({"is_split": True}), "warning", "MIG mode"),
    ("whole devices", boxed({"forbids": "a second process"}), "warning", "refuses a second"),
    ("whole devices", boxed({"forbids": "all processes"}), "bad", "refuses all"),
    ("memory errors", boxed({"uncorrected_errors": 2}), "bad", "2 memory errors"),
    ("memory errors", boxed({"needs_reset": True}), "bad", "waits to be remapped"),
    ("persistence", boxed({"is_persistent": False}), "warning", "device 0: off"),
    ("topology", gpu_box(), "ok", "1 x NV4"),
    ("topology", gpu_box(links=({"1": "SYS"}, {"0": "SYS"})), "warning", "across sockets"),
    ("topology", gpu_box(links=({"1": None}, {"0": None})), "unknown", "does not tell"),
    ("topology", with_software(gpu_box(), no_peer_access=((0, 1),)), "warning", "0 and 1: copies"),
    ("nearness", gpu_box(cores_near=(2, 0)), "warning", "of devices 1"),
    ("nearness", gpu_box(cores_near=(None, None)), "ok", "one NUMA node"),
    ("driver", gpu_box(), "ok", "driver 580.95.05 up to CUDA 13.0, torch built for 13.0"),
    ("driver", gpu_box(driver_cuda=12080), "bad", "up to CUDA 12.8, torch built for 13.0"),
    ("driver", gpu_box(driver_cuda=None), "unknown", "not told"),
]


@pytest.mark.parametrize(
    ("name", "facts", "status", "words"),
    [*HOST_FAULTS, *SYSTEM_FAULTS, *SOFTWARE_FAULTS, *DEVICE_FAULTS],
)
def test_a_fault_is_found_and_no_other(name: str, facts: Facts, status: str, words: str) -> None:
    found = findings(facts)
    assert found[name].status == status
    assert words in found[name].found
    assert found[name].why
    if status in {"warning", "bad"}:
        assert found[name].remedy
    others = {one.name for one in found.values() if one.status in {"warning", "bad"}}
    assert others <= {name}


@pytest.mark.parametrize(
    ("software", "words"),
    [
        ({}, "2 devices here, and torch sees none"),
        ({"cuda_build": None}, "2 of NVIDIA's devices, and a torch built for CPUs"),
    ],
)
def test_devices_that_torch_does_not_see(software: dict[str, Any], words: str) -> None:
    found = findings(with_software(gpu_box(), machine=TWO_CORES, **software))
    assert (found["driver"].status, found["devices"].status) == ("bad", "unknown")
    assert words in found["driver"].found


def test_without_nvml_the_extra_is_named() -> None:
    alone = healthy(devices=Devices(hinted=1, has_package=False))
    for facts in (gpu_box(visible=None, has_package=False), alone):
        found = findings(facts)["devices"]
        assert (found.status, found.remedy) == ("unknown", "pip install '.[gpu]'")
    assert "nvidia-smi" in str(findings(gpu_box(visible=None))["devices"].remedy)


def test_of_other_accelerators_nothing_is_claimed() -> None:
    machine = msgspec.structs.replace(EIGHT_GPUS, accelerator="xpu")
    found = findings(healthy(software=Software(torch="2.14.1", machine=machine)))
    assert found["devices"].status == "unknown"
    assert "throttling" not in found


def test_hidden_devices_are_no_fault() -> None:
    facts = healthy(devices=Devices(hinted=2, visible=()), variables={"CUDA_VISIBLE_DEVICES": ""})
    found = findings(facts)
    assert found["devices"].found == "hidden by CUDA_VISIBLE_DEVICES"
    assert "driver" not in found


def test_only_what_speaks_against_figures_is_told_before_a_run() -> None:
    worn = msgspec.structs.replace(
        changed("cores", quota=2.5), limits=msgspec.structs.replace(healthy().limits, open_files=9)
    )
    assert [one.name for one in what_spoils_timing(worn)] == ["cores"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=eth0", ["eth0"]),
        ("^lo", ["eth0"]),
        ("^=eth0", ["lo"]),
        ("ib,lo", ["lo"]),
        ("^lo,eth", []),
    ],
)
def test_nccl_takes_prefixes_names_and_exclusions(asked: str, expected: list[str]) -> None:
    there = {"lo": True, "eth0": True, "eth1": False}
    assert nccl_interfaces(asked, there) == expected


def test_several_problems_are_one_verdict_as_severe_as_the_worst() -> None:
    one = together([warning("a", "do"), None, warning("b", "do")], ok("fine"))
    assert (one.status, one.found, one.remedy) == ("warning", "a; b", "do")
    assert together([unknown("a")], ok("fine")).status == "unknown"
    assert together([None], ok("fine")).found == "fine"
