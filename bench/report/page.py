"""``report.md`` and ``report.html`` from a results folder, and the shorter form for a terminal.

Never imports torch: a report can be made again anywhere, from the files alone.
"""

from __future__ import annotations

import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from bench.analyze.figures import condensed
from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.errors import OutputError, RecordsError, in_words, one_line
from bench.plan.case import Case
from bench.records.record import Record, RunInfo
from bench.records.store import RUN, iterate_records, read_run, write_atomically
from bench.report import batches, checkpoints, learning
from bench.report.beside import beside, predictions_of
from bench.report.charts import OF_LEARNING, OF_SETTINGS, not_readable, write_charts
from bench.report.document import Document, Grid, Heading, Items, Part, Prose, Text
from bench.report.drawing import Chart
from bench.report.findings import Finding, findings
from bench.report.html import html_of
from bench.report.markdown import markdown_of
from bench.report.network import network_section
from bench.report.notes import Which
from bench.report.prose import HOW_TO_READ, LARGEST, SETTINGS_TO_READ
from bench.report.published import beside_rows
from bench.report.settings import SettingsTable
from bench.report.style import Column, for_terminal, grid
from bench.report.summary import machine_lines, summary
from bench.report.tables import Table, tables_of

REPORT = "report.md"
HTML = "report.html"

CHARTS = "charts"
COLUMNS = 80
"""Of a terminal."""
T = TypeVar("T")
NOTHING: Mapping[str, Record] = MappingProxyType({})
DETAILS = "Where time and memory go"
DOUBTS = "What speaks against these figures:"


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
    """Make ``report.md``, ``report.html`` and the charts from the folder's records.

    Returns:
        The path of the former.

    Args:
        folder: of results.
        published: set the figures that others have published beside matching tables.

    Raises:
        RecordsError: the folder holds no results.
        OutputError: the report cannot be written.
    """
    info, records, rows = load(folder)
    tables = tables_of(rows)
    charts, problem = drawn(lambda: write_charts(tables, folder / CHARTS), folder / CHARTS)
    page = document(
        info,
        records,
        tables,
        charts,
        problem=problem,
        predicted=predictions_of(folder),
        published=published,
    )
    return write_pages(page, folder)


def drawn(draw: Callable[[], T], folder: Path) -> tuple[T | tuple[()], str]:
    """Charts; none, with the reason, where they cannot be drawn: no report is lost to that.

    Raises:
        OutputError: the folder cannot be written.
    """
    try:
        return draw(), ""
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    except Exception as error:  # noqa: BLE001 - a plotting library's faults are many
        problem = f"The report has no charts: {in_words(error)}"
        warnings.warn(problem, stacklevel=2)
        return (), f"{problem}. bench report draws them once that is put right."


def write_pages(page: Document, folder: Path) -> Path:
    """Write a page in both forms; returns the path of the markdown.

    Raises:
        OutputError: it cannot be written.
    """
    path = folder / REPORT
    texts = {path: markdown_of(page, CHARTS), folder / HTML: html_of(page)}
    for target, text in texts.items():
        try:
            write_atomically(target, text.encode())
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error.strerror}") from error
    return path


def markdown(
    info: RunInfo,
    records: Sequence[Record],
    tables: Sequence[Table],
    charts: Sequence[Sequence[Chart]] = (),
    *,
    predicted: Mapping[str, Record] = NOTHING,
    published: bool = False,
) -> str:
    """The whole report as GitHub renders it."""
    page = document(info, records, tables, charts, predicted=predicted, published=published)
    return markdown_of(page, CHARTS)


def document(
    info: RunInfo,
    records: Sequence[Record],
    tables: Sequence[Table],
    charts: Sequence[Sequence[Chart]] = (),
    *,
    problem: str = "",
    predicted: Mapping[str, Record] = NOTHING,
    published: bool = False,
) -> Document:
    """The whole report.

    Args:
        info: of the run.
        records: for their numbers.
        tables: of its rows.
        charts: of each table, in a folder beside the page.
        problem: why there are none.
        predicted: rows that were computed, by case id, to stand beside the measured ones.
        published: with other people's figures beside matching tables.
    """
    name, description = (str(info.suite.get(key, "")) for key in ("name", "description"))
    rows = [row for table in tables for row in table.rows]
    parts: list[Part] = [Text(description), *what_was_found(tables)]
    parts += [Text(summary(info, records, rows)), Text(problem)]
    for table, pictures in itertools.zip_longest(tables, charts, fillvalue=()):
        assert isinstance(table, Table)
        parts += [Heading(2, table.title), Text(f"{table.rule.capitalize()}.")]
        parts += [*section(table, pictures), *beside(table.rows, predicted)]
        parts.append(Text(not_readable(table.rows)))
        own = {stem for one in table.settings for stem in _chart_stems(one)}
        own |= {f"{table.stem}-{name}" for name in OF_LEARNING}
        parts += [one for one in pictures if one.svg.stem not in own]
        parts += beside_rows(table.rows) if published else []
    parts += [Heading(2, "How to read this"), Prose(HOW_TO_READ)]
    parts += [Prose(SETTINGS_TO_READ)] if any(table.settings for table in tables) else []
    parts += [Heading(2, "Where it was measured"), Items(machine_lines(info))]
    parts += network_section(info.environment)
    return Document(title=name, parts=parts)


def what_was_found(tables: Sequence[Table]) -> Iterator[Part]:
    """The sentences that a page begins with, model by model."""
    for about, some in itertools.groupby(findings(tables), lambda finding: finding.about):
        yield Text(about, is_strong=True)
        found, doubts = _parted(some)
        yield Items(found)
        if doubts:
            yield Text(DOUBTS)
            yield Items(doubts)


def _parted(found: Iterable[Finding]) -> tuple[list[str], list[str]]:
    """What was found, and what speaks against it."""
    every = list(found)
    doubts = [one.text for one in every if one.kind == "doubt"]
    return [one.text for one in every if one.kind != "doubt"], doubts


def _chart_stems(table: SettingsTable) -> set[str]:
    return {f"{table.stem}-{name}" for name in OF_SETTINGS}


def scaling(table: Table) -> Grid:
    """The first table of a workload."""
    return grid(table.rows, table.columns, "scaling", table.title, [Text(table.noise)])


def section(table: Table, charts: Sequence[Chart] = ()) -> list[Part]:
    """The tables of one workload, each with its footnotes: scaling, settings, details.

    Args:
        table: with all of them.
        charts: of the workload, of which those of its settings stand beside them.
    """
    parts: list[Part] = [scaling(table)]
    for one in table.settings:
        parts += [Heading(3, one.title), settings(one)]
        parts += [chart for chart in charts if chart.svg.stem in _chart_stems(one)]
    parts.append(Heading(3, DETAILS) if table.settings else Text(f"{DETAILS}:"))
    parts.append(grid(table.rows, table.details, "details", f"{table.title}: {DETAILS.lower()}"))
    parts += largest_batches(table)
    parts += checkpoints.section(table)
    stems = {f"{table.stem}-{name}" for name in OF_LEARNING}
    return parts + learning.section(table, [one for one in charts if one.svg.stem in stems])


def largest_batches(table: Table) -> list[Part]:
    """What a device's memory holds, with its notes; nothing where nobody asked for it."""
    rows = batches.searched(table.rows)
    if not rows:
        return []
    caption = f"{table.title}: largest batch per device"
    return [Prose(LARGEST), grid(rows, batches.columns(rows), "batches", caption)]


def settings(table: SettingsTable) -> Grid:
    """A table of settings with what it cannot show, and its footnotes."""
    warned = [Text(warning, is_strong=True) for warning in table.warnings]
    return grid(table.rows, table.columns, "settings", table.title, warned)


def plain(rows: Sequence[Row]) -> str:
    """The scaling tables for a terminal of 80 columns, those of settings, and what was found."""
    tables = tables_of(rows, compact=True)
    parts = []
    for table in tables:
        parts.append(folded(f"{table.title}: {table.rule}"))
        parts += _plain(table.rows, table.columns, "terminal", folded(table.noise))
        for one in table.settings:
            parts.append(folded(f"{table.title}: {one.title.lower()}"))
            warned = [folded(f"warning: {warning}") for warning in one.warnings]
            parts += _plain(one.rows, one.columns, "changes", *warned)
        learnt = [folded(f"- {text}") for text in learning.sentences(table)]
        parts.append("\n".join(["Learning:", *learnt] if learnt else []))
    for about, some in itertools.groupby(findings(tables), lambda finding: finding.about):
        found, doubts = _parted(some)
        lines = [f"{about}:", *(f"- {text}" for text in found)]
        lines += [DOUBTS, *(f"- {text}" for text in doubts)] if doubts else []
        parts.append("\n".join(map(folded, lines)))
    return "\n\n".join(part for part in parts if part)


def folded(text: str) -> str:
    """Text over lines of a terminal, those after the first set in."""
    flat = one_line(text, limit=2000)
    return textwrap.fill(flat, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _plain(
    rows: Sequence[Row], columns: Sequence[Column], which: Which, *below: str
) -> Iterator[str]:
    """A table for a terminal, what stands under it, and its footnotes."""
    shown = grid(rows, columns, which)
    yield for_terminal(shown)
    yield from below
    common = [folded(f"All rows: {note}") for note in shown.common]
    numbered = [folded(f"[{n}] {note}") for n, note in enumerate(shown.notes, 1)]
    yield "\n".join([*common, *numbered])
