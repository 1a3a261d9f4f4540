from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from bench.analyze.rows import Row, Setting
from bench.analyze.scaling import rows_of
from bench.analyze.settings import (
    PLAIN,
    WITHIN,
    group_key,
    groups_of,
    idle_sweeps,
    ladders_of,
    plain_of,
)
from bench.plan.case import Case
from bench.records.record import Communication, Parity, Record
from tests.analyze.test_scaling import launches, parity, row
from tests.fakes import make_case

DEFAULTS = {"bucket_cap_mb": None, "static_graph": False}
MANY = (100.0, 101.0, 99.5, 100.4, 99.9)


def ddp(changes: dict[str, Any] | None = None, **fields: Any) -> Case:
    changed = ", ".join(f"{name}={value}" for name, value in (changes or {}).items())
    return make_case(
        **{"strategy": "ddp", "world_size": 2, "options": DEFAULTS | (changes or {})}
        | {"label": f"ddp({changed})" if changed else "ddp"}
        | fields
    )


def at(case: Case, factor: float = 1.0, **changes: Any) -> list[Record]:
    return launches(case, *(factor * rate for rate in MANY), **changes)


def with_buckets(case: Case, *sizes: int) -> list[Record]:
    return at(case, communication=Communication(bucket_bytes=[*sizes]))


PLAIN_DDP = ddp()


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (ddp({"bucket_cap_mb": 5}), [Setting(name="bucket_cap_mb", value=5, is_option=True)]),
        (ddp(precision="bf16-amp"), [Setting(name="precision", value="bf16-amp")]),
        (ddp(compile="default"), [Setting(name="compile", value="default")]),
        (
            ddp(accumulation_steps=4, global_batch=32),
            [Setting(name="accumulation_steps", value=4)],
        ),
        (ddp(optimizer_kernels="fused"), [Setting(name="optimizer_kernels", value="fused")]),
        (
            ddp(activation_checkpointing=True),
            [Setting(name="activation_checkpointing", value=True)],
        ),
        (ddp(env={"A": "1"}), [Setting(name="env", value={"A": "1"})]),
        (
            ddp(compile="default", compile_scope="blocks"),
            [
                Setting(name="compile", value="default"),
                Setting(name="compile_scope", value="blocks"),
            ],
        ),
    ],
)
def test_each_setting_is_compared_with_the_plain_strategy(
    case: Case, expected: list[Setting]
) -> None:
    records = [*at(PLAIN_DDP), *at(case, 1.5)]
    found = row(records, case)
    assert found.setting.ratio is not None
    assert found.setting.ratio.value == pytest.approx(1.5, rel=0.01)
    assert found.setting.against == PLAIN_DDP.id
    assert found.setting.verdict == "faster"
    assert found.settings == expected
    plain = row(records, PLAIN_DDP)
    assert plain.setting.is_baseline
    assert plain.settings == []


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 4, "global_batch": 16},
        {"per_device_batch": 8, "global_batch": 16},
        {"optimizer": "sgd"},
        {"strategy": "fsdp"},
        {"seed": 1},
        {"cores_per_device": 2},
        {"workload_options": {"layers": 3}},
        {"backend": "mpi"},
    ],
)
def test_what_is_no_setting_is_compared_with_nothing(changes: dict[str, Any]) -> None:
    other = ddp({"bucket_cap_mb": 5}, **changes)
    found = row([*at(PLAIN_DDP), *at(other)], other)
    assert found.setting.ratio is None
    assert found.setting.reason == f"{other.strategy} with plain settings was not measured"


def test_a_field_that_means_nothing_where_it_stands_makes_no_difference() -> None:
    scoped = ddp(compile_scope="blocks", accumulation_sync="every")
    assert group_key(scoped) == group_key(PLAIN_DDP)
    (found,) = rows_of([], at(scoped))
    assert found.settings == []
    assert found.setting.is_baseline


def test_what_all_rows_share_is_no_setting_of_theirs() -> None:
    amp, small = ddp(precision="bf16-amp"), ddp({"bucket_cap_mb": 5}, precision="bf16-amp")
    records = [*at(amp), *at(small, 0.5)]
    found = row(records, small)
    assert found.setting.against == amp.id
    assert [one.name for one in found.settings] == ["bucket_cap_mb"]
    # With fp32 among the rows, precision is a question, and fp32 its plain answer.
    found = row([*records, *at(PLAIN_DDP)], small)
    assert found.setting.against == PLAIN_DDP.id
    assert [one.name for one in found.settings] == ["precision", "bucket_cap_mb"]


def test_without_a_plain_row_settings_are_told_all_the_same() -> None:
    case = ddp({"bucket_cap_mb": 5}, precision="bf16-amp", accumulation_steps=2, global_batch=16)
    (found,) = rows_of([], [*at(case)])
    assert [one.name for one in found.settings] == [
        "precision",
        "accumulation_steps",
        "bucket_cap_mb=5",
    ]


def test_a_plain_row_without_a_figure_or_with_a_failed_proof_is_no_measure() -> None:
    case = ddp({"bucket_cap_mb": 5})
    failed = parity(PLAIN_DDP, Parity(verdict="failed", reason="off"))
    found = row([*at(PLAIN_DDP), failed, *at(case)], case)
    assert found.setting.reason == "ddp with plain settings has no valid figure"
    found = row([*at(case)], case, [PLAIN_DDP, case])
    assert found.setting.reason == "ddp with plain settings has no valid figure"


def test_another_environment_forbids_it_unless_variables_are_the_setting() -> None:
    case = ddp({"bucket_cap_mb": 5})
    found = row([*at(PLAIN_DDP), *at(case, environment="other")], case)
    assert found.setting.reason == ("ddp with plain settings was measured with another environment")
    case = ddp(env={"OMP_WAIT_POLICY": "passive"})
    found = row([*at(PLAIN_DDP), *at(case, environment="other")], case)
    assert found.setting.ratio is not None


def test_accumulation_is_compared_by_samples_under_weak_and_strong_scaling() -> None:
    strong: dict[str, Any] = {"scaling": "strong", "global_batch": 32}
    plain = ddp(**strong, per_device_batch=16)
    several = ddp(**strong, per_device_batch=4, accumulation_steps=4)
    found = row([*at(plain), *at(several, 2.0)], several)
    assert found.setting.ratio is not None
    assert found.setting.ratio.value == pytest.approx(2.0)


def test_one_pair_of_rows_is_one_comparison_among_all() -> None:
    """Of a variant of DDP, ``peer`` and ``setting`` ask the same: Holm's factor counts it once."""
    variant = ddp({"bucket_cap_mb": 5})
    records = [*launches(PLAIN_DDP, 100, 101, 102), *launches(variant, 103, 104.2, 105)]
    found = row(records, variant)
    assert found.peer.against == found.setting.against == PLAIN_DDP.id
    assert found.peer.chance is not None
    # Clear for one comparison; not if it were counted twice.
    assert 0.025 < found.peer.chance < 0.05
    assert found.peer.verdict == found.setting.verdict == "faster"


def rungs(*cases: Case) -> dict[str, str]:
    return {upper.id: lower.id for lower, upper in itertools.pairwise(cases)}


LADDER = (
    PLAIN_DDP,
    ddp(precision="bf16-amp"),
    ddp(precision="bf16-amp", accumulation_steps=4, global_batch=32),
    ddp({"bucket_cap_mb": 5}, precision="bf16-amp", accumulation_steps=4, global_batch=32),
)


def test_a_rung_is_compared_with_plain_and_with_the_rung_below() -> None:
    records = [
        one
        for case, factor in zip(LADDER, (1.0, 2.0, 3.0, 1.5), strict=True)
        for one in at(case, factor)
    ]
    rows = rows_of([], records, rungs=rungs(*LADDER))
    ratios = [
        [None if one.ratio is None else round(one.ratio.value, 6) for one in (r.setting, r.rung)]
        for r in rows
    ]
    assert ratios == [[1.0, None], [2.0, 2.0], [3.0, 1.5], [1.5, 0.5]]
    assert [[one.name for one in r.rung_settings] for r in rows] == [
        [],
        ["precision"],
        ["accumulation_steps"],
        ["bucket_cap_mb"],
    ]
    assert [r.case.id for (ladder,) in [ladders_of(rows)] for r in ladder] == [
        case.id for case in LADDER
    ]
    assert rows[3].rung.verdict == "slower"
    assert rows[3].setting.verdict == "faster"


def test_two_ladders_may_start_on_one_rung_and_a_circle_is_none() -> None:
    first, second, third, fourth = LADDER
    records = [one for case in LADDER for one in at(case)]
    below = rungs(first, second, third) | {fourth.id: second.id}
    ladders = ladders_of(rows_of([], records, rungs=below))
    assert [[r.case.id for r in ladder] for ladder in ladders] == [
        [first.id, second.id, third.id],
        [first.id, second.id, fourth.id],
    ]
    assert ladders_of(rows_of([], records, rungs={first.id: second.id, second.id: first.id})) == []
    assert ladders_of(rows_of([], records, rungs={first.id: "gone"})) == []
    circle = {first.id: second.id, second.id: first.id, third.id: second.id}
    (ladder,) = ladders_of(rows_of([], records, rungs=circle))
    assert [r.case.id for r in ladder] == [first.id, second.id, third.id]


def test_a_rung_is_not_compared_with_one_that_is_no_like_of_it() -> None:
    other = ddp(per_device_batch=8, global_batch=16, precision="bf16-amp")
    (_, found) = rows_of([], [*at(PLAIN_DDP), *at(other)], rungs={other.id: PLAIN_DDP.id})
    assert found.rung.ratio is None
    assert found.rung.reason == "the rung below was not measured"


def sweep(*layouts: tuple[float | None, list[int]], **fields: Any) -> list[Row]:
    records = [
        one
        for cap, sizes in layouts
        for one in with_buckets(ddp({"bucket_cap_mb": cap} if cap else None, **fields), *sizes)
    ]
    return rows_of([], records)


def test_a_sweep_whose_rows_have_equal_buckets_is_idle() -> None:
    (found,) = idle_sweeps(sweep((None, [3_000]), (1, [3_000]), (25, [3_000])))
    assert found.bucket_bytes == [3_000]
    assert found.labels == ["ddp", "ddp(bucket_cap_mb=1)", "ddp(bucket_cap_mb=25)"]
    (found,) = idle_sweeps(sweep((1, [3_000, 5_000]), (4, [3_000, 5_000])))
    assert found.bucket_bytes == [3_000, 5_000]


@pytest.mark.parametrize(
    "rows",
    [
        sweep((None, [3_000]), (1, [1_000, 2_000])),
        sweep((None, [3_000])),
        sweep((None, []), (1, [])),
        sweep((None, [3_000]), (1, [3_000]), world_size=1, global_batch=4),
        [*sweep((None, [3_000])), *sweep((None, [3_000]), precision="bf16-amp")],
    ],
)
def test_a_sweep_that_shows_something_or_is_none_is_not_idle(rows: list[Row]) -> None:
    assert idle_sweeps(rows) == []


def test_equal_buckets_are_said_of_a_list_of_caps_too() -> None:
    caps = ddp({"bucket_cap_mb_list": [1, 2]}, options=DEFAULTS | {"bucket_cap_mb_list": [1, 2]})
    plain = ddp(options=DEFAULTS | {"bucket_cap_mb_list": None})
    records = [*with_buckets(plain, 1, 2), *with_buckets(caps, 1, 2)]
    assert row(records, caps).same_buckets_as == "ddp"


def test_every_field_of_a_case_is_a_setting_or_sets_rows_apart() -> None:
    """A field added to cases must not silently become something that rows may differ in."""
    for name in Case.__struct_fields__:
        if name in {*PLAIN, *WITHIN, "options", "label", "id", "twin", "global_batch"}:
            continue
        if name in {"data", "data_options"}:  # which data_label, a setting, tells
            continue
        odd = {"scaling": "strong", "sources": {"net.py": "digest"}}
        value = odd.get(name, [getattr(PLAIN_DDP, name)])
        other = msgspec.structs.replace(PLAIN_DDP, **{name: value})
        assert group_key(other) != group_key(PLAIN_DDP), name


def test_groups_keep_the_order_of_their_rows() -> None:
    fsdp = make_case(strategy="fsdp", world_size=2)
    variant = ddp({"static_graph": True})
    rows = rows_of([], [*at(variant), *at(fsdp), *at(PLAIN_DDP)])
    assert [[r.case.id for r in group] for group in groups_of(rows)] == [
        [variant.id, PLAIN_DDP.id],
        [fsdp.id],
    ]
    assert plain_of(groups_of(rows)[0]) is rows[2]
