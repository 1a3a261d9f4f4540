"""What the shipped suites plan on machines of several kinds."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from bench.analyze.rows import Row
from bench.analyze.settings import changed, groups_of, ladders_of, plain_of
from bench.plan.case import Machine, PlannedCase, original_of
from bench.plan.matrix import expand
from bench.plan.suite import load_suite, shipped_suites
from bench.strategies.ddp_options import DDPOptions
from tests.fakes import EIGHT_GPUS, TWO_CORES


def plan(name: str, machine: Machine) -> tuple[PlannedCase, ...]:
    return expand(load_suite(name), machine)


def test_quick_compares_four_strategies_over_three_workloads_on_one_and_two_devices() -> None:
    planned = plan("quick", TWO_CORES)
    assert all(one.skip_reason is None for one in planned)
    counts = Counter((one.case.workload, one.case.strategy) for one in planned if not one.case.twin)
    workloads = ("resnet152", "transformer", "embedding")
    expected = {(name, strategy): 2 for name in workloads for strategy in ("ddp", "fsdp")}
    assert counts == expected | {
        (name, strategy): 1 for name in workloads for strategy in ("single", "dp")
    }
    assert {one.case.preset for one in planned} == {"cpu"}


def test_quick_takes_the_accelerators_where_there_are_any() -> None:
    planned = plan("quick", EIGHT_GPUS)
    assert {one.case.device for one in planned} == {"cuda"}
    assert {one.case.preset for one in planned} == {"full"}


def test_cpu_goes_beyond_the_cores_and_says_so() -> None:
    planned = plan("cpu", TWO_CORES)
    assert {one.case.world_size for one in planned} == {1, 2, 4, 8}
    for one in planned:
        assert ("oversubscribed" in one.flags) == (one.case.world_size > 2)


@pytest.mark.parametrize("name", ["gpu", "resnet152-scaling"])
def test_without_an_accelerator_everything_is_skipped_with_its_reason(name: str) -> None:
    planned = plan(name, TWO_CORES)
    assert planned
    for one in planned:
        assert one.skip_reason is not None
        assert "cuda device" in one.skip_reason


def test_gpu_runs_everything_on_eight_devices() -> None:
    planned = plan("gpu", EIGHT_GPUS)
    ran = [one.case for one in planned if one.skip_reason is None]
    assert {case.workload for case in ran} == {"resnet152", "transformer", "embedding"}
    assert {case.strategy for case in ran} == {"single", "dp", "ddp", "fsdp"}
    assert {case.world_size for case in ran} == {1, 2, 4, 8}
    assert {case.preset for case in ran} == {"full"}
    assert {case.options.get("bucket_cap_mb") for case in ran} >= {None, 1, 5, 25, 100}
    assert "bf16-amp" in {case.precision for case in ran}


def test_resnet152_scaling_is_the_articles_table() -> None:
    planned = plan("resnet152-scaling", EIGHT_GPUS)
    assert all(one.skip_reason is None for one in planned)
    cases = [one.case for one in planned]
    assert {case.per_device_batch for case in cases} == {64}
    rows = {(case.label, case.world_size) for case in cases}
    for size in (1, 2, 4, 8):
        assert {("dp", size), ("ddp", size), ("ddp(sync_batchnorm=true)", size)} <= rows
    assert ("single", 1) in rows


def test_fewer_devices_than_asked_for_are_rows_with_a_reason() -> None:
    two = Machine(
        cores=EIGHT_GPUS.cores,
        accelerator="cuda",
        devices=EIGHT_GPUS.devices[:2],
        backends=EIGHT_GPUS.backends,
        default_backends=EIGHT_GPUS.default_backends,
    )
    for one in plan("resnet152-scaling", two):
        if one.case.world_size > 2:
            assert one.skip_reason == f"needs {one.case.world_size} cuda devices, found 2"
        else:
            assert one.skip_reason is None


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_every_suite_measures_a_case_twice_in_each_of_its_tables(name: str) -> None:
    planned = plan(name, EIGHT_GPUS)
    twins = {one.case.workload for one in planned if one.case.twin}
    timed = {one.case.workload for one in planned if one.effort.launches > 1}
    assert twins == timed
    ids = {one.case.id for one in planned}
    assert all(original_of(one.case).id in ids for one in planned)


FORMS = (
    "ddp-buckets",
    "ddp-variants",
    "fsdp-variants",
    "precision-compile",
    "accumulation",
    "ladder",
    "input-pipeline",
)


@pytest.mark.parametrize("name", FORMS)
def test_a_table_of_settings_has_a_form_for_cpus_and_one_for_accelerators(name: str) -> None:
    cpu = [one.case for one in plan(name, EIGHT_GPUS)]
    assert {case.device for case in cpu} == {"cpu"}
    assert {case.preset for case in cpu} == {"cpu"}
    assert {case.world_size for case in cpu} <= {1, 2}
    # Within a quarter of an hour: only buffers, which the others lack, are worth a slow model.
    slow = [case for case in cpu if case.workload == "resnet152" and not case.twin]
    assert [case.options["broadcast_buffers"] for case in slow] in ([], [True, False])
    gpu = [one.case for one in plan(f"{name}-gpu", EIGHT_GPUS)]
    assert {case.device for case in gpu} == {"cuda"}
    assert {case.preset for case in gpu} == {"full"}
    assert max(case.world_size for case in gpu) == 8


@pytest.mark.parametrize("name", [*FORMS, *(f"{name}-gpu" for name in FORMS)])
def test_every_setting_has_a_plain_one_to_stand_against(name: str) -> None:
    rows = [Row(case=one.case, status="ok") for one in plan(name, EIGHT_GPUS) if not one.case.twin]
    for group in groups_of(rows):
        assert plain_of(group) is not None, group[0].case.id


def test_precision_and_compile_stand_alone_and_together() -> None:
    cases = [one.case for one in plan("precision-compile", TWO_CORES) if not one.case.twin]
    ddp = {(c.precision, c.compile, c.compile_scope) for c in cases if c.strategy == "ddp"}
    assert {
        (p, m, "outside") for p in ("fp32", "bf16-amp", "bf16") for m in ("none", "default")
    } <= ddp
    assert {("fp32", "default", scope) for scope in ("inside", "blocks")} <= ddp
    assert ("fp16-amp", "none", "outside") in ddp


def test_accumulation_synchronises_last_and_every_time() -> None:
    cases = [one.case for one in plan("accumulation", TWO_CORES) if not one.case.twin]
    for strategy, workload in (
        ("ddp", "transformer"),
        ("fsdp", "transformer"),
        ("ddp", "embedding"),
    ):
        found = {
            (c.accumulation_steps, c.accumulation_sync)
            for c in cases
            if (c.strategy, c.workload) == (strategy, workload)
        }
        assert found == {(1, "last"), (2, "last"), (4, "last"), (8, "last"), (4, "every")}


@pytest.mark.parametrize(("name", "sizes"), [("ladder", {2}), ("ladder-gpu", {2, 8})])
def test_the_ladder_is_the_published_one(name: str, sizes: set[int]) -> None:
    planned = [one for one in plan(name, EIGHT_GPUS) if not one.case.twin]
    rows = [Row(case=one.case, status="ok", rung_below=one.rung_below) for one in planned]
    ladders = ladders_of(rows)
    assert {ladder[0].case.world_size for ladder in ladders} == sizes
    for ladder in ladders:
        steps = [changed(row.case, lower.case) for lower, row in itertools.pairwise(ladder)]
        assert [[one.name for one in step] for step in steps] == [
            ["precision"],
            ["compile"],
            ["accumulation_steps"],
            ["bucket_cap_mb"],
        ]


def settings_of(name: str, workload: str, strategy: str) -> list[dict[str, Any]]:
    """What each row of a strategy changes from its plain settings."""
    rows = [
        Row(case=one.case, status="ok")
        for one in plan(name, TWO_CORES)
        if not one.case.twin and (one.case.workload, one.case.strategy) == (workload, strategy)
    ]
    found = []
    for group in groups_of(rows):
        plain = plain_of(group)
        assert plain is not None
        found += [{s.name: s.value for s in changed(row.case, plain.case)} for row in group]
    return found


@pytest.mark.parametrize("workload", ["transformer", "embedding"])
def test_ddp_buckets_sweeps_around_torchs_own_rule(workload: str) -> None:
    assert settings_of("ddp-buckets", workload, "ddp") == [
        {},
        *({"bucket_cap_mb": cap} for cap in (0.25, 1, 4, 10, 100)),
        {"bucket_cap_mb_list": [1, 10]},
    ]


def test_ddp_variants_has_every_setting_of_ddp_that_a_cpu_can_show() -> None:
    found = [
        one for name in ("transformer", "embedding", "resnet152")
        for one in settings_of("ddp-variants", name, "ddp")
    ]  # fmt: skip
    seen = {name for one in found for name in one}
    options = set(DDPOptions.__struct_fields__)
    # Two have a suite of their own, and one needs an accelerator; starts are given by the rest.
    elsewhere = {"bucket_cap_mb", "bucket_cap_mb_list", "sync_batchnorm"}
    assert seen == options - elsewhere - {"powersgd_start", "local_sgd_start"}
    assert {one.get("comm_hook") for one in found} == {None, "fp16", "bf16", "powersgd"}


def test_ddp_variants_says_why_plain_ddp_cannot_train_an_unused_branch() -> None:
    (skipped,) = [one for one in plan("ddp-variants", TWO_CORES) if one.skip_reason is not None]
    assert skipped.case.workload_options["unused_branch"] is True
    assert skipped.skip_reason is not None
    assert "find_unused_parameters" in skipped.skip_reason


def test_fsdp_variants_has_each_way_to_shard_beside_ddp() -> None:
    cases = [one.case for one in plan("fsdp-variants", TWO_CORES) if not one.case.twin]
    assert {case.strategy for case in cases} == {
        "single", "ddp", "fsdp", "fsdp1", "zero", "deepspeed",
    }  # fmt: skip
    assert {case.options["stage"] for case in cases if case.strategy == "deepspeed"} == {0, 1, 2, 3}
    fsdp1 = {case.options["sharding_strategy"] for case in cases if case.strategy == "fsdp1"}
    assert fsdp1 == {"full_shard", "shard_grad_op", "no_shard"}
    own = [case for case in cases if case.options.get("mixed_precision")]
    assert {case.strategy for case in own} == {"fsdp", "fsdp1"}
    assert {case.precision for case in own} == {"bf16-amp"}
    gpu = [one.case for one in plan("fsdp-variants-gpu", EIGHT_GPUS)]
    assert {case.options.get("shard_size") for case in gpu} == {None, 2, 4}
    assert any(case.options.get("cpu_offload") for case in gpu)
