from __future__ import annotations

import math
import random
import statistics
from typing import Any

import msgspec
import pytest

from bench.analyze.checks import UNFIT
from bench.analyze.others import WRAPPERLESS
from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.plan.case import Case, identify, original_of
from bench.plan.registry import all_strategies, find_strategy
from bench.records.record import (
    CollectiveCost,
    Communication,
    Compilation,
    Compute,
    Memory,
    Parity,
    Record,
    Throughput,
    Timing,
)
from tests.fakes import make_case

EXACT = Parity(verdict="exact", error=0.0, tolerance=1e-6)
SINGLE = make_case()
PAIR = make_case(strategy="ddp", world_size=2)


def timing(case: Case, rate: float, launch: int = 0, **changes: Any) -> Record:
    record = Record(
        run_id="r",
        launch=launch,
        pass_="timing",
        case=case,
        status="ok",
        environment="e",
        timing=Timing(
            launch_s=0.2,
            setup_s=[0.1],
            first_step_s=[1.0],
            warmup_step_s=[[0.2]],
            step_s=[[case.global_batch / rate] * 10],
            block_steps=1,
            window_s=[10 * case.global_batch / rate],
            stopped_by="max_s",
        ),
        throughput=Throughput(samples_per_s=rate, unit="image", units_per_sample=1),
        memory=Memory(
            peak_allocated_bytes=[None] * case.world_size,
            peak_reserved_bytes=[None] * case.world_size,
            peak_driver_bytes=[None] * case.world_size,
            peak_process_bytes=[(launch + 1) * 2**30] * case.world_size,
        ),
    )
    return msgspec.structs.replace(record, **changes)


def parity(case: Case, verdict: Parity | None = EXACT, **changes: Any) -> Record:
    record = Record(
        run_id="r",
        launch=0,
        pass_="parity",
        case=case,
        status="ok",
        environment="e",
        parity=verdict,
    )
    return msgspec.structs.replace(record, **changes)


def launches(case: Case, *rates: float, **changes: Any) -> list[Record]:
    return [timing(case, rate, launch, **changes) for launch, rate in enumerate(rates)]


def row(records: list[Record], case: Case, planned: list[Case] | None = None) -> Row:
    (found,) = [one for one in rows_of(planned or [], records) if one.case.id == case.id]
    return found


def test_speedup_and_efficiency_worked_by_hand() -> None:
    found = row([*launches(SINGLE, 99, 100, 101), *launches(PAIR, 179, 180, 181)], PAIR)
    assert found.speedup.ratio is not None
    assert found.efficiency is not None
    assert found.speedup.ratio.value == pytest.approx(1.8, rel=1e-4)
    assert found.efficiency.value == pytest.approx(0.9, rel=1e-4)
    low, high = found.efficiency.low, found.efficiency.high
    assert low is not None
    assert high is not None
    assert low < 0.9 < high
    assert found.step_median_s == pytest.approx(8 / 180, rel=0.01)
    assert found.peaks == {"resident": [3 * 2**30] * 2}


COMPILED = Compilation(
    mode="default",
    scope="outside",
    graphs=1,
    parts=1,
    operations=50,
    uncompiled=0,
    breaks=0,
    recompiles=0,
    recompiles_in_window=0,
    compile_s=[20.0, 30.0],
    cache_hits=0,
    cache_misses=2,
    cudagraph_skips=0,
    autotuned=0,
)


def test_what_is_compiled_inside_is_compared_with_one_device_compiled_at_all() -> None:
    """A model without a wrapper has no inside: it is planned once."""
    baseline = make_case(compile="default")
    inside, blocks = (
        make_case(strategy="ddp", world_size=2, compile="default", compile_scope=scope)
        for scope in ("inside", "blocks")
    )
    records = [one for case in (baseline, inside, blocks) for one in launches(case, 100, 100)]
    assert row(records, inside).speedup.ratio is not None
    assert row(records, blocks).speedup.reason == (
        "one device without a wrapper was measured with another compile_scope"
    )
    plain = row([*launches(SINGLE, 100, 100), *launches(inside, 100, 100)], inside)
    assert plain.speedup.reason == "one device without a wrapper was measured with another compile"


@pytest.mark.parametrize("flag", ["not_compiled", "recompiled"])
def test_what_was_not_compiled_is_compared_with_nothing(flag: str) -> None:
    baseline = make_case(compile="default")
    case = make_case(strategy="ddp", world_size=2, compile="default")
    records = [*launches(baseline, 100, 100), *launches(case, 180, 180, flags=[flag])]
    found = row(records, case)
    assert found.speedup.ratio is None
    assert found.speedup.reason == UNFIT[flag]
    records = [*launches(baseline, 100, 100, flags=[flag]), *launches(case, 180, 180)]
    assert row(records, case).speedup.reason == "one device without a wrapper has no valid figure"


def test_a_row_says_what_compiling_took_in_each_launch() -> None:
    case = make_case(strategy="ddp", world_size=2, compile="default")
    cached = msgspec.structs.replace(COMPILED, compile_s=[2.0, 1.0])
    records = [
        timing(case, 100, 0, compilation=COMPILED),
        timing(case, 100, 1, compilation=cached),
    ]
    found = row(records, case)
    assert found.compilation == COMPILED
    assert found.compile_s == [30.0, 2.0]


def test_both_baselines_stand_beside_each_other() -> None:
    alone = make_case(strategy="ddp")
    records = [
        *launches(SINGLE, 100, 100),
        *launches(alone, 80, 80),
        *launches(PAIR, 160, 160),
    ]
    found = row(records, PAIR)
    assert found.speedup.ratio is not None
    assert found.own_speedup.ratio is not None
    assert found.speedup.ratio.value == pytest.approx(1.6)
    assert found.own_speedup.ratio.value == pytest.approx(2.0)
    baseline = row(records, SINGLE)
    assert baseline.speedup.is_baseline
    assert baseline.speedup.ratio is not None
    assert baseline.speedup.ratio.value == 1.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"precision": "bf16-amp"}, "precision"),
        ({"compile": "default"}, "compile"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"per_device_batch": 8, "global_batch": 16}, "per_device_batch"),
        ({"cores_per_device": 2}, "cores_per_device"),
        ({"scaling": "strong", "global_batch": 8, "per_device_batch": 4}, "scaling"),
    ],
)
def test_unlike_is_not_compared(changes: dict[str, Any], name: str) -> None:
    other = make_case(strategy="ddp", world_size=2, **changes)
    found = row([*launches(SINGLE, 100, 100), *launches(other, 160, 160)], other)
    assert found.speedup.ratio is None
    assert found.speedup.reason is not None
    assert name in found.speedup.reason


def test_other_environments_are_not_compared() -> None:
    records = [*launches(SINGLE, 100, 100), *launches(PAIR, 160, 160, environment="other")]
    reason = row(records, PAIR).speedup.reason
    assert reason is not None
    assert "environment" in reason


def test_strong_scaling_compares_equal_global_batches() -> None:
    strong = {"scaling": "strong", "global_batch": 8}
    alone = make_case(per_device_batch=8, **strong)
    pair = make_case(strategy="ddp", world_size=2, per_device_batch=4, **strong)
    found = row([*launches(alone, 100, 100), *launches(pair, 150, 150)], pair)
    assert found.speedup.ratio is not None
    assert found.speedup.ratio.value == pytest.approx(1.5)


def test_a_missing_baseline_is_said() -> None:
    found = row(launches(PAIR, 160, 160), PAIR)
    assert found.speedup.reason == "one device without a wrapper was not measured"


def test_more_ranks_than_cores_give_no_verdict() -> None:
    records = [*launches(SINGLE, 100, 100), *launches(PAIR, 90, 90, flags=["oversubscribed"])]
    assert row(records, PAIR).speedup.reason == "more devices than sets of cores"


@pytest.mark.parametrize("broken", ["parity", "ranks_differ", "duplicate_data"])
def test_a_figure_without_proof_is_compared_with_nothing(broken: str) -> None:
    failed = Parity(verdict="failed", reason="fp64: loss of step 2 is off by 1e-2")
    flags = [broken] if broken != "parity" else []
    verdict = failed if broken == "parity" else EXACT
    records = [
        *launches(SINGLE, 100, 100),
        *launches(PAIR, 160, 160, flags=flags),
        parity(PAIR, verdict),
    ]
    found = row(records, PAIR)
    assert found.is_proved_wrong
    assert found.speedup.reason == "the row failed its proof"
    # ... and is no baseline either.
    records = [
        *launches(SINGLE, 100, 100, flags=flags),
        parity(SINGLE, verdict),
        *launches(PAIR, 160, 160),
    ]
    assert row(records, PAIR).speedup.reason == "one device without a wrapper has no valid figure"


def test_nothing_planned_is_left_out() -> None:
    planned = [SINGLE, PAIR, make_case(seed=7)]
    skip = msgspec.structs.replace(
        timing(PAIR, 1.0), status="skipped", reason="needs 2 gpus", timing=None, throughput=None
    )
    found = rows_of(planned, [*launches(SINGLE, 100), skip])
    assert [one.status for one in found] == ["ok", "skipped", "interrupted"]
    assert found[1].reason == "needs 2 gpus"
    assert found[2].reason == "the run ended before it"


def test_a_launch_that_failed_is_told_beside_those_that_did_not() -> None:
    failed = msgspec.structs.replace(
        timing(SINGLE, 1.0, 2), status="timeout", reason="slow", timing=None, throughput=None
    )
    found = row([*launches(SINGLE, 100, 102), failed], SINGLE)
    assert found.status == "ok"
    assert found.samples_per_s is not None
    assert found.samples_per_s.value == pytest.approx(math.sqrt(100 * 102))
    assert found.samples_per_s.launches == 2
    assert found.launch_problems == ["timing launch 3: timeout: slow"]


def test_a_resumed_launch_replaces_the_interrupted_one() -> None:
    cut = msgspec.structs.replace(
        timing(SINGLE, 1.0), status="interrupted", reason="by SIGINT", timing=None, throughput=None
    )
    found = row([cut, *launches(SINGLE, 100)], SINGLE)
    assert found.status == "ok"
    assert found.launch_problems == []


def test_a_strategys_own_baseline_has_its_own_backend() -> None:
    cases = {
        (backend, size): make_case(
            strategy="ddp", world_size=size, backend=backend, device="cuda", cores_per_device=None
        )
        for backend in ("gloo", "nccl")
        for size in (1, 2)
    }
    rates = {("gloo", 1): 50, ("gloo", 2): 60, ("nccl", 1): 100, ("nccl", 2): 190}
    records = [one for key, case in cases.items() for one in launches(case, rates[key], rates[key])]
    for backend, expected in (("gloo", 1.2), ("nccl", 1.9)):
        ratio = row(records, cases[backend, 2]).own_speedup.ratio
        assert ratio is not None
        assert ratio.value == pytest.approx(expected)
        assert row(records, cases[backend, 1]).own_speedup.is_baseline


def test_plain_ddp_over_another_backend_or_synchronised_otherwise_is_no_peer() -> None:
    def case(strategy: str, backend: str, sync: str) -> Case:
        return make_case(
            strategy=strategy,
            world_size=2,
            backend=backend,
            device="cuda",
            cores_per_device=None,
            accumulation_steps=2,
            global_batch=16,
            accumulation_sync=sync,
        )

    ways = [("gloo", "last"), ("nccl", "every"), ("nccl", "last")]
    ddp = {way: case("ddp", *way) for way in ways}
    rates = dict(zip(ways, (10, 20, 100), strict=True))
    fsdp = case("fsdp", "nccl", "last")
    records = [one for way in ways for one in launches(ddp[way], rates[way], rates[way])]
    found = row([*records, *launches(fsdp, 50, 50)], fsdp)
    assert found.peer.ratio is not None
    assert found.peer.ratio.value == pytest.approx(0.5)
    without = [one for one in records if one.case.id != ddp["nccl", "last"].id]
    found = row([*without, *launches(fsdp, 50, 50)], fsdp)
    assert found.peer.reason is not None
    assert "with another" in found.peer.reason


def test_strategies_without_a_wrapper_are_those_that_say_so() -> None:
    found = {name for name in all_strategies() if not find_strategy(name).wraps}
    assert found == WRAPPERLESS


def test_seeds_are_not_mixed() -> None:
    other = make_case(seed=1)
    found = row([*launches(SINGLE, 100, 100), *launches(other, 90, 90)], other)
    assert found.speedup.is_baseline


def test_a_baseline_without_warm_up_is_none() -> None:
    records = [*launches(SINGLE, 50, 50, flags=["no_warmup"]), *launches(PAIR, 160, 160)]
    assert row(records, PAIR).speedup.reason == "one device without a wrapper has no valid figure"
    assert row(records, SINGLE).speedup.reason == "measured without warm-up"


def test_launches_of_two_environments_are_no_baseline() -> None:
    mixed = [timing(SINGLE, 100, 0), timing(SINGLE, 200, 1, environment="other")]
    found = row([*mixed, *launches(PAIR, 160, 160)], PAIR)
    assert found.speedup.reason == "one device without a wrapper has no valid figure"
    assert "unequal_environments" in row(mixed, SINGLE).flags


def test_a_figure_that_was_not_proved_says_so() -> None:
    crashed = parity(PAIR, None, status="out_of_memory", reason="no memory")
    found = row([*launches(PAIR, 160, 160), crashed], PAIR)
    assert not found.is_proved_wrong
    assert found.parity is None
    assert found.parity_note == "out_of_memory: no memory"


def test_a_wrapper_that_makes_one_device_faster_asks_for_an_explanation() -> None:
    alone = make_case(strategy="ddp")
    found = row([*launches(SINGLE, 99, 100, 101), *launches(alone, 140, 142, 144)], alone)
    assert found.flags == ["superlinear"]
    # An interval that reaches down to 1 does not.
    found = row([*launches(SINGLE, 99, 100, 101), *launches(alone, 90, 142, 180)], alone)
    assert "superlinear" not in found.flags
    assert "imprecise" in found.flags


def test_a_profile_that_slows_the_step_is_flagged() -> None:
    def profiled(step_s: float) -> Record:
        communication = Communication(busy_s=0.01, profiled_step_s=step_s)
        return timing(
            PAIR, 80, pass_="communication", timing=None, throughput=None, memory=None,
            communication=communication,
        )  # fmt: skip

    timed = launches(PAIR, 80, 80)  # 0.1 s a step
    assert row([*timed, profiled(0.12)], PAIR).flags == []
    assert row([*timed, profiled(0.13)], PAIR).flags == ["profile_slowed"]


def test_bucket_sizes_that_lead_to_the_same_buckets_are_told() -> None:
    def bucketed(cap: float | None, sizes: list[int], **changes: Any) -> list[Record]:
        options = {"bucket_cap_mb": cap, "static_graph": False} | changes
        name = "ddp" if cap is None else f"ddp(bucket_cap_mb={cap})"
        case = make_case(strategy="ddp", world_size=2, options=options, label=name)
        found = timing(
            case, 80, pass_="communication", timing=None, throughput=None, memory=None,
            communication=Communication(bucket_bytes=sizes),
        )  # fmt: skip
        return [*launches(case, 80, 80), found]

    # Torch closes a bucket once it reaches its size: small caps all leave one parameter in each.
    rows = rows_of(
        [],
        [
            *bucketed(None, [4, 28]),
            *bucketed(1, [4] * 8),
            *bucketed(4, [4] * 8),
            *bucketed(25, [28, 4]),
            *bucketed(2, [4] * 8, static_graph=True),
        ],
    )
    assert [one.same_buckets_as for one in rows] == [None, None, "ddp(bucket_cap_mb=1)", None, None]


def test_quantiles_of_steps_are_of_each_launch() -> None:
    # One slow launch of three is no tail of slow steps.
    found = row(launches(SINGLE, 100, 100, 50), SINGLE)
    assert found.step_median_s == found.step_p90_s == pytest.approx(0.04)


def test_a_device_does_what_all_rows_like_it_have_measured() -> None:
    others = [make_case(strategy="ddp", world_size=2, seed=seed) for seed in (1, 2)]
    alone = Compute(step_flops=1e9, matrix_flops_per_s=70e9)
    rates = (50e9, 90e9, 100e9)  # of equal cores, minutes apart
    records = launches(SINGLE, 99, 100, 101, compute=alone)
    for case, rate in zip([PAIR, *others], rates, strict=True):
        compute = Compute(step_flops=8e9, matrix_flops_per_s=rate)
        records += launches(case, 100, 101, 99, compute=compute)
    one, *pairs = rows_of([], records)
    assert one.matrix_flops_per_s == 70e9
    assert [found.matrix_flops_per_s for found in pairs] == [90e9] * 3
    # 8 GFLOP a step of 8 samples are 100 GFLOP/s at 100 samples/s, of 2 x 90.
    assert pairs[0].utilisation == pytest.approx(100 / 180, rel=0.01)


def test_what_the_allocator_takes_of_one_row_alone_is_told() -> None:
    faulty = launches(SINGLE, 99, 100, 101, flags=["page_faults"])
    assert row([*faulty, *launches(PAIR, 119, 120, 121)], PAIR).flags == ["page_faults_differ"]
    both = launches(PAIR, 119, 120, 121, flags=["page_faults"])
    assert row([*faulty, *both], PAIR).flags == ["page_faults"]


def with_faults(records: list[Record], *shares: float) -> list[Record]:
    """Launches in which page faults take so much of a step."""
    found = []
    for record, share in zip(records, shares, strict=True):
        assert record.timing is not None
        faults = share * statistics.fmean(record.timing.step_s[0]) * 1e6
        timing = msgspec.structs.replace(record.timing, minor_faults_per_step=[faults])
        flags = ["page_faults"] if share > 0.05 else []
        found.append(msgspec.structs.replace(record, timing=timing, flags=flags))
    return found


def test_page_faults_are_those_of_most_launches_and_not_of_one() -> None:
    once = with_faults(launches(SINGLE, 99, 100, 101), 0.01, 0.07, 0.02)
    always = with_faults(launches(PAIR, 119, 120, 121), 0.055, 0.058, 0.001)
    assert row(once, SINGLE).page_fault_share == pytest.approx(0.02)
    assert "page_faults" not in row(once, SINGLE).flags
    assert row(always, PAIR).flags == ["page_faults"]
    assert row([*once, *always], PAIR).flags == ["page_faults"]  # 2 and 5.5 % do not differ
    much = with_faults(launches(PAIR, 119, 120, 121), 0.2, 0.25, 0.22)
    assert row([*once, *much], PAIR).flags == ["page_faults", "page_faults_differ"]


def test_superlinear_speedup_is_flagged() -> None:
    found = row([*launches(SINGLE, 100, 100), *launches(PAIR, 211, 211)], PAIR)
    assert found.flags == ["superlinear"]
    assert row([*launches(SINGLE, 100, 100), *launches(PAIR, 209, 209)], PAIR).flags == []


def test_sync_cost_comes_with_the_interval_of_its_pairs() -> None:
    pairs = [(0.3 + i / 100, 0.2) for i in range(6)]
    cost = Record(
        run_id="r",
        launch=0,
        pass_="communication",
        case=PAIR,
        status="ok",
        environment="e",
        communication=Communication(sync_cost_s=0.125, sync_pairs_s=pairs),
    )
    found = row([*launches(PAIR, 160), cost], PAIR)
    assert found.sync_cost is not None
    assert found.sync_cost.value == pytest.approx(0.125)
    assert found.sync_cost.low == pytest.approx(0.1)


def test_a_case_measured_twice_is_one_row_that_knows_what_noise_is() -> None:
    twin = identify(msgspec.structs.replace(PAIR, twin=True, id=""))
    assert original_of(twin) == PAIR
    records = [*launches(PAIR, 100, 99, 101), *launches(twin, 98, 99, 97)]
    (found,) = rows_of([PAIR, twin], records)
    assert found.case == PAIR
    assert found.twin is not None
    ratio = found.twin.comparison.ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(0.98, rel=2e-3)


def test_a_second_measurement_that_failed_is_told() -> None:
    twin = identify(msgspec.structs.replace(PAIR, twin=True, id=""))
    failed = msgspec.structs.replace(
        timing(twin, 1.0), status="timeout", reason="slow", timing=None, throughput=None
    )
    (found,) = rows_of([PAIR, twin], [*launches(PAIR, 99, 100), failed])
    assert found.twin is not None
    assert found.twin.comparison.ratio is None
    assert found.twin.comparison.reason == "slow"
    assert found.twin.problems == ["timing launch 1: timeout: slow"]


def test_rows_are_compared_with_plain_ddp_on_as_many_devices() -> None:
    fsdp = make_case(strategy="fsdp", world_size=2)
    quad = make_case(strategy="fsdp", world_size=4)
    records = [
        *launches(SINGLE, 100, 101),
        *launches(PAIR, 180, 181, 182),
        *launches(fsdp, 90, 91, 90),
        *launches(quad, 90, 91, 90),
    ]
    found = {one.case.id: one for one in rows_of([], records)}
    assert found[PAIR.id].peer.is_baseline
    peer = found[fsdp.id].peer
    assert peer.ratio is not None
    assert peer.ratio.value == pytest.approx(0.5, abs=0.01)
    assert peer.verdict == "slower"
    assert found[quad.id].peer.reason == "ddp on as many devices was not measured"
    assert found[SINGLE.id].peer.ratio is None


def test_a_launch_far_off_and_a_machine_that_drifts_are_flagged() -> None:
    generator = random.Random(0)
    cases = [make_case(seed=seed) for seed in range(8)]
    records = [
        timing(case, 100 * math.exp(generator.gauss(0, 0.005)), launch)
        for launch in range(5)
        for case in cases
    ]
    assert all(one.flags == [] for one in rows_of([], records))
    slow = [msgspec.structs.replace(one) for one in records]
    slow[9] = timing(cases[1], 90, 1)
    assert [one.flags for one in rows_of([], slow)] == [[], ["noisy"], *[[]] * 6]
    drifting = [
        timing(one.case, 100 * (1 - 0.002 * place), one.launch) for place, one in enumerate(records)
    ]
    assert all(one.flags == ["drifting"] for one in rows_of([], drifting))


def test_steps_of_odd_shape_are_flagged() -> None:
    def shaped(step_s: list[float]) -> list[str]:
        records = launches(SINGLE, 100, 100, 100)
        timings = [
            msgspec.structs.replace(one.timing, step_s=[step_s])
            for one in records
            if one.timing is not None
        ]
        changed = [
            msgspec.structs.replace(one, timing=new)
            for one, new in zip(records, timings, strict=True)
        ]
        return row(changed, SINGLE).flags

    assert shaped([0.1] * 20) == []
    assert shaped([0.2] * 4 + [0.1] * 16) == ["warmup_not_over", "bimodal"]
    assert shaped([0.1, 0.15] * 10) == ["bimodal"]
    assert "drifting" in shaped([0.1 + 0.005 * place for place in range(20)])


def test_bytes_faster_than_their_link_are_flagged() -> None:
    size = 2**20
    cost = CollectiveCost(
        op="all_reduce", calls=1, payload_bytes=size, wire_bytes_minimum=size, busy_s=0.5
    )
    assert cost.bus_bytes_per_s == 2 * size
    record = timing(
        PAIR, 80, pass_="communication", timing=None, throughput=None, memory=None,
        communication=Communication(collectives=[cost]),
    )  # fmt: skip
    records = [*launches(PAIR, 80, 80), record]
    for rate, flags in ((None, []), (1.95 * size, []), (1.8 * size, ["over_link_rate"])):
        (found,) = rows_of([], records, link_bytes_per_s=rate)
        assert found.flags == flags
    # Buffers on the way take in as little at once.
    assert record.communication is not None
    small = msgspec.structs.replace(cost, calls=2)
    spent = msgspec.structs.replace(record.communication, collectives=[small])
    records[-1] = msgspec.structs.replace(record, communication=spent)
    assert rows_of([], records, link_bytes_per_s=1.8 * size)[0].flags == []
    assert msgspec.structs.replace(cost, wire_bytes_minimum=None).bus_bytes_per_s is None


@pytest.mark.parametrize("flag", ["ranks_share_cores", "profiler_on"])
def test_what_was_disturbed_is_compared_with_nothing(flag: str) -> None:
    records = [*launches(SINGLE, 100, 100), *launches(PAIR, 160, 160, flags=[flag])]
    found = row(records, PAIR)
    assert found.speedup.ratio is None
    assert found.peer.ratio is None
    records = [*launches(SINGLE, 100, 100, flags=[flag]), *launches(PAIR, 160, 160)]
    assert row(records, PAIR).speedup.reason == "one device without a wrapper has no valid figure"


def test_what_went_wrong_beside_a_result_is_told() -> None:
    records = launches(SINGLE, 100, 102)
    records[0] = msgspec.structs.replace(records[0], retries=["address in use"])
    records[1] = msgspec.structs.replace(records[1], teardown_exit={"1": -6})
    found = row(records, SINGLE)
    assert found.status == "ok"
    assert found.launch_problems == [
        "timing launch 1: started again after: address in use",
        "timing launch 2: rank 1 ended with exit code -6 after it had handed over its result",
    ]
