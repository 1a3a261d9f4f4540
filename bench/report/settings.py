"""Tables of settings, one row each, and ladders of them: what each brings and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.others import PEER
from bench.analyze.rows import Row, Setting
from bench.analyze.settings import (
    IdleSweep,
    group_key,
    groups_of,
    idle_sweeps,
    ladders_of,
    plain_of,
)
from bench.errors import plural
from bench.report import cells
from bench.report.notes import NAMED_BY_VALUE, NOT_DONE, SHORT_NAMES, place_of
from bench.report.style import Column

MIB = 2**20
PLAIN = "plain"
NOTHING = "nothing new"
SETTING_WIDTH, LADDER_WIDTH = 26, 20
"""Characters of a setting's name on a terminal, where a line has 80."""


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one model, each against its own strategy with plain ones on as many devices."""

    title: str
    stem: str
    """The same as a part of file names."""
    rows: list[Row]
    names: dict[str, str]
    """Of each row by its case's id: what it changes, in words."""
    columns: list[Column]
    is_ladder: bool = False
    """Whether each row adds one setting to the row above it."""
    warnings: list[str] = []
    """What the table cannot show, why, and the remedy."""


def settings_tables(
    rows: Sequence[Row], memory: str, stem: str, *, compact: bool = False
) -> list[SettingsTable]:
    """The table of a model's settings, if rows differ in nothing else, then its ladders.

    Args:
        rows: of one model, batch rule and kind of device.
        memory: which peak the memory column shows.
        stem: of the model's files.
        compact: only the columns that fit an 80-column terminal.
    """
    ladders = ladders_of(rows)
    climbed = {row.case.id for ladder in ladders for row in ladder if row.rung_below is not None}
    groups = groups_of(row for row in rows if row.case.id not in climbed)
    shown = [_plain_first(group) for group in groups if len(group) > 1]
    tables = []
    if shown:
        beside = _plain_peers(groups, shown)
        ordered = sorted([*beside, *shown], key=lambda group: group[0].case.world_size)
        tables.append(_settings(ordered, memory, f"{stem}-settings", compact=compact))
    for number, ladder in enumerate(ladders, 1):
        suffix = f"-{number}" if number > 1 else ""
        tables.append(_ladder(ladder, memory, f"{stem}-ladder{suffix}", compact=compact))
    return tables


def _plain_first(group: Sequence[Row]) -> list[Row]:
    plain = plain_of(group)
    return sorted(group, key=lambda row: row is not plain)


def _plain_peers(
    groups: Sequence[Sequence[Row]], shown: Sequence[Sequence[Row]]
) -> list[list[Row]]:
    """Plain DDP alone, where others on as many devices are shown: they are compared with it."""
    sizes = {group[0].case.world_size for group in shown}
    return [
        list(group)
        for group in groups
        if len(group) == 1 and group[0].case.label == PEER and group[0].case.world_size in sizes
    ]


def _settings(
    groups: Sequence[Sequence[Row]], memory: str, stem: str, *, compact: bool
) -> SettingsTable:
    rows = [row for group in groups for row in group]
    strategies = list(dict.fromkeys(row.case.strategy for row in rows))
    names = {}
    place = place_of(rows)
    for row in rows:
        words = ", ".join(filter(None, [_name(row, row.settings) or PLAIN, place(row.case)]))
        names[row.case.id] = words if len(strategies) == 1 else f"{row.case.strategy}: {words}"
    return SettingsTable(
        title=f"Settings of {_and(strategies)}",
        stem=stem,
        rows=rows,
        names=names,
        columns=_columns(rows, names, memory, compact=compact),
        warnings=[_idle(sweep) for sweep in idle_sweeps(rows)],
    )


def _ladder(rows: list[Row], memory: str, stem: str, *, compact: bool) -> SettingsTable:
    case = rows[0].case
    names = {
        row.case.id: f"+ {_name(row, row.rung_settings) or NOTHING}"
        if row.rung_below
        else _name(row, row.settings) or PLAIN
        for row in rows
    }
    return SettingsTable(
        title=f"Ladder of {case.strategy} on {plural(case.world_size, 'device')}",
        stem=stem,
        rows=rows,
        names=names,
        columns=_columns(rows, names, memory, compact=compact, is_ladder=True),
        is_ladder=True,
    )


def _columns(
    rows: Sequence[Row],
    names: Mapping[str, str],
    memory: str,
    *,
    compact: bool,
    is_ladder: bool = False,
) -> list[Column]:
    unit = next((row.unit for row in rows if row.samples_per_s is not None), "sample")
    named = [
        Column("devices", lambda row: str(row.case.world_size), is_figure=False),
        Column("setting", lambda row: names[row.case.id], is_figure=False, is_text=True),
    ]
    if compact:
        return _compact_columns(named, unit, is_ladder=is_ladder)
    changes = [Column("against plain", lambda row: cells.change(row.setting))]
    if is_ladder:
        changes.append(Column("against the rung below", lambda row: cells.change(row.rung)))
    plain = _plain_rows(rows)
    further = [
        None if is_ladder else Column("against ddp", _against_ddp),
        Column(
            f"{memory} memory, GiB/device".strip(),
            lambda row: cells.memory_change(row, plain.get(row.case.id), memory),
        ),
        Column("step ms, mean / median / p90", cells.step),
        Column("waits for data, ms", cells.loading),
        Column("sync cost, ms", cells.sync_cost),
        Column("exposed, ms", cells.exposed),
        Column("collectives of a step", cells.calls, is_text=True),
        Column("payload, MB", cells.payload),
        Column("least on the wire, MB", cells.on_the_wire),
        Column("buckets, MB", cells.buckets, is_text=True),
    ]
    used = [one for one in further if one is not None and _says_something(one, rows)]
    parity = Column("parity", cells.proof, is_figure=False, is_text=True)
    rate = Column(f"{unit}s/s", cells.throughput, hover=cells.each_launch)
    return [*named, rate, *changes, *used, parity]


def _compact_columns(named: Sequence[Column], unit: str, *, is_ladder: bool) -> list[Column]:
    devices, setting = named
    rate = Column(f"{unit}s/s", cells.short_throughput)
    if is_ladder:  # all of which is on as many devices
        return [
            msgspec.structs.replace(setting, width=LADDER_WIDTH),
            rate,
            Column("against plain", lambda row: cells.short_change(row.setting)),
            Column("against below", lambda row: cells.short_change(row.rung)),
        ]
    return [
        msgspec.structs.replace(devices, heading="dev."),
        msgspec.structs.replace(setting, width=SETTING_WIDTH),
        rate,
        Column("against plain", lambda row: cells.clear_change(row.setting)),
    ]


def _says_something(column: Column, rows: Sequence[Row]) -> bool:
    return any(column.cell(row) != cells.DASH for row in rows)


def _against_ddp(row: Row) -> str:
    """Of other strategies: what DDP's own settings bring stands beside it."""
    return cells.DASH if row.case.strategy == PEER else cells.peer(row)


def _plain_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """The plain row of each, by the case's id."""
    plain = {group_key(group[0].case): plain_of(group) for group in groups_of(rows)}
    found = {row.case.id: plain[group_key(row.case)] for row in rows}
    return {id_: row for id_, row in found.items() if row is not None}


def _name(row: Row, settings: Sequence[Setting]) -> str:
    """The settings in words; one that was asked for and came to nothing is called that."""
    texts = [setting_words([one]) for one in settings]
    if "not_compiled" in row.flags:
        compiled = [not one.is_option and one.name == "compile" for one in settings]
        pairs = zip(texts, compiled, strict=True)
        texts = [f"{text} {NOT_DONE}" if undone else text for text, undone in pairs]
    return ", ".join(filter(None, texts))


def setting_words(settings: Sequence[Setting]) -> str:
    """What is set, such as: bf16-amp, bucket_cap_mb 25, no broadcast_buffers."""
    return ", ".join(filter(None, (_words(one) for one in settings)))


def _words(setting: Setting) -> str:
    name, value = setting.name, setting.value
    if setting.is_option or name not in {*NAMED_BY_VALUE, "env", "data_label"}:
        return _named(name, value)
    if name == "data_label":
        return _named(name, value or "device")
    if name == "env" and isinstance(value, dict):
        return ", ".join(f"{variable}={text}" for variable, text in value.items()) or "no env"
    return str(value)


def _named(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if value is None:
        return f"{name} null"
    name = SHORT_NAMES.get(name, name)
    return f"{name} {value:.12g}" if isinstance(value, float) else f"{name} {value}"


def _idle(sweep: IdleSweep) -> str:
    count, sizes = len(sweep.labels), sweep.bucket_bytes
    where = f"on {plural(sweep.world_size, 'device')}"
    if len(sizes) == 1:
        what = f"{count} rows have all gradients in one bucket of {cells.megabytes(sizes[0])}"
        remedy = f"take a larger model, or caps below {cells.significant(sizes[0] / MIB)} MiB"
    else:
        ends = " to ".join(dict.fromkeys(map(cells.megabytes, (min(sizes), max(sizes)))))
        what = f"{count} rows have the same {len(sizes)} buckets of {ends}"
        remedy = "take caps that lie further apart, or a larger model"
    return f"The sweep of bucket sizes {where} cannot show an effect: {what}; {remedy}."


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
