"""Who may import whom, and who must never touch an accelerator."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BASE = ("bench.errors", "bench.plan.case", "bench.records")
"""May import nothing of ours but each other, and no torch."""
ALLOWED = {
    "workloads": ("workloads", "torch"),
    "bench.strategies": (
        "bench.strategies",
        "bench.measure.ranges",  # names, and nothing else
        "bench.measure.precision",  # likewise
        "workloads.base",
        "bench.plan.case",
        "torch",
    ),
    "bench.measure": ("bench.measure", "bench", "workloads.base", *BASE, "torch"),
    "bench.plan": ("bench.plan", "bench.strategies", "workloads", *BASE, "torch"),
    "bench.run": (
        "bench.run",
        "bench.measure",
        "bench.plan",
        "bench.strategies",
        "bench.analyze",  # says between rounds what needs more launches
        "workloads",
        *BASE,
        "torch",
    ),
    "bench.comm": (
        "bench.comm",
        "bench.run",
        "bench.measure",
        "workloads.base",
        *BASE,
        "torch",
    ),
    "bench.lab": (
        "bench.lab",
        "bench.run",
        "bench.measure",
        "bench.plan",
        *BASE,
    ),
    "bench.predict": (
        "bench.predict",
        "bench.measure",
        "bench.plan",
        "bench.strategies",
        "workloads",
        *BASE,
        "torch",
    ),
    "bench.analyze": ("bench.analyze", *BASE),
    "bench.report": ("bench.report", "bench.analyze", *BASE),
}
OURS = ("bench", "workloads", "tests")
TOP = ("bench.cli", "bench.doctor", "bench.contract", "bench.api", "bench.pytest_plugin")
"""May import everything; nothing but the command line imports the doctor."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("bench", "workloads"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


@functools.cache
def names_of_modules() -> frozenset[str]:
    return frozenset(name for name, _ in modules())


def imports(path: Path) -> set[str]:
    known = names_of_modules()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def room_of(name: str) -> str | None:
    return next((room for room in ALLOWED if within(name, (room,))), None)


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_point_one_way(name: str, path: Path) -> None:
    if within(name, TOP) or name in {"bench.__main__", "bench", "bench.plan", "bench.records"}:
        allowed: tuple[str, ...] = (*OURS, "torch")
    elif within(name, BASE):
        allowed = BASE
    else:
        room = room_of(name)
        assert room is not None, f"{name} belongs to no room"
        allowed = ALLOWED[room]
    for imported in imports(path):
        if within(imported, (*OURS, "torch", "torchvision")):
            root = "torch" if imported.startswith("torch") else imported
            assert within(root, allowed), f"{name} must not import {imported}"
            assert within(name, TOP) or not within(root, ("bench.doctor",)), (
                f"{name} must not import {imported}"
            )


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    # The variable is the remedy under test; this process may have it from another test.
    environment = {k: v for k, v in os.environ.items() if k != "PYTORCH_NVML_BASED_CUDA_CHECK"}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
"""


@pytest.mark.parametrize(
    "module",
    [
        "bench.cli",
        "bench.report.page",
        "bench.report.comparison",
        "bench.report.recommendation",
        "bench.records.store",
        "bench.plan.case",
        "bench.doctor",
    ],
)
def test_reading_and_reporting_need_no_torch(module: str) -> None:
    done = run_script(f"{WITHOUT_TORCH}\nimport {module}\n")
    assert done.returncode == 0, done.stderr


FORKED = """
import os, sys, torch
torch.cuda._device_count_nvml = lambda: 0
def is_poisoned():
    pid = os.fork()
    if pid == 0:
        os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""
CONTROL = "torch.cuda.is_available()\nassert is_poisoned()"
PRELOADING = """
import bench.run.session, bench.run.worker, torch._dynamo, importlib
from bench.run.server import PRELOAD
[importlib.import_module(name) for name in PRELOAD]
assert not is_poisoned()
"""
PLANNING = """
from bench.cli import run_command_line as run
assert run(['plan', 'quick']) == 0 and not is_poisoned(), 'plan'
assert run(['list', 'strategies']) == 0 and not is_poisoned(), 'list'
assert run(['doctor', '--no-live']) in {0, 1} and not is_poisoned(), 'doctor'
"""


@pytest.mark.parametrize("action", [CONTROL, PRELOADING, PLANNING])
def test_planning_and_preloading_leave_the_driver_alone(action: str) -> None:
    done = run_script(f"{FORKED}{action}")
    assert done.returncode == 0, done.stderr


FAST = """\
defaults: {launches: 1, window: {min_steps: 4, max_s: 0.2, target_interval: 0.5}}
matrix: [{workloads: [transformer:tiny], strategies: [ddp], world_sizes: [2]}]
"""


def test_the_parent_of_a_run_leaves_the_driver_alone(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys\n"
        "def main():\n"
        "    import torch\n"
        "    torch.cuda._device_count_nvml = lambda: 0\n"
        "    from bench.cli import run_command_line\n"
        "    code = run_command_line(['run', *sys.argv[1:]])\n"
        "    assert code == 0, code\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os._exit(1 if torch.cuda._is_in_bad_fork() else 0)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    suite = tmp_path / "fast.yaml"
    suite.write_text(FAST)
    done = subprocess.run(
        [sys.executable, script, suite, "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
