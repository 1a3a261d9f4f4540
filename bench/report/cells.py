"""Cells of tables: the one place where seconds become ms and bytes become GiB."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analyze.loading import loading_share
from bench.analyze.rows import Comparison, Row
from bench.analyze.stats import Estimate
from bench.report.notes import deviation_of, parity_of

GIB = 2**30
DASH = "–"
WIDE = 0.2
"""Half width of an interval, relative, from which its ends are given."""
LARGE = {"G": 1e9, "M": 1e6, "k": 1e3}
"""What figures as large are counted in where there is little room."""
REFERENCE = "the reference"
UNCLEAR = "no clear difference"
COARSE = 0.04
"""Width of an interval from which a change that noise explains is told in whole percent."""
MOST_BUCKETS = 4
"""Whose sizes are all given."""


def memory_of(row: Row, name: str) -> list[int | None]:
    """Peaks of one kind, per device; empty where there are none."""
    return row.peaks.get(name, [])


def known(values: Sequence[int | None]) -> list[int]:
    """The figures that there are."""
    return [value for value in values if value is not None]


def throughput(row: Row) -> str:
    """The figure with its interval, or why there is none."""
    if row.samples_per_s is None:
        return row.status.replace("_", " ")
    return interval(row.samples_per_s, scale=row.units_per_sample)


def each_launch(row: Row) -> str:
    """The figures of a row's launches, such as: each launch: 99, 100, 101."""
    if not row.figures:
        return ""
    return (
        f"each launch: {', '.join(significant(one * row.units_per_sample) for one in row.figures)}"
    )


def short_throughput(row: Row) -> str:
    """Likewise, where a line has 80 characters."""
    estimate = row.samples_per_s
    if estimate is None or estimate.half_width is None:
        return throughput(row)
    if estimate.half_width <= WIDE * estimate.value or estimate.low is None:
        return throughput(row)
    scale = row.units_per_sample
    low, high = (_short(one * scale, 2) for one in (estimate.low, estimate.high or 0.0))
    return f"{_short(estimate.value * scale, 3)} ({low}-{high})"


def _short(value: float, digits: int) -> str:
    """So many digits of a large number, too.

    >>> _short(123.4, 3), _short(12345.0, 3), _short(8765.0, 2), _short(0.017, 2)
    ('123', '12.3k', '8.8k', '0.017')
    """
    letter, size = next(((one, by) for one, by in LARGE.items() if value >= by), ("", 1.0))
    rounded = float(f"{value / size:.{digits}g}")
    return f"{rounded:,.{max(0, decimals(rounded) + digits - 3)}f}{letter}"


def comparison(compared: Comparison) -> str:
    """A ratio with its interval; 1 for what others are compared with."""
    if compared.ratio is None:
        return DASH
    if compared.is_baseline:
        return "1"
    return span(compared.ratio)


def efficiency(row: Row) -> str:
    """The figure alone: its interval is the speedup's, over the number of devices."""
    return DASH if row.efficiency is None else f"{row.efficiency.value:.0%}"


def peer(row: Row) -> str:
    """Against plain DDP."""
    return change(row.peer)


def change(compared: Comparison) -> str:
    """Such as: +3.2% (+1.0% to +5.4%); said with it where noise may explain it."""
    if compared.is_baseline:
        return REFERENCE
    ratio = compared.ratio
    if ratio is None:
        return DASH
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value - 1:+.1%} (1 launch)"
    if compared.verdict == UNCLEAR:
        places = 0 if ratio.high - ratio.low > COARSE else 1
        value, low, high = (
            f"{one - 1:+.{places}%}" for one in (ratio.value, ratio.low, ratio.high)
        )
        return f"{UNCLEAR}, {value} ({low} to {high})"
    return f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def clear_change(compared: Comparison) -> str:
    """Likewise, where there is room for a difference that is one only."""
    return UNCLEAR if compared.verdict == UNCLEAR else change(compared)


def short_change(compared: Comparison) -> str:
    """Such as: +3.2% ± 2.2%, the latter half of the interval."""
    text, ratio = clear_change(compared), compared.ratio
    if "(" not in text or ratio is None or ratio.half_width is None:
        return text
    return f"{text.partition(' (')[0]} ± {ratio.half_width:.1%}"


def memory_change(row: Row, plain: Row | None, name: str) -> str:
    """Such as: 0.0586 (+12%), the change being that of the device which holds most."""
    own = known(memory_of(row, name))
    before = known(memory_of(plain, name)) if plain is not None else []
    text = gib(memory_of(row, name))
    if plain is row or not own or not before or max(before) <= 0:
        return text
    share = f"{max(own) / max(before) - 1:+.0%}"
    return f"{text} ({'the same' if share in {'+0%', '-0%'} else share})"


def gib(peaks: Sequence[int | None]) -> str:
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


def further(row: Row, name: str) -> str:
    """A peak of the second table; what a process holds is said once, however many it drives."""
    peaks = memory_of(row, name)
    if name == "resident" and len(peaks) > 1 and peaks[0] is not None and not known(peaks[1:]):
        return f"{gib(peaks[:1])} (one process)"
    return gib(peaks)


def largest(peaks: Sequence[int | None]) -> str:
    """Of the device that holds most, in GiB."""
    return significant(max(known(peaks)) / GIB) if known(peaks) else DASH


def imbalance(peaks: Sequence[int | None]) -> str:
    """The device that holds most over the one that holds least."""
    if len(known(peaks)) < 2 or min(known(peaks)) <= 0:
        return DASH
    return f"{max(known(peaks)) / min(known(peaks)):.2f}"


def busy(row: Row) -> str:
    """Time in which collectives moved data, in ms."""
    return milliseconds(row.communication.busy_s if row.communication else None)


def exposed(row: Row) -> str:
    """The part of it during which nothing was computed, in ms."""
    return milliseconds(row.communication.exposed_s if row.communication else None)


def flops(row: Row) -> str:
    """Achieved operations a second of each device, in 10^9."""
    rate = row.flops_per_s
    return DASH if rate is None else significant(rate / row.case.world_size / 1e9)


def utilisation(row: Row) -> str:
    """That, over the device's rate in products of matrices."""
    return DASH if row.utilisation is None else f"{row.utilisation:.0%}"


def unexplained(row: Row) -> str:
    """Share of the peak whose purpose could not be told, on the device where it is largest."""
    table = row.memory.by_category if row.memory is not None else None
    if not table:
        return DASH
    totals = [sum(device) for device in zip(*table.values(), strict=True)]
    rest = table.get("unexplained", [0] * len(totals))
    return f"{max(part / total for part, total in zip(rest, totals, strict=True)):.1%}"


def standalone(row: Row) -> str:
    """A step's collectives alone, in ms."""
    return milliseconds(row.communication.standalone_s if row.communication else None)


def wait(row: Row) -> str:
    """Time in which a rank waited for others, in ms."""
    return milliseconds(row.communication.wait_s if row.communication else None)


def milliseconds(seconds: float | None) -> str:
    """Seconds, as ms."""
    return DASH if seconds is None else significant(seconds * 1e3)


def hidden(row: Row) -> str:
    """The share of communication during which something was computed."""
    share = row.communication.hidden_fraction if row.communication is not None else None
    return DASH if share is None else f"{share:.0%}"


def collectives(row: Row) -> str:
    """Such as: 4 x all_reduce, 241 MB in all."""
    if row.communication is None or not row.communication.collectives:
        return DASH
    return "; ".join(
        f"{one.calls:g} x {one.op}"
        + ("" if one.payload_bytes is None else f", {megabytes(one.payload_bytes)} in all")
        for one in row.communication.collectives
    )


def calls(row: Row) -> str:
    """Such as: 4 x all_reduce; of one optimizer step."""
    found = (row.communication.collectives if row.communication is not None else None) or []
    return "; ".join(f"{one.calls:g} x {one.op}" for one in found) or DASH


def payload(row: Row) -> str:
    """The larger of input and output of all of them, in MB."""
    return _total_bytes(row, "payload_bytes")


def on_the_wire(row: Row) -> str:
    """What a rank must send for them at least, in MB."""
    return _total_bytes(row, "wire_bytes_minimum")


def _total_bytes(row: Row, field: str) -> str:
    found = (row.communication.collectives if row.communication is not None else None) or []
    sizes = [getattr(one, field) for one in found]
    if not sizes or None in sizes:
        return DASH
    return significant(sum(sizes) / 1e6)


def buckets(row: Row) -> str:
    """Such as: 3: 1.05, 26.2, 12.6; or 8 x 4.19; of many, the smallest and the largest."""
    sizes = (row.communication.bucket_bytes if row.communication is not None else None) or []
    if not sizes:
        return DASH
    texts = [significant(size / 1e6) for size in sizes]
    if len(set(texts)) == 1:
        return f"{len(sizes)} x {texts[0]}"
    if len(sizes) <= MOST_BUCKETS:
        return f"{len(sizes)}: {', '.join(texts)}"
    low, high = (significant(size / 1e6) for size in (min(sizes), max(sizes)))
    return f"{len(sizes)}: {low} to {high}"


def pieces(row: Row) -> str:
    """Such as: broadcast 9.41, reduce 5.77."""
    pieces = row.phases.pieces_s if row.phases is not None else None
    if not pieces:
        return DASH
    spent: dict[str, float] = {}
    for name, seconds in pieces.items():
        what = name.rpartition(".")[2]
        spent[what] = spent.get(what, 0.0) + seconds
    return ", ".join(f"{what} {significant(seconds * 1e3)}" for what, seconds in spent.items())


def megabytes(count: int) -> str:
    """Bytes, as MB where they are many."""
    return f"{significant(count / 1e6)} MB" if count >= 1e4 else f"{count} B"


def step(row: Row) -> str:
    """Such as: 133 / 131 / 141, mean, median and 90th percentile in ms."""
    times = (row.step_mean_s, row.step_median_s, row.step_p90_s)
    known = [significant(one * 1e3) for one in times if one is not None]
    return " / ".join(known) if len(known) == len(times) else DASH


def loading(row: Row) -> str:
    """How long a step waits for its batches, in ms and as a share of it."""
    share = loading_share(row)
    if share is None or row.phases is None:
        return DASH
    return f"{significant(row.phases.data_s * 1e3)} ({share:.0%})"


def sync_cost(row: Row) -> str:
    """What synchronisation adds to a step, in ms, with its interval."""
    if row.sync_cost is None:
        return DASH
    cost, low, high = row.sync_cost.value, row.sync_cost.low, row.sync_cost.high
    span = "" if low is None or high is None else f" ({low * 1e3:.1f} to {high * 1e3:.1f})"
    return f"{cost * 1e3:.1f}{span}"


def parity(row: Row) -> str:
    """The verdict on the row's proof."""
    return parity_of(row) or DASH


def proof(row: Row) -> str:
    """The verdict, and how far what is lossy by design is from one device."""
    deviation = deviation_of(row)
    return f"{parity(row)}, {deviation}" if deviation else parity(row)


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
