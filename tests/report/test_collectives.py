from __future__ import annotations

import random
from typing import Any

import pytest

from bench.analyze.collectives import flags_of
from bench.records.collectives import Collective, Limit
from bench.report.bandwidth import _panels
from bench.report.collectives import document, found, reasons, table
from bench.report.markdown import markdown_of
from tests.report.test_page import make_info

LIMITS = [
    Limit(what="memory copy", ranks=2, bytes_per_s=5e9),
    Limit(what="loopback", ranks=2, bytes_per_s=1.6e9),
]


def collective(op: str = "all_reduce", **changes: Any) -> Collective:
    known: dict[str, Any] = {
        "run_id": "r", "op": op, "backend": "gloo", "device": "cpu", "dtype": "fp32",
        "world_size": 2, "bytes": 1024, "status": "ok", "median_s": 4e-4, "low_s": 3e-4,
        "high_s": 3.8e-3, "algbw_bytes_per_s": 2.5e6, "busbw_bytes_per_s": 2.5e6,
        "back_to_back_s": 1.7e-3, "back_to_back_busbw_bytes_per_s": 6e5,
    }  # fmt: skip
    return Collective(**known | changes)


def test_a_call_alone_is_told_from_one_in_a_row() -> None:
    memory, loopback, sentence = found([collective()], LIMITS)
    assert memory == (
        "For comparison, measured in this run: memory copy 5 GB/s, 2 ranks at the same time."
    )
    assert loopback.endswith("loopback 1.6 GB/s, 2 ranks sending to each other at the same time.")
    assert sentence.endswith(
        "a call of 1 KiB takes 400 us alone (eight in ten from 300 us to 3.8 ms), and 1.7 ms in a "
        "row of calls."
    )
    shown = table([collective()], "all_reduce")
    assert shown is not None
    assert shown.headings[1:] == [
        "gloo x2: time", "algbw, GB/s", "busbw, GB/s", "time in a row", "back to back",
    ]  # fmt: skip
    assert [cell.text for cell in shown.body[0]][4] == "1.7 ms"


def test_times_around_two_levels_are_told() -> None:
    generator = random.Random(1)
    one = [4e-4 * generator.lognormvariate(0, 0.1) for _ in range(140)]
    both = [*one, *(3.7e-3 * generator.lognormvariate(0, 0.05) for _ in range(60))]
    generator.shuffle(both)
    assert list(flags_of(collective(isolated_s=[one, one]), [])) == []
    unlike = collective(isolated_s=[both, [1e-5] * 200])
    assert list(flags_of(unlike, [])) == ["bimodal"]
    assert list(flags_of(collective(row_s=[both, both]), [])) == ["rows_bimodal"]
    assert reasons([unlike])[0].startswith("gloo x2, 1 KiB: calls alone stand around two levels")


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, ["faster_than_loopback"]),
        ({"back_to_back_busbw_bytes_per_s": 1.5e9}, []),
        ({"nodes": 2}, []),
        ({"world_size": 4}, []),
    ],
)
def test_what_passes_the_loopback_beside_it_is_told(
    changes: dict[str, Any], flags: list[str]
) -> None:
    row = collective("broadcast", **{"back_to_back_busbw_bytes_per_s": 3.5e9} | changes)
    assert list(flags_of(row, LIMITS)) == flags
    text = markdown_of(document(make_info(), [row], LIMITS), "charts")
    assert ("it is no limit of these" in text) is bool(flags)


def test_flags_are_said_in_words_and_of_measured_rows_alone() -> None:
    stalled = collective(flags=["calls_stalled", "oversubscribed"])
    absent = collective(backend="nccl", status="skipped", reason="none", flags=["oversubscribed"])
    said = reasons([stalled, absent])
    assert any("a tenth of the calls alone took three times their median" in one for one in said)
    (crowded,) = (one for one in said if "more ranks than cores" in one)
    assert crowded.startswith("gloo x2, 1 KiB:")
    assert "nccl x2, 1 KiB: skipped: none" in said


def test_a_panel_shows_what_is_near_and_its_axis_reaches_there() -> None:
    rows = [
        collective(op, bytes=size, back_to_back_busbw_bytes_per_s=rate * size / 2**26)
        for op, rate in (("broadcast", 3.5e9), ("reduce_scatter", 0.4e9))
        for size in (2**10, 2**14, 2**18, 2**20, 2**22, 2**24, 2**26)
    ]
    figure = _panels(rows, LIMITS)
    fast, slow = figure.axes
    assert [line.get_label() for line in fast.lines if "once" in line.get_label()] == [
        "memory copy, 2 ranks at once, for comparison",
        "loopback, 2 ranks at once, for comparison",
    ]
    assert not [line for line in slow.lines if "once" in line.get_label()]
    assert fast.get_ylim()[1] > 5
    assert slow.get_ylim()[1] < 1
    for panel in (fast, slow):
        labels = [text.get_text() for text in panel.get_xticklabels()]
        assert labels == ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]
