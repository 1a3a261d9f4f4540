"""Predicted steps beside measured ones: marked, with their error, and never in their place."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.analyze.rows import Row
from bench.records.check import fault_of
from bench.records.lines import iterate_lines
from bench.records.record import Record
from bench.records.scaling import PREDICTED, PREDICTIONS
from bench.report.cells import DASH
from bench.report.document import Part, Text, grid_of
from bench.report.notes import variants

MILLI = 1e3


def predictions_of(folder: Path) -> dict[str, Record]:
    """Predicted rows of a run's own cases, by case id; none where nothing was predicted.

    A row that does not say of itself that it was predicted is none.
    """
    if not (folder / PREDICTIONS).is_file():
        return {}
    rows = iterate_lines(folder, PREDICTIONS, Record, fault_of)
    return {one.case.id: one for one in rows if PREDICTED in one.flags and one.timing is not None}


def beside(rows: Sequence[Row], predicted: Mapping[str, Record]) -> list[Part]:
    """A table of the rows that something was predicted of; nothing where there are none."""
    name = variants(rows)
    body, errors = [], []
    for row in rows:
        one = predicted.get(row.case.id)
        if one is None or one.timing is None:
            continue
        said_s = one.timing.step_s[0][0]
        measured_s = step_of(row)
        error = None if measured_s is None else said_s / measured_s - 1
        if error is not None:
            errors.append(abs(error))
        body.append(
            [
                str(row.case.world_size),
                name(row.case),
                DASH if measured_s is None else f"{MILLI * measured_s:.4g}",
                f"{MILLI * said_s:.4g}",
                DASH if error is None else f"{100 * error:+.1f}%",
            ]
        )
    if not body:
        return []
    heads = ["devices", "strategy", "step, ms", "predicted, ms", "error"]
    text = "Predicted, beside what was measured"
    if errors:
        text += f" (median error {100 * statistics.median(errors):.1f} %)"
    return [Text(f"{text}:"), grid_of("Predicted beside measured steps", heads, body, words=2)]


def step_of(row: Row) -> float | None:
    """Seconds of a step on the slowest process: the global batch over throughput."""
    if row.samples_per_s is None or row.is_proved_wrong:
        return None
    return row.case.global_batch / row.samples_per_s.value
