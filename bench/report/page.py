"""``report.md`` from a results folder, and the shorter form for a terminal.

Never imports torch: a report can be made again anywhere, from the files alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.analyze.scaling import Row, rows_of
from bench.errors import OutputError
from bench.plan.case import PlannedCase
from bench.records.record import Record, RunInfo
from bench.records.store import read_records, read_run, write_atomically
from bench.report.tables import Footnotes, render, tables_of

REPORT = "report.md"

HOW_TO_READ = """\
Throughput counts the samples of all devices together over the time of the slowest process. `±` is
half of a 95 % interval, and brackets are its ends, from the spread between independent launches; a
difference that the intervals do not separate is noise. *Speedup* compares with one device without
a wrapper, *vs itself on 1* with the same strategy on one device; *efficiency* is the speedup over
the number of devices. *Step* is the time of one optimizer step on the slowest process: the median
and the time that nine in ten do not exceed. *Parity* is `exact` when the
strategy trained the same model as one device: in fp64, the losses of three steps and the first
gradient within 1e-6, and the last parameters equal to the last bit on all ranks; in the case's own
precision, the first gradient within what reordering sums explains. `within precision` means the
same where that precision is so coarse that reordering explains more than a thousandth of a
gradient. A figure that failed its proof is struck out
and compared with nothing; one that could not be proved says so. *Sync cost* is a step with gradient
synchronisation minus one without, waiting for the slowest rank included; its interval is that of
the steps of one launch. *Resident* memory is all that the process holds, Python and libraries
included.
"""


def load(folder: Path) -> tuple[RunInfo, list[Record], list[Row]]:
    """A results folder, analysed.

    Raises:
        RecordsError: it is none.
    """
    info, records = read_run(folder), read_records(folder)
    planned = msgspec.convert(info.suite.get("planned", []), list[PlannedCase])
    return info, records, rows_of([one.case for one in planned], records)


def write_report(folder: Path) -> Path:
    """Make ``report.md`` from the folder's records; returns its path.

    Raises:
        RecordsError: the folder holds no results.
        OutputError: the report cannot be written.
    """
    info, records, rows = load(folder)
    path = folder / REPORT
    try:
        write_atomically(path, markdown(info, records, rows).encode())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def markdown(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    """The whole report as GitHub renders it."""
    name, description = (str(info.suite.get(key, "")) for key in ("name", "description"))
    parts = [f"# {escape(name)}", escape(description), _summary(info, records, rows)]
    for table in tables_of(rows):
        notes = Footnotes()
        text = render(
            table,
            style="github",
            mark=lambda note, notes=notes: f"<sup>{notes.mark(note)}</sup>",  # type: ignore[misc] # the default binds this turn's notes
            strike=lambda cell: f"~~{cell}~~",
            escape=escape,
        )
        parts += [f"## {escape(table.title)}", f"{escape(table.rule.capitalize())}.", text]
        if notes.texts:
            parts.append("\n".join(f"{n}. {escape(t)}" for n, t in enumerate(notes.texts, 1)))
    parts += ["## How to read this", HOW_TO_READ, "## Where it was measured", _environment(info)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(rows: Sequence[Row]) -> str:
    """The scaling tables for a terminal."""
    parts = []
    for table in tables_of(rows, compact=True):
        notes = Footnotes()
        text = render(
            table, style="simple", mark=notes.mark, strike=lambda cell: f"({cell})", escape=str
        )
        parts += [f"{table.title}: {table.rule}", text]
        parts.append("\n".join(f"[{n}] {text}" for n, text in enumerate(notes.texts, 1)))
    return "\n\n".join(part for part in parts if part)


def _summary(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    counts = Counter(row.status for row in rows)
    words = ", ".join(
        f"{count} {'measured' if status == 'ok' else status.replace('_', ' ')}"
        for status, count in counts.items()
    )
    launches = sum(record.pass_ == "timing" and record.status == "ok" for record in records)
    ended = f"ended {info.ended_at} ({info.ended_by})" if info.ended_at else "has not ended"
    return (
        f"{len(rows)} cases: {words}. {launches} timed launches. "
        f"Started {info.started_at}, {ended}; order of launches from seed {info.seed}."
    )


def _environment(info: RunInfo) -> str:
    environment = info.environment
    memory = environment.get("memory_bytes", 0) / 2**30
    lines = [
        f"CPU: {environment.get('cpu')}, {len(environment.get('cores', []))} cores used, "
        f"{memory:.1f} GiB of memory",
        f"accelerators: {', '.join(d['name'] for d in environment.get('devices', [])) or 'none'}",
        f"system: {environment.get('system')}",
        "versions: " + ", ".join(f"{name} {v}" for name, v in info.versions.items()),
        f"fingerprint: {info.environment_fingerprint}",
    ]
    return "\n".join(f"- {escape(line)}" for line in lines)


def escape(text: str) -> str:
    """Text that markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    return re.sub(r"([\\|`*_~<>\[\]#])", r"\\\1", flat)
