"""Prove every setting that holds for all strategies under each of them, and every option of each
strategy, on every workload.

Prints a line for each case; exit code 1 if any is not what one device would have trained. Takes a
while; strategies and workloads named as arguments are proved alone. ``--kept FILE`` holds what
an earlier, unfinished run has proved, an id a line: that is not proved again.
"""

from __future__ import annotations

import argparse
import json
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
from tests.strategies.variants import (
    VARIANTS,
    has_levels,
    precision_for,
    strategy_for,
    world_size_for,
)

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
UNUSED = "transformer: {preset: tiny, unused_branch: true}"


TIMEOUT_S = 900
"""ResNet-152 in fp16 on a CPU takes minutes."""
OVERFLOW = "no number any more after its compression"
"""What a proof rightly says of fp16 hooks under ResNet-152, whose first convolution begins with
gradients beyond 65504. It would be a fault under another workload."""


ALL = ", ".join(f"{{{one}}}" for one in [*WORKLOADS, SPARSE, UNUSED])


def blocks() -> Iterator[str]:
    """Of a suite: each setting under each strategy, then each strategy with each of its options."""
    strategies = ", ".join(all_strategies())
    yield f"{{workloads: [{ALL}], strategies: [{strategies}], world_sizes: [1, 2, 3]}}"
    for settings in SETTINGS:
        yield f"{{workloads: [{ALL}], strategies: [{strategies}], world_sizes: [2], {settings}}}"
    for strategy, variants in VARIANTS.items():
        for options in variants:
            axes = json.dumps({name: [value] for name, value in options.items()})
            placed = strategy_for(strategy, options)
            for steps in (1, 2):
                yield (
                    f"{{workloads: [{ALL}], strategies: [{{'{placed}': {axes}}}],"
                    f" world_sizes: [{world_size_for(options)}], accumulation_steps: {steps},"
                    f" precision: {precision_for(options)}}}"
                )


def cases(names: Sequence[str]) -> Iterator[PlannedCase]:
    """Those whose strategy and workload are named, or all; each once."""
    text = "matrix:\n" + "".join(f"  - {block}\n" for block in blocks())
    for planned in expand(parse_suite(text, source="every.yaml"), TWO_CORES):
        strategy = "ddp" if has_levels(planned.case.options) else planned.case.strategy
        named = {strategy, planned.case.workload}
        if all(name in named for name in names):
            yield planned


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a strategy or a workload")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="ids that need no proof again")
    options = parser.parse_args(arguments)
    chosen = list(cases(options.names))
    if not chosen:
        parser.error(f"no case has all of: {', '.join(options.names)}")
    kept = set(options.kept.read_text().split()) if options.kept and options.kept.exists() else ()
    failures = 0
    start_server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            launcher = Launcher(Path(folder) / "scratch", probe_in_child())
            for planned in chosen:
                if planned.case.id in kept:
                    continue
                said = planned.skip_reason or _proved(launcher, planned, Path(folder) / "proof")
                failures += said.startswith("failed")
                sys.stdout.write(f"{planned.case.id}: {said}\n")
                sys.stdout.flush()
                if options.kept and not said.startswith("failed"):
                    with options.kept.open("a") as file:
                        file.write(f"{planned.case.id}\n")
    finally:
        stop_server()
    return 1 if failures else 0


def _proved(launcher: Launcher, planned: PlannedCase, folder: Path) -> str:
    try:
        parity = prove(launcher, planned.case, folder, timeout_s=TIMEOUT_S)
    except AssertionError as error:  # a rank has failed
        return f"failed: {error}"
    overflows = planned.case.options.get("comm_hook") == "fp16" and OVERFLOW in str(parity.reason)
    if overflows and planned.case.workload == "resnet152":
        return f"overflows: {parity.reason}"
    return f"{parity.verdict}{f': {parity.reason}' if parity.reason else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
