"""What of a case is a setting that people tune, which rows differ in nothing else, and the ladders.

A *plain* row has its strategy's own defaults and the plain value of whatever its group varies:
where all rows of a group are in bf16-amp, that is no setting of theirs, and the plain one is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench.analyze.rows import Row, Setting
from bench.plan.case import Case

PLAIN: Mapping[str, Any] = {
    "precision": "fp32",
    "compile": "none",
    "accumulation_steps": 1,
    "optimizer_kernels": "auto",
    "activation_checkpointing": False,
    "env": {},
    "data_label": "",
}
"""Fields that are settings, and their plain values."""
WITHIN: Mapping[str, tuple[str, Any]] = {
    "compile_scope": ("compile", "outside"),
    "accumulation_sync": ("accumulation_steps", "last"),
}
"""Fields that mean something only where another is set: which, and their plain values."""
BUCKET_OPTIONS = frozenset({"bucket_cap_mb", "bucket_cap_mb_list"})
"""Options that do nothing but lay out DDP's buckets."""

_TUNED = {*PLAIN, *WITHIN, "options", "label", "id", "twin", "data", "data_options", "sources"}
_BATCHES = {"weak": "global_batch", "strong": "per_device_batch"}
"""What follows from the batch that a scaling rule fixes, and from the micro-steps."""


def group_key(case: Case) -> object:
    """Equal for cases that differ in settings only, on as many devices."""
    derived = _BATCHES[case.scaling]
    names = [name for name in case.__struct_fields__ if name not in _TUNED and name != derived]
    fixed = [getattr(case, name) for name in names]
    fixed.append({k: v for k, v in case.sources.items() if k != case.data_options.get("path")})
    return msgspec.json.encode(fixed, order="deterministic")


def groups_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that differ in settings only, together; in the order of each group's first."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_key(row.case), []).append(row)
    return list(groups.values())


def plain_of(group: Sequence[Row]) -> Row | None:
    """The row of a group whose settings are all plain; None where none was planned."""
    plain = {name: value for name, value in PLAIN.items() if _varies(group, name)}
    plain |= {name: value for name, (_, value) in WITHIN.items() if _varies(group, name)}
    for row in group:
        case = row.case
        if case.label == case.strategy and all(
            getattr(case, name) == value for name, value in plain.items()
        ):
            return row
    return None


def _varies(group: Sequence[Row], name: str) -> bool:
    values = {msgspec.json.encode(_effective(row.case, name)) for row in group}
    return len(values) > 1


def _effective(case: Case, name: str) -> Any:
    """A field's value, or its plain one where the field means nothing."""
    if name in WITHIN:
        owner, plain = WITHIN[name]
        return plain if getattr(case, owner) == PLAIN[owner] else getattr(case, name)
    return getattr(case, name)


def changed(case: Case, other: Case) -> list[Setting]:
    """The settings of a case that are not those of another of its group."""
    options = [
        Setting(name=name, value=value, is_option=True)
        for name, value in case.options.items()
        if name not in other.options or other.options[name] != value
    ]
    return [*_changed_fields(case, other), *options]


def _changed_fields(case: Case, other: Case) -> Iterator[Setting]:
    for name in (*PLAIN, *WITHIN):
        value = _effective(case, name)
        if value != _effective(other, name):
            yield Setting(name=name, value=value)


def without_plain(case: Case) -> list[Setting]:
    """The settings of a case that has no plain one beside it, as far as the case itself tells."""
    fields = [
        Setting(name=name, value=_effective(case, name))
        for name in (*PLAIN, *WITHIN)
        if _effective(case, name) != (PLAIN.get(name) if name in PLAIN else WITHIN[name][1])
    ]
    options = case.label.removeprefix(case.strategy).strip("()")
    return [*fields, *([Setting(name=options, value=True, is_option=True)] if options else [])]


def ladders_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Each ladder from its lowest rung to its highest, in the order of the latter."""
    by_id = {row.case.id: row for row in rows}
    below = {row.rung_below for row in rows}
    ladders = []
    for row in rows:
        if row.rung_below is None or row.case.id in below:
            continue
        rungs = {row.case.id: row}
        lower = by_id.get(row.rung_below)
        while lower is not None and lower.case.id not in rungs:  # a file may hold a circle
            rungs[lower.case.id] = lower
            lower = by_id.get(lower.rung_below or "")
        if len(rungs) > 1:
            ladders.append([*rungs.values()][::-1])
    return ladders


class IdleSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Rows whose bucket sizes were set differently and led to the same buckets."""

    labels: list[str]
    bucket_bytes: list[int]
    world_size: int


def idle_sweeps(rows: Iterable[Row]) -> list[IdleSweep]:
    """Sweeps of the bucket size that cannot show anything: every row has the same buckets.

    Rows that differ in something else besides are no part of one sweep, and rows without a figure
    for their buckets say nothing.
    """
    sweeps: dict[object, list[Row]] = {}
    for row in rows:
        rest = layout_key(row)
        if rest is not None and row.case.world_size > 1:
            sweeps.setdefault(rest, []).append(row)
    return [
        IdleSweep(
            labels=[row.case.label for row in sweep],
            bucket_bytes=buckets_of(sweep[0]),
            world_size=sweep[0].case.world_size,
        )
        for sweep in sweeps.values()
        if len(sweep) > 1 and len({tuple(buckets_of(row)) for row in sweep}) == 1
    ]


def buckets_of(row: Row) -> list[int]:
    """Bytes of what is communicated at once; empty where that is not known."""
    return (row.communication.bucket_bytes or []) if row.communication is not None else []


def layout_key(row: Row) -> object | None:
    """All that makes a row what it is but its bucket size; None where there is none to set."""
    if not buckets_of(row) or BUCKET_OPTIONS.isdisjoint(row.case.options):
        return None
    options = {k: v for k, v in row.case.options.items() if k not in BUCKET_OPTIONS}
    rest = msgspec.structs.replace(row.case, options=options, label="", id="")
    return msgspec.json.encode(rest, order="deterministic")
