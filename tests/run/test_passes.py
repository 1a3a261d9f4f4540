"""The communication and memory passes, on real processes over gloo."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analyze.checks import straggler
from bench.plan.case import Case
from bench.records.record import CollectiveCost, Communication, Record
from bench.run.handover import Job, RankOutcome, TraceWish
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from tests.fakes import SHORT
from tests.misbehaviour import LATE_S
from tests.strategies.test_contract import COMPLETE, planned_case
from tests.workloads.test_workloads import build


def run(launcher: Launcher, case: Case, job: Job) -> tuple[Record, tuple[RankOutcome, ...]]:
    effort = msgspec.structs.replace(SHORT, timeout_s=200)
    assignment, outcomes = launcher.launch_case(
        case, effort, job, launch=0, processes=process_count(case)
    )
    record = to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 32))
    assert record.status == "ok", record.reason
    return record, outcomes


def communication(launcher: Launcher, strategy: str, **settings: Any) -> Communication:
    record, _ = run(
        launcher, planned_case("transformer:tiny", strategy, 2, **settings), "communication"
    )
    assert record.communication is not None
    return record.communication


def by_operation(found: Communication) -> dict[str, CollectiveCost]:
    assert found.collectives is not None
    return {one.op: one for one in found.collectives}


def parameter_bytes() -> int:
    return sum(parameter.nbytes for parameter in build("transformer").model.parameters())


def check_times(found: Communication) -> None:
    assert found.busy_s is not None
    assert found.exposed_s is not None
    assert found.wait_s is not None
    assert found.hidden_fraction is not None
    assert found.busy_s > 0
    assert 0 <= found.exposed_s <= found.busy_s
    assert found.wait_s >= 0
    assert found.hidden_fraction == pytest.approx(1 - found.exposed_s / found.busy_s)
    assert found.profiled_step_s is not None
    assert found.exposed_s + found.wait_s <= found.profiled_step_s


def test_ddp_reduces_every_gradient_once_a_step(launcher: Launcher) -> None:
    found = communication(launcher, "ddp")
    check_times(found)
    (reduce,) = by_operation(found).values()
    assert reduce.op == "all_reduce"
    assert found.bucket_bytes is not None
    assert reduce.calls == len(found.bucket_bytes)
    assert reduce.payload_bytes == sum(found.bucket_bytes) == parameter_bytes()
    assert reduce.wire_bytes_minimum == parameter_bytes()  # 2 (n - 1) / n for two ranks
    assert reduce.busy_s > 0
    assert found.sync_cost_s is not None


def test_a_late_rank_is_named_and_costs_no_communication(launcher: Launcher) -> None:
    found = communication(launcher, "tests.fakes:LATE")
    check_times(found)
    assert found.busy_s is not None
    assert found.wait_s is not None
    assert found.wait_s > 0.75 * LATE_S
    assert found.busy_s < 0.25 * LATE_S
    assert (straggler(found), found.late_rank) == (1, 1)


def test_fsdp_gathers_its_parameters_and_scatters_its_gradients(launcher: Launcher) -> None:
    found = communication(launcher, "fsdp")
    check_times(found)
    operations = by_operation(found)
    assert set(operations) == {"all_gather", "all_reduce"}  # gloo's reduce-scatter is one
    assert found.bucket_bytes is not None
    units = len(found.bucket_bytes)
    assert units == 3  # two blocks and the root
    # Backward gathers again what forward has freed: all units but the root.
    assert operations["all_gather"].calls == 2 * units - 1
    assert operations["all_reduce"].calls == units
    assert operations["all_reduce"].payload_bytes == pytest.approx(parameter_bytes(), rel=0.02)
    assert found.sync_cost_s is not None  # of the scattering alone
    assert found.standalone_s is not None
    assert found.standalone_s > 0


@pytest.mark.parametrize("kind", ["full_shard", "shard_grad_op", "no_shard"])
def test_the_first_fsdp_can_leave_synchronisation_out(launcher: Launcher, kind: str) -> None:
    case = planned_case("transformer:tiny", "fsdp1", 2)
    case = msgspec.structs.replace(case, options=case.options | {"sharding_strategy": kind})
    record, _ = run(launcher, case, "communication")
    assert record.communication is not None
    assert record.communication.sync_pairs_s


@pytest.mark.parametrize("strategy", ["fsdp", "zero"])
def test_steps_without_synchronisation_leave_a_scaler_alone(
    launcher: Launcher, strategy: str
) -> None:
    # Shards have no gradient then, and ranks that decide apart would not meet in a broadcast.
    found = communication(launcher, strategy, precision="fp16-amp")
    assert found.sync_pairs_s


def test_dp_says_what_it_moves_and_hides_none_of_it(launcher: Launcher) -> None:
    found = communication(launcher, "dp")
    operations = by_operation(found)
    assert set(operations) == {"broadcast", "scatter", "gather", "reduce"}
    assert operations["broadcast"].payload_bytes == parameter_bytes()
    assert operations["reduce"].payload_bytes == parameter_bytes()
    assert operations["gather"].payload_bytes == 8 * 32 * 256 * 4  # logits of 8 samples
    assert found.exposed_s == found.busy_s
    assert found.hidden_fraction is None  # by its nature, not by measurement
    assert found.wait_s is None
    assert found.bucket_bytes is None


def test_dp_times_each_of_its_phases(launcher: Launcher) -> None:
    record, _ = run(launcher, planned_case("transformer:tiny", "dp", 2), "timing")
    assert record.phases is not None
    pieces = record.phases.pieces_s
    assert pieces is not None
    assert set(pieces) == {
        "forward.broadcast",
        "forward.scatter",
        "forward.gather",
        "backward.scatter",
        "backward.reduce",
    }
    assert all(seconds > 0 for seconds in pieces.values())
    assert sum(pieces[name] for name in pieces if name.startswith("forward.")) < (
        record.phases.forward_s
    )


def pool_bytes(samples: int) -> int:
    """Of the four batches that are used again and again: inputs and targets."""
    return 4 * samples * 2 * 32 * 8


@pytest.mark.parametrize("strategy", COMPLETE)
def test_tensor_memory_is_what_lives_from_step_to_step_and_what_comes_and_goes(
    launcher: Launcher, strategy: str
) -> None:
    world_size = 1 if strategy == "single" else 2
    case = planned_case("transformer:tiny", strategy, world_size)
    record, outcomes = run(launcher, case, "memory")
    if "allocations_drift" in record.flags:  # gloo frees on threads of its own, at times late
        record, outcomes = run(launcher, case, "memory")
    assert record.memory is not None
    peaks = record.memory.peak_allocated_bytes
    assert len(peaks) == world_size
    held = [sum(device.values()) for outcome in outcomes for device in outcome.held]
    before = [
        value
        for outcome in outcomes
        if outcome.allocations is not None
        for value in outcome.allocations.before
    ]
    extra = [0] * world_size  # that no category has
    if strategy in {"ddp", "zero"}:
        extra = [parameter_bytes()] * 2  # DDP's buckets
    elif strategy == "fsdp1":  # its flat gradients outlive those of the parameters in them
        extra = [parameter_bytes() // 2] * 2
    pools = [pool_bytes(8), 0] if strategy == "dp" else [pool_bytes(4)] * world_size
    for index, peak in enumerate(peaks):
        assert before[index] == pytest.approx(
            held[index] + extra[index] + pools[index], rel=0.02, abs=4096
        )
        assert peak is not None
        assert peak > before[index]


def test_sharding_halves_what_a_device_holds(launcher: Launcher) -> None:
    record, _ = run(launcher, planned_case("transformer:tiny", "fsdp", 2), "memory")
    assert record.memory is not None
    held = record.memory.held_by_category
    assert held is not None
    for share in held["parameters"]:
        assert share == pytest.approx(parameter_bytes() / 2, rel=0.02)
    for share in held["optimizer_state"]:
        assert share == pytest.approx(parameter_bytes(), rel=0.02)  # two moments, halved


def test_the_first_device_of_dp_holds_more_than_the_others(launcher: Launcher) -> None:
    record, _ = run(launcher, planned_case("embedding:tiny", "dp", 2), "memory")
    assert record.memory is not None
    first, second = record.memory.peak_allocated_bytes
    assert first is not None
    assert second is not None
    assert first > second > 0


def test_sparse_gradients_cost_less_to_reduce(launcher: Launcher) -> None:
    found = {}
    for sparse in (False, True):
        case = planned_case("embedding:tiny", "ddp", 2)
        case = msgspec.structs.replace(
            case, workload_options=case.workload_options | {"sparse": sparse, "rows": 5000}
        )
        record, _ = run(launcher, case, "memory")
        assert record.memory is not None
        found[sparse] = record.memory.peak_allocated_bytes[0] or 0
    assert 0 < found[True] < 0.7 * found[False]


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp", "fsdp", "fsdp1", "zero"])
def test_what_the_peak_is_made_of_is_told(launcher: Launcher, strategy: str) -> None:
    devices = 1 if strategy == "single" else 2
    record, _ = run(launcher, planned_case("transformer:tiny", strategy, devices), "memory")
    memory = record.memory
    assert memory is not None
    assert memory.by_category is not None
    assert memory.held_by_category is not None
    for device, peak in enumerate(memory.peak_allocated_bytes):
        parts = {name: sizes[device] for name, sizes in memory.by_category.items()}
        assert sum(parts.values()) == peak
        assert peak is not None
        assert parts.get("unexplained", 0) <= 0.02 * peak
        held = memory.held_by_category
        assert parts["parameters"] == pytest.approx(held["parameters"][device], rel=0.02)
        assert parts["optimizer_state"] == pytest.approx(held["optimizer_state"][device], rel=0.02)
        if strategy == "ddp":
            assert parts["buckets"] == parameter_bytes()
        if strategy in {"fsdp", "fsdp1"}:
            assert 0 < parts["unsharded_parameters"] <= parameter_bytes()
        if strategy == "fsdp":
            assert 0 < parts["unsharded_gradients"] <= parameter_bytes()
    timeline = memory.timeline
    assert timeline is not None
    assert 2 < len(timeline.at_s) <= 101
    totals = [sum(moment) for moment in zip(*timeline.by_category.values(), strict=True)]
    assert max(totals) == memory.peak_allocated_bytes[0]


def test_a_step_has_its_operations_counted(launcher: Launcher) -> None:
    found = {}
    for devices in (1, 2):
        strategy = "single" if devices == 1 else "ddp"
        record, _ = run(launcher, planned_case("transformer:tiny", strategy, devices), "timing")
        assert record.compute is not None
        assert record.compute.reason is None
        found[devices] = record.compute.step_flops or 0
        assert (record.compute.matrix_flops_per_s or 0) > 1e8
    assert found[2] == 2 * found[1]
    # Six operations for each parameter of a matrix and token, and attention on top.
    matrices = sum(
        parameter.numel()
        for name, parameter in build("transformer").model.named_parameters()
        if parameter.dim() == 2 and "position" not in name
    )
    tokens = planned_case("transformer:tiny", "single", 1).per_device_batch * 32
    assert 6 * matrices * tokens <= found[1] <= 1.5 * 6 * matrices * tokens


def test_traces_are_left_for_the_tools_that_read_them(launcher: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    case = planned_case("transformer:tiny", "ddp", 2)

    def leave(wish: TraceWish) -> list[RankOutcome]:
        _, outcomes = launcher.launch_case(
            case, SHORT, "communication", launch=0, processes=2, trace=wish
        )
        return list(outcomes)

    outcomes = leave(TraceWish(folder=str(folder)))
    assert [one.trace_problem for one in outcomes] == [None, None]
    assert sorted(path.name for path in folder.iterdir()) == ["rank0.json", "rank1.json"]
    for rank in (0, 1):
        text = (folder / f"rank{rank}.json").read_text(encoding="utf-8")
        assert re.search(rf'"rank":\s+{rank}', text)  # as Holistic Trace Analysis looks for it
        document = json.loads(text)
        assert "host_name" not in document
        names = [event["name"] for event in document["traceEvents"]]
        steps = names.count("ProfilerStep#0"), names.count("ProfilerStep#1")
        assert steps == (1, 1)
        assert names.count("forward") == names.count("backward") == names.count("optimizer")
        assert any(name.startswith("bucket 0 (") for name in names)
    only = tmp_path / "only"
    leave(TraceWish(folder=str(only), ranks=(1,)))
    assert [path.name for path in only.iterdir()] == ["rank1.json"]
    none = tmp_path / "none"
    first, _ = leave(TraceWish(folder=str(none), limit_bytes=1000))
    assert first.trace_problem == "no trace: a single step is larger than its limit"
    assert not none.exists()
