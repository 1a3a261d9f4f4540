from __future__ import annotations

import re

import msgspec
import pytest

from bench.analyze.checks import FLAGS
from bench.analyze.scaling import rows_of
from bench.analyze.stats import Estimate
from bench.plan.case import identify
from bench.records.record import Parity, Record
from bench.report.cells import gib, interval, significant, span
from bench.report.markup import escape
from bench.report.notes import Footnotes, notes_of, variants
from bench.report.page import markdown, plain
from bench.report.tables import tables_of
from tests.analyze.test_scaling import COMPILED, PAIR, SINGLE, launches, parity, timing
from tests.fakes import make_case
from tests.report.test_page import make_info


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (1.234, "1.23"),
        (9.999, "10.0"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.5, "1,234"),
        (1e6, "1,000,000"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_a_figure_and_its_interval_share_their_last_place() -> None:
    assert interval(Estimate(value=7.0512, low=6.93, high=7.17, launches=3)) == "7.05 ± 0.12"
    assert interval(Estimate(value=7.0512, launches=1)) == "7.05 (1 launch)"
    assert interval(Estimate(value=2, low=1.7, high=2.3, launches=3), scale=1000) == "2,000 ± 300"
    # A narrow interval is not rounded away.
    assert (
        interval(Estimate(value=22500, low=22499.6, high=22500.4, launches=3)) == "22,500.0 ± 0.4"
    )


def test_a_ratio_has_the_ends_of_its_interval_or_says_that_it_has_none() -> None:
    assert span(Estimate(value=1.5, low=0.75, high=3.0, launches=3)) == "1.50 (0.75-3.00)"
    assert span(Estimate(value=1.5, launches=1)) == "1.50 (1 launch)"


def test_a_difference_inside_the_noise_is_said_to_be_none() -> None:
    alone = make_case(strategy="ddp")
    records = [*launches(SINGLE, 100, 95, 105), *launches(alone, 106, 101, 96)]
    text = markdown(make_info(), [], tables_of(rows_of([], records)))
    assert "no clear difference from one device without a wrapper" in text
    records = [*launches(SINGLE, 100, 95, 105), *launches(alone, 206, 201, 196)]
    assert "no clear difference" not in markdown(make_info(), [], tables_of(rows_of([], records)))


def test_a_compiled_row_names_what_was_compiled_and_what_that_took() -> None:
    plain_one, outside, blocks, nothing = cases = [
        make_case(),
        make_case(compile="default"),
        make_case(compile="default", compile_scope="blocks"),
        make_case(compile="max-autotune"),
    ]
    breaks = msgspec.structs.replace(
        COMPILED, graphs=4, breaks=2, uncompiled=1, compile_s=[3.0], reasons={"a print": 2}
    )
    empty = msgspec.structs.replace(COMPILED, graphs=0)
    records = [
        *launches(plain_one, 100, 100),
        timing(outside, 120, 0, compilation=COMPILED),
        timing(outside, 120, 1, compilation=breaks),
        timing(blocks, 110, compilation=breaks),
        timing(nothing, 100, compilation=empty, flags=["not_compiled"]),
    ]
    rows = rows_of(cases, records)
    names = [variants(rows)(case) for case in cases]
    assert names == [
        "single",
        "single, compile default",
        "single, compile default, scope blocks",
        "single, compile max-autotune asked for and not done",
    ]
    _, first, second, third = ("; ".join(notes_of(row, "scaling")) for row in rows)
    assert (
        "compiled in 30.0 s, not part of the figure, and in 3.0 s with what an earlier launch had"
        " compiled: 1 graph of 50 calls, no graph break" in first
    )
    assert (
        "compiled in 3.0 s a launch, not part of the figure: 4 graphs of 50 calls, 2 graph breaks,"
        " 1 function left uncompiled (most often: a print)" in second
    )
    assert "compiled in" not in third
    assert FLAGS["not_compiled"] in third


def test_a_row_that_was_not_proved_says_so_beside_its_figure() -> None:
    crashed = parity(PAIR, None, status="timeout", reason="not finished after 9 s")
    text = markdown(make_info(), [], tables_of(rows_of([], [*launches(PAIR, 160, 160), crashed])))
    assert "| not proved" in text
    assert "parity not proved: timeout: not finished after 9 s" in text


@pytest.mark.parametrize(
    ("peaks", "text"),
    [
        ([], "–"),
        ([None, None], "–"),
        ([2**30], "1.00"),
        ([2**30] * 4, "1.00"),
        ([2 * 2**30, 2**30], "2.00 / 1.00"),
        ([2**30, None], "1.00 / –"),  # not known of the second, which is no one's process
        ([3 * 2**30, 2**30, 2**30], "first 3.00, others 1.00"),
        ([3 * 2**30, 2**30, 2 * 2**30], "first 3.00, others 1.00 to 2.00"),
        ([None, 2**30, 2**30], "first –, others 1.00"),
        ([2**30, None, None], "first 1.00, others –"),
    ],
)
def test_the_first_device_is_told_from_the_others(peaks: list[int | None], text: str) -> None:
    assert gib(peaks) == text


def test_equal_footnotes_share_a_number_and_stand_in_order() -> None:
    notes = Footnotes()
    assert notes.number([["a"], ["b", "a"]]) == [(1,), (1, 2)]
    assert notes.texts == ["a", "b"]
    assert notes.common == []


def test_what_is_true_of_all_rows_is_said_once() -> None:
    notes = Footnotes()
    assert notes.number([["a", "b"], ["b"], ["c", "b"]]) == [(1,), (), (2,)]
    assert notes.common == ["b"]
    assert notes.texts == ["a", "c"]


def test_a_wide_interval_has_its_ends_since_it_lies_unevenly() -> None:
    wide = Estimate(value=100, low=50, high=200, launches=3)
    assert interval(wide) == "100 (50.0-200)"


def test_a_large_floor_is_a_factor_and_says_that_it_is_too_large() -> None:
    records = [*launches(PAIR, 100, 200), *with_twin(150, 60)]
    (table,) = tables_of(rows_of([], records))
    assert "Noise floor: a factor of " in table.noise
    assert "too much to compare strategies" in table.noise


def test_the_rule_says_weak_or_strong() -> None:
    strong = make_case(scaling="strong", global_batch=8, per_device_batch=8, seed=3)
    records = [*launches(SINGLE, 100, 100), *launches(strong, 100, 100)]
    first, second = tables_of(rows_of([], records))
    assert first.rule.startswith("weak scaling, 4 samples per device and micro-step; fp32; adamw")
    assert second.rule.startswith("strong scaling, 8 samples per step over all devices")
    assert first.rule.endswith("cpu, 1 core per device")


def test_what_varies_between_rows_is_said_in_each() -> None:
    amp = make_case(strategy="ddp", world_size=2, precision="bf16-amp")
    records = [*launches(PAIR, 100, 100), *launches(amp, 100, 100)]
    (table,) = tables_of(rows_of([], records))
    assert [table.columns[1].cell(row) for row in table.rows] == ["ddp, fp32", "ddp, bf16-amp"]


def test_a_failed_proof_strikes_the_figure_out() -> None:
    failed = Parity(verdict="failed", reason="fp64: loss of step 2 is off by 1e-2")
    rows = rows_of([], [*launches(PAIR, 160, 160), parity(PAIR, failed)])
    text = markdown(make_info(), [], tables_of(rows))
    assert "~~160.0 ± " in text
    assert "| failed" in text
    assert "fp64: loss of step 2 is off by 1e-2" in text
    assert "(160" in plain(rows)


def test_failures_and_skips_are_rows_with_reasons() -> None:
    failed = timing(
        SINGLE,
        1.0,
        status="failed",
        reason="rank 0: <b>|boom|</b>",
        timing=None,
        throughput=None,
        memory=None,
    )
    skip = timing(
        PAIR,
        1.0,
        status="skipped",
        reason="needs 2 cuda devices, found 0",
        timing=None,
        throughput=None,
        memory=None,
    )
    text = markdown(make_info(), [], tables_of(rows_of([], [failed, skip])))
    assert r"failed: rank 0: \<b\>\|boom\|\</b\>" in text
    assert "skipped: needs 2 cuda devices, found 0" in text
    assert "2 cases: 1 failed, 1 skipped" in text
    assert " 0 " not in text.split("## How")[0].split("|---")[-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a|b", r"a\|b"), ("<img>", r"\<img\>"), ("a\nb\r\n c", "a b c"), ("`x` *y*", r"\`x\` \*y\*")],
)
def test_text_cannot_become_markup(text: str, expected: str) -> None:
    assert escape(text) == expected


def with_twin(*rates: float) -> list[Record]:
    twin = identify(msgspec.structs.replace(PAIR, twin=True, id=""))
    return launches(twin, *rates)


def test_the_noise_floor_is_said_under_the_table() -> None:
    records = [*launches(SINGLE, 100, 101), *launches(PAIR, 180, 182), *with_twin(182, 184)]
    (table,) = tables_of(rows_of([], records))
    assert table.noise.startswith("Noise floor: ")
    assert "ddp on 2 devices, measured twice, differed by +1.1% (95 %: " in table.noise
    assert "A smaller difference is no clear difference." in table.noise
    assert len(table.rows) == 2
    assert table.noise.replace("+", "\\+")[:12] in markdown(make_info(), [], [table])
    assert table.noise in " ".join(plain(rows_of([], records)).split())


def test_a_table_without_a_pair_of_equal_cases_says_that_too() -> None:
    (table,) = tables_of(rows_of([], launches(SINGLE, 100, 101)))
    assert table.noise == "Noise floor: unknown, since no case was measured twice."
    failed = [
        msgspec.structs.replace(one, status="timeout", reason="slow", timing=None, throughput=None)
        for one in with_twin(1)
    ]
    (table,) = tables_of(rows_of([], [*launches(PAIR, 180, 182), *failed]))
    assert (
        table.noise
        == "Noise floor: unknown. ddp on 2 devices, measured twice: no second figure, slow."
    )
    (table,) = tables_of(rows_of([], [*launches(PAIR, 180), *with_twin(182)]))
    assert "differed by +1.1% (1 launch, no interval)" in table.noise


def test_rows_are_set_against_plain_ddp() -> None:
    fsdp = make_case(strategy="fsdp", world_size=2)
    close = make_case(strategy="dp", world_size=2)
    records = [
        *launches(SINGLE, 100, 101),
        *launches(PAIR, 180, 182, 181),
        *launches(fsdp, 90, 92, 91),
        *launches(close, 181, 180, 182),
    ]
    (table,) = tables_of(rows_of([], records))
    (column,) = [one for one in table.columns if one.heading == "against ddp"]
    cells = {row.case.label: column.cell(row) for row in table.rows}
    assert cells["single"] == "–"
    assert cells["ddp"] == "the reference"
    assert re.fullmatch(r"no clear difference, \+0\.\d% \(-\d\.\d% to \+\d\.\d%\)", cells["dp"])
    assert cells["fsdp"].startswith("-49.7% (-5")
    (alone,) = tables_of(rows_of([], records[:5]))
    assert "against ddp" not in [one.heading for one in alone.columns]


def test_two_baselines_in_one_column_are_named() -> None:
    steps = {"accumulation_steps": 4}
    cases = [
        make_case(),
        make_case(**steps),
        PAIR,
        make_case(strategy="ddp", world_size=2, **steps),
    ]
    records = [launches(case, 100 + n, 101 + n, 99 + n) for n, case in enumerate(cases)]
    text = markdown(
        make_info(), [], tables_of(rows_of([], [one for some in records for one in some]))
    )
    assert "speedup: over single on one device" in text
    assert "speedup: over single, accumulation\\_steps 4 on one device" in text
    alone = markdown(make_info(), [], tables_of(rows_of([], [*records[0], *records[2]])))
    assert "speedup: over" not in alone


def test_a_terminal_has_80_columns_however_wide_the_intervals_are() -> None:
    names = ("dp", "ddp", "fsdp")
    cases = [make_case(strategy=name, world_size=2) for name in names]
    records = [one for case in cases for one in launches(case, 1e6, 9e4)]
    text = plain(rows_of([], [*launches(SINGLE, 5e5, 5e4), *records]))
    table = [line for line in text.splitlines() if line.startswith(("     ", "---", "  dev"))]
    assert len(table) == 6
    assert max(map(len, table)) <= 80
    assert "300k (0.016-5,700G)" in text
