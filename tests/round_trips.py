"""Checkpoints of every strategy on every workload, and under settings that change what is saved.

Takes long: ``nox -s round-trips``, and no part of the usual tests.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.plan.matrix import expand
from bench.plan.registry import find_strategy
from bench.plan.suite import parse_suite
from bench.run.launch import Launcher
from tests.fakes import TWO_CORES
from tests.run.test_checkpoint import saved
from tests.strategies.test_contract import COMPLETE
from tests.workloads.test_tasks import learnt
from tests.workloads.test_workloads import build

Trial = tuple[Any, Any, int, dict[str, Any]]
"""(workload, strategy, devices, settings), the first two as a suite has them."""

EVERYWHERE: list[Trial] = [
    (f"{workload}:tiny", strategy, 1 if strategy == "single" else 2, {})
    for workload in ("transformer", "embedding", "resnet152")
    for strategy in COMPLETE
]
UNUSED = {"transformer": {"preset": "tiny", "unused_branch": True}}
OF_TRANSFORMER: list[tuple[Any, int, dict[str, Any]]] = [
    ("fsdp", 1, {}),
    ("fsdp1", 1, {}),
    ("zero", 1, {}),
    ("ddp", 3, {"precision": "fp16-amp"}),
    ("fsdp", 2, {"precision": "fp16-amp"}),
    ("fsdp1", 2, {"precision": "fp16-amp"}),
    ("zero", 2, {"precision": "bf16"}),
    ("zero", 3, {"optimizer": "sgd"}),
    ("fsdp", 2, {"accumulation_steps": 2}),
    ({"fsdp": {"shard_size": 2}}, 4, {}),
    ({"fsdp": {"wrap": "root"}}, 3, {}),
    ({"fsdp1": {"shard_size": 2}}, 4, {}),
    ({"fsdp1": {"sharding_strategy": "shard_grad_op"}}, 2, {}),
    ({"fsdp1": {"sharding_strategy": "no_shard"}}, 2, {}),
    ({"ddp": {"comm_hook": "fp16"}}, 2, {}),
    ({"ddp": {"comm_hook": "powersgd"}}, 2, {}),
]
SETTINGS: list[Trial] = [("transformer:tiny", *trial) for trial in OF_TRANSFORMER]
MORE: list[Trial] = [
    (UNUSED, "fsdp", 2, {}),
    (UNUSED, {"ddp": {"find_unused_parameters": True}}, 2, {}),
    ("resnet152:tiny", {"ddp": {"sync_batchnorm": True}}, 2, {}),
]


@pytest.mark.parametrize("trial", [*EVERYWHERE, *SETTINGS, *MORE], ids=str)
def test_what_is_saved_is_gone_on_from(launcher: Launcher, tmp_path: Path, trial: Trial) -> None:
    workload, strategy, devices, settings = trial
    block = {"workloads": [workload], "strategies": [strategy], "world_sizes": [devices]}
    text = yaml.safe_dump({"matrix": [block | settings]})
    (planned,) = expand(parse_suite(text, source="trial.yaml"), TWO_CORES)
    if "needs an accelerator" in str(planned.skip_reason):
        pytest.skip(str(planned.skip_reason))
    assert planned.skip_reason is None
    case = planned.case
    record = saved(launcher, case, tmp_path / "out", timeout_s=1800)
    found = record.checkpoint
    assert found is not None, record.reason
    saving = find_strategy(case.strategy).saving(case.options, devices)
    assert found.verdict == ("not_checked" if saving.form == "none" else "exact"), found.reason
    if saving.form != "none":
        assert found.form == saving.form
        writers = sum(size > 0 for size in found.bytes_by_rank)
        assert writers == (devices if saving.form == "sharded" else 1)


def test_resnet_learns_more_than_a_constant_prediction() -> None:
    problem = build("resnet152", per_device_batch=4)
    assert problem.task is not None
    assert problem.task.constant_loss is not None
    losses = learnt(problem, 16)
    assert statistics.fmean(losses[-5:]) < 0.5 * problem.task.constant_loss
