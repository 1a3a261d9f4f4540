"""Published figures in tables of their own, with ours beside them and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.analyze.doubts import contradictions, of_curve
from bench.analyze.published import (
    Scaling,
    beside,
    curves,
    has_options,
    matching,
    scaling_tables,
)
from bench.analyze.rows import Row
from bench.errors import BenchError
from bench.records.collectives import Collective
from bench.report import cells
from bench.report.document import Grid, Heading, Items, Part, Prose, Text, grid_of

PUBLISHED = "published"
GB = 1e9
HEADING = "Published by others, not measured here"
FOREWORD = """\
Columns that begin with *published* are other people's figures, as their source has them; those that
begin with *here* are of this run. Neither enters the other's: other machines, versions, inputs and
rules of timing were used, so that only what is relative (speedups) can be compared at all. `fp32`
there may mean what torch does unless told otherwise, TF32 in convolutions included; here it is off.
Speedups are over the same strategy on one device. No epoch is run here, and none is made up."""


def check_reference(name: str | None) -> bool:
    """Whether the published figures are asked for.

    Raises:
        BenchError: something else is.
    """
    if name not in {None, PUBLISHED}:
        raise BenchError(f"--reference {name!r}: the one that there is is called {PUBLISHED}")
    return name is not None


def beside_rows(rows: Sequence[Row]) -> list[Part]:
    """The published tables of the model that some rows train, each with ours beside it.

    Args:
        rows: of one of our tables.
    """
    tables = matching(rows)
    if not tables:
        names = ", ".join(sorted({table.workload for table in scaling_tables()}))
        text = f"No published table is of this model, batch rule and strategy. There are: {names}."
        return [Heading(3, HEADING), Text(text)]
    parts: list[Part] = [Heading(3, HEADING), Prose(FOREWORD)]
    for table in tables:
        parts += _section(table, beside(table, rows))
    return parts


def _section(table: Scaling, ours: Mapping[int, Row]) -> Iterator[Part]:
    yield Text(_title(table), is_strong=True)
    yield _table(table, ours)
    notes = [*_origin(table), *_unlike(table, ours)]
    notes += [f"contradiction: {one}" for one in contradictions(table)]
    yield Items(notes)


def _title(table: Scaling) -> str:
    options = ", ".join(f"{name}={value}" for name, value in table.entry.options.items())
    parts = [
        f"Published: {table.workload}",
        table.strategy + (f" ({options})" if options else ""),
        table.precision,
        f"{table.entry.accumulation_steps} micro-steps"
        if table.entry.accumulation_steps > 1
        else None,
        f"{table.entry.scaling} scaling" if table.entry.scaling else None,
        table.loader,
        table.hardware,
    ]
    return ", ".join(part for part in parts if part)


def _table(table: Scaling, ours: Mapping[int, Row]) -> Grid:
    """A row for each number of devices; columns without any figure are left out."""
    entry = table.entry
    unit = table.unit.replace("/", "s/", 1)
    columns: dict[str, list[str]] = {"devices": [str(size) for size in table.sizes]}
    columns[f"published {unit}"] = [_number(table.throughput.get(size)) for size in table.sizes]
    columns["published speedup"] = [_speedup(table, size) for size in table.sizes]
    columns["published epoch, s"] = [_number(entry.epoch_s.get(size)) for size in table.sizes]
    memory = entry.peak_memory_gb_per_device
    columns["published GB/device"] = [_number(memory.get(size)) for size in table.sizes]
    found = [ours.get(size) for size in table.sizes]
    label = next((row.case.label for row in found if row is not None), "")
    columns[f"here: {label}"] = [_throughput(row) for row in found]
    columns["here: speedup"] = [_struck(row, _own_speedup(row)) for row in found]
    columns["here: GB/device"] = [cells.DASH if row is None else _gigabytes(row) for row in found]
    kept = {
        name: texts
        for name, texts in columns.items()
        if any(text != cells.DASH for text in texts) or name.startswith("published s")
    }
    return grid_of(_title(table), [*kept], zip(*kept.values(), strict=True), words=0)


def _number(value: float | None) -> str:
    """As published, with no digit more."""
    return cells.DASH if value is None else f"{value:,.10g}"


def _speedup(table: Scaling, devices: int) -> str:
    """As published, else what the throughput makes it."""
    said = table.entry.speedup_as_published.get(devices)
    if said is not None:
        return f"{said:.2f}"
    computed = table.speedup(devices)
    return cells.DASH if computed is None else f"{computed:.2f} (computed)"


def _throughput(row: Row | None) -> str:
    if row is None:
        return cells.DASH
    text = cells.throughput(row)
    return _struck(row, f"{text} {row.unit}s/s" if row.samples_per_s is not None else text)


def _own_speedup(row: Row | None) -> str:
    """Against the same strategy on one device, as published ones are."""
    return cells.DASH if row is None else cells.comparison(row.own_speedup)


def _struck(row: Row | None, text: str) -> str:
    """With a word for a figure that failed its proof."""
    return f"{text} (failed its proof)" if row is not None and row.is_proved_wrong else text


def _gigabytes(row: Row) -> str:
    for kind in ("driver", "reserved", "tensor", "resident"):
        known = cells.known(cells.memory_of(row, kind))
        if known:
            return f"{cells.significant(max(known) / GB)} ({kind})"
    return cells.DASH


def _origin(table: Scaling) -> Iterator[str]:
    entry = table.entry
    yield f"source: {entry.source}"
    if entry.software:
        yield "with " + ", ".join(f"{name} {version}" for name, version in entry.software.items())
    if table.no_wrapper is not None:
        yield f"one device without a wrapper: {table.no_wrapper:g}"
    if entry.peak_memory_gb_per_device_note:
        yield f"memory of a device in GB: {entry.peak_memory_gb_per_device_note}"
    if table.note:
        yield f"note: {table.note}"


def _unlike(table: Scaling, ours: Mapping[int, Row]) -> Iterator[str]:
    """What differs between the published rows and ours, as far as both say it."""
    if not ours:
        yield "no row of this run has this strategy, precision and number of devices"
        return
    row = next(iter(ours.values()))
    entry, case = table.entry, row.case
    pairs = {
        "batch of a device": (entry.per_device_batch, case.per_device_batch),
        "batch of a step": (entry.global_batch, case.global_batch),
    }
    for name, (theirs, own) in pairs.items():
        if theirs is not None and theirs != own:
            yield f"another {name}: {theirs:,} there, {own:,} here"
    if entry.input:
        side = case.workload_options.get("image_size")
        own_size = f"preset {case.preset}" if side is None else f"{side}x{side}"
        if own_size != entry.input:
            yield f"another input: {entry.input} there, {own_size} here"
    if entry.options and not has_options(case, table):
        wanted = ", ".join(f"{name}={value}" for name, value in entry.options.items())
        yield f"other options: {wanted} there, {case.label} here"
    missing = [size for size in table.sizes if size not in ours]
    if missing:
        yield f"not measured here on {', '.join(map(str, missing))} devices"


def beside_collectives(rows: Sequence[Collective]) -> list[Part]:
    """Published curves of all-reduce, with ours of the same size and type beside them."""
    own = [
        row
        for row in rows
        if row.op == "all_reduce" and row.dtype == "fp32" and row.back_to_back_busbw_bytes_per_s
    ]
    found = curves("all_reduce")
    kinds = sorted({(row.backend, row.device, row.world_size) for row in own})
    sizes = sorted({size for entry in found for size in entry.payload_bytes})
    headings = ["bytes", *(f"published GB/s: {one.hardware}" for one in found)]
    headings += [f"here GB/s: {backend}, {count} x {device}" for backend, device, count in kinds]
    body = []
    for size in sizes:
        line = [f"{size:,}"]
        for entry in found:
            curve = dict(zip(entry.payload_bytes, entry.busbw_gb_s, strict=True))
            line.append(_number(curve.get(size)))
        for kind in kinds:
            rates = [
                row.back_to_back_busbw_bytes_per_s
                for row in own
                if (row.backend, row.device, row.world_size) == kind and row.bytes == size
            ]
            line.append(cells.significant(rates[0] / GB) if rates and rates[0] else cells.DASH)
        body.append(line)
    notes = [f"source: {one.source}, {one.hardware}" for one in found]
    notes += [f"{one.hardware}, as published: {one.note}" for one in found if one.note]
    notes += [f"{one.hardware}: contradiction: {text}" for one in found for text in of_curve(one)]
    return [
        Heading(2, HEADING),
        Prose(
            "Bus bandwidth of all-reduce in fp32. Columns that begin with *published* are other"
            " people's, of other machines; those that begin with *here* are of this run, back to"
            " back."
        ),
        grid_of("Bus bandwidth of all-reduce, published and here", headings, body, words=0),
        Items(notes),
    ]
