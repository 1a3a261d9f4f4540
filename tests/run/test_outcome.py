from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.analyze.checks import FLAGS
from bench.measure.allocations import Allocations
from bench.measure.compilation import Compiled
from bench.measure.memory import Peaks
from bench.measure.trace import Span, StepsTrace
from bench.plan.case import Effort
from bench.plan.fit import IN_SWITCH
from bench.records.record import Conditions, HostConditions, Parity, Placement, Record
from bench.run.culprit import find_culprit
from bench.run.handover import Assignment, Failure, Job, Measured, RankOutcome
from bench.run.outcome import to_record
from bench.run.outcome_communication import NO_ROOM
from bench.run.outcome_flags import share_cores
from bench.run.outcome_timing import samples_per_s
from tests.fakes import make_case


def assignment(job: Job = "timing", **changes: Any) -> Assignment:
    return msgspec.structs.replace(
        Assignment(
            job=job,
            case=make_case(strategy="ddp", world_size=2, per_device_batch=32, global_batch=64),
            effort=Effort(),
            launch=1,
            folder="",
            started_s=100.0,
            cores=((0,), (1,)),
            environment={},
        ),
        **changes,
    )


def outcome(rank: int, step_s: float = 0.1, **changes: Any) -> RankOutcome:
    return msgspec.structs.replace(
        RankOutcome(
            rank=rank,
            phase="done",
            joined_s=100.25 + rank,
            setup_s=0.5,
            measured=Measured(
                first_step_s=1.0,
                warmup_step_s=[0.2],
                step_s=[step_s] * 10,
                phase_s={"data": 0.0, "forward": step_s, "backward": 0.0, "optimizer": 0.0},
                window_s=step_s * 10,
                block_steps=1,
                stopped_by="max_s",
            ),
            memory=[Peaks(process=1000 + rank)],
            parameter_digest="same",
            batch_digests=[f"{rank}-{index}" for index in range(3)],
        ),
        **changes,
    )


def record_of(*outcomes: RankOutcome, job: Job = "timing", **changes: Any) -> Any:
    return to_record(
        assignment(job, **changes), outcomes, run_id="r", environment="e", units=("image", 1)
    )


def test_a_hundred_steps_of_two_samples_in_ten_seconds() -> None:
    assert samples_per_s(100 * 2, [10.0]) == 20.0


def test_the_record_counts_global_samples_over_the_slowest_rank() -> None:
    record = record_of(outcome(0, 0.1), outcome(1, 0.2))
    assert record.throughput.samples_per_s == pytest.approx(64 / 0.2)
    assert record.timing.window_s == pytest.approx([1.0, 2.0])
    assert record.timing.launch_s == pytest.approx(1.25)
    assert record.phases.forward_s == 0.2
    assert record.memory.peak_process_bytes == [1000, 1001]
    assert record.memory.peak_allocated_bytes == [None, None]
    assert (record.status, record.launch, record.pass_) == ("ok", 1, "timing")


def test_what_is_wrong_with_a_measurement_is_flagged() -> None:
    assert record_of(outcome(0), outcome(1)).flags == []
    differ = record_of(outcome(0), outcome(1, parameter_digest="other"))
    assert differ.flags == ["ranks_differ"]
    same_data = record_of(outcome(0), outcome(1, batch_digests=["0-0", "x", "y"]))
    assert same_data.flags == ["duplicate_data"]
    again = record_of(outcome(0, batch_digests=["a", "a"]), outcome(1, batch_digests=["b", "b"]))
    assert again.flags == []  # a small data set, but not another rank's
    without = [
        msgspec.structs.replace(
            one, measured=msgspec.structs.replace(one.measured, first_step_s=None)
        )
        for one in (outcome(0), outcome(1))
        if one.measured is not None
    ]
    cold = record_of(*without, effort=Effort(warmup_steps=0))
    assert cold.flags == ["no_warmup"]


def placed(*cores: list[int]) -> list[Placement]:
    return [Placement(cores=one, threads=len(one)) for one in cores]


@pytest.mark.parametrize(
    ("device", "cores", "expected"),
    [
        ("cpu", [[0], [1]], False),
        ("cpu", [[0], [0]], True),
        ("cpu", [[0, 1], [1, 2]], True),
        ("cpu", [[0, 1]], False),
        ("cpu", [[], []], False),  # a system that binds nothing
        ("cuda", [[0, 1, 2, 3]] * 4, False),  # near the same devices, with a core for each
        ("cuda", [[0]] * 2, True),
        ("cuda", [[0, 1]] * 2 + [[2]] * 2, True),
    ],
)
def test_processes_that_take_turns_on_a_core(
    device: str, cores: list[list[int]], expected: bool
) -> None:
    assert share_cores(placed(*cores), device) is expected


def test_ranks_on_one_core_are_flagged() -> None:
    first, second = placed([0], [0])
    record = record_of(outcome(0, placement=first), outcome(1, placement=second))
    assert record.flags == ["ranks_share_cores"]


def test_a_clock_that_is_coarse_for_the_steps_is_flagged() -> None:
    def timed(resolution_s: float) -> Any:
        measured = outcome(0, 0.1).measured
        assert measured is not None
        changed = msgspec.structs.replace(measured, clock_resolution_s=resolution_s)
        return record_of(outcome(0, measured=changed))

    fine, coarse = timed(0.0009), timed(0.0011)
    assert (fine.flags, coarse.flags) == ([], ["coarse_timer"])
    assert coarse.timing.clock_resolution_s == 0.0011


def test_what_observed_the_ranks_is_named() -> None:
    record = record_of(outcome(0, observers=["ptrace"]), outcome(1, observers=["a", "ptrace"]))
    assert record.flags == ["profiler_on"]
    assert record.observers == ["a", "ptrace"]
    assert record_of(outcome(0), outcome(1)).observers is None


def test_conditions_stand_in_the_record_and_are_flagged() -> None:
    seen = Conditions(span_s=1.0, host=HostConditions(others_load=0.2, steal=0.1))
    record = record_of(outcome(0, conditions=seen), outcome(1))
    assert record.conditions == seen
    assert record.flags == ["other_programs", "stolen"]
    assert record_of(outcome(0), outcome(1)).conditions is None
    line = msgspec.json.encode(record)
    assert msgspec.json.decode(line, type=Record).conditions == seen
    missing = {key: value for key, value in msgspec.json.decode(line).items() if key not in
               {"conditions", "observers"}}  # fmt: skip
    assert msgspec.convert(missing, Record).conditions is None  # as earlier versions wrote


def test_every_flag_seen_while_measuring_is_explained() -> None:
    seen = (
        "ranks_share_cores throttled other_programs stolen mixed_devices coarse_timer profiler_on"
    )
    assert set(seen.split()) <= FLAGS.keys()


def compiled(**changes: Any) -> Compiled:
    return msgspec.structs.replace(
        Compiled(
            graphs=2,
            parts=3,
            operations=50,
            uncompiled=1,
            over_limit=0,
            breaks=4,
            reasons={"a generator": 2},
            recompiles=1,
            in_window=0,
            compile_s=10.0,
            cache_hits=1,
            cache_misses=3,
            cudagraph_skips=0,
            autotuned=5,
            ddp_mode="ddp_optimizer",
        ),
        **changes,
    )


def compiled_record(*found: Compiled, mode: Any = "default", **changes: Any) -> Record:
    case = make_case(strategy="ddp", world_size=2, compile=mode, global_batch=64, **changes)
    peaks = [Peaks(allocated=7, reserved=9)]
    outcomes = [outcome(rank, compiled=one, memory=peaks) for rank, one in enumerate(found)]
    record: Record = record_of(*outcomes, case=case)
    return record


def test_what_the_ranks_have_compiled_stands_in_the_record() -> None:
    other = compiled(
        graphs=1, parts=1, operations=20, breaks=5, reasons={"a call": 3}, compile_s=12.0
    )
    record = compiled_record(compiled(), other)
    found = record.compilation
    assert found is not None
    assert (found.mode, found.scope, found.ddp_mode) == ("default", "outside", "ddp_optimizer")
    # Of graphs the fewest, of gaps the most, of times each, of the cache all.
    assert (found.graphs, found.parts, found.operations, found.breaks) == (1, 1, 20, 5)
    assert found.compile_s == [10.0, 12.0]
    assert (found.cache_hits, found.cache_misses) == (2, 6)
    assert found.reasons == {"a call": 3, "a generator": 2}
    assert record.flags == []
    assert record_of(outcome(0), outcome(1)).compilation is None


@pytest.mark.parametrize(
    ("changes", "settings", "flags"),
    [
        ({"graphs": 0}, {}, ["not_compiled"]),
        ({"graphs": 0, "in_window": 1}, {}, ["not_compiled"]),
        ({"in_window": 1}, {}, ["recompiled"]),
        ({"over_limit": 1}, {}, ["partly_compiled"]),
        ({"autotuned": 0}, {}, []),
        ({"autotuned": 0}, {"mode": "max-autotune"}, ["nothing_autotuned"]),
        ({"cudagraph_skips": 2}, {"mode": "max-autotune"}, []),  # a CPU has none
        ({}, {"mode": "reduce-overhead", "device": "cuda"}, ["captured"]),
        (
            {"cudagraph_skips": 2},
            {"mode": "reduce-overhead", "device": "cuda"},
            ["no_cuda_graphs", "captured"],
        ),
    ],
)
def test_a_label_that_a_row_does_not_deserve_is_flagged(
    changes: dict[str, Any], settings: dict[str, Any], flags: list[str]
) -> None:
    """One rank is enough."""
    record = compiled_record(compiled(), compiled(**changes), **settings)
    assert record.flags == flags
    assert set(flags) <= FLAGS.keys()


def test_what_is_allocated_under_captured_graphs_is_not_known() -> None:
    for mode, device, allocated in [
        ("default", "cuda", 7),
        ("reduce-overhead", "cuda", None),
        ("max-autotune", "cuda", None),
        ("max-autotune", "cpu", 7),
    ]:
        record = compiled_record(compiled(), compiled(), mode=mode, device=device)
        assert record.memory is not None
        assert record.memory.peak_allocated_bytes == [allocated] * 2
        assert record.memory.peak_reserved_bytes == [9, 9]


def failure(reason: str, at_s: float | None, status: Any = "failed") -> Failure:
    return Failure(status=status, reason=reason, at_s=at_s)


def test_the_culprit_is_the_first_with_a_fault_of_its_own() -> None:
    echo = outcome(0, failure=failure("RuntimeError: Connection closed by peer [127.0.0.1]", 5.0))
    cause = outcome(1, failure=failure("ValueError: deliberate", 6.0))
    late = outcome(2, failure=failure("ValueError: later", 7.0))
    assert find_culprit([echo, late, cause]) is cause
    killed = outcome(1, failure=failure("the process was ended by SIGKILL", None))
    assert find_culprit([echo, killed]) is killed
    nccl = (
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network "
        "error or a remote process exiting prematurely."
    )
    for text in (
        nccl,
        "NCCL communicator was aborted on rank 0.",
        "the process was ended by SIGABRT",
    ):
        assert find_culprit([outcome(0, failure=failure(text, 5.0)), killed]) is killed
    assert find_culprit([echo]) is echo
    assert find_culprit([outcome(0)]) is None


def test_a_failed_launch_names_rank_phase_and_reason() -> None:
    record = record_of(
        outcome(0, failure=failure("Connection reset by peer", 1.0), log_tail=["a"]),
        outcome(1, failure=failure("ValueError: no", 2.0), phase="window", log_tail=["b"]),
    )
    assert record.status == "failed"
    assert record.reason == "rank 1 of 2, in window: ValueError: no"
    assert record.log_tail == {"0": ["a"], "1": ["b"]}
    assert record.timing is None
    assert record.throughput is None


def test_out_of_memory_and_timeout_are_their_own_status() -> None:
    for status in ("out_of_memory", "timeout"):
        failed = outcome(0, failure=failure("x", 1.0, status))
        assert record_of(failed, outcome(1)).status == status


def test_out_of_memory_is_a_result_with_the_peak_that_was_reached() -> None:
    reached = outcome(
        0, failure=failure("x", 1.0, "out_of_memory"), memory=[Peaks(allocated=7, process=9)]
    )
    record = record_of(reached, outcome(1, memory=[]))
    assert record.memory.peak_allocated_bytes == [7]
    assert record.memory.peak_process_bytes == [9]
    assert record_of(outcome(0, failure=failure("x", 1.0, "failed"))).memory is None


def test_the_communication_pass_gives_the_median_difference() -> None:
    pairs = [(0.3, 0.1), (0.2, 0.1), (0.5, 0.1)]
    trace = StepsTrace(steps=1, step_s=0.1, spans=[], computation={})
    record = record_of(
        outcome(0, sync_pairs_s=pairs, bucket_bytes=[4, 8], trace=trace),
        outcome(1, trace=trace),
        job="communication",
    )
    assert record.communication.sync_cost_s == pytest.approx(0.2)
    assert record.communication.bucket_bytes == [4, 8]
    assert record.throughput is None
    assert NO_ROOM not in record.flags
    without = record_of(outcome(0, trace=trace), outcome(1, trace=trace), job="communication")
    assert without.communication.sync_cost_s is None
    assert NO_ROOM in without.flags
    assert NO_ROOM in FLAGS


def test_the_communication_pass_combines_the_ranks_traces() -> None:
    def trace(begin_s: float) -> StepsTrace:
        span = Span(
            operation="all_reduce",
            key="1",
            begin_s=begin_s,
            end_s=10.0,
            payload_bytes=1000,
            device=0,
        )
        return StepsTrace(steps=2, step_s=0.1, spans=[span], computation={0: [(0.0, 9.0)]})

    record = record_of(
        outcome(0, trace=trace(6.0)), outcome(1, trace=trace(8.0)), job="communication"
    )
    found = record.communication
    # Moving took 2 s of which 1 s is hidden; the first rank waited 2 s; all over two steps.
    assert (found.busy_s, found.exposed_s, found.wait_s) == (1.0, 0.5, 1.0)
    assert found.hidden_fraction == 0.5
    (collective,) = found.collectives
    assert (collective.op, collective.calls, collective.payload_bytes) == ("all_reduce", 0.5, 500)
    assert collective.wire_bytes_minimum == 500
    in_switch = to_record(
        assignment("communication"),
        [outcome(0, trace=trace(6.0)), outcome(1, trace=trace(8.0))],
        run_id="r",
        environment="e",
        units=("image", 1),
        flags=[IN_SWITCH],
    )
    assert in_switch.communication is not None
    assert in_switch.communication.collectives is not None
    assert in_switch.communication.collectives[0].wire_bytes_minimum is None


def test_the_memory_pass_gives_a_peak_where_nothing_drifts() -> None:
    steady = Allocations(peak=[3000], before=[1000], after=[1000])
    drifting = Allocations(peak=[3000], before=[1000], after=[1100])
    held = [{"parameters": 700, "buffers": 0, "optimizer_state": 200}]
    record = record_of(
        outcome(0, allocations=steady, held=held), outcome(1, allocations=steady, held=held),
        job="memory",
    )  # fmt: skip
    assert record.memory.peak_allocated_bytes == [3000, 3000]
    assert record.memory.held_by_category["parameters"] == [700, 700]
    assert record.flags == []
    record = record_of(
        outcome(0, allocations=steady), outcome(1, allocations=drifting), job="memory"
    )
    assert record.memory.peak_allocated_bytes == [3000, None]
    assert record.flags == ["allocations_drift"]


def test_pieces_of_a_phase_stand_beside_the_four() -> None:
    measured = outcome(0).measured
    assert measured is not None
    phase_s = {
        "data": 0.0,
        "forward": 0.3,
        "forward.gather": 0.1,
        "backward": 0.2,
        "optimizer": 0.1,
    }
    one = outcome(0, measured=msgspec.structs.replace(measured, phase_s=phase_s))
    phases = record_of(one).phases
    assert (phases.forward_s, phases.pieces_s) == (0.3, {"forward.gather": 0.1})


def test_the_parity_pass_gives_the_worst_ranks_verdict() -> None:
    exact, failed = Parity(verdict="exact", error=0.0), Parity(verdict="failed", reason="x")
    record = record_of(outcome(0, parity=exact), outcome(1, parity=exact), job="parity")
    assert record.parity == exact
    assert record.timing is None
    record = record_of(outcome(0, parity=exact), outcome(1, parity=failed), job="parity")
    assert record.parity == failed


def test_steps_that_the_scaler_skipped_are_counted_and_flagged() -> None:
    def counted(*skipped: int | None) -> Any:
        ranks = [outcome(rank) for rank in range(len(skipped))]
        return record_of(
            *(
                msgspec.structs.replace(
                    one, measured=msgspec.structs.replace(one.measured, skipped_steps=count)
                )
                for one, count in zip(ranks, skipped, strict=True)
                if one.measured is not None
            )
        )

    none, some, old = counted(0, 0), counted(3, 3), counted(None, None)
    assert "ranks_differ" not in some.flags
    assert "ranks_differ" in counted(3, 2).flags  # though shards, gathered, look alike everywhere
    assert (none.timing.skipped_steps, "steps_skipped" in none.flags) == (0, False)
    assert (some.timing.skipped_steps, "steps_skipped" in some.flags) == (3, True)
    assert (old.timing.skipped_steps, "steps_skipped" in old.flags) == (None, False)
    assert "steps_skipped" in FLAGS


def test_an_allocator_that_ran_short_within_the_window_is_told() -> None:
    plenty = outcome(0)
    assert plenty.measured is not None
    short = msgspec.structs.replace(
        plenty, measured=msgspec.structs.replace(plenty.measured, allocator_retries=1)
    )
    assert "allocator_retries" not in record_of(plenty).flags
    assert "allocator_retries" in record_of(short).flags
    assert "allocator_retries" in FLAGS
