"""Every registered strategy on every workload: real processes, real collectives, real proofs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bench.plan.case import Case, Effort, Limits
from bench.plan.matrix import expand
from bench.plan.registry import all_strategies
from bench.plan.suite import parse_suite
from bench.records.record import Parity, Record
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from bench.run.schedule import reference_key
from bench.strategies import ddp
from bench.strategies.base import Context
from bench.strategies.ddp_options import DDPOptions
from tests.fakes import SHORT, TWO_CORES, world_of_one
from tests.measure.test_reference import make_problem
from tests.workloads.test_workloads import build

COMPLETE = [name for name in all_strategies() if name != "deepspeed"]
"""Strategies that need no extra: the other one has tests of its own."""


def planned_case(workload: str, strategy: str, world_size: int, **settings: Any) -> Case:
    extra = "".join(f", {name}: {value}" for name, value in settings.items())
    text = (
        f"matrix: [{{workloads: ['{workload}'], strategies: ['{strategy}'],"
        f" world_sizes: [{world_size}]{extra}}}]"
    )
    (planned,) = expand(parse_suite(text, source="test.yaml"), TWO_CORES)
    assert planned.skip_reason is None
    return planned.case


def prove(launcher: Launcher, case: Case, tmp_path: Path, *, timeout_s: float = 200) -> Parity:
    record = proof(launcher, case, tmp_path, timeout_s=timeout_s)
    assert record.status == "ok", record.reason
    assert record.parity is not None
    return record.parity


def proof(launcher: Launcher, case: Case, tmp_path: Path, *, timeout_s: float = 200) -> Record:
    effort = msgspec.structs.replace(SHORT, timeout_s=timeout_s, limits=Limits(pass_s=timeout_s))
    reference = _reference(launcher, case, effort, tmp_path.parent)
    assignment, outcomes = launcher.launch_case(
        case, effort, "parity", launch=0, processes=process_count(case), reference=reference
    )
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))


_at_hand: dict[str, Path] = {}
"""The last reference, by its key, as a run keeps it too: many a test in a row asks for the same."""


def _reference(launcher: Launcher, case: Case, effort: Effort, folder: Path) -> Path:
    key = reference_key(case)
    if key not in _at_hand or not _at_hand[key].exists():
        for path in _at_hand.values():
            path.unlink(missing_ok=True)
        _at_hand.clear()
        path = folder / "reference.pt"
        _, outcomes = launcher.launch_case(
            case, effort, "reference", launch=0, processes=1, reference=path
        )
        assert outcomes[0].failure is None, outcomes[0].failure
        _at_hand[key] = path
    return _at_hand[key]


@pytest.mark.parametrize(
    ("workload", "strategy"),
    [
        *(
            (workload, strategy)
            for workload in ("transformer", "embedding")
            for strategy in COMPLETE
        ),
        ("resnet152", "ddp"),  # and the others in ``nox -s contract``, for the time it takes
    ],
)
def test_every_strategy_trains_the_model_that_one_device_would(
    launcher: Launcher, tmp_path: Path, workload: str, strategy: str
) -> None:
    parity = prove(launcher, planned_case(f"{workload}:tiny", strategy, 2), tmp_path)
    assert parity.verdict == "exact", parity.reason
    assert parity.gradient_tolerance is not None
    assert parity.gradient_tolerance < 1e-3  # so that half or twice a gradient cannot pass
    assert parity.steps is not None
    assert parity.steps >= 3
    assert parity.error is not None
    assert parity.error <= 1e-6
    assert parity.max_rank_divergence == 0


@pytest.mark.parametrize(
    ("workload", "world_size", "settings"),
    [
        ("transformer", 3, {}),
        ("transformer", 3, {"precision": "bf16-amp"}),
        ("transformer", 2, {"precision": "bf16"}),
        ("transformer", 2, {"accumulation_steps": 2}),
        ("transformer", 3, {"optimizer": "sgd"}),
    ],
)
def test_ddp_is_exact_where_sums_are_reordered(
    launcher: Launcher, tmp_path: Path, workload: str, world_size: int, settings: dict[str, Any]
) -> None:
    case = planned_case(f"{workload}:tiny", "ddp", world_size, **settings)
    parity = prove(launcher, case, tmp_path)
    expected = "exact" if case.precision == "fp32" else "within_precision"
    assert parity.verdict == expected, parity.reason
    assert parity.gradient_tolerance is not None
    assert parity.gradient_tolerance < 0.5  # far below the error of a missing gradient, 1


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("dp", {}),
        ("ddp", {}),
        ("ddp", {"gradient_as_bucket_view": True}),
        ("ddp", {"static_graph": True}),
        ("zero", {}),
    ],
)
def test_sparse_gradients_train_the_same_model(
    launcher: Launcher, tmp_path: Path, strategy: str, options: dict[str, Any]
) -> None:
    case = planned_case("embedding:tiny", strategy, 2)
    case = msgspec.structs.replace(
        case,
        workload_options=case.workload_options | {"sparse": True},
        options=case.options | options,
    )
    parity = prove(launcher, case, tmp_path)
    assert parity.verdict == "exact", parity.reason


def test_a_rank_without_any_sparse_gradient_ends_in_a_row(launcher: Launcher) -> None:
    case = planned_case("tests.fakes:PADDED:tiny", "ddp", 2)
    effort = msgspec.structs.replace(SHORT, timeout_s=30)
    assignment, outcomes = launcher.launch_case(case, effort, "timing", launch=0, processes=2)
    record = to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))
    assert record.status in {"ok", "failed", "timeout"}  # and not a hang of the launcher
    if record.status != "ok":
        assert record.reason


@pytest.mark.parametrize("strategy", ["dp", "fsdp"])
@pytest.mark.parametrize(
    ("world_size", "settings"),
    [(2, {"accumulation_steps": 2}), (2, {"precision": "bf16-amp"}), (3, {"precision": "bf16"})],
)
def test_dp_and_fsdp_are_exact_under_other_settings_too(
    launcher: Launcher, tmp_path: Path, strategy: str, world_size: int, settings: dict[str, Any]
) -> None:
    case = planned_case("transformer:tiny", strategy, world_size, **settings)
    parity = prove(launcher, case, tmp_path)
    expected = "exact" if case.precision == "fp32" else "within_precision"
    assert parity.verdict == expected, parity.reason


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("LOCAL", "fp64: gradient of"),
        ("SUMMED", "fp64: gradient of"),
        ("ONE_TENSOR_LOCAL", "gradient of norm.bias is off"),
        ("UNWRAPPED", "ranks ended with parameters"),
    ],
)
def test_a_strategy_that_trains_another_model_is_found(
    launcher: Launcher, tmp_path: Path, fault: str, reason: str
) -> None:
    case = planned_case("transformer:tiny", f"tests.fakes:{fault}", 2)
    parity = prove(launcher, case, tmp_path)
    assert parity.verdict == "failed"
    assert parity.reason is not None
    assert reason in parity.reason


def test_a_default_passes_nothing_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []

    class FakeDDP(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, **options: Any) -> None:
            super().__init__()
            self.no_sync = None
            passed.append(options)

    monkeypatch.setattr(ddp, "DistributedDataParallel", FakeDDP)
    for options in (
        DDPOptions(),
        DDPOptions(bucket_cap_mb=25, static_graph=True),
        DDPOptions(static_graph=False),
    ):
        ddp.prepare(make_problem(), _context(options))
    assert passed == [
        {"device_ids": None},
        {"device_ids": None, "bucket_cap_mb": 25.0, "static_graph": True},
        {"device_ids": None},
    ]


def _context(options: DDPOptions) -> Context:
    return Context(
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        precision="fp32",
        accumulation_steps=1,
        options=options,
    )


def test_synchronised_batch_norm_replaces_every_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[torch.nn.Module] = []

    class FakeDDP(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, device_ids: None) -> None:
            super().__init__()
            self.no_sync = None
            wrapped.append(module)

    monkeypatch.setattr(ddp, "DistributedDataParallel", FakeDDP)
    problem = build("resnet152")
    before = sum(isinstance(m, torch.nn.BatchNorm2d) for m in problem.model.modules())
    names = [name for name, _ in problem.model.named_parameters()]
    ddp.prepare(problem, _context(DDPOptions(sync_batchnorm=True)))
    (model,) = wrapped
    assert sum(isinstance(m, torch.nn.SyncBatchNorm) for m in model.modules()) == before > 100
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    assert [name for name, _ in model.named_parameters()] == names
    assert ddp.reference({"sync_batchnorm": True}) == "whole_batch"
    assert ddp.reference({"sync_batchnorm": False}) == "micro_batches"


def test_the_bucket_layout_is_read_from_torch() -> None:
    world_of_one()
    try:
        session = ddp.prepare(make_problem(), _context(DDPOptions(bucket_cap_mb=0.01)))
        batches = make_problem().batches(0, 1)
        for _ in range(3):
            session.micro_step(next(batches), sync=True, mark=lambda _: None)
            session.optimizer_step()
        sizes = session.bucket_bytes()
        parameters = sum(p.numel() * 4 for _, p in session.full_parameters())
        session.close()
    finally:
        torch.distributed.destroy_process_group()
    assert sizes is not None
    assert len(sizes) > 1
    assert sum(sizes) == parameters
