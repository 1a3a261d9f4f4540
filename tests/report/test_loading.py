from __future__ import annotations

from typing import Any

import msgspec

from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.records.record import Input
from bench.report import cells
from bench.report.findings import findings
from bench.report.notes import notes_of
from bench.report.page import plain
from bench.report.samples import notes_of_samples
from bench.report.tables import tables_of
from tests.analyze.test_loading import HOST, pair, phases
from tests.analyze.test_scaling import launches
from tests.report.test_findings import measured

BUSY = {**HOST, "data_options": {"workers": 2}, "data_label": "host(workers=2)"}


def rows() -> list[Row]:
    """Batches from the device; loaded by the rank, which waits; and by workers on its cores."""
    return rows_of(
        [],
        [
            *measured(pair(), 179, 180, 181, phases=phases(0.0)),
            *measured(pair(**HOST), 79, 80, 81, phases=phases(0.045)),
            *measured(pair(**BUSY), 99, 100, 101, phases=phases(0.0008)),
        ],
    )


def loading(found: list[Row]) -> list[str]:
    return [one.text for one in findings(tables_of(found)) if one.kind == "loading"]


def test_the_report_says_when_the_loader_binds() -> None:
    assert loading(rows()) == [
        "The loader binds on 2 devices, where this much of a step is waiting for data: "
        "ddp, data host (45%).",
        "The loader does not bind on 2 devices: at most 1% of a step of the others is waiting for "
        "data (ddp, data host(workers=2)).",
        "Clearly slower on 2 devices than with batches made on the device, though hardly anything "
        "waits for data: ddp, data host(workers=2) (-44%). What loads takes the time of what "
        "trains, such as its cores or its memory.",
    ]


def test_nothing_is_said_where_nothing_was_loaded() -> None:
    assert loading(rows()[:1]) == []
    alone = rows_of([], measured(pair(**BUSY), 99, 100, 101, phases=phases(0.0008)))
    assert loading(alone) == [
        "The loader does not bind on 2 devices: at most 1% of a step is waiting for data (ddp)."
    ]


def test_the_table_of_settings_has_the_wait_of_each_source() -> None:
    (table,) = tables_of(rows())
    (settings,) = table.settings
    assert [settings.names[row.case.id] for row in settings.rows] == [
        "plain",
        "data host",
        "data host(workers=2)",
    ]
    (column,) = [one for one in settings.columns if one.heading == "waits for data, ms"]
    assert [column.cell(row) for row in settings.rows] == [cells.DASH, "45.0 (45%)", "0.800 (1%)"]
    assert "loader_binds: more than a tenth of the step" in plain(rows())


def test_a_caption_says_where_all_batches_come_from() -> None:
    assert "; data from device / host; " in plain(rows())
    alone = rows_of([], launches(pair(**BUSY), 80, 80, 80, phases=phases(0.0)))
    assert "; data from host(workers=2); " in " ".join(plain(alone).split())
    assert "data from" not in plain(rows()[:1])


def with_input(**changes: Any) -> Row:
    (found,) = rows_of([], launches(pair(**HOST), 80, 80, 80, phases=phases(0.0)))
    counts = {"samples": 1001, "trained": 1001, "padded": 0, "dropped": 0} | changes
    used = Input(epochs=1, batch_bytes=8, **counts)
    return msgspec.structs.replace(found, input=used)


def test_samples_that_come_twice_or_not_at_all_are_said() -> None:
    assert list(notes_of_samples(with_input())) == []
    (padded,) = notes_of_samples(with_input(trained=1002, padded=1))
    assert padded == (
        "of the 1001 samples of an epoch, 1 comes a second time, so that all ranks have as many"
    )
    row = with_input(trained=998, dropped=3)
    (dropped,) = notes_of_samples(row)
    assert dropped == "of the 1001 samples of an epoch, 3 are in no full batch and left out"
    assert dropped in notes_of(row, "scaling")
    assert dropped in notes_of(row, "settings")
