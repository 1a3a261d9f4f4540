"""``report.md`` from a results folder, and the shorter form for a terminal.

Never imports torch: a report can be made again anywhere, from the files alone.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from bench.analyze.figures import condensed
from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.errors import OutputError, RecordsError, one_line
from bench.plan.case import Case
from bench.records.record import Record, RunInfo
from bench.records.store import RUN, iterate_records, read_run, write_atomically
from bench.report import batches
from bench.report.beside import beside, predictions_of
from bench.report.charts import CHANGE, are_readable, write_charts
from bench.report.drawing import Chart
from bench.report.markup import escape, picture
from bench.report.network import network_section
from bench.report.notes import Footnotes, Which
from bench.report.published import beside_rows
from bench.report.settings import SettingsTable
from bench.report.style import TERMINAL, Column, Style, render
from bench.report.summary import machine_lines, summary
from bench.report.tables import Table, tables_of

REPORT = "report.md"

CHARTS = "charts"
DETAILS = "Where time and memory go"

LARGEST = """\
Largest batch per device, searched by bisection, each batch in fresh processes for three steps (on a
CPU, memory of a device is what its process may allocate beyond what it held before the model was
built):"""

HOW_TO_READ = """\
Throughput counts the samples of all devices together over the time of the slowest process. `±` is
half of a 95 % interval, and brackets are its ends, from the spread between independent launches.
*Speedup* compares with one device without a wrapper, *vs itself on 1* with the same strategy on one
device, *against ddp* with DDP at torch's defaults on as many devices; *efficiency* is the speedup
over the number of devices. *No clear difference* means that noise may explain it: among all
comparisons of this report, or because equal cases that were measured twice differed as much (the
*noise floor*). *Step* is the time of one optimizer step on the slowest process: the median and the
time that nine in ten do not exceed.

*Tensor* memory is the largest total of live tensors in steady steps, on each device; *resident* all
that a process holds, Python and libraries included; *reserved* what the allocator held, and
*driver* what the whole device had in use beyond what it had before. *Held between steps* are
parameters, buffers and optimizer state alone. The charts show what the peak of tensor memory is
made of: each allocation by what its process says it holds at that address, or by what made it and
how long it lived; what none of this tells is *unexplained*.

*GFLOP/s* are the operations of the model's own matrix products, convolutions and attention, forward
and backward, as torch counts them, over the time of a step; the *matrix rate* is what the same
device did in products of large square matrices of the same precision, right after the window of the
first launch and on all devices at once.

*Communication* is the time in which collectives moved data in a step, as a profile shows it:
waiting for a late rank is left out, and stands under *wait*. *Exposed* is the part of it during
which nothing was computed, *hidden* the share during which something was. *Sync cost* is something
else: a step with gradient synchronisation minus one without, no profile running, waiting included;
its interval is that of the steps of one launch. *Alone* is what the same collectives take one
after the other while nothing else is done, so that *communication* beyond it is what computation on
the same device slows down. Where these figures cannot all be right, the row says so. The
communication figures are those of a few steps
of one launch; bytes are the larger of input and output of a rank, added up over a step.

*Parity* is `exact` when the strategy trained the same model as one device: in fp64, the losses of
three steps and the first gradient within 1e-6, and the last parameters equal to the last bit on all
ranks; in the case's own precision, the first gradient within what reordering sums explains. `within
precision` means the same where that precision is so coarse that reordering explains more than a
thousandth of a gradient. The proof trains the same layers on little data: at most four samples a
micro-step, ResNet-152 on images of 32 x 32, the recommender with short tables. A figure that failed
its proof is struck out and compared with nothing; one that could not be proved says so.
"""

SETTINGS_TO_READ = """\
*Settings* stand against the plain ones of the same strategy on as many devices: its own defaults,
fp32, nothing compiled, one micro-step, each as far as the rows differ in it. *Against plain* is the
change of samples per second. Here alone other precisions, compile modes and numbers of micro-steps
are compared, since what they bring is the question; a footnote says where two rows do not train bit
for bit the same. A step, its collectives and their bytes are those of one optimizer step, with all
of its micro-steps. *Payload* is the larger of input and output of a rank, *least on the wire* what
it must send in a ring at least. *Buckets* are their number, and their sizes; of FSDP, those of its
units. What is *lossy by design* says how far its proof found it from one device: its first gradient
that is lossy, relative to the gradient's size; its losses; its last parameters, relative to how far
training moved them. A *ladder* adds one setting with each row, and shows the change from plain
settings and from the row above.
"""


class _Planned(msgspec.Struct, frozen=True):
    """What a report needs of a planned case; whatever else a version writes is let be."""

    case: Case
    rung_below: str | None = None


def load(folder: Path) -> tuple[RunInfo, list[Record], list[Row]]:
    """A results folder, analysed: the run, its records with the times that rows need, the rows.

    Raises:
        RecordsError: it is none.
    """
    info = read_run(folder)
    records = [condensed(record) for record in iterate_records(folder)]
    if info.ended_by == "complete":  # what was interrupted on the way was done again, or not needed
        records = [record for record in records if record.status != "interrupted"]
    try:
        planned = msgspec.convert(info.suite.get("planned", []), list[_Planned])
    except msgspec.ValidationError as error:
        raise RecordsError(f"{folder / RUN}: suite.planned: {error}") from error
    rows = rows_of(
        [one.case for one in planned],
        records,
        rungs={one.case.id: one.rung_below for one in planned if one.rung_below is not None},
        link_bytes_per_s=slowest_link(info.environment),
    )
    return info, records, rows


def slowest_link(environment: Mapping[str, Any]) -> float | None:
    """Bytes a second of the slowest link between a run's devices; None where it is not known."""
    devices = environment.get("devices")
    found = devices if isinstance(devices, list) else []
    rates = [one.get("link_bytes_per_s") if isinstance(one, dict) else None for one in found]
    known = [float(rate) for rate in rates if isinstance(rate, int | float) and rate > 0]
    return min(known) if known and len(known) == len(rates) else None


def write_report(folder: Path, *, published: bool = False) -> Path:
    """Make ``report.md`` and its charts from the folder's records; returns the page's path.

    Args:
        folder: of results.
        published: set the figures that others have published beside matching tables.

    Raises:
        RecordsError: the folder holds no results.
        OutputError: the report cannot be written.
    """
    info, records, rows = load(folder)
    tables = tables_of(rows)
    path = folder / REPORT
    charts = _draw(tables, folder / CHARTS)
    text = markdown(info, records, tables, charts, predictions_of(folder), published=published)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _draw(tables: Sequence[Table], folder: Path) -> Sequence[Sequence[Chart]]:
    """The charts; none, with a warning, where they cannot be drawn: no report is lost to that."""
    try:
        return write_charts(tables, folder)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    except Exception as error:  # noqa: BLE001 - a plotting library's faults are many
        warnings.warn(f"the report has no charts: {error}", stacklevel=2)
        return [[] for _ in tables]


def markdown(
    info: RunInfo,
    records: Sequence[Record],
    tables: Sequence[Table],
    charts: Sequence[Sequence[Chart]] = (),
    predicted: Mapping[str, Record] = MappingProxyType({}),
    *,
    published: bool = False,
) -> str:
    """The whole report as GitHub renders it.

    Args:
        info: of the run.
        records: for their numbers.
        tables: of its rows.
        charts: of each table, in a folder beside the page.
        predicted: rows that were computed, by case id, to stand beside the measured ones.
        published: with other people's figures beside matching tables.
    """
    name, description = (str(info.suite.get(key, "")) for key in ("name", "description"))
    rows = [row for table in tables for row in table.rows]
    parts = [f"# {escape(name)}", escape(description), summary(info, records, rows)]
    for table, drawn in itertools.zip_longest(tables, charts, fillvalue=()):
        assert isinstance(table, Table)
        parts += [f"## {escape(table.title)}", f"{escape(table.rule.capitalize())}."]
        parts += [*section(table, drawn), beside(table.rows, predicted)]
        if not are_readable(table.rows):
            parts.append(f"No charts: {len(table.rows)} rows are more than one could read in them.")
        own = {_chart_stem(one) for one in table.settings}
        parts.append(_pictures(one for one in drawn if one.svg.stem not in own))
        parts += beside_rows(table.rows) if published else []
    parts += ["## How to read this", HOW_TO_READ]
    parts += [SETTINGS_TO_READ] if any(table.settings for table in tables) else []
    parts += ["## Where it was measured", machine_lines(info), *network_section(info.environment)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _pictures(charts: Iterable[Chart]) -> str:
    return "\n".join(picture(one.title, f"{CHARTS}/{one.svg.name}") for one in charts)


def _chart_stem(table: SettingsTable) -> str:
    return f"{table.stem}-{CHANGE}"


def scaling(table: Table) -> tuple[Footnotes, str]:
    """The first table of a workload, and what its marks refer to."""
    return _render(table.rows, table.columns, "scaling")


def _render(rows: Sequence[Row], columns: Sequence[Column], which: Which) -> tuple[Footnotes, str]:
    notes = Footnotes()
    return notes, render(rows, columns, which, notes, MARKDOWN)


def footnotes(notes: Footnotes) -> str:
    """A table's notes: those of all rows, then a numbered list."""
    numbered = "\n".join(f"{n}. {escape(text)}" for n, text in enumerate(notes.texts, 1))
    common = "\n".join(f"- All rows: {escape(text)}" for text in notes.common)
    return "\n\n".join(part for part in (common, numbered) if part)


def section(table: Table, charts: Sequence[Chart] = ()) -> list[str]:
    """The tables of one workload, each with its footnotes: scaling, settings, details.

    Args:
        table: with all of them.
        charts: of the workload, of which those of its settings stand beside them.
    """
    notes, text = scaling(table)
    more, details = _render(table.rows, table.details, "details")
    parts = [text, escape(table.noise), footnotes(notes)]
    for one in table.settings:
        parts += [f"### {escape(one.title)}", *settings(one)]
        parts.append(_pictures(chart for chart in charts if chart.svg.stem == _chart_stem(one)))
    heading = [f"### {DETAILS}"] if table.settings else []
    parts += [*heading, "" if heading else f"{DETAILS}:", details, footnotes(more)]
    return parts + largest_batches(table)


def largest_batches(table: Table) -> list[str]:
    """What a device's memory holds, with its notes; nothing where nobody asked for it."""
    rows = batches.searched(table.rows)
    if not rows:
        return []
    notes, text = _render(rows, batches.columns(rows), "batches")
    return [LARGEST, text, footnotes(notes)]


def settings(table: SettingsTable) -> list[str]:
    """A table of settings with what it cannot show, and its footnotes."""
    notes, text = _render(table.rows, table.columns, "settings")
    warned = [f"**{escape(warning)}**" for warning in table.warnings]
    return [text, *warned, footnotes(notes)]


def plain(rows: Sequence[Row]) -> str:
    """The scaling tables for a terminal, and those of settings."""
    parts = []
    for table in tables_of(rows, compact=True):
        parts.append(one_line(f"{table.title}: {table.rule}"))
        parts += _plain(table.rows, table.columns, "terminal", one_line(table.noise, limit=2000))
        for one in table.settings:
            parts.append(one_line(f"{table.title}: {one.title.lower()}"))
            warned = [f"warning: {one_line(warning)}" for warning in one.warnings]
            parts += _plain(one.rows, one.columns, "changes", *warned)
    return "\n\n".join(part for part in parts if part)


def _plain(
    rows: Sequence[Row], columns: Sequence[Column], which: Which, *below: str
) -> Iterator[str]:
    """A table for a terminal, what stands under it, and its footnotes."""
    notes = Footnotes()
    yield render(rows, columns, which, notes, TERMINAL)
    yield from below
    common = [f"All rows: {one_line(note)}" for note in notes.common]
    numbered = [f"[{n}] {one_line(note)}" for n, note in enumerate(notes.texts, 1)]
    yield "\n".join([*common, *numbered])


MARKDOWN = Style(
    name="github",
    mark=lambda numbers: f"<sup>{numbers}</sup>",
    strike=lambda cell: f"~~{cell}~~",
    escape=escape,
)
