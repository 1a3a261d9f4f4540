"""Rows -> tables of text: the one place where seconds become ms and bytes become GiB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from tabulate import tabulate

from bench.analyze.rows import PEAKS, Comparison, Row, family
from bench.analyze.stats import Estimate
from bench.errors import one_line, plural
from bench.plan.case import UNSAFE, Case
from bench.report.notes import Footnotes, Which, noise_sentence, notes_of, parity_of, variants

MOST_OF_NAME = 80
"""Characters of a file's name; its workload may have a long one."""
GIB = 2**30
WIDE = 0.2
"""Half width of an interval, relative, from which its ends are given."""
MEANINGLESS = 10.0
"""Likewise, above which it says nothing at all."""
DASH = "–"
REFERENCE = "the reference"


class Column(msgspec.Struct, frozen=True):
    """A heading, and how a row's cell is written."""

    heading: str
    cell: Callable[[Row], str]
    is_figure: bool = True
    """Struck out when the row failed its proof."""
    is_text: bool = False
    """Set to the left."""


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
    rows = sorted(rows, key=lambda row: row.case.world_size)
    case = rows[0].case
    memory = next((name for name in PEAKS if any(known(memory_of(r, name)) for r in rows)), "")
    return Table(
        title=title,
        stem=stem,
        rule=_rule(case, rows),
        rows=rows,
        columns=_compact_columns(rows, memory) if compact else _columns(rows, memory),
        details=_details(rows, memory),
        memory=memory,
        noise=noise_sentence(rows),
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


def _named(rows: Sequence[Row]) -> list[Column]:
    """What every table begins with."""
    name = variants(rows)
    return [
        Column("devices", lambda row: str(row.case.world_size), is_figure=False, is_text=False),
        Column("strategy", lambda row: name(row.case), is_figure=False, is_text=True),
    ]


def _columns(rows: Sequence[Row], memory: str) -> list[Column]:
    columns = [
        *_named(rows),
        Column(f"{_unit(rows)}s/s", _throughput),
        Column("speedup", lambda row: _comparison(row.speedup)),
        Column("efficiency", _efficiency),
        Column("against ddp", _peer),
        Column(f"{memory} memory, GiB/device".strip(), lambda row: _gib(memory_of(row, memory))),
        Column("communication, ms", _busy),
        Column("exposed, ms", _exposed),
        Column("parity", _parity, is_figure=False, is_text=True),
    ]
    if all(_peer(row) in {DASH, REFERENCE} for row in rows):
        return [column for column in columns if column.cell is not _peer]
    return columns


def _compact_columns(rows: Sequence[Row], memory: str) -> list[Column]:
    devices, strategy = _named(rows)
    return [
        msgspec.structs.replace(devices, heading="dev."),
        strategy,
        Column(f"{_unit(rows)}s/s", _short_throughput),
        Column("speedup", lambda row: _comparison(row.speedup)),
        Column("GiB", lambda row: _largest(memory_of(row, memory))),
        Column("parity", _parity, is_figure=False, is_text=True),
    ]


def _details(rows: Sequence[Row], memory: str) -> list[Column]:
    """Further figures, as far as any row has them."""
    further = [name for name in PEAKS if name != memory]
    columns = [
        Column("vs itself on 1", lambda row: _comparison(row.own_speedup)),
        Column("step ms, median / p90", _step),
        Column("collectives of a step", _collectives, is_text=True),
        Column("hidden", _hidden),
        Column("wait, ms", _wait),
        Column("sync cost, ms", _sync_cost),
        Column("moved by the strategy, ms", _pieces, is_text=True),
        Column("held between steps, GiB", lambda row: _gib(row.held_bytes)),
        Column("max/min memory", lambda row: _imbalance(memory_of(row, memory))),
        *[
            Column(f"{name}, GiB", lambda row, name=name: _further(row, name))  # type: ignore[misc] # the default binds this turn's name
            for name in further
        ],
    ]
    used = [column for column in columns if any(column.cell(row) != DASH for row in rows)]
    return [*_named(rows), *used]


def _unit(rows: Sequence[Row]) -> str:
    return next((row.unit for row in rows if row.samples_per_s is not None), "sample")


def memory_of(row: Row, name: str) -> list[int | None]:
    """Peaks of one kind, per device; empty where there are none."""
    return row.peaks.get(name, [])


def known(values: Sequence[int | None]) -> list[int]:
    """The figures that there are."""
    return [value for value in values if value is not None]


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
    launches = {row.samples_per_s.launches for row in rows if row.samples_per_s is not None}
    if launches:
        counts = sorted({min(launches), max(launches)})
        words = plural(counts[-1], "launch", "launches")
        shared.append(f"{words} each" if len(counts) == 1 else f"{counts[0]} to {words} each")
    cores = case.cores_per_device
    device = case.device if cores is None else f"{case.device}, {plural(cores, 'core')} per device"
    return "; ".join([*(part for part in shared if part), device])


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is written where it will be read."""

    name: str
    """Of tabulate's: ``github`` for markdown, ``simple`` for a terminal."""
    mark: Callable[[str], str] = one_line
    """Sets the numbers of a row's footnotes."""
    strike: Callable[[str], str]
    """Marks a figure that failed its proof."""
    escape: Callable[[str], str] = one_line
    """Makes text harmless."""


TERMINAL = Style(name="simple", strike=lambda cell: f"({cell})")


def render(
    rows: Sequence[Row], columns: Sequence[Column], which: Which, notes: Footnotes, style: Style
) -> str:
    """A table's text.

    Args:
        rows: of the table.
        columns: to show of them; the second names the row, and bears its footnotes.
        which: of a workload's tables.
        notes: takes what must be said of the rows.
        style: of the text.
    """
    body = []
    marks = notes.number([notes_of(row, which) for row in rows])
    for row, numbers in zip(rows, marks, strict=True):
        cells = []
        for column in columns:
            text = style.escape(column.cell(row))
            if row.is_proved_wrong and column.is_figure and text != DASH:
                text = style.strike(text)
            cells.append(text)
        cells[1] += f" {style.mark(numbers)}" if numbers else ""
        body.append(cells)
    headings = [style.escape(column.heading) for column in columns]
    alignment = ["left" if column.is_text else "right" for column in columns]
    return tabulate(body, headings, tablefmt=style.name, disable_numparse=True, colalign=alignment)


def _throughput(row: Row) -> str:
    if row.samples_per_s is None:
        return row.status.replace("_", " ")
    return interval(row.samples_per_s, scale=row.units_per_sample)


def _short_throughput(row: Row) -> str:
    """Likewise, where a line has 80 characters."""
    estimate = row.samples_per_s
    if estimate is None or estimate.half_width is None:
        return _throughput(row)
    width = estimate.half_width / estimate.value
    if width <= WIDE:
        return _throughput(row)
    share = f"{width:.0%}" if width < MEANINGLESS else "all"
    return f"{significant(estimate.value * row.units_per_sample)} ± {share}"


def _comparison(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return DASH
    if comparison.is_baseline:
        return "1"
    return span(comparison.ratio)


def _efficiency(row: Row) -> str:
    """The figure alone: its interval is the speedup's, over the number of devices."""
    return DASH if row.efficiency is None else f"{row.efficiency.value:.0%}"


def _peer(row: Row) -> str:
    """Such as: +3.2 % (+1.0 to +5.4), or that noise may explain it."""
    if row.peer.is_baseline:
        return REFERENCE
    ratio = row.peer.ratio
    if ratio is None:
        return DASH
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value - 1:+.1%} (1 launch)"
    if row.peer.verdict == "no clear difference":
        return "no clear difference"
    return f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def _gib(peaks: Sequence[int | None]) -> str:
    """Of all devices, in their order where they differ: the first of ``dp`` holds most."""
    if not known(peaks):
        return DASH
    texts = [DASH if peak is None else significant(peak / GIB) for peak in peaks]
    first, others = texts[0], sorted(known(peaks[1:]))
    if len(set(texts)) == 1:
        return first
    if len(texts) == 2:
        return " / ".join(texts)
    if not others:
        return f"first {first}, others {DASH}"
    low, high = significant(others[0] / GIB), significant(others[-1] / GIB)
    return f"first {first}, others {low}" + ("" if low == high else f" to {high}")


def _further(row: Row, name: str) -> str:
    """A peak of the second table; what a process holds is said once, however many it drives."""
    peaks = memory_of(row, name)
    if name == "resident" and len(peaks) > 1 and peaks[0] is not None and not known(peaks[1:]):
        return f"{_gib(peaks[:1])} (one process)"
    return _gib(peaks)


def _largest(peaks: Sequence[int | None]) -> str:
    return significant(max(known(peaks)) / GIB) if known(peaks) else DASH


def _imbalance(peaks: Sequence[int | None]) -> str:
    if len(known(peaks)) < 2 or min(known(peaks)) <= 0:
        return DASH
    return f"{max(known(peaks)) / min(known(peaks)):.2f}"


def _busy(row: Row) -> str:
    return _milliseconds(row.communication.busy_s if row.communication else None)


def _exposed(row: Row) -> str:
    return _milliseconds(row.communication.exposed_s if row.communication else None)


def _wait(row: Row) -> str:
    return _milliseconds(row.communication.wait_s if row.communication else None)


def _milliseconds(seconds: float | None) -> str:
    return DASH if seconds is None else significant(seconds * 1e3)


def _hidden(row: Row) -> str:
    share = row.communication.hidden_fraction if row.communication is not None else None
    return DASH if share is None else f"{share:.0%}"


def _collectives(row: Row) -> str:
    """Such as: 4 x all_reduce, 241 MB in all."""
    if row.communication is None or not row.communication.collectives:
        return DASH
    return "; ".join(
        f"{one.calls:g} x {one.op}"
        + ("" if one.payload_bytes is None else f", {_megabytes(one.payload_bytes)} in all")
        for one in row.communication.collectives
    )


def _pieces(row: Row) -> str:
    """Such as: broadcast 9.41, reduce 5.77."""
    pieces = row.phases.pieces_s if row.phases is not None else None
    if not pieces:
        return DASH
    spent: dict[str, float] = {}
    for name, seconds in pieces.items():
        what = name.rpartition(".")[2]
        spent[what] = spent.get(what, 0.0) + seconds
    return ", ".join(f"{what} {significant(seconds * 1e3)}" for what, seconds in spent.items())


def _megabytes(count: int) -> str:
    return f"{significant(count / 1e6)} MB" if count >= 1e4 else f"{count} B"


def _step(row: Row) -> str:
    if row.step_median_s is None or row.step_p90_s is None:
        return DASH
    return f"{significant(row.step_median_s * 1e3)} / {significant(row.step_p90_s * 1e3)}"


def _sync_cost(row: Row) -> str:
    if row.sync_cost is None:
        return DASH
    cost, low, high = row.sync_cost.value, row.sync_cost.low, row.sync_cost.high
    span = "" if low is None or high is None else f" ({low * 1e3:.1f} to {high * 1e3:.1f})"
    return f"{cost * 1e3:.1f}{span}"


def _parity(row: Row) -> str:
    return parity_of(row) or DASH


def interval(estimate: Estimate, *, scale: float = 1) -> str:
    """A figure with half its interval's width, both to the same place, neither rounded to 0.

    A wide interval does not lie evenly about its figure, and so its ends are given.

    >>> interval(Estimate(value=7.0512, low=6.93, high=7.17, launches=3))
    '7.05 ± 0.12'
    """
    value = estimate.value * scale
    half = estimate.half_width
    if half is None:
        return f"{significant(value)} (1 launch)"
    half *= scale
    if half > WIDE * value and estimate.low is not None and estimate.high is not None:
        low, high = significant(estimate.low * scale), significant(estimate.high * scale)
        return f"{significant(value)} ({low}-{high})"
    places = decimals(value)
    if 0 < half < 0.5 * 10**-places:
        places = decimals(half) - 2
    return f"{value:,.{places}f} ± {half:,.{places}f}"


def span(estimate: Estimate) -> str:
    """A ratio with the ends of its interval, which does not lie evenly about it.

    >>> span(Estimate(value=1.5, low=0.75, high=3.0, launches=3))
    '1.50 (0.75-3.00)'
    """
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f} (1 launch)"
    places = 2 if estimate.high < 100 else 0
    return f"{estimate.value:.2f} ({estimate.low:.{places}f}-{estimate.high:.{places}f})"


def significant(value: float) -> str:
    """Three significant digits, without exponents.

    >>> significant(1234.5), significant(0.01234)
    ('1,234', '0.0123')
    """
    return f"{value:,.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Decimal places that three significant digits need."""
    if value == 0:
        return 0
    magnitude = len(f"{abs(value):.0f}") if abs(value) >= 1 else 1 - _leading_zeros(abs(value))
    return max(0, 3 - magnitude)


def _leading_zeros(value: float) -> int:
    return int(f"{value:e}".partition("e-")[2] or 1)
