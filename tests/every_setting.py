"""Prove every setting that holds for all strategies, under each of them, on every workload.

Prints a line for each case; exit code 1 if any is not what one device would have trained. Takes a
while; strategies and workloads named as arguments are proved alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure.machine import probe_in_child
from bench.plan.case import PlannedCase
from bench.plan.matrix import expand
from bench.plan.registry import all_strategies, all_workloads
from bench.plan.suite import parse_suite
from bench.run.launch import Launcher
from bench.run.server import start_server, stop_server
from tests.fakes import TWO_CORES
from tests.strategies.test_contract import prove

SETTINGS = (
    "precision: [fp16-amp, bf16-amp, bf16]",
    "optimizer: [sgd, adamw], optimizer_kernels: [for-loop, foreach, fused]",
    "activation_checkpointing: true, precision: [fp32, bf16-amp]",
    "accumulation_steps: 2, accumulation_sync: [last, every]",
    "precision: fp16-amp, optimizer_kernels: fused, activation_checkpointing: true,"
    " accumulation_steps: 2, accumulation_sync: every",
    "env: {ATEN_CPU_CAPABILITY: default}",
)
"""Each a part of a suite's block."""
WORKLOADS = [f"{name}: {{preset: tiny}}" for name in all_workloads()]
SPARSE = "embedding: {preset: tiny, sparse: true}"


def cases(names: Sequence[str]) -> Iterator[PlannedCase]:
    """Those whose strategy and workload are named, or all; each once."""
    blocks = "".join(
        f"  - {{workloads: [{', '.join(f'{{{one}}}' for one in [*WORKLOADS, SPARSE])}],"
        f" strategies: [{', '.join(all_strategies())}], world_sizes: [2], {settings}}}\n"
        for settings in SETTINGS
    )
    for planned in expand(parse_suite(f"matrix:\n{blocks}", source="every.yaml"), TWO_CORES):
        named = {planned.case.strategy, planned.case.workload}
        if all(name in named for name in names):
            yield planned


def main(names: Sequence[str]) -> int:
    """See the module."""
    failures = 0
    start_server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            launcher = Launcher(Path(folder) / "scratch", probe_in_child())
            for planned in cases(names):
                said = planned.skip_reason or _proved(launcher, planned, Path(folder))
                failures += said.startswith("failed")
                sys.stdout.write(f"{planned.case.id}: {said}\n")
                sys.stdout.flush()
    finally:
        stop_server()
    return 1 if failures else 0


def _proved(launcher: Launcher, planned: PlannedCase, folder: Path) -> str:
    try:
        parity = prove(launcher, planned.case, folder)
    except AssertionError as error:  # a rank has failed
        return f"failed: {error}"
    return f"{parity.verdict}{f': {parity.reason}' if parity.reason else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
