from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from bench.errors import RecordsError
from bench.records.scaling import Moment, Predicted, Scored
from bench.report.prediction import insert, scoreboard
from bench.report.scaling import plain, write_scaling
from bench.report.scaling_charts import shown_step, timeline
from bench.report.scaling_choice import choice_of
from bench.report.step_trace import TRACE, beside_measured, measured_step, trace_of
from tests.fakes import make_case


def predicted(label: str = "ddp", devices: int = 2, **changes: object) -> Predicted:
    made = Predicted(
        case=make_case(strategy="ddp", label=label, world_size=devices),
        hosts=1,
        step_s=0.1,
        single_step_s=0.08,
        samples_per_s=80.0,
        speedup=0.8 * devices,
        computed_s=0.08,
        communicated_s=0.04,
        exposed_s=0.02,
        no_overlap_s=0.12,
        full_overlap_s=0.08,
        error_low=0.1,
        error_high=0.05,
        moments=[
            Moment(name="forward", kind="computation", stream="compute", begin_s=0.0, end_s=0.03),
            Moment(
                name="bucket 1",
                kind="communication",
                stream="communication",
                begin_s=0.06,
                end_s=0.1,
                bytes=1000.0,
            ),
        ],
    )
    return msgspec.structs.replace(made, **changes)


def test_a_page_with_its_charts_and_trace(tmp_path: Path) -> None:
    rows = [predicted(devices=number) for number in (1, 2, 4)] + [predicted("ddp(cap)")]
    path = write_scaling(rows, tmp_path, title="Made", basis="From nothing.")
    text = path.read_text()
    assert "**Nothing here was measured**" in text
    assert "From nothing." in text
    # 0.8 of 4 devices, a tenth less to a twentieth more; one device has no interval.
    assert "3.2 (2.88-3.36)" in text
    assert "|         1 |       1 |" in text
    names = sorted(one.name for one in (tmp_path / "charts").glob("*.svg"))
    assert names == [
        "predicted-speedup.svg",
        "predicted-split-1.svg",
        "predicted-split-2.svg",
        "predicted-step.svg",
    ]
    assert all((tmp_path / "charts" / name).with_suffix(".png").is_file() for name in names)
    assert json.loads((tmp_path / TRACE).read_text())["otherData"] == {"predicted": True}


def test_a_trace_is_in_microseconds_a_thread_a_stream() -> None:
    events = trace_of(predicted())["traceEvents"]
    (forward, bucket) = [one for one in events if one["ph"] == "X"]
    assert (forward["ts"], forward["dur"], forward["tid"]) == pytest.approx((0, 30000, 0))
    assert (bucket["ts"], bucket["dur"], bucket["tid"]) == pytest.approx((60000, 40000, 1))
    assert bucket["args"] == {"bytes on the bus": 1000}
    (process,) = [one for one in events if one["name"] == "process_name"]
    assert process["args"]["name"].startswith("predicted: ")


def test_a_predicted_step_stands_beside_measured_ones(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    steps = [
        {"ph": "X", "name": f"ProfilerStep#{n}", "pid": 7, "tid": 1, "ts": 500.0 + n, "dur": 1.0}
        for n in range(2)
    ]
    path.write_text(json.dumps({"traceEvents": steps, "kept": 1}))
    found = beside_measured(predicted(), path)
    assert found["kept"] == 1
    assert found["traceEvents"][:2] == steps
    own = [one for one in found["traceEvents"][2:] if one["ph"] == "X"]
    assert {one["pid"] for one in own} == {"predicted"}
    assert [one["ts"] for one in own] == pytest.approx([500.0, 60500.0])
    for text in ("no json", "[]", '{"traceEvents": []}', '{"traceEvents": {}}'):
        path.write_text(text)
        with pytest.raises(RecordsError, match=r"no trace that can be read|holds no step"):
            beside_measured(predicted(), path)


def test_the_step_that_is_drawn_communicates_most() -> None:
    rows = [predicted(devices=2), predicted(devices=4, communicated_s=0.05)]
    assert shown_step(rows).case.world_size == 4


def test_tables_for_a_terminal_say_what_they_are() -> None:
    assert plain([predicted()]).startswith("ddp, predicted:\n")


def test_a_choice_in_words() -> None:
    text = choice_of([predicted(), predicted("fsdp")], ["fsdp"], 1.25e10, "fsdp")
    assert text.startswith("Predicted, not measured: ddp on 2 devices, 80 samples a second (72 to")
    assert "As good within the error of predictions: fsdp." in text
    assert "Over links of about 100 Gbit/s it would be fsdp." in text
    assert "No other strategy is quicker" in choice_of([predicted()], [], None, None)


def scored(**changes: object) -> Scored:
    made = Scored(
        table="t",
        row="r",
        strategy="ddp",
        devices=2,
        measured=0.9,
        predicted=0.95,
        no_overlap=0.8,
        full_overlap=1.0,
        constant=0.92,
    )
    return msgspec.structs.replace(made, **changes)


def test_the_scoreboard_shows_every_miss_and_counts_what_counts() -> None:
    rows = [
        scored(),
        scored(row="miss", predicted=1.0, measured=0.8),
        scored(row="other", left_out="bound", predicted=1.0, measured=0.4),
    ]
    text = scoreboard(rows)
    # 5 and 20 points; 10 and none; 10 and 20; 2 and 12.
    assert "| t       |      2 |             12.5 |                5.0 |" in text
    assert "**+20.0**" in text
    assert "1 of the 2 rows that count" in text
    assert "| other * |" in text
    assert "bound. Its error is not counted." in text


def test_text_goes_between_its_comments_and_nowhere_else() -> None:
    page = "before\n<!-- published: begin -->\nold\n<!-- published: end -->\nafter\n"
    assert insert(page, "new") == page.replace("\nold\n", "\n\nnew\n\n")
    assert insert("no place", "new") == "no place"


def test_a_measured_step_is_its_phases_and_buckets(tmp_path: Path) -> None:
    def event(name: str, begin: float, length: float) -> dict[str, object]:
        return {"ph": "X", "name": name, "ts": begin, "dur": length}

    path = tmp_path / "rank0.json"
    events = [
        {"ph": "M", "name": "process_name"},
        event("ProfilerStep#0", 0.0, 1e6),
        event("forward", 0.0, 4e5),
        event("ProfilerStep#1", 1e6, 2e6),
        event("forward", 1e6, 5e5),
        event("backward", 1.5e6, 1e6),
        event("bucket 0 (25 MiB)", 2e6, 7e5),
        event("aten::mm", 2e6, 1e5),
        event("ProfilerStep#2", 3e6, 9e6),
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    # The second of three by its length; times count from its begin.
    found = measured_step(path)
    assert [(one.name, one.begin_s, one.end_s) for one in found] == [
        ("forward", 0.0, 0.5),
        ("backward", 0.5, 1.5),
        ("bucket 0", 1.0, 1.7),
    ]
    assert [one.kind for one in found] == ["computation", "computation", "communication"]
    with pytest.raises(RecordsError, match="is no trace"):
        measured_step(tmp_path / "nowhere.json")


def test_the_picture_has_both_steps() -> None:
    one = predicted()
    measured = [
        Moment(name="forward", kind="computation", stream="measured phases", begin_s=0, end_s=1)
    ]
    figure = timeline(one, measured)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[-1] == "measured phases"
    assert all(label.startswith("predicted ") for label in labels[:-1])
