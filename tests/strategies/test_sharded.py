"""FSDP2, FSDP1 and ZeRO over settings: real processes for the path, plans for what cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.plan.case import PlannedCase
from bench.plan.matrix import expand
from bench.plan.suite import parse_suite
from bench.records.record import CollectiveCost, Communication
from bench.run.launch import Launcher
from bench.run.schedule import reference_key
from bench.strategies import fsdp1
from tests.fakes import EIGHT_GPUS, TWO_CORES
from tests.run.test_passes import by_operation, check_times, parameter_bytes, run
from tests.strategies.test_contract import prove
from tests.strategies.variants import VARIANTS, precision_for, world_size_for

SHARDED = ("fsdp", "fsdp1", "zero")
TWICE = {"accumulation_steps": 2}
UNUSED: dict[str, Any] = {"workload": {"transformer": {"preset": "tiny", "unused_branch": True}}}


def planned(
    strategy: str,
    options: dict[str, Any],
    *,
    workload: str | dict[str, Any] = "transformer:tiny",
    world_size: int | None = None,
    **settings: Any,
) -> PlannedCase:
    block = {
        "workloads": [workload],
        "strategies": [{strategy: options}],
        "world_sizes": [world_size or world_size_for(options)],
    }
    machine = EIGHT_GPUS if settings.get("device") == "cuda" else TWO_CORES
    text = json.dumps({"matrix": [block | {"precision": precision_for(options)} | settings]})
    (one,) = expand(parse_suite(text, source="test.yaml"), machine)
    return one


def needs_newer_torch(one: PlannedCase) -> bool:
    return (
        one.case.strategy == "fsdp1" and not fsdp1.MAY_BE_NARROW and "2.10" in str(one.skip_reason)
    )


@pytest.mark.parametrize(
    ("strategy", "options"),
    [(strategy, options) for strategy in SHARDED for options in VARIANTS[strategy]],
)
def test_every_variant_can_be_planned(strategy: str, options: dict[str, Any]) -> None:
    for workload in ("transformer:tiny", "embedding:tiny", "resnet152:tiny"):
        one = planned(strategy, options, workload=workload)
        assert one.skip_reason is None or needs_newer_torch(one)
        assert {name: one.case.options[name] for name in options} == options


@pytest.mark.parametrize(
    ("strategy", "options", "settings"),
    [
        ("fsdp", {"mixed_precision": "bf16"}, TWICE),
        # A unit that no step gathers has nothing that could be added up in a wider type.
        ("fsdp", {"mixed_precision": "bf16", "reduce_dtype": "fp32"}, TWICE | UNUSED),
        ("fsdp", {"shard_size": 2}, {}),
        ("fsdp1", {"sharding_strategy": "shard_grad_op"}, {"world_size": 3} | TWICE),
        ("fsdp1", {"mixed_precision": "bf16"}, {"workload": "embedding:tiny"}),
        # Tied embeddings, whose whole gradient is narrow between the two micro-steps.
        ("fsdp1", {"mixed_precision": "bf16", "sharding_strategy": "no_shard"}, TWICE),
        # No gradient within a flat tensor of gradients stays none: AdamW would decay the parameter.
        ("fsdp1", {}, UNUSED),
        ("zero", {"parameters_as_bucket_view": True}, {"world_size": 3} | TWICE),
    ],
)
def test_settings_train_the_same_model(
    launcher: Launcher,
    tmp_path: Path,
    strategy: str,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    one = planned(strategy, options, **settings)
    if needs_newer_torch(one):
        pytest.skip(str(one.skip_reason))
    parity = prove(launcher, one.case, tmp_path)
    expected = "exact" if one.case.precision == "fp32" else "within_precision"
    assert parity.verdict == expected, parity.reason
    assert parity.gradient_tolerance is not None
    assert parity.gradient_tolerance < 0.5


def communication(launcher: Launcher, strategy: str, options: dict[str, Any]) -> Communication:
    record, _ = run(launcher, planned(strategy, options).case, "communication")
    assert record.communication is not None
    return record.communication


def collectives(
    launcher: Launcher, strategy: str, options: dict[str, Any]
) -> dict[str, CollectiveCost]:
    return by_operation(communication(launcher, strategy, options))


UNITS = 3
"""Two blocks and the root, which is not gathered again by default."""


def test_freed_parameters_are_gathered_again_in_backward(launcher: Launcher) -> None:
    found = collectives(launcher, "fsdp", {"reshard_after_forward": True})
    assert found["all_gather"].calls == 2 * UNITS
    assert found["all_gather"].payload_bytes == 2 * parameter_bytes()
    assert found["all_reduce"].calls == UNITS  # gloo's reduce-scatter is one


def test_kept_parameters_are_gathered_once_and_narrow_ones_are_half_as_many_bytes(
    launcher: Launcher,
) -> None:
    options = {"mixed_precision": "bf16", "reshard_after_forward": False}
    found = collectives(launcher, "fsdp", options)
    assert found["all_gather"].calls == UNITS
    assert found["all_gather"].payload_bytes == parameter_bytes() / 2
    assert found["all_reduce"].payload_bytes == parameter_bytes() / 2


def test_hybrid_sharding_gathers_within_groups_and_reduces_between_them(launcher: Launcher) -> None:
    found = collectives(launcher, "fsdp", {"shard_size": 2})
    gathers, reductions = found["all_gather"], found["all_reduce"]
    assert gathers.calls == 2 * UNITS - 1
    assert gathers.payload_bytes is not None
    assert gathers.wire_bytes_minimum == gathers.payload_bytes / 2  # of two ranks, not of four
    # A reduce-scatter of each unit among the shards, an all-reduce of each share of it between
    # replicas: over gloo both are called the same.
    assert reductions.calls == 2 * UNITS
    assert reductions.payload_bytes == pytest.approx(1.5 * parameter_bytes(), rel=0.02)


def test_fsdp1_gathers_flat_parameters_and_scatters_their_gradients(launcher: Launcher) -> None:
    found = communication(launcher, "fsdp1", {})
    check_times(found)
    operations = by_operation(found)
    assert found.bucket_bytes is not None
    assert len(found.bucket_bytes) == UNITS
    assert sum(found.bucket_bytes) == parameter_bytes()
    assert operations["all_gather"].calls == 2 * UNITS - 1
    assert operations["all_reduce"].calls == UNITS
    assert operations["all_reduce"].payload_bytes == pytest.approx(parameter_bytes(), rel=0.02)


def test_fsdp1_without_sharding_gathers_nothing(launcher: Launcher) -> None:
    found = collectives(launcher, "fsdp1", {"sharding_strategy": "no_shard"})
    assert set(found) == {"all_reduce"}
    assert found["all_reduce"].calls == UNITS


def test_zero_broadcasts_what_each_rank_has_updated(launcher: Launcher) -> None:
    found = communication(launcher, "zero", {"parameters_as_bucket_view": True})
    check_times(found)
    operations = by_operation(found)
    assert operations["all_reduce"].payload_bytes == parameter_bytes()
    assert operations["broadcast"].calls == 2  # one tensor of each rank
    assert operations["broadcast"].payload_bytes == parameter_bytes()


def test_each_device_holds_its_share_of_what_is_sharded(launcher: Launcher) -> None:
    for strategy, parameters, state in (
        ("fsdp1", 0.5, 1.0),  # two moments, halved
        ("zero", 1.0, 1.0),
    ):
        record, _ = run(launcher, planned(strategy, {}).case, "memory")
        assert record.memory is not None
        held = record.memory.held_by_category
        assert held is not None
        for share in held["parameters"]:
            assert share == pytest.approx(parameters * parameter_bytes(), rel=0.02)
        for share in held["optimizer_state"]:
            assert share == pytest.approx(state * parameter_bytes(), rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "options", "settings", "reason"),
    [
        ("fsdp", {"mixed_precision": "bf16"}, {"precision": "fp32"}, "set precision: bf16-amp"),
        ("fsdp1", {"mixed_precision": "bf16"}, {"precision": "bf16"}, "set precision: bf16-amp"),
        ("fsdp", {"reduce_dtype": "fp32"}, {}, "set mixed_precision too"),
        ("fsdp", {"shard_size": 2}, {"world_size": 2}, "2 devices cannot be split"),
        ("fsdp", {"shard_size": 3}, {"world_size": 8}, "use a divisor"),
        ("fsdp1", {"shard_size": 1}, {"world_size": 4}, "groups of several"),
        ("fsdp", {"reshard_after_forward": 2}, {"world_size": 2}, "use a divisor"),
        (
            "fsdp",
            {"reshard_after_forward": 2, "shard_size": 2},
            {"world_size": 8},
            "the 2 devices of a model",
        ),
        ("fsdp", {"cpu_offload": True}, {}, "nothing to do on a CPU"),
        (
            "fsdp",
            {"reshard_after_forward": 2},
            {"device": "cuda", "backend": "gloo"},
            "may not go over gloo",
        ),
        ("fsdp1", {"sharding_strategy": "no_shard", "shard_size": 2}, {}, "use full_shard"),
        ("fsdp1", {}, {"workload": "sparse"}, "use dense ones"),
        ("zero", {}, {"workload": "sparse", "device": "cuda"}, "backend gloo"),
    ],
)
def test_what_cannot_run_says_why_and_what_to_do(
    strategy: str, options: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    if settings.get("workload") == "sparse":
        settings = settings | {"workload": {"embedding": {"preset": "tiny", "sparse": True}}}
    found = planned(strategy, options, **settings).skip_reason
    assert found is not None
    assert reason in found


@pytest.mark.parametrize("can", [True, False])
def test_whole_narrow_gradients_need_a_torch_that_has_them(
    monkeypatch: pytest.MonkeyPatch, can: bool
) -> None:
    monkeypatch.setattr(fsdp1, "MAY_BE_NARROW", can)
    options = {"mixed_precision": "bf16", "sharding_strategy": "no_shard"}
    reason = planned("fsdp1", options).skip_reason
    assert reason is None if can else "later torch" in str(reason)
    assert planned("fsdp1", {"mixed_precision": "bf16"}).skip_reason is None
    assert planned("fsdp1", options, workload="embedding:tiny").skip_reason is None


def test_offloading_and_hybrid_sharding_are_planned_for_devices() -> None:
    assert planned("fsdp", {"cpu_offload": True}, device="cuda").flags == ("cpu_offload",)
    options = {"shard_size": 4, "reshard_after_forward": 2}
    assert planned("fsdp", options, world_size=8, device="cuda").skip_reason is None


def test_autocast_and_a_policy_are_told_apart() -> None:
    autocast = planned("fsdp", {}, precision="bf16-amp")
    policy = planned("fsdp", {"mixed_precision": "bf16"})
    assert "fsdp_autocast" in autocast.flags
    assert "fsdp_policy" in policy.flags
    assert "fsdp_autocast" not in policy.flags
    assert policy.case.label == "fsdp(mixed_precision=bf16)"
    # Each is compared with a model that computes alike.
    assert reference_key(autocast.case) != reference_key(policy.case)
    assert reference_key(policy.case) == reference_key(
        planned("fsdp1", {"mixed_precision": "bf16"}).case
    )
