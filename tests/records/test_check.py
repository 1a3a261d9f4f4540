"""A record whose fields contradict each other is named and left out, and the rest is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.errors import RecordsError
from bench.records.check import fault_of
from bench.records.lines import MOST_NAMED
from bench.records.store import RECORDS, read_records
from bench.report.page import load, write_report
from tests.analyze.test_scaling import PAIR, SINGLE, launches, timing
from tests.report.test_page import make_folder


def changed(path: str, value: Any) -> dict[str, Any]:
    """A sound record as JSON has it, with one field changed."""
    fields: dict[str, Any] = json.loads(msgspec.json.encode(timing(PAIR, 180)))
    *parents, last = path.split(".")
    holder = fields
    for name in parents:
        holder = holder[name]
    holder[last] = value
    return fields


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_sound_record_has_no_fault() -> None:
    assert [fault_of(one) for one in launches(SINGLE, 1, 2)] == [None, None]


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("timing", None, "without its times or its throughput"),
        ("throughput", None, "without its times or its throughput"),
        ("throughput.samples_per_s", 0, "samples_per_s"),
        ("throughput.samples_per_s", -1.5, "samples_per_s"),
        ("throughput.samples_per_s", 1e300, "samples_per_s"),
        ("throughput.units_per_sample", 0, "units_per_sample"),
        ("timing.window_s", [], "window_s is empty"),
        ("timing.window_s", [0.0], "a window of no length"),
        ("timing.window_s", [1.0, 1.0], "setup_s is of 1 processes, window_s of 2"),
        ("timing.step_s", [[]], "a window without steps"),
        ("timing.step_s", [[-0.1]], "step_s"),
        ("timing.step_s", [[1.0], [1.0]], "step_s is of 2 processes, window_s of 1"),
        ("timing.block_steps", 0, "block_steps"),
        ("memory.peak_process_bytes", [1, 2, 3], "is of 3 devices, the case of 2"),
        ("memory.peak_process_bytes", [-1], "peak_process_bytes"),
        ("memory.peak_process_bytes", [10**400], "peak_process_bytes"),
        ("memory.by_category", {"a": [1], "b": []}, "lists of different lengths"),
        ("placement", [{"cores": [0], "threads": 1}] * 3, "3 processes on 2 devices"),
        ("case.world_size", 0, "world_size"),
        ("case.options", {"a": deep(100)}, "nested more than 20 deep"),
        ("case.options", {"a": 10**30}, "more than 64 bits"),
        ("launch", -1, "launch"),
        ("schema", 0, "schema"),
    ],
)
def test_a_record_that_cannot_be_is_left_out(
    tmp_path: Path, path: str, value: Any, fault: str
) -> None:
    folder = make_folder(tmp_path)
    with (folder / RECORDS).open("a") as file:
        file.write(json.dumps(changed(path, value)) + "\n")
    with pytest.warns(UserWarning, match=rf"records\.jsonl:8: left out, no record: .*{fault}"):
        assert len(read_records(folder)) == 7


def test_nesting_beyond_reason_is_no_record(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (folder / RECORDS).open("a") as file:
        file.write("[" * 100_000 + "\n")
    with pytest.warns(UserWarning, match="left out"):
        assert len(read_records(folder)) == 7
    (folder / "run.json").write_text("[" * 100_000)
    with pytest.raises(RecordsError, match="is no run description"):
        load(folder)


def test_many_bad_lines_are_counted_and_not_all_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (folder / RECORDS).open("ab") as file:
        file.write(b"\x00\xff\n" * 1000)
    with pytest.warns(UserWarning, match="left out") as caught:
        read_records(folder)
    assert len(caught) == MOST_NAMED + 1
    assert "1000 lines were left out" in str(caught[-1].message)


@pytest.mark.parametrize(
    "suite",
    [
        {"name": None},
        {"planned": [], "budget_s": "much"},
        {"planned": [{"case": json.loads(msgspec.json.encode(SINGLE)), "effort": {}}]},
        {
            "planned": [{"case": json.loads(msgspec.json.encode(SINGLE)), "effort": {"later": 1}}],
            "budget_s": 60,
        },
    ],
)
def test_a_run_of_odd_or_later_shape_is_reported(tmp_path: Path, suite: dict[str, Any]) -> None:
    folder = make_folder(tmp_path)
    info = json.loads((folder / "run.json").read_text())
    info["suite"] = suite
    (folder / "run.json").write_text(json.dumps(info))
    assert "| ddp" in write_report(folder).read_text(encoding="utf-8")


def test_figures_that_differ_by_all_that_is_possible(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (folder / RECORDS).open("ab") as file:
        for launch, rate in enumerate([1e-6, 1e15, 1e-6, 1e15, 1e-6, 1e15], start=3):
            file.write(msgspec.json.encode(timing(PAIR, rate, launch)) + b"\n")
    text = write_report(folder).read_text(encoding="utf-8")
    assert "inf" not in text
    assert "nan" not in text
