from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from bench.measure.allocations import read_allocations
from bench.measure.collectives import Costs, bus_factor, costs
from bench.measure.ranges import BUFFERS, STEPS, mark_range
from bench.measure.trace import StepsTrace, operation, read_events, read_steps
from tests.measure.traces import all_reduce, event, kernel, steps, write

GEMM = kernel("sm80_xmma_gemm_f32", 100, 500)
SGD = kernel("vectorized_elementwise_kernel", 700, 800)


def read(path: Path, *events: dict[str, Any], **settings: Any) -> StepsTrace:
    arguments = {"steps": 1, "world_size": 2, "device": 0} | settings
    return read_steps(read_events(write(path, steps(), *events)), **arguments)


def cost_of(tmp_path: Path, *ranks: list[dict[str, Any]], **settings: Any) -> Costs:
    traces = [
        read(tmp_path / f"rank{number}.json", *events, **settings)
        for number, events in enumerate(ranks)
    ]
    return costs(traces, 2)


def microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def test_half_of_a_collective_is_hidden(tmp_path: Path) -> None:
    # The gemm runs from 100 to 500, the collective from 300 to 700: 200 of its 400 are exposed.
    rank = [GEMM, all_reduce(300, 700), SGD]
    found = cost_of(tmp_path, rank, rank)
    assert microseconds(found.busy_s) == 400
    assert microseconds(found.exposed_s) == 200
    assert found.hidden_fraction == pytest.approx(0.5)
    assert found.wait_s == 0
    (collective,) = found.collectives
    assert (collective.operation, collective.calls) == ("all_reduce", 1)
    assert collective.payload_bytes == 1_000_000
    assert microseconds(collective.busy_s) == 400


def test_a_late_rank_makes_the_other_wait_which_is_not_communication(tmp_path: Path) -> None:
    # The first rank is there at 300, the second at 600: the first spins for 300.
    early = [GEMM, all_reduce(300, 700)]
    late = [kernel("gemm", 100, 600), all_reduce(600, 700)]
    found = cost_of(tmp_path, early, late)
    assert microseconds(found.wait_s) == 300
    assert (found.late_rank, found.late_share) == (1, 1)
    assert microseconds(found.busy_s) == 100
    assert microseconds(found.exposed_s) == 100
    assert found.hidden_fraction == pytest.approx(0)


def test_what_is_reported_after_the_steps_is_no_part_of_them(tmp_path: Path) -> None:
    # The steps end at 1000; a thread says at 1500 that its collective is over.
    found = cost_of(tmp_path, [all_reduce(900, 1500)], [all_reduce(900, 1100)])
    assert microseconds(found.busy_s) == 100
    assert found.wait_s == 0


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32",
        "ncclSymkDevKernel_AllReduce_AGxLL_R",
    ],
)
@pytest.mark.parametrize("stream", [7, 20])
def test_communication_is_told_by_name_on_any_stream(
    tmp_path: Path, name: str, stream: int
) -> None:
    rank = [GEMM, all_reduce(300, 700, name=name, tid=stream)]
    found = cost_of(tmp_path, rank, rank)
    assert microseconds(found.busy_s) == 400
    assert microseconds(found.exposed_s) == 200


def test_copies_and_packing_are_no_computation(tmp_path: Path) -> None:
    # FSDP packs on streams of its own, so that only the operator that launched a kernel tells.
    busy = [
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 500, 600, device=0),
        event("cpu_op", "fsdp::chunk_cat", 20, 60, pid=1000, tid=1000),
        event("cuda_runtime", "cudaLaunchKernel", 30, 35, pid=1000, tid=1000, correlation=5),
        kernel("chunk_cat_cuda_kernel", 600, 650, tid=22, correlation=5),
    ]
    found = cost_of(tmp_path, [GEMM, all_reduce(300, 700), *busy])
    assert microseconds(found.exposed_s) == 200
    other = [
        event("cpu_op", "aten::cat", 20, 60, pid=1000, tid=1000),
        event("cuda_runtime", "cudaLaunchKernel", 30, 35, pid=1000, tid=1000, correlation=5),
        kernel("CatArrayBatchedCopy", 600, 650, correlation=5),
    ]
    found = cost_of(tmp_path, [GEMM, all_reduce(300, 700), *other])
    assert microseconds(found.exposed_s) == 150


def test_waiting_for_one_late_rank_counts_once_however_many_collectives_wait(
    tmp_path: Path,
) -> None:
    early = [all_reduce(100, 700, Seq=1), all_reduce(100, 700, Seq=2, tid=21)]
    late = [all_reduce(600, 700, Seq=1), all_reduce(600, 700, Seq=2, tid=21)]
    found = cost_of(tmp_path, early, late)
    assert microseconds(found.wait_s) == 500
    assert microseconds(found.busy_s) == 100
    (collective,) = found.collectives
    assert collective.calls == 2
    assert microseconds(collective.busy_s) == 100  # both at once


def test_nested_and_empty_kernels_count_once(tmp_path: Path) -> None:
    more = [kernel("inner", 200, 300), kernel("empty", 650, 650), kernel("same", 100, 500)]
    found = cost_of(tmp_path, [GEMM, *more, all_reduce(300, 700)])
    assert microseconds(found.exposed_s) == 200


def test_each_device_of_one_process_is_looked_at(tmp_path: Path) -> None:
    # DataParallel: two devices in one trace; what one computes hides nothing of the other's.
    def broadcast(device: int) -> dict[str, Any]:
        return kernel("ncclDevKernel_Broadcast_RING_LL", 0, 100, pid=device)

    events = [
        broadcast(0),
        broadcast(1),
        kernel("gemm", 0, 100, pid=1),
        event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 200, 250, device=0, bytes=4096),
    ]
    found = cost_of(tmp_path, events, world_size=1)
    assert microseconds(found.exposed_s) == 150
    broadcast_, copy = found.collectives
    assert (broadcast_.operation, broadcast_.calls) == ("broadcast", 1)  # of both devices
    assert microseconds(broadcast_.busy_s) == 100
    assert (copy.operation, copy.calls, copy.payload_bytes) == ("peer_copy", 1, 4096)


def test_a_copy_between_devices_waits_for_nobody(tmp_path: Path) -> None:
    def copy(device: int, end: float) -> dict[str, Any]:
        name = "Memcpy PtoP (Device -> Device)"
        return event("gpu_memcpy", name, 0, end, device=device, pid=device, bytes=4096)

    found = cost_of(tmp_path, [copy(1, 100), copy(2, 300)], world_size=1)
    assert found.wait_s == 0
    assert microseconds(found.busy_s) == 300


def test_several_steps_are_averaged(tmp_path: Path) -> None:
    rank = [GEMM, all_reduce(300, 500, Seq=1), all_reduce(600, 800, Seq=2)]
    found = cost_of(tmp_path, rank, rank, steps=2)
    assert microseconds(found.busy_s) == 200
    (collective,) = found.collectives
    assert (collective.calls, collective.payload_bytes) == (1, 1_000_000)


def test_what_lies_outside_of_the_steps_does_not_count(tmp_path: Path) -> None:
    found = cost_of(tmp_path, [GEMM, all_reduce(300, 700), all_reduce(1500, 1700, Seq=2)])
    assert microseconds(found.busy_s) == 400


def test_gloo_events_and_operators_of_a_cpu(tmp_path: Path) -> None:
    def gloo(name: str, begin: float, end: float, count: int) -> dict[str, Any]:
        arguments = {"Input Dims": [[count]], "Input type": ["float"]}
        return event("user_annotation", name, begin, end, pid=1000, tid=2000, **arguments)

    def operator(name: str, begin: float, end: float) -> dict[str, Any]:
        return event("cpu_op", name, begin, end, pid=1000, tid=1000)

    events = [
        operator("aten::mm", 100, 200),
        operator("autograd::engine::evaluate_function: AddmmBackward0", 100, 900),
        operator("c10d::allreduce_", 300, 350),
        operator("aten::add_", 400, 500),
        gloo("gloo:all_reduce", 300, 700, 1000),
        gloo("gloo:all_gather", 800, 900, 500),
    ]
    found = cost_of(tmp_path, events, device=None)
    assert microseconds(found.busy_s) == 500
    assert microseconds(found.exposed_s) == 400
    payloads = {one.operation: one.payload_bytes for one in found.collectives}
    assert payloads == {"all_reduce": 4000, "all_gather": 4000}


def test_what_was_fused_on_a_cpu_is_computation_although_it_leaves_no_event(tmp_path: Path) -> None:
    def operator(name: str, begin: float, end: float) -> dict[str, Any]:
        return event("cpu_op", name, begin, end, pid=1000, tid=1000)

    events = [
        operator("CompiledFunctionBackward", 100, 900),
        operator("## Call CompiledFxGraph fv4w ##", 100, 800),
        operator("aten::mm", 120, 160),
        operator("c10d::allreduce_", 300, 350),
        event("user_annotation", "gloo:all_reduce", 300, 900, pid=1000, tid=2000),
    ]
    found = cost_of(tmp_path, events, device=None)
    assert microseconds(found.busy_s) == 600
    assert microseconds(found.exposed_s) == 50 + 100  # while it is begun, and after the graph


def test_what_gloo_carries_of_a_device_is_hidden_by_that_devices_kernels(tmp_path: Path) -> None:
    # Rank 1 computes on device 1 from 100 to 900, and gloo moves its tensors from 300 to 700.
    gemm = kernel("gemm", 100, 900, pid=1)
    moved = event("user_annotation", "gloo:all_reduce", 300, 700, pid=1000, tid=1000)
    trace = read(tmp_path / "rank1.json", gemm, moved, device=1)
    found = costs([trace], 2)
    assert microseconds(found.busy_s) == 400
    assert found.hidden_fraction == 1.0


def test_steps_without_communication_cost_none(tmp_path: Path) -> None:
    found = cost_of(tmp_path, [GEMM])
    assert (found.busy_s, found.exposed_s, found.hidden_fraction) == (0, 0, None)
    assert found.collectives == []


@pytest.mark.parametrize("content", ["[]", '{"a": 1}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="traceEvents"):
        read_events(path)


def test_a_trace_without_the_steps_is_refused(tmp_path: Path) -> None:
    events = read_events(write(tmp_path / "trace.json", GEMM))
    with pytest.raises(ValueError, match=STEPS):
        read_steps(events, steps=1, world_size=2, device=0)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("allreduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ReduceScatter", "reduce_scatter"),
        ("Reduce", "reduce"),
        ("Broadcast", "broadcast"),
        ("SendRecv", "send_recv"),
        ("all_to_allv", "all_to_all"),
        ("something", "something"),
    ],
)
def test_operations_have_one_name(spelling: str, expected: str) -> None:
    assert operation(spelling) == expected


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("all_reduce", 1, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, ranks: int, factor: float | None) -> None:
    assert bus_factor(name, ranks) == factor


def memory(at_us: float, address: int, size: int) -> dict[str, Any]:
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "ts": at_us,
        "pid": 1000,
        "tid": 1000,
        "args": {"Addr": address, "Bytes": size, "Total Allocated": 0, "Device Type": 0},
    }


def allocations(tmp_path: Path, *events: dict[str, Any], devices: int = 1) -> Any:
    path = write(tmp_path / "memory.json", steps(100, 1000), *events)
    return read_allocations(read_events(path), devices)


def test_the_peak_is_that_of_the_steps_alone(tmp_path: Path) -> None:
    found = allocations(
        tmp_path,
        memory(10, 1, 5000),  # larger, but before the steps
        memory(20, 1, -5000),
        memory(30, 2, 100),
        memory(200, 3, 40),
        memory(300, 4, 60),
        memory(400, 3, -40),
        memory(500, 4, -60),
        memory(1100, 5, 9000),
    )
    assert (found.before, found.peak, found.after) == ([100], [200], [100])


def test_memory_before_the_profile_began_is_not_released_from_it(tmp_path: Path) -> None:
    found = allocations(tmp_path, memory(30, 2, 100), memory(200, 77, -4000))
    assert (found.before, found.peak, found.after) == ([100], [100], [100])


def test_a_tensor_is_its_devices_own_until_it_is_released(tmp_path: Path) -> None:
    on_second = event("user_annotation", "device:1", 200, 300, pid=1000, tid=1000)
    found = allocations(
        tmp_path,
        on_second,
        memory(150, 1, 10),
        memory(250, 2, 70),
        memory(400, 2, -70),
        memory(500, 1, -10),
        devices=2,
    )
    assert (found.peak, found.after) == ([10, 70], [0, 0])


def test_a_copy_that_gloo_releases_unseen_lives_until_its_collective_ends(tmp_path: Path) -> None:
    scatter = event("cpu_op", "c10d::_reduce_scatter_base_", 200, 250, pid=1000, tid=1000)
    gloo = event("user_annotation", "gloo:all_reduce", 260, 400, pid=1000, tid=2000)
    found = allocations(
        tmp_path,
        scatter,
        gloo,
        memory(210, 1, 50),  # never released by a thread that is seen
        memory(500, 2, 20),
        memory(600, 2, -20),
    )
    assert (found.before, found.peak, found.after) == ([0], [50], [0])


@pytest.mark.parametrize(("then", "left"), [("c10d::broadcast_", 0), ("aten::narrow", 50)])
def test_a_flattened_copy_is_let_go_of_only_where_a_collective_is_next(
    tmp_path: Path, then: str, left: int
) -> None:
    found = allocations(
        tmp_path,
        event("cpu_op", "aten::flatten_dense_tensors", 200, 250, pid=1000, tid=1000),
        event("cpu_op", "aten::cat", 205, 240, pid=1000, tid=1000),
        event("user_annotation", "gloo:send", 252, 253, pid=1000, tid=2000),
        event("cpu_op", then, 255, 258, pid=1000, tid=1000),
        event("user_annotation", "gloo:broadcast", 260, 400, pid=1000, tid=2000),
        memory(210, 1, 50),  # never released by a thread that is seen
    )
    assert (found.peak, found.after) == ([50], [left])


def test_an_address_that_is_used_again_has_been_released(tmp_path: Path) -> None:
    found = allocations(tmp_path, memory(150, 1, 50), memory(300, 1, 80), memory(400, 1, -80))
    assert (found.peak, found.after) == ([80], [0])


def test_a_real_profile_shows_every_byte(tmp_path: Path) -> None:
    with profile(profile_memory=True) as profiler:
        held = torch.zeros(1000)
        with record_function(STEPS):
            temporary = torch.zeros(500, dtype=torch.float64)
            del temporary
            other = torch.zeros(100)
            del other
    path = tmp_path / "real.json"
    profiler.export_chrome_trace(str(path))
    assert "[memory]" in json.dumps(read_events(path))
    found = read_allocations(read_events(path), 1)
    assert held.nbytes == 4000
    assert (found.before, found.peak, found.after) == ([4000], [8000], [4000])


def test_what_a_strategy_makes_for_a_collective_is_no_workspace(tmp_path: Path) -> None:
    events = (
        memory(200, 1, 40),
        event("user_annotation", BUFFERS, 250, 350),
        memory(300, 2, 60),
        memory(400, 2, -60),
        memory(500, 1, -40),
        event("user_annotation", mark_range("backward"), 900, 900, tid=1000),
    )
    path = write(tmp_path / "memory.json", steps(100, 1000), *events)
    found = read_allocations(read_events(path), 1, held=[{}])
    assert found.by_category == [{"workspace": 40, "communication": 60}]


def test_a_gather_is_of_its_own_group_where_the_trace_tells_of_it(tmp_path: Path) -> None:
    def gather(begin_us: float, share: int) -> dict[str, Any]:
        shape = {"Input Dims": [[share]], "Input type": ["float"]}
        return event("user_annotation", "gloo:all_gather", begin_us, begin_us + 100, **shape)

    told = event(
        "cpu_op", "c10d::_allgather_base_", 90, 95, **{"Input Dims": [[20], [10], [], [], []]}
    )
    settings = {"world_size": 4, "device": None}
    trace = read(tmp_path / "rank0.json", told, gather(100, 10), gather(300, 50), **settings)
    assert [(span.ranks, span.payload_bytes) for span in trace.spans] == [(2, 80), (4, 800)]
    (collective,) = costs([trace], ranks=None).collectives
    assert collective.payload_bytes == 880
    assert collective.wire_bytes == 80 / 2 + 800 * 3 / 4


def test_without_the_size_of_its_group_nothing_is_said_of_the_wire(tmp_path: Path) -> None:
    trace = read(tmp_path / "rank0.json", all_reduce(300, 700))
    (unknown,) = costs([trace], ranks=None).collectives
    assert unknown.wire_bytes is None
    told = read(tmp_path / "rank1.json", all_reduce(300, 700, **{"Group size": 4}))
    (known,) = costs([told], ranks=None).collectives
    assert known.wire_bytes == 1_500_000  # 2 (n - 1) / n of a million
