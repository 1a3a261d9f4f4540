"""Rows -> tables of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from bench.analyze.rows import PEAKS, Row, family
from bench.errors import plural
from bench.plan.case import UNSAFE, Case, bytes_per_s
from bench.report import cells
from bench.report.notes import noise_sentence, variants
from bench.report.settings import SettingsTable, settings_tables
from bench.report.style import Column

NAME_WIDTH, LEAST_NAME, PARITY_WIDTH = 22, 12, 9
"""Characters on a terminal, where a line has 80."""
NAME_AND_RATE = 32
"""Of both together: the names give way to figures with wide intervals."""
MOST_OF_NAME = 80
"""Characters of a file's name; its workload may have a long one."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One workload's rows with what must be said beside them."""

    title: str
    stem: str
    """The same as a part of file names; differs from that of any other table."""
    rule: str
    """Batch rule, precision, optimizer, device: what all rows share, in words."""
    rows: list[Row]
    """By number of devices, so that strategies stand side by side."""
    columns: list[Column]
    """Of the scaling table."""
    details: list[Column]
    """Of the second table: where time and memory went."""
    memory: str
    """Which of ``PEAKS`` the memory column shows."""
    noise: str
    """What equal cases differed by, in words."""
    settings: list[SettingsTable]
    """What each setting brings, where rows differ in nothing else; and the ladders."""


def tables_of(rows: Sequence[Row], *, compact: bool = False) -> list[Table]:
    """One table for each workload, preset and batch rule.

    Args:
        rows: of one or more runs.
        compact: only the columns that fit an 80-column terminal.
    """
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(family(row.case), []).append(row)
    stems: Counter[str] = Counter()
    tables = []
    for group in groups.values():
        case = group[0].case
        model = UNSAFE.sub("-", f"{case.workload}-{case.preset}")[:MOST_OF_NAME].lstrip("-")
        stem = f"{model}-{case.scaling}"
        same = stem.lower()  # names that differ in capitals alone are one file on some systems
        stems[same] += 1
        if stems[same] > 1:
            stem = f"{stem}-{stems[same]}"
        tables.append(_table(group, _title(case, rows), stem, compact=compact))
    return tables


def _table(rows: list[Row], title: str, stem: str, *, compact: bool) -> Table:
    rows = sorted(rows, key=_place)
    case = rows[0].case
    memory = next(
        (name for name in PEAKS if any(cells.known(cells.memory_of(r, name)) for r in rows)), ""
    )
    return Table(
        title=title,
        stem=stem,
        rule=_rule(case, rows),
        rows=rows,
        columns=_compact_columns(rows, memory) if compact else _columns(rows, memory),
        details=_details(rows, memory),
        memory=memory,
        noise=noise_sentence(rows),
        settings=settings_tables(rows, memory, stem, compact=compact),
    )


def _title(case: Case, rows: Sequence[Row]) -> str:
    """The model, with the options by which its tables differ."""
    alike = [
        row.case.workload_options
        for row in rows
        if (row.case.workload, row.case.preset) == (case.workload, case.preset)
    ]
    differing = [
        f"{name} {_plain(value)}"
        for name, value in case.workload_options.items()
        if any(other.get(name) != value for other in alike)
    ]
    return ", ".join([case.workload, f"preset {case.preset}", *differing])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def named(rows: Sequence[Row]) -> list[Column]:
    """What every table begins with."""
    name = variants(rows)
    columns = [Column("devices", lambda row: str(row.case.world_size), is_figure=False)]
    if any(row.case.nodes > 1 for row in rows):
        columns.append(Column("hosts", lambda row: str(row.case.nodes), is_figure=False))
    return [
        *columns,
        Column("strategy", lambda row: name(row.case), is_figure=False, is_text=True),
    ]


def _short_place(row: Row) -> str:
    """Devices, and the hosts that they are on where these are several."""
    case = row.case
    return f"{case.world_size}" + (f" on {case.nodes}" if case.nodes > 1 else "")


def _place(row: Row) -> tuple[int, int, float]:
    """Orders rows by devices, hosts, and the speed of the links between these."""
    link = row.case.link
    return row.case.world_size, row.case.nodes, math.inf if link is None else bytes_per_s(link)


def _columns(rows: Sequence[Row], memory: str) -> list[Column]:
    columns = [
        *named(rows),
        # Beside the name, where no window is too narrow to show it.
        Column("parity", cells.parity, is_figure=False, is_text=True),
        Column(f"{_unit(rows)}s/s", cells.throughput, hover=cells.each_launch),
        Column("speedup", lambda row: cells.comparison(row.speedup)),
        Column("efficiency", cells.efficiency),
        Column("against ddp", cells.peer),
        Column(
            f"{memory} memory, GiB/device".strip(),
            lambda row: cells.gib(cells.memory_of(row, memory)),
        ),
        Column("communication, ms", cells.busy),
        Column("exposed, ms", cells.exposed),
    ]
    if all(cells.peer(row) in {cells.DASH, cells.REFERENCE} for row in rows):
        return [column for column in columns if column.cell is not cells.peer]
    return columns


def _compact_columns(rows: Sequence[Row], memory: str) -> list[Column]:
    *_, strategy = named(rows)
    rate = Column(f"{_unit(rows)}s/s", cells.short_throughput)
    widest = max([len(rate.heading), *(len(cells.short_throughput(row)) for row in rows)])
    room = max(LEAST_NAME, min(NAME_WIDTH, NAME_AND_RATE - widest))
    return [
        Column("dev.", _short_place, is_figure=False),
        msgspec.structs.replace(strategy, width=room),
        rate,
        Column("speedup", lambda row: cells.comparison(row.speedup)),
        Column("GiB", lambda row: cells.largest(cells.memory_of(row, memory))),
        Column("parity", cells.parity, is_figure=False, is_text=True, width=PARITY_WIDTH),
    ]


def _details(rows: Sequence[Row], memory: str) -> list[Column]:
    """Further figures, as far as any row has them."""
    further = [name for name in PEAKS if name != memory]
    columns = [
        Column("vs itself on 1", lambda row: cells.comparison(row.own_speedup)),
        Column("step ms, mean / median / p90", cells.step),
        Column("waits for data, ms", cells.loading),
        Column("GFLOP/s a device", cells.flops),
        Column("of its matrix rate", cells.utilisation),
        Column("collectives of a step", cells.collectives, is_text=True),
        Column("hidden", cells.hidden),
        Column("wait, ms", cells.wait),
        Column("alone, ms", cells.standalone),
        Column("sync cost, ms", cells.sync_cost),
        Column("moved by the strategy, ms", cells.pieces, is_text=True),
        Column("held between steps, GiB", lambda row: cells.gib(row.held_bytes)),
        Column("of the peak unexplained", cells.unexplained),
        Column("max/min memory", lambda row: cells.imbalance(cells.memory_of(row, memory))),
        *[
            Column(f"{name}, GiB", lambda row, name=name: cells.further(row, name))  # type: ignore[misc] # the default binds this turn's name
            for name in further
        ],
    ]
    used = [column for column in columns if any(column.cell(row) != cells.DASH for row in rows)]
    return [*named(rows), *used]


def _unit(rows: Sequence[Row]) -> str:
    return next((row.unit for row in rows if row.samples_per_s is not None), "sample")


def _data(cases: Sequence[Case]) -> list[str]:
    """Where batches come from, unless all of them are made on the device."""
    labels = dict.fromkeys(one.data_label for one in cases)
    if not any(labels):
        return []
    sources = dict.fromkeys(one.data for one in cases)
    return [f"data from {' / '.join(labels if len(labels) == 1 else sources)}"]


def _rule(case: Case, rows: Iterable[Row]) -> str:
    cases = [row.case for row in rows]
    name = "per_device_batch" if case.scaling == "weak" else "global_batch"
    sizes = " / ".join(str(size) for size in dict.fromkeys(getattr(one, name) for one in cases))
    shared = [
        f"weak scaling, {sizes} samples per device and micro-step"
        if case.scaling == "weak"
        else f"strong scaling, {sizes} samples per step over all devices"
    ]
    for name in ("precision", "optimizer", "backend"):
        values = dict.fromkeys(str(getattr(one, name)) for one in cases if getattr(one, name))
        shared.append(" / ".join(values))
    links = dict.fromkeys(one.link for one in cases if one.link is not None)
    shared += [f"links of {' / '.join(links)} between emulated hosts"] if links else []
    shared += _data(cases)
    launches = {row.samples_per_s.launches for row in rows if row.samples_per_s is not None}
    if launches:
        counts = sorted({min(launches), max(launches)})
        words = plural(counts[-1], "launch", "launches")
        shared.append(f"{words} each" if len(counts) == 1 else f"{counts[0]} to {words} each")
    cores = case.cores_per_device
    device = case.device if cores is None else f"{case.device}, {plural(cores, 'core')} per device"
    return "; ".join([*(part for part in shared if part), device])
