from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from bench.errors import BenchError, FilterError, SuiteError
from bench.plan.case import DeviceInfo, Limits, Machine, PlannedCase, identify, original_of
from bench.plan.matrix import expand
from bench.plan.suite import parse_suite
from bench.records.store import read_records
from bench.report.index import newest
from bench.strategies.ddp_check import accepts
from tests.fakes import EIGHT_GPUS, TWO_CORES

SMALL_BUCKETS = (
    "torch cuts a compiled model where DDP's buckets end, and refuses buckets smaller than the"
    " first of its own default, 1 MiB; use caps of 1 MiB or more"
)


def plan(text: str, machine: Machine = TWO_CORES, only: str | None = None) -> Sequence[PlannedCase]:
    return expand(parse_suite(text, source="my.yaml"), machine, only=only)


def block(extra: str, workload: str = "transformer:tiny", strategy: str = "ddp") -> str:
    return f"matrix: [{{workloads: [{workload}], strategies: [{strategy}], {extra}}}]"


def test_cases_come_in_the_suites_order() -> None:
    planned = plan(
        "matrix:\n"
        "  - workloads: [resnet152:tiny, transformer:tiny]\n"
        "    strategies: [single, ddp]\n"
        "    world_sizes: [2, 1]\n"
    )
    seen = [(one.case.workload, one.case.strategy, one.case.world_size) for one in planned]
    assert seen == [
        ("resnet152", "single", 1),
        ("resnet152", "ddp", 2),
        ("resnet152", "ddp", 1),
        ("transformer", "single", 1),
        ("transformer", "ddp", 2),
        ("transformer", "ddp", 1),
    ]


def test_a_list_is_an_axis() -> None:
    planned = plan(
        "matrix:\n"
        "  - workloads: [transformer:tiny]\n"
        "    strategies: [ddp: {bucket_cap_mb: [null, 1, 25, 100], static_graph: [false, true]}]\n"
        "    world_sizes: [2]\n"
        "    precision: [fp32, bf16-amp]\n"
    )
    assert len(planned) == 16
    assert len({one.case.id for one in planned}) == 16
    assert {one.case.label for one in planned} >= {
        "ddp",
        "ddp(bucket_cap_mb=25)",
        "ddp(bucket_cap_mb=1, static_graph=true)",
    }


def test_ids_are_readable_and_depend_on_the_fields_alone() -> None:
    (one,) = plan(block("precision: bf16-amp, world_sizes: [2]"))
    assert one.case.id.startswith("transformer-tiny-ddp-cpu2-bf16-amp-")
    (again,) = plan(block("world_sizes: [2], precision: bf16-amp"), Machine(cores=tuple(range(9))))
    assert again.case.id == one.case.id
    (other,) = plan(block("world_sizes: [2], precision: bf16-amp, seed: 1"))
    assert other.case.id != one.case.id


def test_the_same_case_twice_runs_once() -> None:
    line = "  - {workloads: [transformer:tiny], strategies: [single]}\n"
    assert len(plan("matrix:\n" + 2 * line)) == 1
    with pytest.raises(
        SuiteError, match=r"matrix\[1\]: plans .* a second time, with another launches"
    ):
        plan("matrix:\n" + line + line.replace("}", ", launches: 9}"))


def test_single_runs_once_whatever_the_sizes() -> None:
    (one,) = plan(block("world_sizes: [2, 4]", strategy="single"))
    assert (one.case.world_size, one.case.backend, one.skip_reason) == (1, None, None)


@pytest.mark.parametrize(
    ("extra", "per_device", "total"),
    [
        ("world_sizes: [4]", 4, 16),
        ("world_sizes: [4], per_device_batch: 3, accumulation_steps: 2", 3, 24),
        ("world_sizes: [4], scaling: strong, global_batch: 24, accumulation_steps: 2", 3, 24),
    ],
)
def test_batches(extra: str, per_device: int, total: int) -> None:
    (one,) = plan(block(extra))
    assert (one.case.per_device_batch, one.case.global_batch) == (per_device, total)
    assert one.case.global_batch == (
        one.case.per_device_batch * one.case.world_size * one.case.accumulation_steps
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            block("scaling: strong, global_batch: 10, world_sizes: [4]"),
            "matrix[0].global_batch: 10 does not divide by 4 devices x 1 accumulation steps",
        ),
        (block("scaling: strong"), "matrix[0].global_batch: strong scaling needs a global_batch"),
        (
            block("scaling: strong, global_batch: 8, per_device_batch: 4"),
            "matrix[0].per_device_batch: strong scaling needs a global_batch, and no",
        ),
        (block("global_batch: 8"), "matrix[0].global_batch: weak scaling fixes per_device_batch"),
        (
            block("", workload="resnet125:tiny"),
            "matrix[0].workloads[0]: unknown workload 'resnet125'; did you mean 'resnet152'?",
        ),
        (
            block("", workload="resnet152:tiney"),
            "matrix[0].workloads[0]: workload resnet152 has no preset 'tiney'; did you mean 'tiny'",
        ),
        (
            block("", workload="{transformer: {layer: 3}}"),
            "matrix[0].workloads[0].transformer: transformer has no option 'layer'; "
            "did you mean 'layers'",
        ),
        (
            block("", workload="{transformer: {layers: three}}"),
            "matrix[0].workloads[0].transformer.layers: Expected `int`",
        ),
        (
            block("", workload="{transformer: {heads: 7}}"),
            "matrix[0].workloads[0].transformer: width 256 is not a multiple of heads 7",
        ),
        (block("", strategy="dpp"), "matrix[0].strategies[0]: unknown strategy 'dpp'; did you"),
        (
            block("world_sizes: [2]", strategy="{fsdp1: {sharding_strategy: full}}"),
            "matrix[0].strategies[0].fsdp1.sharding_strategy: invalid value 'full'; did you mean "
            "'full_shard'? Known: full_shard, no_shard, shard_grad_op",
        ),
        (
            block("", strategy="{ddp: {bucket_cap: 1}}"),
            "matrix[0].strategies[0].ddp: ddp has no option 'bucket_cap'; did you mean",
        ),
        (
            block("", strategy="{ddp: {bucket_cap_mb: -1}}"),
            "matrix[0].strategies[0].ddp.bucket_cap_mb: Expected `float` > 0",
        ),
        (block("", strategy="{single: {a: 1}}"), "matrix[0].strategies[0].single: single has no"),
        (block("", strategy="..rel:X"), "matrix[0].strategies[0]: unknown strategy '..rel:X'"),
        (block("", workload="{transformer: {preset: {a: 1}}}"), "matrix[0].workloads[0]: workload"),
        (block("", strategy="no.such.module:X"), "matrix[0].strategies[0]: strategy 'no.such"),
        (
            block("", strategy="bench.errors:did_you_mean"),
            "matrix[0].strategies[0]: strategy 'bench.errors:did_you_mean' is function, not a",
        ),
        (
            block("filter: options.bucket_cap == 25"),
            "matrix[0].filter: filter 'options.bucket_cap == 25': nothing here has an option "
            "'bucket_cap'; did you mean 'bucket_cap_mb'?",
        ),
        (block("filter: 'world == 1'"), "matrix[0].filter: filter 'world == 1': 'world' is no"),
        (
            block("", workload="{transformer:tiny: {preset: cpu}}"),
            "matrix[0].workloads[0]: names a preset twice",
        ),
    ],
)
def test_a_mistake_names_file_and_field(text: str, expected: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(text)
    assert str(caught.value).startswith(f"my.yaml: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "machine", "reason"),
    [
        (
            block("device: cuda, world_sizes: [2]"),
            TWO_CORES,
            "needs 2 cuda devices, found 0",
        ),
        (block("world_sizes: [16]"), EIGHT_GPUS, "needs 16 cuda devices, found 8"),
        (
            block("world_sizes: [17]"),
            TWO_CORES,
            "needs 17 sets of 1 core, found 2; at most 8 ranks share one",
        ),
        (block("backend: mpi"), TWO_CORES, "torch here has no backend mpi; it has gloo"),
        (
            block(
                "", strategy="ddp", workload="{transformer: {preset: tiny, unused_branch: true}}"
            ),
            TWO_CORES,
            "DDP waits for gradients that never come, and fails in the second step: some parameters"
            " are unused; set find_unused_parameters or static_graph",
        ),
        (
            block("precision: tf32", workload="transformer:full"),
            EIGHT_GPUS,
            "tf32 needs NVIDIA devices of compute capability 8.0 or more",
        ),
        (
            block("backend: nccl, device: cpu"),
            EIGHT_GPUS,
            "NCCL carries cuda tensors, not cpu ones",
        ),
        (
            block("precision: tf32"),
            TWO_CORES,
            "tf32 needs NVIDIA devices of compute capability 8.0 or more",
        ),
        (
            block("per_device_batch: 1", workload="resnet152:tiny"),
            TWO_CORES,
            "batch norm needs at least 2 samples a device; raise the batch or use fewer devices",
        ),
        (
            block("optimizer: adamw", workload="{embedding: {preset: tiny, sparse: true}}"),
            TWO_CORES,
            "AdamW cannot take sparse gradients; use sgd, or dense ones",
        ),
        (
            block("seed: 0", workload="{embedding: {preset: tiny, sparse: true}}", strategy="fsdp"),
            TWO_CORES,
            "FSDP reduces gradients by rows, which sparse ones do not have; use dense ones",
        ),
        (
            block(
                "world_sizes: [2]",
                workload="{embedding: {preset: tiny, sparse: true}}",
                strategy="ddp",
            ),
            EIGHT_GPUS,
            "NCCL cannot all-reduce sparse gradients; use dense ones, or backend gloo",
        ),
        (
            block("seed: 0", workload="resnet152:tiny", strategy="ddp: {sync_batchnorm: true}"),
            TWO_CORES,
            "SyncBatchNorm needs an accelerator: torch refuses modules on a CPU",
        ),
        (
            block("seed: 0", strategy="ddp: {sync_batchnorm: true}"),
            EIGHT_GPUS,
            "sync_batchnorm has nothing to do: this workload has no batch norm",
        ),
        (
            block("device: accelerator"),
            TWO_CORES,
            "needs 1 cuda device, found 0",
        ),
        (
            block("compile: reduce-overhead"),
            TWO_CORES,
            "reduce-overhead is made of CUDA graphs, which a CPU has not: the code would be that of"
            " compile: default, which can be asked for",
        ),
        (
            block("compile: default", strategy="dp"),
            EIGHT_GPUS,
            "DataParallel makes new replicas in every step, and what was compiled for one serves no"
            " other; use ddp, or compile: none",
        ),
        (
            block(
                "world_sizes: [2], accumulation_steps: 2, accumulation_sync: every",
                strategy="ddp: {local_sgd_period: 2}",
            ),
            TWO_CORES,
            "ranks train apart: the same as accumulation_sync: last",
        ),
        (
            block("world_sizes: [2]", strategy="ddp: {local_sgd_period: 1000000000}"),
            TWO_CORES,
            "trains as it should after 2 steps and repeats itself every 1000000000: more than 20000"
            " together are not waited for; lower them",
        ),
        (
            block("world_sizes: [3]", strategy="fsdp: {shard_size: 2}"),
            TWO_CORES,
            "3 devices cannot be split into several groups of several, as shard_size asks; use null"
            " to shard over all, or another number of devices",
        ),
        (
            block("compile: max-autotune, accumulation_steps: 2", strategy="ddp"),
            EIGHT_GPUS,
            "max-autotune captures CUDA graphs, each of which overwrites the gradients that the"
            " micro-step before has left (pytorch#169545); use compile: default",
        ),
        (
            block(
                "device: cuda, world_sizes: [2]",
                strategy="dp",
                workload="transformer: {preset: tiny, unused_branch: true}",
            ),
            EIGHT_GPUS,
            "DataParallel gives parameters that no step uses a gradient of zeros, which the"
            " optimizer then takes; use ddp with find_unused_parameters",
        ),
        (
            block("compile: default"),
            msgspec.structs.replace(TWO_CORES, cannot_compile={"cpu": "no compiler; install g++"}),
            "no compiler; install g++",
        ),
        (
            block("compile: default, compile_scope: blocks", workload="tests.compilers:PERCEPTRON"),
            TWO_CORES,
            "compile_scope: blocks has nothing to compile, since the workload names no shard units;"
            " use outside, or let shard_units give the model's blocks",
        ),
        (
            block("compile: default", strategy="ddp: {bucket_cap_mb: 0.5}"),
            TWO_CORES,
            SMALL_BUCKETS,
        ),
    ],
)
def test_what_the_machine_lacks_is_a_skip(text: str, machine: Machine, reason: str) -> None:
    (one,) = plan(text, machine)
    assert one.skip_reason == reason


def test_what_can_be_compiled_is() -> None:
    modes = "compile: [default, max-autotune], compile_scope: [outside, inside, blocks]"
    for strategy in ("ddp", "ddp: {bucket_cap_mb: 1}"):
        assert [one.skip_reason for one in plan(block(modes, strategy=strategy))] == [None] * 6
    (one,) = plan(block("compile: reduce-overhead", strategy="ddp"), EIGHT_GPUS)
    assert one.skip_reason is None


@pytest.mark.skipif(not accepts("bucket_cap_mb_list"), reason="this torch has one cap alone")
def test_of_several_caps_the_compiler_goes_by_the_largest() -> None:
    caps = "ddp: {bucket_cap_mb_list: [[0.25, 0.5], [0.25, 1]]}"
    planned = plan(block("compile: default", strategy=caps))
    assert [one.skip_reason for one in planned] == [SMALL_BUCKETS, None]


def test_equal_code_is_planned_once() -> None:
    scopes = "compile: [none, default], compile_scope: [outside, inside, blocks]"
    compiled = [
        [(one.case.compile, one.case.compile_scope) for one in plan(block(scopes, strategy=name))]
        for name in ("single", "fsdp", "ddp")
    ]
    # Without a wrapper, the inside is the outside; without a compiler, all is the same.
    unwrapped = [("none", "outside"), ("default", "outside"), ("default", "blocks")]
    assert compiled[0] == compiled[1] == unwrapped
    assert compiled[2] == [*unwrapped[:2], ("default", "inside"), ("default", "blocks")]


def test_more_ranks_than_cores_run_but_are_flagged() -> None:
    two, four = plan(block("world_sizes: [2, 4]"))
    assert (two.flags, two.skip_reason) == (("shared_cores",), None)
    assert (four.flags, four.skip_reason) == (("oversubscribed", "shared_cores"), None)


def test_devices_of_several_kinds_are_flagged() -> None:
    kinds = ["A", "A", "B"]
    mixed = msgspec.structs.replace(
        EIGHT_GPUS,
        devices=tuple(DeviceInfo(name=kind, visible_as=f"{i}") for i, kind in enumerate(kinds)),
    )
    two, three = plan(block("world_sizes: [2, 3]"), mixed)
    assert "mixed_devices" not in two.flags
    assert "mixed_devices" in three.flags
    sizes = [80 * 2**30, 80 * 2**30 - 2**20, 40 * 2**30]
    mixed = msgspec.structs.replace(
        EIGHT_GPUS,
        devices=tuple(
            DeviceInfo(name="A", visible_as=f"{i}", memory_bytes=size)
            for i, size in enumerate(sizes)
        ),
    )
    two, three = plan(block("world_sizes: [2, 3]"), mixed)
    assert "mixed_devices" not in two.flags
    assert "mixed_devices" in three.flags
    on_cpu = plan(block("world_sizes: [3], device: cpu"), mixed)
    assert "mixed_devices" not in on_cpu[0].flags


def test_big_and_little_cores_are_devices_of_two_kinds() -> None:
    text = block("world_sizes: [1, 2, 3]")
    hybrid = Machine(cores=(0, 1, 2), core_speeds=(5_000_000, 4_900_000, 3_800_000))
    seen = ["mixed_devices" in one.flags for one in plan(text, hybrid)]
    assert seen == [False, False, True]
    # A device of two cores, of which the second device's are not there.
    pairs = plan(f"cores_per_device: 2\n{block('world_sizes: [2]')}", hybrid)
    assert "mixed_devices" not in pairs[0].flags


def test_auto_means_the_accelerator_where_there_is_one() -> None:
    (one,) = plan(block("world_sizes: [8]", workload="resnet152"), EIGHT_GPUS)
    assert (one.case.device, one.case.backend, one.case.preset) == ("cuda", "nccl", "full")
    assert (one.case.cores_per_device, one.case.per_device_batch) == (None, 64)
    (one,) = plan(block("world_sizes: [2]", workload="resnet152"))
    assert (one.case.device, one.case.backend, one.case.preset) == ("cpu", "gloo", "cpu")


def test_a_block_that_its_filter_empties_is_told() -> None:
    one_block = "  - {workloads: [transformer:tiny], strategies: [single]"
    with pytest.warns(UserWarning, match=r"matrix\[0\]\.filter: no case of this block matches"):
        (one,) = plan(f"matrix:\n{one_block}, filter: world_size == 3}}\n{one_block}}}\n")
    assert one.case.strategy == "single"


def test_filters_of_the_block_and_of_the_command_line() -> None:
    text = block("world_sizes: [1, 2, 4], filter: world_size != 2", strategy="single, ddp")
    assert [one.case.world_size for one in plan(text)] == [1, 1, 4]
    assert [one.case.label for one in plan(text, only="strategy == single")] == ["single"]
    with pytest.raises(BenchError, match="no case matches the filter"):
        plan(text, only="world_size == 2")
    with pytest.raises(FilterError):
        plan(text, only="world_size ==")
    with pytest.raises(FilterError, match="did you mean 'static_graph'"):
        plan(text, only="options.static_grap == true")


def test_a_hundred_thousand_cases_are_planned() -> None:
    # Its time is measured by `nox -s limits`.
    caps = list(range(1, 5001))
    planned = plan(
        f"matrix: [{{workloads: [transformer:tiny], strategies: [ddp: {{bucket_cap_mb: {caps}}}],"
        " world_sizes: [1, 2, 4, 8], seed: [0, 1, 2, 3, 4]}]"
    )
    assert len(planned) == 100_000


def test_a_block_with_twins_plans_each_case_twice() -> None:
    text = """
name: t
budget_s: 12.5
defaults: {launches: 4, max_launches: 9, launch_interval: 0.1}
matrix:
  - {workloads: [transformer:tiny], strategies: [single, ddp], world_sizes: [1, 2]}
  - {workloads: [transformer:tiny], strategies: [ddp], world_sizes: [2], twins: true}
"""
    suite = parse_suite(text, source="t.yaml")
    assert suite.budget_s == 12.5
    planned = expand(suite, TWO_CORES)
    assert [(one.case.label, one.case.world_size, one.case.twin) for one in planned] == [
        ("single", 1, False),
        ("ddp", 1, False),
        ("ddp", 2, False),
        ("ddp", 2, True),
    ]
    assert original_of(planned[3].case) == planned[2].case
    assert planned[3].case.id.startswith("transformer-tiny-ddp-cpu2-twin-")
    assert {(one.effort.launches, one.effort.max_launches) for one in planned} == {(4, 9)}
    # Who asks for a number gets that number, and no more.
    fixed = expand(suite, TWO_CORES, launches=2)
    assert {(one.effort.launches, one.effort.max_launches) for one in fixed} == {(2, 2)}


def test_ids_of_cases_do_not_change_with_fields_that_were_added() -> None:
    published = newest("quick")
    assert published is not None
    cases = {record.case.id: record.case for record in read_records(published)}
    for id_, case in cases.items():
        assert identify(msgspec.structs.replace(case, id="")).id == id_


def test_limits_of_phases_reach_the_effort() -> None:
    defaults = "defaults: {timeout_s: 50, limits: {warm_up_s: 4}}\n"
    (one,) = plan(defaults + block("world_sizes: 1", strategy="single"))
    assert one.effort.timeout_s == 50
    assert one.effort.limits == Limits(warm_up_s=4)
