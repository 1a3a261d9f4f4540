from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.analyze.doubts import Span, contradictions, of_curve, span_of
from bench.analyze.published import (
    Dataset,
    Entry,
    Scaling,
    beside,
    curves,
    entries,
    has_options,
    matching,
    scaling_tables,
)
from bench.analyze.scaling import rows_of
from bench.plan.case import identify
from tests.analyze.test_compare import around
from tests.analyze.test_scaling import row
from tests.fakes import EIGHT_GPUS, make_case
from tests.plan.test_shipped import plan


def table(**changes: Any) -> Scaling:
    own = {"strategy", "throughput", "unit"} & changes.keys()
    fields = {name: changes[name] for name in own}
    rest = {name: value for name, value in changes.items() if name not in own}
    return Scaling(
        entry=Entry(id="made", source="nowhere", scaling="weak", **rest),
        workload="made",
        hardware="none",
        precision="fp32",
        **{"strategy": "ddp", "unit": "image/s", "throughput": {}} | fields,
    )


def test_every_published_figure_has_its_source_and_unit() -> None:
    assert len({entry.id for entry in entries()}) == len(entries())
    for entry in entries():
        assert entry.source
        assert "same" not in entry.source
        assert entry.unit or not (entry.throughput or entry.rows)
        assert len(entry.payload_bytes) == len(entry.busbw_gb_s)
    for one in scaling_tables():
        assert one.throughput
        assert one.workload


def test_figures_are_those_of_the_source() -> None:
    article, dp = scaling_tables()[:2]
    assert article.throughput == {1: 156, 2: 302, 4: 592, 8: 1107}
    assert article.speedup(8) == pytest.approx(1107 / 156)
    assert dp.throughput == {1: 156, 4: 249}
    torch = next(one for one in scaling_tables() if one.is_per_device)
    assert torch.no_wrapper == 329
    assert torch.speedup(16) == pytest.approx(16 * 306 / 319)


def test_what_the_published_tables_contradict_is_found() -> None:
    found = {(one.entry.id, text[:40]) for one in scaling_tables() for text in contradictions(one)}
    assert {name for name, _ in found} == {
        "article-resnet152-a100-ddp",
        "article-resnet152-a100-dp",
        "dlperf-resnet50-input-pipeline",
    }
    article, dp = scaling_tables()[:2]
    epoch, memory = contradictions(article)
    assert "268,788, 268,478, 268,176, 267,894 samples" in epoch
    assert "said to have 5,000" in epoch
    assert "each of 8 devices is said to need 15.8 GB and one alone 21.4 GB" in memory
    assert contradictions(dp) == [
        "the speedup on 4 devices is said to be 1.63, while its throughput makes it 1.60, and its"
        " times 1.60"
    ]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"throughput": {1: 100, 2: 190}}, None),
        ({"throughput": {1: 100, 2: 200}}, None),
        ({"throughput": {1: 101, 2: 205}}, "2.03 times the work of one"),
        ({"throughput": {1: 1.0, 2: 3.0}, "unit": "image/s per device"}, "6.00 times the work"),
        ({"throughput": {2: 900, 4: 500}}, "4 devices do less together than 2"),
        ({"throughput": {1: 101}, "epoch_s": {1: 99}, "dataset": 10_000}, None),
        ({"throughput": {1: 101}, "epoch_s": {1: 99}, "dataset": 11_000}, "said to have 11,000"),
        (
            {"throughput": {1: 101, 2: 199}, "epoch_s": {1: 99, 2: 99}},
            "differs: 9,999, 19,701 samples",
        ),
        (
            {"throughput": {1: 101, 2: 199}, "speedup_as_published": {1: 1, 2: 1.97}},
            None,
        ),
        (
            {"throughput": {1: 101, 2: 199}, "speedup_as_published": {1: 1, 2: 2.02}},
            "said to be 2.02, while its throughput makes it 1.97",
        ),
        (
            {"throughput": {1: 101}, "peak_memory_gb_per_device": {1: 20.1, 2: 20.1}},
            None,
        ),
        (
            {"throughput": {1: 101}, "peak_memory_gb_per_device": {1: 20.1, 2: 18.1}},
            "each of 2 devices is said to need 18.1 GB",
        ),
        (
            {"strategy": "fsdp", "throughput": {1: 1}, "peak_memory_gb_per_device": {1: 9, 2: 5}},
            None,
        ),
    ],
)
def test_contradictions_by_hand(changes: dict[str, Any], word: str | None) -> None:
    samples = changes.get("dataset")
    if samples is not None:
        changes = {**changes, "dataset": Dataset(name="made", samples=samples)}
    found = contradictions(table(**changes))
    if word is None:
        assert found == []
    else:
        assert len(found) == 1
        assert word in found[0]


def test_a_figure_stands_for_all_that_round_to_it() -> None:
    assert span_of(22_590_000) == Span(low=22_585_000, high=22_595_000)
    assert span_of(350.66).low == pytest.approx(350.655)
    assert span_of(0.5).high == pytest.approx(0.55)
    assert span_of(7) == Span(low=6.5, high=7.5)


def test_a_bandwidth_that_its_time_does_not_give() -> None:
    (a100, _) = curves("all_reduce")
    assert of_curve(a100) == []
    wrong = msgspec.structs.replace(a100, busbw_gb_s=[2 * one for one in a100.busbw_gb_s])
    assert len(of_curve(wrong)) == len(a100.busbw_gb_s)
    assert "134.2 GB" not in of_curve(wrong)[-1]
    assert "are 234.9 GB/s on the bus, and said to be 469.78" in of_curve(wrong)[-1]


def test_ours_beside_a_published_table_is_the_same_strategy_precision_and_options() -> None:
    article = scaling_tables()[0]

    def ddp(label: str = "ddp", **changes: Any) -> Any:
        fields = {"workload": "resnet152", "strategy": "ddp", "world_size": 2, "label": label}
        case = identify(msgspec.structs.replace(make_case(**fields | changes), id=""))
        return row(around(case, 100), case)

    plain = ddp()
    synchronised = ddp("ddp(sync_batchnorm=true)", options={"sync_batchnorm": True})
    other = ddp("ddp(bucket_cap_mb=1)", options={"bucket_cap_mb": 1})
    narrow, one = ddp(precision="bf16-amp"), ddp(world_size=1)
    found = beside(article, [other, plain, synchronised, narrow, one])
    assert found == {1: one, 2: synchronised}
    assert beside(article, [other, plain]) == {2: plain}
    assert beside(article, [other, narrow]) == {}
    assert not has_options(plain.case, article)
    assert [one.entry.id for one in matching([plain])] == [
        "article-resnet152-a100-ddp",
        "article-resnet152-a100-ddp-amp-accumulation",
    ]
    own = ddp(workload="my.models:RESNET50")
    assert {one.workload for one in matching([own])} == {"resnet50"}
    strong = ddp(scaling="strong")
    assert len(matching([strong])) == 1  # whose batch rule is not published


def test_the_suite_for_it_fills_the_table_of_the_article() -> None:
    planned = plan("resnet152-scaling", EIGHT_GPUS)
    rows = rows_of([one.case for one in planned], [])
    tables = [one for one in scaling_tables() if one.workload == "resnet152"]
    assert len(tables) == 3
    for one in tables:
        found = beside(one, rows)
        assert [*found] == one.sizes
        for own in found.values():
            assert has_options(own.case, one)
            assert own.case.per_device_batch == 64
