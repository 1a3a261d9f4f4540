"""Rows -> tables of text: the one place where seconds become ms and bytes become GiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from tabulate import tabulate

from bench.analyze.checks import FLAGS
from bench.analyze.scaling import Comparison, Row
from bench.analyze.stats import Estimate
from bench.errors import plural
from bench.plan.case import Case

GIB = 2**30
DASH = "–"


class Column(msgspec.Struct, frozen=True):
    """A heading, and how a row's cell is written."""

    heading: str
    cell: Callable[[Row], str]
    is_figure: bool = True
    """Struck out when the row failed its proof."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One workload's rows with what must be said beside them."""

    title: str
    rule: str
    """Batch rule, precision, optimizer, device: what all rows share, in words."""
    rows: list[Row]
    columns: list[Column]


class Footnotes:
    """Numbers the notes of one table; equal notes share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        """The note's number, as it stands in a cell."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def tables_of(rows: Sequence[Row], *, compact: bool = False) -> list[Table]:
    """One table for each workload, preset and batch rule, in the rows' order.

    Args:
        rows: of one or more runs.
        compact: only the columns that fit an 80-column terminal.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        case = row.case
        key = (case.workload, case.preset, str(case.workload_options), case.scaling, case.device)
        groups.setdefault(key, []).append(row)
    return [_table(group, compact=compact) for group in groups.values()]


def _table(rows: list[Row], *, compact: bool) -> Table:
    case = rows[0].case
    unit = next((row.unit for row in rows if row.samples_per_s is not None), "sample")
    speed = Column(f"{unit}s/s", _throughput)
    strategy = Column("strategy", lambda row: _variant(row.case, rows), is_figure=False)
    devices = Column(
        "dev." if compact else "devices", lambda row: str(row.case.world_size), is_figure=False
    )
    speedup = Column("speedup", lambda row: _comparison(row.speedup))
    parity = Column("parity", _parity, is_figure=False)
    columns = [strategy, devices, speed, speedup]
    if not compact:
        columns.append(Column("vs itself on 1", lambda row: _comparison(row.own_speedup)))
    columns.append(
        Column("eff.", lambda row: _efficiency(row).partition(" ")[0])
        if compact
        else Column("efficiency", _efficiency)
    )
    if not compact:
        columns.append(Column("step ms, median / p90", _step))
        columns.append(Column("sync cost, ms", _sync_cost))
    columns.append(Column("GiB" if compact else _memory_heading(rows), _memory))
    columns.append(parity)
    return Table(
        title=f"{case.workload}, preset {case.preset}",
        rule=_rule(case, rows),
        rows=rows,
        columns=columns,
    )


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
    cores = case.cores_per_device
    device = case.device if cores is None else f"{case.device}, {plural(cores, 'core')} per device"
    return "; ".join([*(part for part in shared if part), device])


def _variant(case: Case, rows: Sequence[Row]) -> str:
    """The strategy with whatever else varies between the rows of its table."""
    parts = [case.label]
    for name in (
        "precision",
        "compile",
        "optimizer",
        "backend",
        "accumulation_steps",
        "per_device_batch" if case.scaling == "weak" else "global_batch",
        "seed",
    ):
        values = {getattr(row.case, name) for row in rows} - {None}
        if len(values) > 1 and getattr(case, name) is not None:
            parts.append(
                f"{getattr(case, name)}"
                if name in {"precision", "backend", "optimizer"}
                else f"{name} {getattr(case, name)}"
            )
    return ", ".join(parts)


def render(
    table: Table,
    *,
    style: str,
    mark: Callable[[str], str],
    strike: Callable[[str], str],
    escape: Callable[[str], str],
) -> str:
    """The table's text in one of tabulate's styles.

    Args:
        table: what to write.
        style: ``github`` for markdown, ``simple`` for a terminal.
        mark: numbers a footnote.
        strike: marks a figure that failed its proof.
        escape: makes text harmless in the style.
    """
    body = []
    for row in table.rows:
        notes = "".join(mark(note) for note in _notes(row))
        cells = []
        for column in table.columns:
            text = escape(column.cell(row))
            if row.is_proved_wrong and column.is_figure and text != DASH:
                text = strike(text)
            cells.append(text)
        cells[0] += f" {notes}" if notes else ""
        body.append(cells)
    headings = [column.heading for column in table.columns]
    alignment = ["left", "right", *["right"] * (len(headings) - 3), "left"]
    return tabulate(body, headings, tablefmt=style, disable_numparse=True, colalign=alignment)


def _notes(row: Row) -> list[str]:
    """Everything a reader must know of a row, in words."""
    notes = []
    if row.status != "ok":
        notes.append(f"{row.status}: {row.reason}")
    notes += [problem for problem in row.launch_problems if row.status == "ok"]
    notes += [f"{flag}: {FLAGS[flag]}" if flag in FLAGS else flag for flag in row.flags]
    for comparison in (row.speedup, row.own_speedup):
        if row.samples_per_s is not None and comparison.reason is not None:
            notes.append(f"no speedup: {comparison.reason}")
    if row.sync_cost is not None and (row.sync_cost.low is None or row.sync_cost.low <= 0):
        notes.append("sync cost: too small to be told from the noise of its launch")
    if row.speedup.ratio is not None and row.speedup.ratio.includes(1.0):
        notes.append("no clear difference from one device without a wrapper")
    if row.parity_note is not None:
        notes.append(f"parity {_parity(row)}: {row.parity_note}")
    return list(dict.fromkeys(notes))


def _throughput(row: Row) -> str:
    if row.samples_per_s is None:
        return row.status.replace("_", " ")
    return interval(row.samples_per_s, scale=row.units_per_sample)


def _comparison(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return DASH
    if comparison.is_baseline:
        return "1"
    return span(comparison.ratio)


def _efficiency(row: Row) -> str:
    efficiency = row.efficiency
    if efficiency is None:
        return DASH
    if efficiency.low is None or efficiency.high is None:
        return f"{efficiency.value:.0%}"
    return f"{efficiency.value:.0%} ({efficiency.low:.0%}-{efficiency.high:.0%})"


def _memory(row: Row) -> str:
    known = [peak for peak in row.peak_bytes if peak is not None]
    if not known:
        return DASH
    low, high = min(known) / GIB, max(known) / GIB
    return f"{high:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{high:.2f}"


def _memory_heading(rows: Sequence[Row]) -> str:
    """Says which of the peaks the column shows."""
    names = dict.fromkeys(row.peak_name for row in rows if row.peak_name)
    return f"{' or '.join(names) or 'peak'} memory, GiB/device"


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
    if row.parity is None:
        return DASH if row.parity_note is None else "not proved"
    return row.parity.verdict.replace("_", " ")


def interval(estimate: Estimate, *, scale: float = 1) -> str:
    """A figure with half its interval's width, both to the same place, neither rounded to 0.

    >>> interval(Estimate(value=7.0512, low=6.93, high=7.17, launches=3))
    '7.05 ± 0.12'
    """
    value = estimate.value * scale
    half = estimate.half_width
    if half is None:
        return f"{significant(value)} (1 launch)"
    half *= scale
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
    return f"{estimate.value:.2f} ({estimate.low:.2f}-{estimate.high:.2f})"


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
