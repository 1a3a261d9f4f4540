"""Where a published table contradicts itself, as far as its own figures tell.

A figure is taken for any that rounds to it: 3.8 stands for 3.75 to 3.85, and 1200 for 1150 to 1250.
Only what no such figures explain is called a contradiction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from bench.analyze.published import Entry, Scaling

EPOCH = 0.05
"""Share of an epoch that checks between epochs, or a last batch cut short, may make up."""
BUS = 0.02
"""Relative difference of two ways to the same bandwidth that is no mistake."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Where a figure lies."""

    low: float
    high: float

    def over(self, other: Span) -> Span:
        """The ratio of two positive figures."""
        return Span(low=self.low / other.high, high=self.high / other.low)

    def times(self, other: Span) -> Span:
        """Their product."""
        return Span(low=self.low * other.low, high=self.high * other.high)

    def wider(self, share: float) -> Span:
        """With room on both sides."""
        return Span(low=self.low * (1 - share), high=self.high * (1 + share))

    def meets(self, other: Span) -> bool:
        """Whether one figure may be both."""
        return self.low <= other.high and other.low <= self.high


def span_of(figure: float) -> Span:
    """All that rounds to a figure, by its last digit that is not 0.

    >>> span_of(1107), span_of(1200), span_of(3.25)
    (Span(low=1106.5, high=1107.5), Span(low=1150.0, high=1250.0), Span(low=3.245, high=3.255))
    """
    whole, _, places = f"{figure:.9f}".rstrip("0").rstrip(".").partition(".")
    step = 10.0 ** -len(places) if places else 10.0 ** (len(whole) - len(whole.rstrip("0")))
    return Span(low=figure - step / 2, high=figure + step / 2)


def contradictions(table: Scaling) -> list[str]:
    """What in a table cannot be as it stands, a sentence each."""
    rules = (_epochs, _speedups, _superlinear, _memory, _falling)
    return [found for rule in rules for found in rule(table)]


def _total(table: Scaling, devices: int) -> Span:
    span = span_of(table.throughput[devices])
    count = devices if table.is_per_device else 1
    return Span(low=span.low * count, high=span.high * count)


def _epochs(table: Scaling) -> Iterator[str]:
    """Throughput times the time of an epoch is the data set."""
    epoch_s, dataset = table.entry.epoch_s, table.entry.dataset
    sizes = [size for size in table.sizes if size in table.throughput and size in epoch_s]
    spans = {size: _total(table, size).times(span_of(epoch_s[size])) for size in sizes}
    if not spans:
        return
    named = ", ".join(f"{(one.low + one.high) / 2:,.0f}" for one in spans.values())
    where = f"on {', '.join(map(str, spans))} devices" if sizes != [1] else "on 1 device"
    if dataset is not None:
        said = Span(low=dataset.samples, high=dataset.samples).wider(EPOCH)
        if not any(one.meets(said) for one in spans.values()):
            yield (
                f"throughput times the time of an epoch is {named} samples {where}, while the data"
                f" set is said to have {dataset.samples:,}: one of the three is something else"
            )
    if max(one.low for one in spans.values()) > min(one.high for one in spans.values()) * (
        1 + EPOCH
    ):
        yield f"throughput times the time of an epoch differs: {named} samples {where}"


def _speedups(table: Scaling) -> Iterator[str]:
    """A speedup is a ratio of throughputs, and of times."""
    published, epoch_s = table.entry.speedup_as_published, table.entry.epoch_s
    for devices, said in published.items():
        if devices == 1 or devices not in table.throughput or 1 not in table.throughput:
            continue
        if _total(table, devices).over(_total(table, 1)).meets(span_of(said)):
            continue
        ratio = table.speedup(devices)
        by_time = ""
        if devices in epoch_s and 1 in epoch_s:
            by_time = f", and its times {epoch_s[1] / epoch_s[devices]:.2f}"
        yield (
            f"the speedup on {devices} devices is said to be {said:g}, while its throughput makes"
            f" it {ratio:.2f}{by_time}"
        )


def _superlinear(table: Scaling) -> Iterator[str]:
    if 1 not in table.throughput:
        return
    for devices in table.sizes:
        if devices > 1 and devices in table.throughput:
            ratio = _total(table, devices).over(_total(table, 1))
            if ratio.low > devices:
                yield (
                    f"{devices} devices do {table.speedup(devices):.2f} times the work of one:"
                    " its baseline is too slow, or is something else"
                )


def _memory(table: Scaling) -> Iterator[str]:
    """Under DDP each device holds the whole model, and under weak scaling as much of the batch."""
    memory = table.entry.peak_memory_gb_per_device
    if table.strategy != "ddp" or table.entry.scaling != "weak" or 1 not in memory:
        return
    less = [
        devices
        for devices, figure in memory.items()
        if devices > 1 and span_of(figure).high < span_of(memory[1]).low
    ]
    if less:
        lowest = min(less, key=lambda devices: memory[devices])
        yield (
            f"each of {lowest} devices is said to need {memory[lowest]:g} GB and one alone "
            f"{memory[1]:g} GB, although under DDP each holds the whole model, with the same batch,"
            " and buckets besides"
        )


def _falling(table: Scaling) -> Iterator[str]:
    sizes = [size for size in table.sizes if size in table.throughput]
    for fewer, more in itertools.pairwise(sizes):
        if _total(table, more).high < _total(table, fewer).low:
            yield f"{more} devices do less together than {fewer}: something else binds"


def of_curve(entry: Entry) -> list[str]:
    """What in a curve of bus bandwidth cannot be, a sentence each.

    That of an all-reduce is ``bytes / time x 2 (n - 1) / n``: NVIDIA's nccl-tests,
    doc/PERFORMANCE.md.
    """
    devices = entry.devices
    if devices is None or entry.collective != "all_reduce" or not entry.time_us:
        return []
    factor = 2 * (devices - 1) / devices
    found = []
    for size, time_us, said in zip(
        entry.payload_bytes, entry.time_us, entry.busbw_gb_s, strict=True
    ):
        moved = size * factor / 1e3  # GB/s, over microseconds
        bandwidth = Span(low=moved, high=moved).over(span_of(time_us))
        if not bandwidth.wider(BUS).meets(span_of(said)):
            found.append(
                f"{size:,} bytes in {time_us:g} us are {moved / time_us:.4g} GB/s on"
                f" the bus, and said to be {said:g}"
            )
    return found
