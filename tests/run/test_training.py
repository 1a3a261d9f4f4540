"""The training pass: the losses of all ranks, at the rate that was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from bench.plan.case import Case
from bench.records.trained import Training
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from bench.run.training import rate_factor, to_learn
from bench.strategies.zero import shard_optimizer
from tests.fakes import SHORT, make_case, world_of_one
from tests.strategies.test_contract import planned_case
from tests.workloads.test_workloads import build

STEPS = 12


def trained(launcher: Launcher, case: Case) -> Training:
    effort = msgspec.structs.replace(SHORT, train_steps=STEPS, learning_rate="linear")
    assignment, outcomes = launcher.launch_case(
        case, effort, "training", launch=0, processes=process_count(case)
    )
    record = to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))
    assert record.training is not None, record.reason
    return record.training


def test_two_devices_follow_the_curve_of_one(launcher: Launcher) -> None:
    """The same global batch is the same samples, so that losses differ by rounding alone."""
    settings: dict[str, Any] = {"scaling": "strong", "global_batch": 8}
    one = trained(launcher, planned_case("transformer:tiny", "single", 1, **settings))
    two = trained(launcher, planned_case("transformer:tiny", "ddp", 2, **settings))
    assert len(one.losses) == len(one.at_s) == STEPS
    pairs = zip(one.losses, two.losses, strict=True)
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in pairs)
    assert one.losses[0] is not None
    assert one.losses[-1] is not None
    assert one.losses[-1] < 0.95 * one.losses[0]
    assert list(two.at_s) == sorted(two.at_s)
    assert (two.learning_rate, two.learning_rate_factor, two.rate) == ("linear", 1.0, 1e-3)
    assert two.task is not None


def test_a_rate_grows_as_the_batch_does() -> None:
    weak = make_case(world_size=4, scaling="weak")
    strong = make_case(world_size=4, scaling="strong")
    assert rate_factor(weak, "linear") == 4.0
    assert rate_factor(weak, "fixed") == 1.0
    assert rate_factor(strong, "linear") == 1.0  # its batch is that of one device


def test_the_rate_is_that_of_the_task_times_the_factor() -> None:
    problem = build("transformer")
    rates: list[float] = []
    told = to_learn(problem, 2.0, rates)
    optimizer = told.make_optimizer(told.model.parameters())
    assert rates == [group["lr"] for group in optimizer.param_groups] == [2e-3]
    assert problem.task is not None
    assert told.batches is problem.task.batches


def test_a_wrapper_that_makes_the_optimizer_again_keeps_the_rate() -> None:
    problem = to_learn(build("transformer"), 3.0, [])
    world_of_one()
    try:
        sharded = shard_optimizer(problem.make_optimizer(problem.model.parameters()))
        assert [group["lr"] for group in sharded.param_groups] == [pytest.approx(3e-3)]
        assert [group["lr"] for group in sharded.optim.param_groups] == [pytest.approx(3e-3)]
    finally:
        torch.distributed.destroy_process_group()


def test_without_a_task_it_trains_on_its_own_batches_at_its_own_rate() -> None:
    problem = dataclasses.replace(build("transformer"), task=None)
    rates: list[float] = []
    told = to_learn(problem, 1.0, rates)
    told.make_optimizer(nn.Linear(1, 1).parameters())
    assert rates == [3e-4]
    assert told.batches is problem.batches
