"""Settings that hold for every strategy: those that show nothing, or cannot be, are skips."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from bench.analyze.checks import FLAGS
from bench.errors import FilterError, SuiteError
from bench.plan import settings
from bench.plan.case import Machine
from bench.plan.fit import IN_SWITCH
from bench.plan.reader import MAX_ENVIRONMENTS
from bench.plan.registry import find_strategy, find_workload
from bench.plan.settings import problem_of
from bench.plan.suite import parse_suite
from bench.plan.variables import refusal
from tests.fakes import EIGHT_GPUS, TWO_CORES, make_case
from tests.plan.test_matrix import block, plan
from workloads.base import Facts

SPARSE = "{embedding: {preset: tiny, sparse: true}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            block("accumulation_sync: every"),
            "accumulation_sync: every is the same as last where accumulation_steps is 1",
        ),
        (
            block("accumulation_sync: every, accumulation_steps: 2", strategy="single"),
            "single synchronises nothing: the same as accumulation_sync: last",
        ),
        (
            block(
                "accumulation_sync: every, accumulation_steps: 2, world_sizes: [2]", strategy="dp"
            ),
            "dp adds up gradients in every micro-step anyway: the same as accumulation_sync: last",
        ),
        (
            block("optimizer_kernels: fused, world_sizes: [2]", workload=SPARSE),
            "torch refuses fused kernels of sgd with sparse gradients (`_fused_sgd` does not"
            " support sparse gradients); use optimizer_kernels: for-loop",
        ),
        (block("optimizer_kernels: foreach, world_sizes: [2]", workload=SPARSE), None),
        (block("optimizer_kernels: fused, world_sizes: [2]"), None),
        (block("accumulation_sync: every, accumulation_steps: 2, world_sizes: [2]"), None),
        (block("activation_checkpointing: true, precision: fp16-amp"), None),
        (block("env: {OMP_WAIT_POLICY: PASSIVE}"), None),
    ],
)
def test_what_shows_nothing_or_cannot_be_is_a_skip(text: str, reason: str | None) -> None:
    (one,) = plan(text)
    assert one.skip_reason == reason


def test_a_static_graph_may_accumulate_however_it_synchronises() -> None:
    graph = "ddp: {static_graph: true}"
    found = plan(block("accumulation_sync: [last, every], accumulation_steps: 2", strategy=graph))
    assert [one.skip_reason for one in found] == [None, None]


def test_a_workload_without_units_has_nothing_to_checkpoint() -> None:
    case = make_case(activation_checkpointing=True)
    facts = find_workload("transformer").facts(find_workload("transformer").presets["tiny"].options)
    single = find_strategy("single")
    assert problem_of(case, facts, single) is None
    reason = problem_of(case, dataclasses.replace(facts, has_shard_units=False), single)
    assert reason is not None
    assert "let shard_units give the model's blocks" in reason


def test_devices_without_fused_optimizers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_fused_devices", lambda _: ["cpu"])
    case = make_case(device="cuda", optimizer_kernels="fused")
    reason = problem_of(case, Facts(unit="token"), find_strategy("single"))
    assert reason == "torch has no fused optimizers for cuda devices; use foreach or for-loop"


def test_the_scaler_that_waits_for_the_device_is_named() -> None:
    text = block("precision: fp16-amp, optimizer_kernels: [auto, foreach, fused]")
    flags = [one.flags for one in plan(text, EIGHT_GPUS)]
    assert flags == [("scaler_syncs",), ("scaler_syncs",), ()]
    assert all("scaler_syncs" not in one.flags for one in plan(text))


def test_what_gloo_copies_through_the_host_is_named() -> None:
    text = block("backend: [gloo, nccl], world_sizes: [2]", strategy="ddp")
    on_devices = {one.case.backend: one.flags for one in plan(text, EIGHT_GPUS)}
    assert "staged" in on_devices["gloo"]
    assert "staged" not in on_devices["nccl"]
    assert all("staged" not in one.flags for one in plan(text))


@pytest.mark.parametrize(
    ("variables", "is_told"),
    [
        ({}, True),
        ({"NCCL_NVLS_ENABLE": "0"}, False),
        ({"NCCL_ALGO": "Ring"}, False),
        ({"NCCL_ALGO": "NVLS,Ring"}, True),
    ],
)
def test_a_switch_that_reduces_is_named_unless_nccl_must_not_use_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_told: bool
) -> None:
    for name in ("NCCL_NVLS_ENABLE", "NCCL_ALGO"):
        monkeypatch.delenv(name, raising=False)
    machine = msgspec.structs.replace(EIGHT_GPUS, reduces_in_switch=True)
    text = block(f"env: {json.dumps(variables)}, world_sizes: [1, 2]", strategy="ddp")
    flags = {one.case.world_size: one.flags for one in plan(text, machine)}
    assert {size: IN_SWITCH in one for size, one in flags.items()} == {1: False, 2: is_told}
    assert IN_SWITCH in FLAGS


def test_batch_norm_of_all_devices_together_takes_one_sample_of_each() -> None:
    def reasons(option: str) -> list[str | None]:
        text = block(
            "per_device_batch: 1, world_sizes: [1, 2]",
            workload="resnet152:tiny",
            strategy=f"ddp: {{sync_batchnorm: {option}}}",
        )
        return [one.skip_reason for one in plan(text, EIGHT_GPUS)]

    alone, together = reasons("true")
    assert alone is not None
    assert "at least 2 samples" in alone
    assert together is None
    assert all(reason is not None for reason in reasons("false"))


def test_strategies_that_wait_on_an_accelerator_say_so() -> None:
    unused = "{transformer: {preset: tiny, unused_branch: true}}"
    search = "ddp: {find_unused_parameters: true}"
    for text, waits in (
        (block("world_sizes: [2]", strategy="fsdp1"), True),
        (block("world_sizes: [2]", strategy="fsdp"), False),
        (block("world_sizes: [2]", strategy=search, workload=unused), True),
        (block("world_sizes: [2]", strategy=search), False),  # all are used, and none is copied
    ):
        (planned,) = plan(text, EIGHT_GPUS)
        assert ("host_waits" in planned.flags) is waits, text
        (on_cpu,) = plan(text)
        assert "host_waits" not in on_cpu.flags


@pytest.mark.parametrize(
    ("flags", "emulated"),
    [
        ((), set()),  # not known
        (("avx2",), {"bf16-amp", "fp16-amp", "bf16"}),
        (("avx2", "avx512_bf16"), {"fp16-amp"}),
        (("amx_bf16", "avx512_fp16"), set()),
        (("asimd", "asimdhp", "bf16"), set()),
    ],
)
def test_narrow_types_that_a_cpu_does_not_have_are_flagged(
    flags: tuple[str, ...], emulated: set[str]
) -> None:
    machine = msgspec.structs.replace(TWO_CORES, cpu_flags=flags)
    planned = plan(block("precision: [fp32, bf16-amp, fp16-amp, bf16]"), machine)
    found = {one.case.precision for one in planned if "emulated_precision" in one.flags}
    assert found == emulated


def environments(text: str) -> list[dict[str, str]]:
    return [one.case.env for one in plan(block(f"env: {text}"), Machine(cores=(0, 1)))]


def test_variables_are_an_axis_of_their_own() -> None:
    assert environments("{NCCL_ALGO: [Ring, Tree], NCCL_NTHREADS: 256}") == [
        {"NCCL_ALGO": "Ring", "NCCL_NTHREADS": "256"},
        {"NCCL_ALGO": "Tree", "NCCL_NTHREADS": "256"},
    ]
    assert environments("{NCCL_ALGO: [null, Ring]}") == [{}, {"NCCL_ALGO": "Ring"}]
    assert environments("[{}, {NCCL_ALGO: Ring, NCCL_PROTO: [LL, Simple]}]") == [
        {},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
    ]
    plain, ring = plan(block("env: {NCCL_ALGO: [null, Ring]}"))
    (without,) = plan(block("seed: 0"))
    assert plain.case.id == without.case.id != ring.case.id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{RANK: 1}", "defaults.env.RANK: is the launcher's, which sets it for every process"),
        ("[{BENCH_X: a}]", "defaults.env[0].BENCH_X: is the launcher's"),
        ("{CUDA_VISIBLE_DEVICES: '1'}", "defaults.env.CUDA_VISIBLE_DEVICES: chooses devices"),
        ("{OMP_NUM_THREADS: 4}", "defaults.env.OMP_NUM_THREADS: counts threads, which follow from"),
        ("{OMP_THREAD_LIMIT: 1}", "defaults.env.OMP_THREAD_LIMIT: counts threads"),
        ("{NVIDIA_TF32_OVERRIDE: 1}", "defaults.env.NVIDIA_TF32_OVERRIDE: changes the precision"),
        ("{PYTHONPATH: a}", "defaults.env.PYTHONPATH: loads code, or names files, which no suite"),
        ("{LD_PRELOAD: a.so}", "defaults.env.LD_PRELOAD: loads code"),
        ("{NCCL_NET_PLUGIN: a}", "defaults.env.NCCL_NET_PLUGIN: loads code"),
        ("{NCCL_DEBUG_FILE: a}", "defaults.env.NCCL_DEBUG_FILE: loads code, or names files"),
        (
            "{TORCHINDUCTOR_PROFILE_OUTPUT: a}",
            "defaults.env.TORCHINDUCTOR_PROFILE_OUTPUT: loads code",
        ),
        ("{CUDA_HOME: a}", "defaults.env.CUDA_HOME: loads code, or names files"),
        ("{UCX_STATS_DEST: a}", "defaults.env.UCX_STATS_DEST: loads code, or names files"),
        ("{FOO: 1}", "defaults.env.FOO: is no variable of torch's, nor of what it runs on"),
        ("{NCCL_NET: ../a}", "defaults.env.NCCL_NET: names a file, which no suite may do"),
        ("{nccl_algo: Ring}", "defaults.env: Expected `str` matching regex"),
        ("{NCCL_ALGO: []}", "defaults.env.NCCL_ALGO: is empty"),
        ("{NCCL_ALGO: true}", "defaults.env.NCCL_ALGO: Expected `str | null`, got"),
        ('{NCCL_ALGO: "a\\0"}', "defaults.env.NCCL_ALGO: Expected `str` matching regex"),
        ("Ring", "defaults.env: must be a mapping"),
        (
            f"{{{', '.join(f'NCCL_{i}: [1, 2]' for i in range(50))}}}",
            f"defaults.env: gives more than {MAX_ENVIRONMENTS} combinations",
        ),
    ],
)
def test_variables_that_a_suite_may_not_set(text: str, message: str) -> None:
    suite = f"defaults: {{env: {text}}}\n" + block("seed: 0")
    with pytest.raises(SuiteError) as caught:
        parse_suite(suite, source="my.yaml")
    assert str(caught.value).startswith(f"my.yaml: {message}")


def test_what_changes_how_fast_things_run_may_be_set() -> None:
    for name in (
        "NCCL_ALGO",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "PYTORCH_ALLOC_CONF",
        "KMP_AFFINITY",
        "OMP_PROC_BIND",
        "MALLOC_TRIM_THRESHOLD_",
        "ATEN_CPU_CAPABILITY",
    ):
        assert refusal(name) is None


def test_a_filter_can_ask_for_variables() -> None:
    text = block("env: {NCCL_ALGO: [null, Ring], NCCL_NTHREADS: [64, 512], NCCL_LAZY: 'true'}")

    def count(only: str) -> int:
        return len(plan(text, only=only))

    assert count("env.NCCL_ALGO == Ring") == 2
    assert count("env.NCCL_ALGO == null and env.NCCL_NTHREADS == 512") == 1
    assert count("env.NCCL_NTHREADS == '512'") == 2
    assert count("env.NCCL_NTHREADS > 64") == 2
    assert count("env.NCCL_NTHREADS in (64, 512) and env.NCCL_LAZY == true") == 4
    with pytest.raises(FilterError, match="sets a variable 'NCCL_ALG'; did you mean 'NCCL_ALGO'"):
        count("env.NCCL_ALG == Ring")
