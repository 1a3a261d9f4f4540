"""``deepspeed``: what is planned without the package, and what its engine does with it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bench.plan.case import Case
from bench.plan.matrix import expand
from bench.plan.options import docstrings
from bench.plan.registry import all_workloads
from bench.plan.suite import parse_suite
from bench.records.record import Communication
from bench.records.store import read_records
from bench.run.launch import Launcher
from bench.strategies import deepspeed
from bench.strategies.base import Context
from bench.strategies.deepspeed import DeepSpeedOptions
from tests.fakes import TWO_CORES, make_case
from tests.run.test_passes import by_operation, parameter_bytes, pool_bytes, run
from tests.strategies.test_contract import planned_case, prove
from workloads.base import Facts

FACTS = Facts(unit="token")
ALL_GATHERED: dict[str, Any] = {
    "stage3_param_persistence_threshold": 1,
    "stage3_max_reuse_distance": 1,
    "stage3_prefetch_bucket_size": 1,
}
"""Options with which even a small model's parameters are gathered for forward and for backward."""
SMALL_BUCKETS: dict[str, Any] = {"reduce_bucket_size": 20_000}
NEEDED: dict[int, dict[str, Any]] = {
    0: {},
    1: SMALL_BUCKETS,
    2: SMALL_BUCKETS,
    3: SMALL_BUCKETS | ALL_GATHERED,
}
"""Options with which each stage does in a small model what it does in a large one."""


def zero_case(
    stage: int, *, workload: str = "transformer", ranks: int = 2, **settings: Any
) -> Case:
    """A planned case of a stage, with the options among the settings."""
    names = set(DeepSpeedOptions.__struct_fields__)
    options = {name: settings.pop(name) for name in list(settings) if name in names}
    case = planned_case(f"{workload}:tiny", "deepspeed", ranks, **settings)
    return msgspec.structs.replace(case, options=case.options | {"stage": stage} | options)


def unplanned(**changes: Any) -> Case:
    options = msgspec.structs.asdict(DeepSpeedOptions()) | changes.pop("options", {})
    return make_case(**{"strategy": "deepspeed", "options": options, "world_size": 2, **changes})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "is_installed", lambda: True)


def test_without_the_package_its_cases_are_skipped_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    text = (
        "matrix: [{workloads: ['transformer:tiny'], world_sizes: [2],"
        " strategies: [{deepspeed: {stage: [0, 1, 2, 3]}}]}]"
    )
    planned = expand(parse_suite(text, source="zero.yaml"), TWO_CORES)
    reason = f"needs the package deepspeed: {deepspeed.INSTALL_EXTRA}"
    assert [one.skip_reason for one in planned] == [reason] * 4
    assert [one.case.label for one in planned] == [
        "deepspeed",
        *(f"deepspeed(stage={stage})" for stage in (1, 2, 3)),
    ]


def test_a_folder_of_its_name_is_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = importlib.machinery.ModuleSpec("deepspeed", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: folder)
    assert not deepspeed.is_installed()
    folder.origin = "/site-packages/deepspeed/__init__.py"
    assert deepspeed.is_installed()


def test_neither_planning_nor_the_fork_server_imports_it() -> None:
    code = (
        "import sys, bench.run.preload; from bench.plan.registry import all_strategies;"
        " from bench.strategies.deepspeed import is_installed; is_installed();"
        " assert 'deepspeed' in all_strategies(); sys.exit('deepspeed' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"options": {"reduce_bucket_size": 1000}}, "in stage 0, but in stages 1 to 3"),
        ({"options": {"stage": 2, "stage3_prefetch_bucket_size": 8}}, "but in stage 3; leave it"),
        ({"options": {"stage": 1, "offload_optimizer": "cpu"}}, "does nothing on a CPU"),
        ({"precision": "bf16"}, "use bf16-amp"),
        ({"precision": "fp16-amp"}, "use bf16-amp"),
        ({"compile": "default"}, "use compile_scope: inside or blocks"),
        ({"accumulation_sync": "every", "accumulation_steps": 2}, "at last"),
    ],
)
def test_what_it_cannot_take_is_skipped_with_a_remedy(changes: dict[str, Any], reason: str) -> None:
    found = deepspeed.check(FACTS, unplanned(**changes), TWO_CORES)
    assert found is not None
    assert reason in found


@pytest.mark.usefixtures("installed")
def test_sparse_gradients_fit_stage_0_alone() -> None:
    sparse = Facts(unit="sample", has_sparse_gradients=True)
    assert deepspeed.check(sparse, unplanned(), TWO_CORES) is None
    found = deepspeed.check(sparse, unplanned(options={"stage": 1}), TWO_CORES)
    assert found is not None
    assert "use stage 0" in found


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"options": {"stage": 3, **ALL_GATHERED, "overlap_comm": False}},
        {"options": {"stage": 2, "offload_optimizer": "cpu"}, "device": "cuda", "backend": "nccl"},
        {"precision": "bf16-amp", "compile": "default", "compile_scope": "inside"},
        {"accumulation_steps": 2, "activation_checkpointing": True},
    ],
)
def test_all_else_it_takes(changes: dict[str, Any]) -> None:
    assert deepspeed.check(FACTS, unplanned(**changes), TWO_CORES) is None


def test_what_must_be_said_of_its_figures() -> None:
    def flags(stage: int, **changes: Any) -> list[str]:
        return [*deepspeed.flags(FACTS, unplanned(options={"stage": stage}, **changes))]

    assert flags(2) == ["deepspeed_over_gloo"]
    assert flags(0, world_size=1) == []
    assert flags(1, world_size=1) == ["no_sharding"]
    on_devices: dict[str, Any] = {"backend": "nccl", "device": "cuda"}
    assert flags(1, **on_devices, accumulation_steps=2) == []
    assert flags(2, **on_devices, accumulation_steps=2) == ["deepspeed_reduces_each"]
    assert flags(0, **on_devices, precision="bf16-amp") == []
    assert flags(3, **on_devices, precision="bf16-amp") == ["deepspeed_autocast"]


def context_of(options: DeepSpeedOptions, **changes: Any) -> Context:
    fields: dict[str, Any] = {
        "device": torch.device("cpu"),
        "rank": 0,
        "world_size": 2,
        "precision": "fp32",
        "accumulation_steps": 3,
        "options": options,
    }
    return Context(**fields | changes)


def test_a_default_is_not_passed_on() -> None:
    options = DeepSpeedOptions()
    plain = deepspeed.engine_config(options, context_of(options))
    assert plain["zero_optimization"] == {"stage": 0}
    assert plain["gradient_accumulation_steps"] == 3
    options = DeepSpeedOptions(stage=1, overlap_comm=False, offload_optimizer="cpu")
    changed = deepspeed.engine_config(options, context_of(options, precision="bf16-amp"))
    assert changed["zero_optimization"] == {
        "stage": 1,
        "overlap_comm": False,
        "offload_optimizer": {"device": "cpu"},
    }
    assert changed["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}


def test_its_timers_do_not_wait_for_the_device_and_it_does_not_clip() -> None:
    options = DeepSpeedOptions()
    config = deepspeed.engine_config(options, context_of(options))
    assert config["timers"] == {"throughput": {"enabled": False}}
    assert config["gradient_clipping"] == 0.0
    assert "torch_autocast" not in config
    assert not {"wall_clock_breakdown", "steps_per_print", "comms_logger"} & set(config)


def test_every_option_is_documented_and_known_to_do_something_in_some_stage() -> None:
    options = set(DeepSpeedOptions.__struct_fields__)
    assert set(docstrings(DeepSpeedOptions)) == options
    assert set(deepspeed.EFFECTIVE) == options - {"stage"}


@pytest.mark.deepspeed
@pytest.mark.skipif(not deepspeed.is_installed(), reason=f"needs {deepspeed.INSTALL_EXTRA}")
class TestEngine:
    @pytest.mark.parametrize("stage", range(4))
    @pytest.mark.parametrize("workload", all_workloads())
    def test_every_stage_trains_the_model_that_one_device_would(
        self, launcher: Launcher, tmp_path: Path, workload: str, stage: int
    ) -> None:
        case = zero_case(stage, workload=workload, **NEEDED[stage])
        parity = prove(launcher, case, tmp_path)
        assert parity.verdict == "exact", parity.reason
        assert parity.gradient_tolerance is not None
        assert parity.gradient_tolerance < 1e-3
        assert parity.error is not None
        assert parity.error < 1e-7  # of losses in fp64, and of gradients that are read in fp32
        assert parity.max_rank_divergence == 0

    @pytest.mark.parametrize(
        ("stage", "settings"),
        [
            *((stage, {"accumulation_steps": 2}) for stage in range(4)),
            *((stage, {"precision": "bf16-amp"}) for stage in range(4)),
            *((stage, {"ranks": 3, **NEEDED[stage]}) for stage in (1, 3)),
            (3, {"ranks": 1}),
            (0, {"workload": "resnet152", "ranks": 3}),
            (1, {"overlap_comm": True, **SMALL_BUCKETS}),
            (2, {"overlap_comm": True, **SMALL_BUCKETS, "accumulation_steps": 2}),
            (2, {"contiguous_gradients": False, "accumulation_steps": 2}),
            (3, {"contiguous_gradients": False, "overlap_comm": False}),
            (3, {**ALL_GATHERED, "stage3_prefetch_bucket_size": 10_000}),
            (2, {"optimizer": "sgd"}),
            # Planned on accelerators only, where it is no different but for the copies.
            *((stage, {"offload_optimizer": "cpu"}) for stage in (1, 2, 3)),
        ],
    )
    def test_its_settings_train_the_same_model(
        self, launcher: Launcher, tmp_path: Path, stage: int, settings: dict[str, Any]
    ) -> None:
        case = zero_case(stage, **settings)
        parity = prove(launcher, case, tmp_path)
        expected = "exact" if case.precision == "fp32" else "within_precision"
        assert parity.verdict == expected, parity.reason
        assert parity.gradient_tolerance is not None
        assert parity.gradient_tolerance < 0.5

    def test_sparse_gradients_train_the_same_model_in_stage_0(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        case = zero_case(0, workload="embedding")
        case = msgspec.structs.replace(
            case, workload_options=case.workload_options | {"sparse": True}
        )
        parity = prove(launcher, case, tmp_path)
        assert parity.verdict == "exact", parity.reason

    @pytest.mark.parametrize(
        ("stage", "gathered", "reduced"), [(0, 0, 1), (1, 1, 1), (2, 1, 2), (3, 4, 2)]
    )
    def test_what_two_micro_steps_communicate(
        self, launcher: Launcher, stage: int, gathered: int, reduced: int
    ) -> None:
        """In models: stages 2 and 3 reduce twice, and 3 gathers for each forward and backward."""
        found = communication(launcher, stage, **NEEDED[stage], accumulation_steps=2)
        operations = by_operation(found)
        model = parameter_bytes()
        sums = operations.pop("all_reduce")  # gloo's reduce-scatter is one
        assert sums.payload_bytes == pytest.approx(reduced * model, rel=0.02)
        assert sums.calls >= reduced
        gathers = operations.pop("all_gather", None)
        assert (gathers is not None) == (gathered > 0)
        if gathers is not None:
            assert gathers.payload_bytes == pytest.approx(gathered * model, rel=0.15)
        assert not operations

    def test_smaller_buckets_are_more_calls_of_the_same_bytes(self, launcher: Launcher) -> None:
        whole = by_operation(communication(launcher, 1))["all_reduce"]
        parts = by_operation(communication(launcher, 1, **SMALL_BUCKETS))["all_reduce"]
        assert parts.calls > whole.calls
        assert parts.payload_bytes == whole.payload_bytes

    @pytest.mark.parametrize("stage", range(4))
    def test_each_device_holds_its_share(self, launcher: Launcher, stage: int) -> None:
        record, outcomes = run(launcher, zero_case(stage, **NEEDED[stage]), "memory")
        assert record.memory is not None
        held = record.memory.held_by_category
        assert held is not None
        model, world = parameter_bytes(), 2
        shares = {"optimizer_state": 1, "parameters": 3, "master_parameters": 1}
        for name, first in shares.items():
            whole = {"optimizer_state": 2 * model, "master_parameters": bool(stage) * model}
            expected = whole.get(name, model) / (world if stage >= first else 1)
            assert held[name] == pytest.approx([expected] * world, rel=0.01), name
        # Stage 3 keeps its share of the gradients; buckets are let go of after backward, but by
        # gloo's threads, sooner or later, or unseen; and so is the last that 3 has gathered.
        bucket = 4 * SMALL_BUCKETS["reduce_bucket_size"]
        kept = {3: model / world}.get(stage, 0)
        unseen = {0: 0, 1: 2 * bucket, 2: 2 * bucket, 3: 2 * bucket + model}[stage]
        for index, outcome in enumerate(outcomes):
            assert outcome.allocations is not None
            (before,) = outcome.allocations.before
            known = sum(values[index] for values in held.values()) + kept + pool_bytes(4)
            assert 0.98 * known < before < 1.02 * known + unseen
        parts, peaks = record.memory.by_category, record.memory.peak_allocated_bytes
        if stage == 0:  # over gloo nothing is unseen in this one alone
            assert parts is not None
            assert record.memory.timeline is not None
            assert max(record.memory.timeline.by_category["gradients"]) > 0
        if parts is not None:
            assert [sum(one) for one in zip(*parts.values(), strict=True)] == peaks
            for left, peak in zip(parts["unexplained"], peaks, strict=True):
                assert peak is not None
                assert left < 0.01 * peak + unseen

    def test_it_compiles_nothing_into_the_cache_of_the_user(self, launcher: Launcher) -> None:
        cache = Path.home() / ".cache" / "torch_extensions"
        before = set(cache.rglob("deepspeed*"))
        run(launcher, zero_case(1), "timing")
        assert set(cache.rglob("deepspeed*")) == before

    def test_a_suite_of_stages_is_measured_in_all_passes(self, tmp_path: Path) -> None:
        suite = tmp_path / "zero.yaml"
        suite.write_text(
            "defaults: {launches: 1, window: {min_steps: 4, max_s: 0.2, target_interval: 0.5}}\n"
            "matrix: [{workloads: ['transformer:tiny'], world_sizes: [2],"
            " strategies: [{deepspeed: {stage: [0, 3]}}]}]\n"
        )
        out = tmp_path / "out"
        command = [sys.executable, "-m", "bench", "run", str(suite), "--out", str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        records = read_records(out)
        assert {(one.case.options["stage"], one.pass_) for one in records} == {
            (stage, pass_)
            for stage in (0, 3)
            for pass_ in ("timing", "parity", "memory", "communication")
        }
        assert {one.status for one in records} == {"ok"}
        assert all(one.teardown_exit is None for one in records)
        assert all(one.parity.verdict == "exact" for one in records if one.parity is not None)


def communication(launcher: Launcher, stage: int, **settings: Any) -> Communication:
    record, _ = run(launcher, zero_case(stage, **settings), "communication")
    assert record.communication is not None
    return record.communication
