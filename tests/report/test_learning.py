"""What a report says of trainings and checkpoints."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.analyze.rows import Row
from bench.records.trained import Checkpoint
from bench.report import checkpoints, learning
from bench.report.charts import write_charts
from bench.report.document import Document
from bench.report.markdown import markdown_of
from bench.report.page import section
from bench.report.tables import tables_of
from tests.analyze.test_learning import FALLING, row

ROWS = [
    row("single", FALLING, 0.2, 0.202, 0.204, world_size=1),
    row("ddp", FALLING, 0.1, 0.101, 0.102),
    row("fsdp", FALLING, 0.3, 0.303, 0.306),
]


def sentences(*rows: Row) -> list[str]:
    (table,) = tables_of(rows)
    return learning.sentences(table)


def page(*rows: Row) -> str:
    (table,) = tables_of(rows)
    return markdown_of(Document(title="t", parts=section(table)), "charts")


def test_who_was_first_is_said_with_the_factor() -> None:
    task, first = sentences(*ROWS)
    assert task == "What there is to learn: numbers that count upwards."
    assert first == (
        "ddp on 2 devices reached a loss of 1 first: in 1.01 s and 10 steps, against 2.00 times "
        "as long for single on 1 device, 3.00 times as long for fsdp on 2 devices."
    )


def test_what_is_not_clear_is_not_called_first() -> None:
    near = row("fsdp", FALLING, 0.11, 0.1, 0.102)
    _, text = sentences(ROWS[1], near)
    assert text.endswith("; no clear difference from fsdp on 2 devices.")
    assert " first" not in text
    _, text = sentences(row("ddp", FALLING, 0.1), row("fsdp", FALLING, 0.3))
    assert text.endswith("from fsdp on 2 devices, since one training each has no interval.")


def test_what_has_not_learnt_is_named() -> None:
    flat = row("fsdp", [10.0] * 10, 0.1)
    assert sentences(ROWS[1], flat)[-1] == "Not learnt: fsdp on 2 devices."
    assert learning.NOTHING_LEARNT in sentences(flat)


def test_batches_of_unknown_content_are_told() -> None:
    own = [msgspec.structs.replace(one, task=None, constant_loss=None) for one in ROWS[1].training]
    text = page(msgspec.structs.replace(ROWS[1], training=own))
    assert "names nothing to learn" in text
    assert "names nothing to learn" not in page(*ROWS)


def test_the_table_has_the_rate_and_the_common_loss() -> None:
    text = page(*ROWS)
    assert "seconds to a loss of 1" in text
    (line,) = (
        one
        for one in text.splitlines()
        if one.startswith("|") and " ddp " in one and "0.001" in one
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:8] == ["2", "ddp", "8", "0.001", "10", "3", "1", "10"]


def test_both_charts_are_drawn(tmp_path: Path) -> None:
    (charts,) = write_charts(tables_of(ROWS), tmp_path)
    names = [chart.svg.name for chart in charts]
    assert names == [
        "transformer-tiny-weak-loss-steps.svg",
        "transformer-tiny-weak-loss-seconds.svg",
    ]
    text = charts[1].svg.read_text()
    assert "ddp x2: 1 after 10 steps" in text
    assert "constant prediction" in text
    (charts,) = write_charts(tables_of([row("ddp", [])]), tmp_path)
    assert not charts
    assert not list(tmp_path.iterdir())  # those of before are gone


def saved(one: Row, **fields: object) -> Row:
    found = msgspec.convert({"verdict": "exact", **fields}, Checkpoint)
    return msgspec.structs.replace(one, training=[], checkpoint=found, checkpoint_note=found.reason)


def test_checkpoints_have_their_table() -> None:
    whole = saved(
        ROWS[1], form="whole", save_s=[0.5, 0.25, 1.0], restore_s=[0.1], bytes_by_rank=[2**21, 0],
        is_cold=True,
    )  # fmt: skip
    sharded = saved(
        ROWS[2], form="sharded", save_s=[2.0], restore_s=[3.0], bytes_by_rank=[2**20, 2**21],
        is_cold=True,
    )  # fmt: skip
    text = page(whole, sharded)
    assert (
        "| 2 | ddp | one file, by rank 0 | 2.00 | 2.00 | 0.5 (0.25-1) | 0.1 (0.1-0.1) | exact |"
        in (" ".join(text.split()))
    )
    assert "| 2 | fsdp | a file a rank | 3.00 | 2.00 | 2 (2-2) |" in " ".join(text.split())
    assert checkpoints.CACHED not in text


def test_a_checkpoint_that_is_none_says_why() -> None:
    none = saved(ROWS[1], verdict="not_checked", reason="PowerSGD keeps what it keeps")
    failed = msgspec.structs.replace(
        ROWS[2], training=[], checkpoint_note="failed: No space left on device"
    )
    text = page(none, failed)
    assert "not checked" in text
    assert "PowerSGD keeps what it keeps" in text
    assert "failed: No space left on device" in text
    assert checkpoints.section(tables_of([ROWS[0]])[0]) == []
