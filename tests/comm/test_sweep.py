from __future__ import annotations

import msgspec
import pytest

from bench.comm.sweep import (
    BRIEF_SIZES,
    OPERATIONS,
    SIZES,
    Planned,
    Sweep,
    can_send,
    is_brief,
    parse_sizes,
    plan,
    sweep_of,
)
from bench.errors import BenchError
from tests.fakes import EIGHT_GPUS, TWO_CORES

GIB = 2**30
ROOMY = msgspec.structs.replace(TWO_CORES, memory_bytes=64 * GIB)


def reasons(planned: list[Planned]) -> set[str]:
    return {one.skip_reason for one in planned if one.skip_reason is not None}


def test_everything_is_planned_up_to_what_the_machine_has() -> None:
    planned = plan(Sweep(), ROOMY)
    gloo = [one for one in planned if one.group.backend == "gloo"]
    assert {one.group.world_size for one in gloo} == {1, 2}
    assert {one.point.op for one in gloo} == set(OPERATIONS)
    assert len(gloo) == 2 * len(OPERATIONS) * 3 * len(SIZES)
    assert reasons(gloo) == {"needs two ranks"}
    assert (SIZES[0], SIZES[-1]) == (1024, GIB)


def test_without_more_being_asked_a_cpu_gets_a_brief_sweep() -> None:
    planned = [one for one in plan(sweep_of(), ROOMY) if one.group.backend == "gloo"]
    assert len(planned) == len(OPERATIONS) * len(BRIEF_SIZES) == 30
    assert (BRIEF_SIZES[0], BRIEF_SIZES[-1]) == (2**10, 2**26)
    assert {one.point.dtype for one in planned} == {"fp32"}
    assert {one.group.world_size for one in planned} == {2}
    assert plan(sweep_of(full=True), ROOMY) == plan(Sweep(), ROOMY)
    assert plan(sweep_of(), EIGHT_GPUS) == plan(Sweep(), EIGHT_GPUS)


def test_what_is_asked_for_is_never_cut_short() -> None:
    asked = sweep_of(sizes="1GiB", dtypes="fp16", world_sizes="1")
    assert not is_brief(asked, ROOMY)
    (one,) = {one.point for one in plan(asked, ROOMY) if one.point.op == "all_reduce"}
    assert (one.bytes, one.dtype) == (GIB, "fp16")
    assert is_brief(sweep_of(sizes="1GiB"), ROOMY)
    found = plan(sweep_of(sizes="1GiB", world_sizes="1"), ROOMY)
    assert {(one.point.bytes, one.point.dtype) for one in found} == {(GIB, "fp32")}
    one_core = msgspec.structs.replace(ROOMY, cores=(0,))
    assert {one.group.world_size for one in plan(sweep_of(), one_core)} == {1}


def test_nccl_without_a_gpu_is_a_row_that_says_so() -> None:
    nccl = [one for one in plan(Sweep(), ROOMY) if one.group.backend == "nccl"]
    assert nccl
    assert reasons(nccl) == {"NCCL moves tensors of GPUs, and there is none here"}
    assert all(one.skip_reason is not None for one in nccl)


def test_both_backends_get_the_same_points_on_devices() -> None:
    planned = plan(Sweep(sizes=[1024]), EIGHT_GPUS)
    by_backend = {
        backend: {
            (one.group.world_size, one.point) for one in planned if one.group.backend == backend
        }
        for backend in ("nccl", "gloo")
    }
    assert by_backend["nccl"] == by_backend["gloo"]
    assert {size for size, _ in by_backend["nccl"]} == {1, 2, 4, 8}
    gloo = {
        one.point.op: one.skip_reason
        for one in planned
        if one.group.backend == "gloo" and one.group.world_size == 2
    }
    assert gloo["all_reduce"] is None
    assert "TCP" in str(gloo["send_recv"])
    assert "sums a copy" in str(gloo["reduce_scatter"])
    senders = {one.group.backend for one in planned if can_send(one.group)}
    assert senders == {"nccl"}  # and so pairs of ranks are measured over it alone


def test_ranks_beyond_the_cores_are_flagged_and_beyond_the_gpus_refused() -> None:
    sweep = Sweep(operations=["all_reduce"], dtypes=["fp32"], sizes=[1024], world_sizes=[16])
    (on_cores, _nccl) = plan(sweep, ROOMY)
    assert on_cores.flags == ("oversubscribed",)
    assert on_cores.skip_reason is None
    assert reasons(plan(sweep, EIGHT_GPUS)) == {"needs 16 cuda devices, found 8"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_sizes_are_whole_elements_for_each_rank(ranks: int) -> None:
    sizes = [1, 1000, 10**6]
    for one in plan(Sweep(sizes=sizes, world_sizes=[ranks]), ROOMY):
        item = {"fp32": 4, "bf16": 2, "fp16": 2}[one.point.dtype]
        assert one.point.bytes % (item * ranks) == 0
        assert one.point.bytes > 0


def test_what_does_not_fit_is_skipped_with_its_size() -> None:
    small = msgspec.structs.replace(TWO_CORES, memory_bytes=GIB)
    sweep = Sweep(operations=["all_reduce"], dtypes=["fp32"], backends=["gloo"], world_sizes=[2])
    fits = [one.point.bytes for one in plan(sweep, small) if one.skip_reason is None]
    assert max(fits) == 2**26  # two buffers on each of two ranks: a quarter of a GiB
    assert reasons(plan(sweep, small)) == {
        "needs 1.0 GiB for its buffers, more than 50% of the 1.0 GiB of this machine",
        "needs 4.0 GiB for its buffers, more than 50% of the 1.0 GiB of this machine",
    }


def test_options_are_lists() -> None:
    sweep = sweep_of(operations="all_reduce, broadcast", sizes="1KiB,64MiB", world_sizes="2,4")
    assert list(sweep.operations) == ["all_reduce", "broadcast"]
    assert sweep.sizes == [1024, 2**26]
    assert sweep.world_sizes == [2, 4]
    assert sweep_of(backends="all").backends is None
    assert parse_sizes("5, 5B") == [5]


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("operations", "all_reduc", "--operations: no 'all_reduc'; did you mean 'all_reduce'?"),
        ("operations", ",", "--operations: names nothing"),
        ("dtypes", "fp8", "--dtypes: no 'fp8'"),
        ("backends", "ncc", "--backends: no 'ncc'; did you mean 'nccl'?"),
        ("sizes", "1KB", "--sizes: '1KB' is no size"),
        ("sizes", "0", "--sizes: '0' is no size"),
        ("sizes", " ", "--sizes: names nothing"),
        ("world_sizes", "two", "--world-sizes: 'two' is no number of ranks"),
        ("world_sizes", "0", "--world-sizes: '0' is no number of ranks"),
    ],
)
def test_a_mistake_names_the_option(option: str, text: str, message: str) -> None:
    with pytest.raises(BenchError) as caught:
        sweep_of(**{option: text})  # type: ignore[arg-type] # none of them is full
    assert str(caught.value).startswith(message)
