"""The conditions in which a figure was measured, from what was read while the launch ran.

Pure functions: what the first rank counted in its window, and what the parent of the ranks read all
along, cut to that window, becomes the ``conditions`` of a record, and these become flags. Counters
that the parent read are interpolated at both ends; what it read at a moment counts where the moment
lies within the window.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.measure.counters import CoresUse
from bench.records.record import Conditions, DeviceConditions, HostConditions

SHORTEST_S = 0.5
"""Of a window whose loads can be told: the kernel counts in steps of 10 ms, so that a core's load
is wrong by a fiftieth at most."""
COUNTED = (0.5, 1.5)
"""Between these shares of the time that passed lies what the kernel has counted of it; a sandbox
that shows zeros, or another machine's counters, does not say what a core did."""
OTHERS_LOAD = 0.05
"""Share of the case's cores from which other programs explain differences between rows."""
STEAL = 0.02
"""Share of the cores' time that the hypervisor gave to others."""
QUOTA_SHARE = 0.01
"""Of the window, held back by the container's quota. Less may have been outside of it."""
CLOCK_FALL = 0.8
"""Lowest over highest clock within one window, from which it was not measured at one clock."""


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One look at the host."""

    at_s: float
    """Monotonic."""
    parent_s: float = 0.0
    """CPU time so far of the process that looks, which is ours as the ranks are."""
    frequency_hz: float | None = None
    """Mean over the cores at that moment."""


@dataclass(frozen=True, kw_only=True)
class DeviceSample:
    """One look at a device."""

    at_s: float
    """Monotonic."""
    utilisation: float | None = None
    """Share of the time just past in which some kernel ran."""
    clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Counter."""
    pcie_rx_bytes: float | None = None
    """Counter, as the next."""
    pcie_tx_bytes: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    """Rate just now, where there is no counter; as the next."""
    pcie_tx_bytes_per_s: float | None = None
    slowed_down: bool | None = None
    """By heat, by a power brake, or by the hardware."""
    other_programs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """All that was read during one launch, in the order of time."""

    host: Sequence[HostSample] = ()
    devices: Sequence[Sequence[DeviceSample]] = ()
    """Per device of the case."""


Sample = TypeVar("Sample", HostSample, DeviceSample)
Read = Callable[[Sample], float | None]
Span = tuple[float, float]
"""Begin and end, monotonic."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """When the ranks timed their steps, and what they know of it."""

    began_s: float
    """The first rank, monotonic."""
    ended_s: float
    """The last rank."""
    samples: int
    """That all devices together trained on."""
    cpu_s: float | None
    """CPU time of all ranks together, by their own count; None where one could not tell."""
    cores_use: CoresUse | None


def conditions_of(series: Series, window: Window) -> Conditions:
    """The conditions within a window, from what was read during the launch."""
    span = (window.began_s, window.ended_s)
    devices = [_device(one, span) for one in series.devices]
    energies = [one.energy_j for one in devices if one.energy_j is not None]
    all_told = bool(devices) and len(energies) == len(devices)
    return Conditions(
        span_s=span[1] - span[0],
        host=_host(series.host, window, span),
        devices=devices,
        energy_per_sample_j=sum(energies) / window.samples if all_told and window.samples else None,
    )


def _host(samples: Sequence[HostSample], window: Window, span: Span) -> HostConditions:
    frequencies = within(samples, lambda one: one.frequency_hz, span)
    parent_s = increase(samples, lambda one: one.parent_s, span) or 0.0
    others_load, steal = _loads(window.cores_use, span[1] - span[0], window.cpu_s, parent_s)
    return HostConditions(
        others_load=others_load,
        steal=steal,
        frequency_hz_mean=mean(frequencies),
        frequency_hz_min=min(frequencies, default=None),
        frequency_hz_max=max(frequencies, default=None),
        throttled_s=_throttled_s(window.cores_use),
    )


def _throttled_s(use: CoresUse | None) -> float | None:
    """Time that a core was held back; the kernel adds up over all of them."""
    return None if use is None or use.throttled_s is None else use.throttled_s / use.cpus


def _loads(
    use: CoresUse | None, passed_s: float, ranks_s: float | None, parent_s: float
) -> tuple[float | None, float | None]:
    """(others' load, steal), as shares of the cores; None where that cannot be told.

    What is neither idle, nor interrupts, nor stolen, nor ours is others': two cores for 10 s, of
    which 6 s idle and 12 s ours, leave 2 s, a tenth.

    >>> use = CoresUse(cores=2, cpus=2, counted_s=20.0, no_program_s=6.0, steal_s=1.0)
    >>> _loads(use, 10.0, 12.0, 0.0)
    (0.1, 0.05)
    """
    if use is None or use.counted_s is None or use.no_program_s is None or use.steal_s is None:
        return None, None
    cpus_s = passed_s * use.cpus
    if passed_s < SHORTEST_S or not COUNTED[0] <= use.counted_s / cpus_s <= COUNTED[1]:
        return None, None
    steal = _share(use.steal_s, cpus_s)
    if ranks_s is None:
        return None, steal
    left_s = cpus_s - use.no_program_s - ranks_s - parent_s
    return _share(left_s, passed_s * use.cores), steal


def _share(part: float, whole: float) -> float:
    """Counters of different coarseness may leave a little less than nothing."""
    return min(1.0, max(0.0, part / whole))


def _device(samples: Sequence[DeviceSample], span: Span) -> DeviceConditions:
    clocks = within(samples, lambda one: one.clock_hz, span)
    power_w = mean(within(samples, lambda one: one.power_w, span))
    energy_j = increase(samples, lambda one: one.energy_j, span)
    if energy_j is None and power_w is not None:
        energy_j = power_w * (span[1] - span[0])
    slowed = within(samples, lambda one: one.slowed_down, span)
    others = within(samples, lambda one: one.other_programs, span)
    return DeviceConditions(
        utilisation=mean(within(samples, lambda one: one.utilisation, span)),
        clock_hz_mean=mean(clocks),
        clock_hz_min=min(clocks, default=None),
        clock_hz_max=max(clocks, default=None),
        temperature_c_max=max(within(samples, lambda one: one.temperature_c, span), default=None),
        power_w_mean=power_w,
        energy_j=energy_j,
        pcie_rx_bytes_per_s=_rate(
            samples, lambda one: one.pcie_rx_bytes, lambda one: one.pcie_rx_bytes_per_s, span
        ),
        pcie_tx_bytes_per_s=_rate(
            samples, lambda one: one.pcie_tx_bytes, lambda one: one.pcie_tx_bytes_per_s, span
        ),
        throttled=any(slowed) if slowed else None,
        other_programs=int(max(others)) if others else None,
    )


def _rate(
    samples: Sequence[DeviceSample],
    counter: Read[DeviceSample],
    rate: Read[DeviceSample],
    span: Span,
) -> float | None:
    """Per second, from a counter, or else from rates at some moments."""
    counted = increase(samples, counter, span)
    if counted is not None and span[1] > span[0]:
        return counted / (span[1] - span[0])
    return mean(within(samples, rate, span))


def within(samples: Iterable[Sample], read: Read[Sample], span: Span) -> list[float]:
    """What was read at the moments within a span, but for what could not be told."""
    found = (read(one) for one in samples if span[0] <= one.at_s <= span[1])
    return [value for value in found if value is not None]


def increase(samples: Iterable[Sample], read: Read[Sample], span: Span) -> float | None:
    """How much a counter grew within a span.

    None where it was not read before and after, and where it wrapped.
    """
    told = ((one.at_s, read(one)) for one in samples)
    points = [(at_s, value) for at_s, value in told if value is not None]
    first, last = (interpolated(points, at_s) for at_s in span)
    return last - first if first is not None and last is not None and last >= first else None


def interpolated(points: Sequence[tuple[float, float]], at_s: float) -> float | None:
    """A counter between two readings; None before the first and after the last.

    >>> interpolated([(0.0, 10.0), (2.0, 30.0)], 0.5)
    15.0
    """
    after = bisect.bisect_left(points, at_s, key=lambda point: point[0])
    if after == len(points) or (after == 0 and points[0][0] != at_s):
        return None
    if points[after][0] == at_s:
        return points[after][1]
    (begin_s, begin), (end_s, end) = points[after - 1 : after + 1]
    return begin + (end - begin) * (at_s - begin_s) / (end_s - begin_s)


def mean(values: Sequence[float]) -> float | None:
    """Mean; None of nothing."""
    return statistics.fmean(values) if values else None


def flags_of(conditions: Conditions, device_type: str) -> list[str]:
    """What the conditions say against a figure.

    The host's clocks count for a case that computes there: those of a host that waits for its
    devices rise and fall as they like.
    """
    host, devices = conditions.host, conditions.devices
    throttled = (
        any(one.throttled or _fell(one.clock_hz_min, one.clock_hz_max) for one in devices)
        or (host.throttled_s or 0.0) > QUOTA_SHARE * conditions.span_s
        or (device_type == "cpu" and _fell(host.frequency_hz_min, host.frequency_hz_max))
    )
    others = (host.others_load or 0.0) > OTHERS_LOAD or any(one.other_programs for one in devices)
    found = {
        "throttled": throttled,
        "other_programs": others,
        "stolen": (host.steal or 0.0) > STEAL,
    }
    return [name for name, is_so in found.items() if is_so]


def _fell(lowest_hz: float | None, highest_hz: float | None) -> bool:
    return lowest_hz is not None and highest_hz is not None and lowest_hz < CLOCK_FALL * highest_hz
