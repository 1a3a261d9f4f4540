"""``report.md`` from a results folder, and the shorter form for a terminal.

Never imports torch: a report can be made again anywhere, from the files alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.analyze.effort import further_s, relative_width
from bench.analyze.launches import drift_of
from bench.analyze.rows import Row, condensed
from bench.analyze.scaling import rows_of
from bench.errors import OutputError, RecordsError, one_line, plural
from bench.plan.case import Case
from bench.records.record import Record, RunInfo
from bench.records.store import RUN, iterate_records, read_run, write_atomically
from bench.report import batches
from bench.report.charts import Chart, are_readable, write_charts
from bench.report.notes import Footnotes, Which
from bench.report.tables import TERMINAL, Column, Style, Table, render, tables_of

REPORT = "report.md"

CHARTS = "charts"
DETAILS = "Where time and memory go:"
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
parameters, buffers and optimizer state alone.

*Communication* is the time in which collectives moved data in a step, as a profile shows it:
waiting for a late rank is left out, and stands under *wait*. *Exposed* is the part of it during
which nothing was computed, *hidden* the share during which something was. *Sync cost* is something
else: a step with gradient synchronisation minus one without, no profile running, waiting included;
its interval is that of the steps of one launch. The communication figures are those of a few steps
of one launch; bytes are the larger of input and output of a rank, added up over a step.

*Parity* is `exact` when the strategy trained the same model as one device: in fp64, the losses of
three steps and the first gradient within 1e-6, and the last parameters equal to the last bit on all
ranks; in the case's own precision, the first gradient within what reordering sums explains. `within
precision` means the same where that precision is so coarse that reordering explains more than a
thousandth of a gradient. The proof trains the same layers on little data: at most four samples a
micro-step, ResNet-152 on images of 32 x 32, the recommender with short tables. A figure that failed
its proof is struck out and compared with nothing; one that could not be proved says so.
"""


class _Planned(msgspec.Struct, frozen=True):
    """What a report needs of a planned case; whatever else a version writes is let be."""

    case: Case


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
        [one.case for one in planned], records, link_bytes_per_s=slowest_link(info.environment)
    )
    return info, records, rows


def slowest_link(environment: Mapping[str, Any]) -> float | None:
    """Bytes a second of the slowest link between a run's devices; None where it is not known."""
    devices = environment.get("devices")
    found = devices if isinstance(devices, list) else []
    rates = [one.get("link_bytes_per_s") if isinstance(one, dict) else None for one in found]
    known = [float(rate) for rate in rates if isinstance(rate, int | float) and rate > 0]
    return min(known) if known and len(known) == len(rates) else None


def write_report(folder: Path) -> Path:
    """Make ``report.md`` and its charts from the folder's records; returns the page's path.

    Raises:
        RecordsError: the folder holds no results.
        OutputError: the report cannot be written.
    """
    info, records, rows = load(folder)
    tables = tables_of(rows)
    path = folder / REPORT
    text = markdown(info, records, tables, _draw(tables, folder / CHARTS))
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
) -> str:
    """The whole report as GitHub renders it.

    Args:
        info: of the run.
        records: for their numbers.
        tables: of its rows.
        charts: of each table, in a folder beside the page.
    """
    name, description = (str(info.suite.get(key, "")) for key in ("name", "description"))
    rows = [row for table in tables for row in table.rows]
    parts = [f"# {escape(name)}", escape(description), summary(info, records, rows)]
    for table, drawn in itertools.zip_longest(tables, charts, fillvalue=()):
        assert isinstance(table, Table)
        parts += [f"## {escape(table.title)}", f"{escape(table.rule.capitalize())}."]
        parts += section(table)
        if not are_readable(table.rows):
            parts.append(f"No charts: {len(table.rows)} rows are more than one could read in them.")
        parts.append("\n".join(picture(one.title, f"{CHARTS}/{one.svg.name}") for one in drawn))
    parts += ["## How to read this", HOW_TO_READ, "## Where it was measured", _environment(info)]
    return "\n\n".join(part for part in parts if part) + "\n"


def picture(title: str, place: str) -> str:
    """A chart as markdown shows it."""
    return f"![{escape(title)}]({place})"


def scaling(table: Table) -> tuple[Footnotes, str]:
    """The first table of a workload, and what its marks refer to."""
    return _render(table, table.columns, "scaling")


def _render(table: Table, columns: Sequence[Column], which: Which) -> tuple[Footnotes, str]:
    notes = Footnotes()
    text = render(table.rows, columns, which, notes, MARKDOWN)
    return notes, text


def footnotes(notes: Footnotes) -> str:
    """A table's notes: those of all rows, then a numbered list."""
    numbered = "\n".join(f"{n}. {escape(text)}" for n, text in enumerate(notes.texts, 1))
    common = "\n".join(f"- All rows: {escape(text)}" for text in notes.common)
    return "\n\n".join(part for part in (common, numbered) if part)


def section(table: Table) -> list[str]:
    """The two tables of one workload, each with its footnotes."""
    notes, text = scaling(table)
    more, details = _render(table, table.details, "details")
    parts = [text, escape(table.noise), footnotes(notes), DETAILS, details, footnotes(more)]
    return parts + largest_batches(table)


def largest_batches(table: Table) -> list[str]:
    """What a device's memory holds, with its notes; nothing where nobody asked for it."""
    rows = batches.searched(table.rows)
    if not rows:
        return []
    notes = Footnotes()
    text = render(rows, batches.columns(rows), "batches", notes, MARKDOWN)
    return [LARGEST, text, footnotes(notes)]


def plain(rows: Sequence[Row]) -> str:
    """The scaling tables for a terminal."""
    parts = []
    for table in tables_of(rows, compact=True):
        notes = Footnotes()
        text = render(table.rows, table.columns, "terminal", notes, TERMINAL)
        parts += [one_line(f"{table.title}: {table.rule}"), text, one_line(table.noise, limit=2000)]
        common = [f"All rows: {one_line(note)}" for note in notes.common]
        numbered = [f"[{n}] {one_line(note)}" for n, note in enumerate(notes.texts, 1)]
        parts.append("\n".join([*common, *numbered]))
    return "\n\n".join(part for part in parts if part)


def summary(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    """How much of the plan was measured, what was spent on it, and when."""
    counts = Counter(row.status for row in rows)
    words = ", ".join(
        f"{count} {'measured' if status == 'ok' else status.replace('_', ' ')}"
        for status, count in counts.items()
    )
    twice = sum(row.twin is not None and bool(row.twin.launches) for row in rows)
    words += f", {twice} of them twice" if twice else ""
    ended = "has not ended"
    if info.ended_at:
        ended = f"ended {escape(info.ended_at)} ({escape(str(info.ended_by))})"
    return (
        f"{plural(len(rows), 'case')}: {words}. {_spent(info, records, rows)}{_drift(rows)} "
        f"Started {escape(info.started_at)}, {ended}; order of launches from seed {info.seed}."
    )


def _spent(info: RunInfo, records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Launches, what went into those beyond the plan's own number, and what that left wide."""
    timed = [one for one in records if one.pass_ == "timing" and one.status == "ok"]
    words = f"{plural(len(timed), 'timed launch', 'timed launches')}."
    budget_s = info.suite.get("budget_s")
    if not isinstance(budget_s, int | float) or budget_s <= 0:
        return words
    efforts = _efforts(info.suite.get("planned"))
    own = {id_: effort.launches for id_, effort in efforts.items()}
    further = sum(one.launch >= own.get(one.case.id, one.launch + 1) for one in timed)
    wide = [
        row
        for row in rows
        if row.samples_per_s is not None
        and row.case.id in efforts
        and (relative_width(row.samples_per_s) or 0.0) > efforts[row.case.id].launch_interval
    ]
    return (
        f"{words} {further} of them beyond the plan's, where intervals were wider than asked: "
        f"{further_s(records, own):.0f} s of a budget of {budget_s:.0f} s; "
        f"{plural(len(wide), 'interval')} still wider than asked."
    )


class _Effort(msgspec.Struct, frozen=True):
    """What a summary needs of a case's effort; earlier versions did not ask for an interval."""

    launches: int
    launch_interval: float = math.inf


def _efforts(planned: object) -> dict[str, _Effort]:
    """What the plan gives each case, by id, as far as it can be read."""
    found: dict[str, _Effort] = {}
    for one in planned if isinstance(planned, list) else []:
        match one:
            case {"case": {"id": str(id_)}, "effort": dict() as effort}:
                with contextlib.suppress(msgspec.ValidationError):
                    found[id_] = msgspec.convert(effort, _Effort)
    return found


def _drift(rows: Sequence[Row]) -> str:
    twins = [row.twin.launches for row in rows if row.twin is not None]
    drift = drift_of([*(row.launches for row in rows), *twins])
    if drift is None or not drift.is_clear:
        return ""
    way = "slower" if drift.change < 0 else "faster"
    words = f" From the first launch to the last all became {abs(drift.change):.1%} {way}"
    if drift.is_taken_out:
        return f"{words}: figures are given as in the middle of the run."
    return f"{words}: measure again on a quieter machine."


def _environment(info: RunInfo) -> str:
    environment = info.environment
    cores = environment.get("cores")
    memory = environment.get("memory_bytes")
    lines = [
        f"CPU: {environment.get('cpu')}, {len(cores) if isinstance(cores, list) else '?'} cores "
        f"used, {memory / 2**30 if isinstance(memory, int) else 0:.1f} GiB of memory",
        f"accelerators: {', '.join(device_names(info)) or 'none'}"
        + _known("; driver {}", environment.get("driver")),
        f"system: {environment.get('system')}" + _surroundings(environment),
        "versions: " + ", ".join(f"{name} {v}" for name, v in info.versions.items()),
        f"fingerprint: {info.environment_fingerprint}; source: {environment.get('source')}"
        + _known("; commit {}", environment.get("commit")),
    ]
    return "\n".join(f"- {escape(line)}" for line in lines)


def _surroundings(environment: Mapping[str, Any]) -> str:
    """What shares the machine with the run, and who sets its clocks."""
    governors, boost = environment.get("governors"), environment.get("boost")
    parts = [
        _known(", in a container ({})", environment.get("container")),
        ", on a virtual machine" if environment.get("virtualised") is True else "",
        _known("; a quota of {} cores", environment.get("quota_cores")),
    ]
    if isinstance(governors, list):
        parts.append(f"; clock governor {', '.join(map(str, governors))}")
    if isinstance(boost, bool):
        parts.append(f"; boost {'on' if boost else 'off'}")
    return "".join(parts)


def _known(words: str, fact: object) -> str:
    """Words with a fact in them; nothing where there is none."""
    return words.format(fact) if fact else ""


def device_names(info: RunInfo) -> list[str]:
    """Names of the machine's accelerators."""
    devices = info.environment.get("devices")
    found = devices if isinstance(devices, list) else []
    return [str(one.get("name")) if isinstance(one, dict) else str(one) for one in found]


SPECIAL = re.compile(r"([\\|`*_~<>\[\]#&])")
"""What markdown or HTML gives a meaning anywhere in a line."""
LINKS = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)
"""Where GitHub would make a link of a bare address."""
NAMES = re.compile(r"@(?=\w)|\$")
"""Where GitHub would see an address of mail, the name of a user, or a formula: a backslash does not
help there."""
BLOCKS = re.compile(r"^[-+](?=\s|-|$)|^=(?==*$)")
NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
"""What would make a list, a heading or a rule of a line that begins with it."""
MOST_CHARACTERS = 5000


def escape(text: str) -> str:
    r"""Text that markdown shows as it is, on one line: no link, picture, tag, name or list in it.

    >>> escape("<b> | http://a.example @me")
    '\\\\<b\\\\> \\\\| http\\\\://a.example <span>@</span>me'
    """
    flat = one_line(text, limit=MOST_CHARACTERS)
    flat = LINKS.sub(r"\\\g<0>", SPECIAL.sub(r"\\\1", flat))
    flat = NAMES.sub(r"<span>\g<0></span>", flat)
    return NUMBERED.sub(r"\1\\\2", BLOCKS.sub(r"\\\g<0>", flat))


def code(text: str) -> str:
    """Text as markdown shows code, in which only the quote itself has a meaning."""
    return f"`{one_line(text, limit=200).replace('`', '') or ' '}`"


MARKDOWN = Style(
    name="github",
    mark=lambda numbers: f"<sup>{numbers}</sup>",
    strike=lambda cell: f"~~{cell}~~",
    escape=escape,
)
