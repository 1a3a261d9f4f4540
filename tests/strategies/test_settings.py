"""Settings that hold for every strategy, each with what shows that it does something."""

from __future__ import annotations

import copy
import dataclasses
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from bench.plan.registry import find_strategy
from bench.run.handover import RankOutcome
from bench.run.launch import Launcher
from bench.run.passes import DIGESTED_BATCHES
from bench.run.rounds import process_count
from bench.strategies.checkpointing import checkpoint_units, statistics_kept
from bench.strategies.kernels import fused_takes_shards
from bench.strategies.loss_scale import LossScale
from bench.strategies.module_session import ModuleSession
from bench.strategies.prepare import prepare
from tests.fakes import SHORT, make_case, world_of_one
from tests.run.test_passes import by_operation, communication, run
from tests.strategies.stand_ins import has_spike
from tests.strategies.test_contract import planned_case, prove
from tests.strategies.test_data_parallel import context
from tests.workloads.test_workloads import build
from workloads.base import KERNELS, Problem, optimizer_factory

ALL_TOGETHER = {
    "precision": "fp16-amp",
    "optimizer_kernels": "fused",
    "activation_checkpointing": "true",
    "accumulation_steps": 2,
}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("ddp", {**ALL_TOGETHER, "accumulation_sync": "every"}),
        ("fsdp", {**ALL_TOGETHER, "accumulation_sync": "every"}),
        ("dp", ALL_TOGETHER),
        ("fsdp", {"optimizer": "sgd", "optimizer_kernels": "foreach"}),
        ("fsdp1", {"precision": "fp16-amp", "optimizer_kernels": "fused", "accumulation_steps": 2}),
        ("zero", {"precision": "fp16-amp"}),
    ],
)
def test_the_same_model_is_trained(
    launcher: Launcher, tmp_path: Path, strategy: str, settings: dict[str, Any]
) -> None:
    parity = prove(launcher, planned_case("transformer:tiny", strategy, 2, **settings), tmp_path)
    expected = "within_precision" if settings.get("precision") else "exact"
    assert parity.verdict == expected, parity.reason
    assert parity.gradient_tolerance is not None
    assert parity.gradient_tolerance < 0.1
    assert parity.max_rank_divergence == 0


def time_spikes(
    launcher: Launcher, strategy: str, *, everywhere: bool = True, **settings: Any
) -> tuple[RankOutcome, ...]:
    workload = "tests.strategies.stand_ins:SPIKY:tiny"
    case = planned_case(workload, strategy, 2, precision="fp16-amp", **settings)
    case = msgspec.structs.replace(case, workload_options={"everywhere": everywhere})
    effort = msgspec.structs.replace(SHORT, warmup_steps=4, timeout_s=200)
    _, outcomes = launcher.launch_case(
        case, effort, "timing", launch=0, processes=process_count(case)
    )
    assert [outcome.failure for outcome in outcomes] == [None] * process_count(case)
    return outcomes


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("dp", {}),
        ("ddp", {}),
        ("ddp", {"optimizer_kernels": "fused"}),
        ("fsdp", {}),
        ("fsdp1", {}),
        # Of one shard alone, which another rank can only be told of:
        ("fsdp", {"everywhere": False}),
        ("fsdp1", {"everywhere": False}),
        ("fsdp1", {"everywhere": False, "optimizer_kernels": "fused"}),
    ],
)
def test_what_one_rank_cannot_take_all_ranks_skip(
    launcher: Launcher, strategy: str, settings: dict[str, Any]
) -> None:
    outcomes = time_spikes(launcher, strategy, **settings)
    for outcome in outcomes:
        measured = outcome.measured
        assert measured is not None
        first = DIGESTED_BATCHES + 4  # the warm-up's
        window = range(first, first + len(measured.step_s))
        assert measured.skipped_steps == sum(map(has_spike, window)) > 0
    assert len({outcome.parameter_digest for outcome in outcomes}) == 1


@pytest.mark.parametrize("kernels", ["for-loop", "foreach", "fused"])
def test_a_step_that_overflows_changes_nothing_but_the_scale(kernels: Any) -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = optimizer_factory("sgd", lr=0.5, momentum=0.0, kernels=kernels)([weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss_scale = LossScale(scaler)
    values = []
    for factor in (1.0, float("inf"), 1.0):
        loss_scale.scale((weight * factor).sum()).backward()  # type: ignore[no-untyped-call]
        loss_scale.step(optimizer)
        optimizer.zero_grad()
        values.append(weight.item())
    assert values == [1.5, 1.5, 1.0]
    assert loss_scale.skipped() == 1
    assert scaler.get_scale() == 2.0


def test_gradients_are_told_without_their_scale_and_the_step_is_right_afterwards() -> None:
    found = {}
    for precision in ("fp32", "fp16-amp"):
        problem = build("embedding")
        session = prepare(find_strategy("single"), problem, context(1, precision=precision))
        session.micro_step(next(problem.batches(0, 1)), sync=True, mark=lambda _: None)
        gradients = {name: one.clone() for name, one in session.full_gradients()}
        assert dict(session.full_gradients()).keys() == gradients.keys()  # a second look is free
        session.optimizer_step()
        found[precision] = gradients, dict(session.full_parameters())
        assert session.skipped_steps() == 0
    for name, expected in found["fp32"][0].items():
        torch.testing.assert_close(found["fp16-amp"][0][name], expected, rtol=0.02, atol=1e-4)
    for name, expected in found["fp32"][1].items():
        torch.testing.assert_close(found["fp16-amp"][1][name], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kernels", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["transformer", "embedding", "resnet152"])
def test_every_workload_passes_on_the_kernels(name: str, kernels: Any) -> None:
    problem = build(name, optimizer_kernels=kernels)
    session = prepare(find_strategy("single"), problem, context(1, optimizer_kernels=kernels))
    assert isinstance(session, ModuleSession)
    assert KERNELS[kernels].items() <= session.optimizer.defaults.items()


def test_a_workload_that_ignores_the_kernels_is_refused() -> None:
    problem = build("transformer")  # built for other kernels than the case has
    with pytest.raises(ValueError, match=r"fused asks for .* must pass on Build.optimizer_kernels"):
        prepare(find_strategy("single"), problem, context(1, optimizer_kernels="fused"))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_what_is_known_of_shards_is_what_torch_does_with_them(name: Any) -> None:
    world_of_one()
    try:
        problem = build("transformer", optimizer=name, optimizer_kernels="fused")
        fsdp = find_strategy("fsdp")
        session = prepare(fsdp, problem, context(1, options=fsdp.options()))
        session.micro_step(next(problem.batches(0, 1)), sync=True, mark=lambda _: None)
        if fused_takes_shards(name):
            session.optimizer_step()
        else:
            with pytest.raises((NotImplementedError, AssertionError)):  # the latter on torch 2.9
                session.optimizer_step()
        session.close()
    finally:
        torch.distributed.destroy_process_group()


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        for _ in range(3)
    ]
    return nn.Sequential(*blocks)


def test_what_is_computed_again_is_the_same() -> None:
    inputs, models = torch.randn(16, 8), [normed(), normed()]
    checkpoint_units(list(models[1]))
    for model in models:
        torch.manual_seed(5)  # for dropout, whose second mask must be the first
        for _ in range(3):
            model(inputs).sum().backward()
    plain, checkpointed = models
    for (name, own), (_, other) in zip(
        plain.named_parameters(), checkpointed.named_parameters(), strict=True
    ):
        assert own.grad is not None
        assert other.grad is not None
        assert torch.equal(own.grad, other.grad), name
    # Statistics too: torch's checkpoint alone would have counted six batches.
    for (name, before), (_, after) in zip(
        plain.named_buffers(), checkpointed.named_buffers(), strict=True
    ):
        assert torch.equal(before, after), name


def test_synchronised_norms_keep_their_statistics_while_computed_again() -> None:
    norm = nn.SyncBatchNorm(3)
    with statistics_kept(nn.Sequential(norm, nn.BatchNorm2d(3))):
        assert norm.num_batches_tracked is not None  # or its forward refuses
        norm.num_batches_tracked.add_(1)
        assert norm.momentum == 0
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 0
    assert norm.momentum == 0.1


def test_a_checkpointed_unit_keeps_its_names_and_can_be_copied() -> None:
    model = normed()
    before = [name for name, _ in model.named_parameters()], repr(model)
    checkpoint_units(list(model))
    assert ([name for name, _ in model.named_parameters()], repr(model)) == before
    assert isinstance(model[0], nn.Sequential)
    assert type(model[0]) is type(model[1])
    other = copy.deepcopy(model)
    other(torch.randn(4, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in other.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    # As DataParallel makes its replicas, with the parameters of another device.
    replica = model[0]._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    assert isinstance(replica, nn.Sequential)
    replica._modules["0"] = nn.Linear(8, 8)
    replica(torch.randn(4, 8)).sum().backward()
    assert all(
        parameter.grad is None for name, parameter in model.named_parameters() if "0.0" in name
    )


def test_of_nested_units_the_inner_ones_are_computed_again() -> None:
    calls: list[str] = []

    class Inner(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
            calls.append("inner")
            return super().forward(input).sin()

    class Outer(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
            calls.append("outer")
            return super().forward(input)  # type: ignore[no-any-return, no-untyped-call]

    model = Outer(Inner(2, 2))
    checkpoint_units([model[0], model])
    model(torch.randn(1, 2)).sum().backward()
    assert calls == ["outer", "inner", "inner"]


def test_without_units_there_is_nothing_to_compute_again() -> None:
    problem = dataclasses.replace(build("transformer"), shard_units=lambda _: [])
    with pytest.raises(ValueError, match="shard_units gives none"):
        prepare(find_strategy("single"), problem, context(1, activation_checkpointing=True))
    single = nn.Linear(1, 1)
    single.forward = single.extra_repr  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match=r"Linear\.forward, which the module has for itself"):
        checkpoint_units([single])


def test_checkpointing_lowers_the_peak(launcher: Launcher) -> None:
    found = {}
    for is_on in ("false", "true"):
        case = planned_case("transformer:tiny", "single", 1, activation_checkpointing=is_on)
        deep = case.workload_options | {"layers": 12, "sequence_length": 64}
        case = msgspec.structs.replace(case, workload_options=deep)
        record, _ = run(launcher, case, "memory")
        assert record.memory is not None
        assert record.memory.held_by_category is not None
        peak = record.memory.peak_allocated_bytes[0]
        assert peak is not None
        # Gradients stand beside the parameters at the peak; what is left are activations.
        held = sum(sizes[0] for sizes in record.memory.held_by_category.values())
        found[is_on] = peak - held - record.memory.held_by_category["parameters"][0]
    assert 0 < found["true"] < 0.4 * found["false"]


@pytest.mark.parametrize(("strategy", "operation"), [("ddp", "all_reduce"), ("fsdp", "all_reduce")])
def test_every_micro_step_synchronises_where_it_is_asked_to(
    launcher: Launcher, strategy: str, operation: str
) -> None:
    found = communication(launcher, strategy, accumulation_steps=3, accumulation_sync="every")
    assert found.bucket_bytes is not None
    # Three rounds over all buckets, or units, where one is enough.
    assert by_operation(found)[operation].calls == 3 * len(found.bucket_bytes)


def test_variables_are_there_before_torch_is_imported_and_gone_afterwards(
    launcher: Launcher,
) -> None:
    said = []
    for env in ({}, {"TORCH_DISTRIBUTED_DEBUG": "INFO", "OMP_WAIT_POLICY": "PASSIVE"}, {}):
        case = make_case(strategy="tests.strategies.stand_ins:TELLING", env=env)
        _, outcomes = launcher.launch_case(case, SHORT, "memory", launch=0, processes=1)
        assert outcomes[0].failure is None
        said += [line for line in outcomes[0].log_tail if "told" in line]
        assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    off = "told: None, read at import: OFF"
    assert [line[line.index("told") :] for line in said] == [
        off,
        "told: INFO, read at import: INFO",
        off,
    ]


def test_a_problem_is_left_as_it_is_where_nothing_is_asked_for() -> None:
    seen: list[Problem] = []
    strategy = find_strategy("single")

    def spy(problem: Problem, where: Any) -> Any:
        seen.append(problem)
        return strategy.prepare(problem, where)

    problem = build("transformer")
    prepare(dataclasses.replace(strategy, prepare=spy), problem, context(1))
    assert seen == [problem]
