from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.plan.case import Case, identify
from bench.records.record import BatchTrial, Communication, MaxBatch, Memory, Parity, Record
from bench.report.findings import Kind, findings, headline
from bench.report.naming import listed
from bench.report.tables import tables_of
from tests.analyze.test_scaling import launches, parity, timing
from tests.fakes import make_case
from tests.report.made_settings import ladder_rows, settings_rows

GIB = 2**30


def of(kind: Kind, rows: list[Row]) -> list[str]:
    return [found.text for found in findings(tables_of(rows)) if found.kind == kind]


def pair(strategy: str, **changes: Any) -> Case:
    return make_case(strategy=strategy, world_size=2, **changes)


def measured(case: Case, *rates: float, gib: float = 1.0, **changes: Any) -> list[Record]:
    size = case.world_size
    memory = Memory(
        peak_allocated_bytes=[int(gib * GIB)] * size,
        peak_reserved_bytes=[None] * size,
        peak_driver_bytes=[None] * size,
        peak_process_bytes=[None] * size,
    )
    found = parity(case, Parity(verdict="exact", error=0.0))
    return [*launches(case, *rates, memory=memory, **changes), found]


SINGLE = measured(make_case(), 99, 100, 101)
DDP = measured(pair("ddp"), 179, 180, 181)
FSDP = measured(pair("fsdp"), 89, 90, 91, gib=0.25)


def test_the_fastest_is_named_with_its_gain_and_what_is_clearly_slower() -> None:
    assert of("fastest", rows_of([], [*SINGLE, *DDP, *FSDP])) == [
        "On 2 devices ddp is the fastest: 180 ± 3 images/s, 1.80 times one device without a "
        "wrapper. Clearly slower: fsdp (-50%)."
    ]


def test_what_cannot_be_told_apart_is_not_ranked() -> None:
    zero = measured(pair("zero"), 179, 180.5, 182)
    (text,) = of("fastest", rows_of([], [*DDP, *zero, *FSDP]))
    assert text.startswith("On 2 devices zero has the highest figure, 18")
    assert "; ddp cannot be told from it. Clearly slower: fsdp (-50%)." in text


def test_less_memory_is_named_with_its_price() -> None:
    assert of("memory", rows_of([], [*DDP, *FSDP])) == [
        "Least memory of what is ranked: fsdp with 0.250 GiB a device, where ddp needs 1.00; it "
        "reaches 50% of its rate."
    ]
    alike = measured(pair("fsdp"), 89, 90, 91, gib=0.95)
    assert of("memory", rows_of([], [*DDP, *alike])) == []


def test_a_limit_of_memory_has_its_own_fastest_and_largest_batch() -> None:
    trial = BatchTrial(per_device_batch=8, fits=True, peak_bytes=[1, 1])
    rows = [
        msgspec.structs.replace(
            row,
            max_batch=MaxBatch(
                per_device_batch=size, too_large=size + 1, memory_limit_bytes=GIB // 2,
                trials=[trial],
            ),
        )
        for row, size in zip(rows_of([], [*DDP, *FSDP]), (8, 24), strict=True)
    ]  # fmt: skip
    assert of("memory", rows)[1:] == [
        "Within 0.500 GiB a device fsdp has the highest figure: 90.0 ± 2.7 images/s.",
        "Within 0.500 GiB a device the largest batch fits with fsdp: 24 samples a device.",
    ]


def test_what_trains_otherwise_is_not_the_fastest() -> None:
    case = pair("ddp", label="ddp(comm_hook=x)", options={"comm_hook": "x"})
    lossy = [*launches(case, 299, 300, 301), parity(case, Parity(verdict="lossy_by_design"))]
    texts = of("fastest", rows_of([], [*DDP, *lossy]))
    assert texts[0].startswith("On 2 devices only ddp could be ranked")
    assert texts[1] == (
        "ddp(comm_hook=x) is faster still, but lossy by design: it trains on other gradients than "
        "one device would."
    )


def test_what_only_stands_for_an_algorithm_is_not_ranked() -> None:
    reference = measured(pair("dp"), 299, 300, 301, flags=["reference_implementation"])
    texts = of("fastest", rows_of([], [*DDP, *reference]))
    assert texts[1] == (
        "Not ranked, since it only carries out the algorithm on a CPU: dp (300 ± 3 images/s)."
    )


def test_what_trains_otherwise_is_faster_by_the_rule_for_all_differences() -> None:
    case = pair("ddp", label="ddp(comm_hook=x)", options={"comm_hook": "x"})
    near = [*launches(case, 188, 187, 189), parity(case, Parity(verdict="lossy_by_design"))]
    twin = launches(identify(msgspec.structs.replace(pair("ddp"), twin=True, id="")), 192, 193, 191)
    assert len(of("fastest", rows_of([], [*DDP, *near]))) == 2
    assert of("fastest", rows_of([], [*DDP, *near, *twin])) == []  # its setting says what it brings


def test_a_row_on_fewer_devices_that_does_more_is_named() -> None:
    alone = measured(make_case(strategy="ddp"), 240, 241, 239)
    texts = of("fastest", rows_of([], [*SINGLE, *alone, *DDP, *FSDP]))
    assert texts[1] == (
        "Fewer devices did as much or more: ddp x1 has 240 ± 3 images/s, of which ddp x2 reaches "
        "0.750 times."
    )
    assert len(of("fastest", rows_of([], [*SINGLE, *DDP, *FSDP]))) == 1


def test_each_speed_of_the_links_has_its_own_sentences() -> None:
    rows = rows_of([], [
        *SINGLE,
        *measured(pair("ddp", nodes=2, link="300mbit"), 49, 50, 51),
        *measured(pair("fsdp", nodes=2, link="300mbit"), 24, 25, 26, gib=0.25),
        *measured(pair("ddp", nodes=2, link="10gbit"), 179, 180, 181),
        *measured(pair("fsdp", nodes=2, link="10gbit"), 89, 90, 91, gib=0.25),
    ])  # fmt: skip
    texts = of("fastest", rows)
    assert texts[0].startswith("On 2 devices, links of 300mbit, ddp is the fastest: 5")
    assert texts[0].endswith("Clearly slower: fsdp (-50%).")
    assert texts[1].startswith("Fewer devices did as much or more: single x1 has ")
    assert texts[2].startswith("On 2 devices, links of 10gbit, ddp is the fastest: 1")
    memory = of("memory", rows)
    assert memory[0].startswith(
        "Least memory of what is ranked on 2 devices, links of 300mbit: fsdp "
    )
    assert len(memory) == 2


def test_a_source_of_data_that_one_row_has_is_a_setting_and_no_ranking() -> None:
    source: dict[str, Any] = {
        "data": "host",
        "data_options": {"workers": 1},
        "data_label": "host(workers=1)",
    }
    plain = [*measured(pair("ddp"), 49, 50, 51), *measured(pair("fsdp"), 24, 25, 26)]
    loaded = measured(pair("ddp", **source), 44, 45, 46)
    texts = of("fastest", rows_of([], [*plain, *loaded]))
    assert len(texts) == 1
    assert texts[0].startswith("On 2 devices ddp is the fastest: 5")
    both = [*plain, *loaded, *measured(pair("fsdp", **source), 24, 25, 26)]
    texts = of("fastest", rows_of([], both))
    assert [text.partition(" ddp")[0] for text in texts] == [
        "On 2 devices, data device,",
        "On 2 devices, data host(workers=1),",
    ]


def test_each_setting_has_a_sentence_or_no_clear_difference() -> None:
    text, warning = of("settings", settings_rows())
    assert warning.startswith("The sweep of bucket sizes on 2 devices cannot show an effect")
    faster, rest = text.split("; clearly slower: ")
    slower, alike = rest.split("; no clear difference")
    assert faster.startswith("Settings of ddp and fsdp on 2 devices, clearly faster: ")
    assert "ddp: comm_hook bf16 (+33." in faster
    assert "lossy by design)" in faster
    assert "ddp: bucket_cap_mb 1 (-5." in slower
    assert "(the noise floor is " in alike
    assert "ddp: static_graph" in alike
    (rungs,) = of("settings", ladder_rows())
    assert rungs.startswith("Ladder of ddp on 2 devices, each against the rung below, clearly ")
    assert "; clearly slower: bf16-amp (-" in rungs


def communicating(
    exposed_s: float, pairs: list[tuple[float, float]] | None = None, **changes: Any
) -> list[Row]:
    """A row whose profiled step takes 50 ms."""
    case = pair("ddp")
    spent = Communication(
        busy_s=max(exposed_s, 0.005),
        exposed_s=exposed_s,
        wait_s=0.005,
        profiled_step_s=0.05,
        sync_pairs_s=pairs,
    )
    rate = changes.pop("rate", 180)
    records = launches(case, rate - 1, rate, rate + 1, communication=spent, **changes)
    return rows_of([], [*SINGLE, *records])


def test_communication_binds_where_nothing_hides_much_of_it() -> None:
    meaning = "exposed: share of a profiled step)"
    (text,) = of("communication", communicating(0.03))
    assert text.startswith("Communication binds on 2 devices (sync: ")
    assert text.endswith(f"{meaning}: ddp (exposed 60%).")
    (text,) = of("communication", communicating(0.01))
    assert text.startswith("Communication may bind on 2 devices, which one look does not tell (")
    assert text.endswith(f"{meaning}: ddp (exposed 20%).")
    assert of("communication", communicating(0.0025)) == [
        "Communication does not bind on 2 devices: at most 5% of a profiled step is communication "
        "that nothing hides (ddp)."
    ]


def test_what_synchronising_costs_binds_where_little_is_exposed() -> None:
    """On cores that compute and communicate in turns, next to nothing is exposed."""
    (text,) = of("communication", communicating(0.0025, [(0.040, 0.024)] * 8))
    assert text.startswith("Communication binds on 2 devices")
    assert text.endswith(": ddp (sync 40%, exposed 5%).")
    assert of("communication", communicating(0.0025, [(0.040, 0.036)] * 8)) == [
        "Communication does not bind on 2 devices: at most 10% of forward and backward is "
        "synchronising gradients (ddp) and 5% of a profiled step is communication that nothing "
        "hides (ddp)."
    ]
    slow = of("communication", communicating(0.0025, [(0.05, 0.03)] * 8, rate=50))
    assert slow[1] == (
        "ddp x2 is slower than one device: synchronising gradients takes 40% of forward and "
        "backward; 5% of a profiled step is communication that nothing hides, 10% waiting for "
        "late ranks."
    )


def test_a_profile_that_slowed_the_step_says_nothing_of_its_parts() -> None:
    (row,) = [row for row in communicating(0.03, rate=190) if row.case.world_size == 2]
    slowed = msgspec.structs.replace(row, flags=[*row.flags, "profile_slowed"])
    assert of("communication", [slowed]) == []
    assert of("doubt", [slowed])[-1] == (
        "Do not lean on the communication of ddp x2: the profile slowed the step, so that its "
        "figures are too high."
    )


def test_a_loss_by_more_devices_is_not_hidden_and_has_its_reason() -> None:
    texts = of("communication", communicating(0.03, rate=50))
    assert texts[1] == (
        "ddp x2 is slower than one device: 60% of a profiled step is communication that nothing "
        "hides, 10% waiting for late ranks, 30% computation and all else."
    )
    (row,) = [row for row in communicating(0.03, rate=50) if row.case.world_size == 2]
    silent = msgspec.structs.replace(row, communication=None)
    assert of("communication", [silent]) == [
        "ddp x2 is slower than one device: no profile says why."
    ]


def test_cases_without_a_figure_are_named_with_their_reason() -> None:
    failed = timing(
        pair("fsdp"), 1.0, status="out_of_memory", reason="2 GiB are not enough", timing=None,
        throughput=None, memory=None,
    )  # fmt: skip
    assert of("missing", rows_of([], [*DDP, failed])) == [
        "No figure, out of memory, 2 GiB are not enough: fsdp x2."
    ]


def test_rows_not_to_lean_on_are_named_with_the_reason() -> None:
    wrong = launches(pair("fsdp"), 89, 90, 91, flags=["duplicate_data"])
    unproved = launches(pair("zero"), 89, 90, 91, flags=["throttled"])
    rows = rows_of([], [*DDP, *wrong, *unproved])
    assert of("doubt", rows) == [
        "Wrong, did not train the same model (ranks trained on the same samples): fsdp x2.",
        "Not proved to train the same model: zero x2.",
        "Do not lean on zero x2: the devices were held back.",
    ]


def test_a_slow_baseline_is_what_is_not_to_be_leant_on() -> None:
    faulty = measured(make_case(), 99, 100, 101, flags=["page_faults"])
    alone = measured(make_case(strategy="ddp"), 139, 140, 141)
    assert of("doubt", rows_of([], [*faulty, *alone, *DDP])) == [
        "Do not lean on speedups over single x1: ddp x1 has more speedup than devices, so that "
        "this baseline is too slow, or caches explain it; page faults slow this baseline down, "
        "and not ddp x1 and ddp x2."
    ]
    quick = measured(pair("ddp"), 179, 180, 181, flags=["page_faults"])
    assert of("doubt", rows_of([], [*SINGLE, *quick])) == [
        "Do not lean on speedups over single x1: page faults slow ddp x2 down, and not this "
        "baseline."
    ]


def test_wide_intervals_are_no_doubt_but_what_is_known() -> None:
    rows = rows_of([], measured(pair("ddp"), 90, 100, 110))
    assert of("doubt", rows)[-1] == "The figure of ddp x2 is known to ± 28% only."
    both = [*measured(pair("ddp"), 90, 100, 110), *measured(pair("fsdp"), 80, 100, 120)]
    assert "Figures of both rows are known to ± 28% to ± 58% only." in of(
        "doubt", rows_of([], both)
    )


def test_a_report_of_nothing_says_so() -> None:
    assert headline([]) == "nothing was planned"
    skipped = timing(
        pair("ddp"), 1.0, status="skipped", reason="no", timing=None, throughput=None, memory=None
    )
    rows = rows_of([], [skipped])
    assert headline(tables_of(rows)) == "transformer, preset tiny: No figure, skipped, no: ddp x2."


@pytest.mark.parametrize(("count", "end"), [(1, "0"), (6, "and 5"), (9, "and 4 others")])
def test_a_sentence_names_no_more_than_one_reads(count: int, end: str) -> None:
    assert listed([str(number) for number in range(count)]).endswith(end)
