from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.analyze.ranking import rankings
from bench.analyze.recommend import Answer, need_of, no_answer, recommend, usual_need_of
from bench.analyze.scaling import rows_of
from bench.plan.case import Case
from bench.records.record import Memory, Parity, Record
from tests.analyze.test_compare import FAILED, around
from tests.analyze.test_scaling import PAIR, SINGLE, launches, parity
from tests.fakes import make_case

FSDP = make_case(strategy="fsdp", world_size=2)
ZERO = make_case(strategy="zero", world_size=2)
GPUS = make_case(strategy="ddp", world_size=2, device="cuda", backend="nccl")


def answer_of(*groups: list[Record], **wishes: Any) -> Answer:
    (answer,) = recommend(rows_of([], [one for group in groups for one in group]), **wishes)
    return answer


def labels(answer: Answer) -> list[str]:
    return [row.case.label for row in answer.eligible]


def test_the_fastest_proved_row_that_fits_is_chosen() -> None:
    found = answer_of(
        around(SINGLE, 100), around(PAIR, 180), around(FSDP, 160), around(ZERO, 200), devices=2
    )
    assert labels(found) == ["zero", "ddp", "fsdp"]
    assert [lead.verdict for lead in found.leads] == ["faster", "faster"]
    assert found.tied == []
    assert found.with_less is None


def test_a_difference_within_noise_is_a_tie() -> None:
    found = answer_of(around(PAIR, 180, 0.05), around(FSDP, 179, 0.05), around(ZERO, 100, 0.05))
    assert labels(found) == ["ddp", "fsdp", "zero"]
    assert [row.case.label for row in found.tied] == ["fsdp"]
    assert found.leads[0].verdict == "no clear difference"


def test_the_choice_was_seen_in_the_same_figures() -> None:
    # 3.4 % is clear between two rows, and not of the best of five, of which ten pairs could be it.
    others = [make_case(strategy="fsdp", world_size=2, env={"A": str(n)}) for n in range(4)]
    slower = [[*launches(one, 96.6, 97.6, 95.6), parity(one)] for one in others]
    best = [*launches(PAIR, 100, 101, 99), parity(PAIR)]
    assert answer_of(best, slower[0]).leads[0].verdict == "faster"
    five = answer_of(best, *slower)
    assert [lead.verdict for lead in five.leads] == ["no clear difference"] * 4
    assert len(five.tied) == 4


def memory(case: Case, **peaks: list[int | None]) -> Memory:
    nothing: list[int | None] = [None] * case.world_size
    return Memory(
        peak_allocated_bytes=peaks.get("allocated", nothing),
        peak_reserved_bytes=nothing,
        peak_driver_bytes=peaks.get("driver", nothing),
        peak_process_bytes=nothing,
    )


def test_what_does_not_fit_is_ruled_out_with_both_sizes() -> None:
    gib = 2**30
    peaks = memory(GPUS, allocated=[10 * gib] * 2, driver=[22 * gib, 26 * gib])
    records = [*launches(GPUS, 99, 100, 101, memory=peaks), parity(GPUS)]
    found = answer_of(records, devices=2, memory_bytes=24 * gib)
    assert found.best is None
    (out,) = found.ruled_out
    assert out.reason == "needs 26 GiB of 24 GiB (driver memory)"
    assert no_answer(found) == "none of 1 row on 2 is eligible"
    enough = answer_of(records, devices=2, memory_bytes=26 * gib)
    assert enough.best is not None
    need = need_of(enough.best)
    assert need is not None
    assert (need.kind, need.bytes) == ("driver", 26 * gib)


def test_memory_that_is_not_known_does_not_fit() -> None:
    records = [*launches(GPUS, 99, 100, 101, memory=None), parity(GPUS)]
    found = answer_of(records, memory_bytes=2**40)
    assert found.ruled_out[0].reason == "its memory is not known"
    assert answer_of(records).best is not None


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (launches(FSDP, 1, **FAILED), "failed: boom"),
        (launches(FSDP, 1, **FAILED | {"status": "out_of_memory"}), "out of memory: boom"),
        (launches(FSDP, 999, 999), "not proved: no proof was made"),
        (
            [*launches(FSDP, 999, 999), parity(FSDP, Parity(verdict="failed"))],
            "the row failed its proof",
        ),
        (
            [*launches(FSDP, 999, 999), parity(FSDP, Parity(verdict="lossy_by_design"))],
            "lossy by design: it trains on other gradients than one device would",
        ),
        (
            [*launches(FSDP, 999, 999, flags=["oversubscribed"]), parity(FSDP)],
            "more devices than sets of cores",
        ),
        (
            [*launches(FSDP, 999, 999, flags=["reference_implementation"]), parity(FSDP)],
            "no code of torch's: what was measured is a reference of the algorithm",
        ),
        (
            [*launches(FSDP, 999, 999, environment="other"), parity(FSDP)],
            None,
        ),
    ],
)
def test_what_is_not_eligible_has_a_reason(records: list[Record], reason: str | None) -> None:
    found = answer_of(around(PAIR, 100), records)
    if reason is None:  # the fastest sets the environment, whichever it is
        assert found.ruled_out[0].reason == "measured in another environment than the fastest"
        return
    assert labels(found) == ["ddp"]
    assert [one.reason for one in found.ruled_out] == [reason]


def test_what_was_not_measured_is_not_extrapolated() -> None:
    found = answer_of(around(SINGLE, 100), around(PAIR, 180), devices=8)
    assert found.best is None
    assert found.measured_on == [1, 2]
    assert no_answer(found) == (
        "nothing was measured on 8 devices, only on 1, 2; what was not measured is not extrapolated"
    )


def test_fewer_devices_that_do_as_much_are_told() -> None:
    found = answer_of(around(SINGLE, 100), around(PAIR, 90))
    assert found.devices == 2
    assert found.with_less is not None
    assert found.with_less.case.label == "single"


def test_each_speed_of_the_links_has_an_answer_of_its_own() -> None:
    def linked(strategy: str, link: str, rate: float) -> list[Record]:
        return around(make_case(strategy=strategy, world_size=2, nodes=2, link=link), rate)

    records = [
        *around(SINGLE, 100),
        *linked("ddp", "1gbit", 90),
        *linked("fsdp", "1gbit", 50),
        *linked("ddp", "10gbit", 180),
        *linked("fsdp", "10gbit", 200),
    ]
    slow, fast = recommend(rows_of([], records))
    assert (labels(slow), labels(fast)) == (["ddp", "fsdp"], ["fsdp", "ddp"])
    assert slow.with_less is not None
    assert slow.with_less.case.label == "single"
    assert fast.with_less is None


def test_the_report_and_the_choice_say_the_same() -> None:
    cases = [make_case(strategy="fsdp", world_size=2, env={"A": str(n)}) for n in range(9)]
    records = [
        one for number, case in enumerate(cases) for one in around(case, 100 - 1.2 * number, 0.01)
    ]
    rows = rows_of([], records)
    (answer,), (ranked,) = recommend(rows), rankings(rows)
    assert answer.tied == ranked.level
    assert [row for row, _ in ranked.behind] == answer.eligible[1 + len(ranked.level) :]
    assert ranked.behind
    assert ranked.level


def test_memory_is_compared_in_medians() -> None:
    sizes = (600, 610, 800)  # MB: one launch held more
    proved = parity(PAIR)
    found = [
        msgspec.structs.replace(
            one, memory=memory(PAIR, allocated=[size * 10**6, (size - 100) * 10**6])
        )
        for one, size in zip(launches(PAIR, 100, 101, 99), sizes, strict=True)
    ]
    (row,) = rows_of([], [*found, proved])
    most, usual = need_of(row), usual_need_of(row)
    assert most is not None
    assert usual is not None
    assert (most.bytes, usual.bytes) == (800 * 10**6, 610 * 10**6)


def test_what_is_trained_is_not_chosen_and_how_is() -> None:
    narrow = make_case(strategy="ddp", world_size=2, precision="bf16-amp")
    other = make_case(strategy="ddp", world_size=2, optimizer="sgd")
    records = [*around(PAIR, 100), *around(narrow, 150), *around(other, 999)]
    first, second = recommend(rows_of([], records))
    assert first.best is not None
    assert first.best.case.precision == "bf16-amp"
    assert first.unchanged is not None
    assert first.unchanged.case.id == PAIR.id
    assert second.rows[0].case.optimizer == "sgd"
    assert second.unchanged is None
