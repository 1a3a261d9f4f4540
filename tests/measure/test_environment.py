from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from bench.measure.environment import collect, commit, versions
from bench.measure.host import describe_host
from bench.records.environment import fingerprint
from tests.fakes import EIGHT_GPUS, TWO_CORES
from tests.measure.nvmls import FakeNvml
from tests.measure.trees import write_tree


def test_versions_name_what_computes() -> None:
    assert {"bench", "python", "torch", "torchvision", "numpy"} <= versions().keys()
    assert ("cuda" in versions()) == (torch.version.cuda is not None)


def test_this_machines_environment_is_plain_data() -> None:
    environment = collect(TWO_CORES)
    assert msgspec.json.decode(msgspec.json.encode(environment)) == environment
    assert environment["cores"] == [0, 1]
    assert environment["devices"] == []
    assert environment.keys() >= describe_host([0, 1]).keys()


def test_the_fingerprint_follows_what_changes_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(collect(TWO_CORES))
    assert fingerprint(collect(TWO_CORES)) == first
    assert fingerprint(collect(EIGHT_GPUS)) != first
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert fingerprint(collect(TWO_CORES)) != first
    monkeypatch.delenv("NCCL_ALGO")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert fingerprint(collect(TWO_CORES)) == first


def made(**changes: Any) -> dict[str, Any]:
    device = {"name": "a GPU", "uuid": "1", "link_bytes_per_s": 100e9}
    environment: dict[str, Any] = {
        "cpu": "a CPU",
        "cpu_flags": ["avx2"],
        "cores": [0, 1],
        "quota_cores": None,
        "governors": ["performance"],
        "boost": True,
        "devices": [device, device],
        "driver": "580.1",
        "system": "Linux 6.1 x86_64",
        "variables": {"NCCL_ALGO": "Ring", "CUDA_HOME": "/usr/local/cuda"},
        "versions": {"torch": "2.14", "cuda": "13.0", "nccl": "2.30.7"},
        "commit": "abc",
    }
    return environment | changes


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"governors": ["powersave"]}, False),
        ({"boost": False}, False),
        ({"quota_cores": 1.5}, False),
        ({"cpu_flags": ["avx2", "amx_bf16"]}, False),
        ({"driver": "575.1"}, False),
        ({"versions": {"torch": "2.14", "cuda": "13.0", "nccl": "2.28.9"}}, False),
        ({"devices": [{"name": "a GPU", "link_bytes_per_s": 100e9}]}, False),
        ({"devices": [{"name": "a GPU", "link_bytes_per_s": 50e9}] * 2}, False),
        ({"devices": [{"name": "a GPU", "uuid": "2", "link_bytes_per_s": 100e9}] * 2}, True),
        ({"cores": [2, 3]}, True),
        ({"system": "Linux 6.2 x86_64"}, True),
        ({"commit": "def-dirty"}, True),
        ({"variables": {"NCCL_ALGO": "Ring", "CUDA_HOME": "/opt/cuda"}}, True),
        ({"variables": {"NCCL_ALGO": "Tree"}}, False),
    ],
)
def test_what_must_be_equal_for_a_comparison(changes: dict[str, Any], is_same: bool) -> None:
    assert (fingerprint(made(**changes)) == fingerprint(made())) is is_same


def test_devices_have_their_place_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [device.visible_as for device in EIGHT_GPUS.devices]
    buses = {name: f"00000000:{number:02X}:00.0" for number, name in enumerate(names)}
    nvml = FakeNvml(
        *names,
        nvmlSystemGetDriverVersion=lambda: b"580.95.05",
        nvmlDeviceGetPciInfo=lambda one: SimpleNamespace(busId=buses[one]),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _: 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _: 16,
        nvmlDeviceGetTopologyCommonAncestor=lambda *_: 40,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    write_tree(tmp_path, {"sys/bus/pci/devices/0000:03:00.0/numa_node": "1"})
    environment = collect(EIGHT_GPUS, tmp_path)
    fourth = environment["devices"][3]
    assert (fourth["name"], fourth["uuid"]) == ("NVIDIA A100-SXM4-80GB", "00000003")
    assert (fourth["pci_bus"], fourth["numa_node"]) == ("0000:03:00.0", 1)
    assert environment["devices"][4]["numa_node"] is None
    assert fourth["link_bytes_per_s"] == pytest.approx(16 * 3.938e9)
    assert fourth["links"]["0"] == "NODE"
    assert environment["driver"] == "580.95.05"
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"
    write_tree(tmp_path, {"proc/driver/nvidia/version": f"{version}\nGCC version: 12.3.0"})
    assert collect(EIGHT_GPUS, tmp_path)["driver"] == "570.124.06"


def test_a_checkouts_commit_says_whether_its_code_is_another(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git")
    assert commit(tmp_path) is None

    def run(*arguments: str) -> str:
        command = [git, "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    run("init")
    assert commit(tmp_path) is None  # nothing committed
    write_tree(tmp_path, {"bench/a.py": "a", "notes": "n"})
    run("add", "bench")
    run("commit", "-m", "first")
    first = run("rev-parse", "HEAD")
    assert commit(tmp_path) == first  # other files than the code's do not matter
    write_tree(tmp_path, {"bench/a.py": "b"})
    assert commit(tmp_path) == f"{first}-dirty"
    run("checkout", "bench")
    write_tree(tmp_path, {"bench/new.py": "c"})
    assert commit(tmp_path) == f"{first}-dirty"
    assert commit(tmp_path / "bench") is None  # within someone else's checkout
