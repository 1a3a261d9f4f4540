from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.measure.conditions import (
    DeviceSample,
    HostSample,
    Series,
    conditions_of,
    flags_of,
    increase,
    within,
)
from bench.records.record import Conditions, DeviceConditions, HostConditions


def host_series(
    *,
    idle: float,
    parent: float = 0.0,
    steal: float = 0.0,
    counted: float = 2.0,
    until_s: float = 20.0,
) -> list[HostSample]:
    """Looks at two CPUs, four a second; arguments are seconds per second over both."""
    return [
        HostSample(
            at_s=at_s,
            counted_s=1000 + counted * at_s,
            no_program_s=500 + (idle + steal) * at_s,
            steal_s=steal * at_s,
            parent_s=parent * at_s,
            throttled_s=3 + 0.1 * at_s,
            frequency_hz=3e9,
        )
        for at_s in (0.25 * number for number in range(int(until_s * 4) + 1))
    ]


def conditions(
    series: Series, began_s: float = 5.1, ended_s: float = 15.3, *, ranks: float = 0.0
) -> Conditions:
    """Of a window of 10.2 s of 100 samples; the ranks take so many seconds a second."""
    return conditions_of(
        series,
        began_s=began_s,
        ended_s=ended_s,
        samples=100,
        ranks_cpu_s=ranks * (ended_s - began_s),
    )


def two_cores(**changes: Any) -> Series:
    return Series(cores=2, cpus=2, host=host_series(**changes))


def test_what_programs_took_and_we_did_not_is_others() -> None:
    # Of two cores, one tenth is idle, one and a half are ours, 0.2 stolen: 0.2 are left.
    host = conditions(two_cores(idle=0.1, parent=0.1, steal=0.2), ranks=1.4).host
    assert host.others_load == pytest.approx(0.1)
    assert host.steal == pytest.approx(0.1)
    assert host.throttled_s == pytest.approx(1.02)  # a tenth of 10.2 s
    assert host.frequency_hz_mean == 3e9
    alone = conditions(two_cores(idle=0.1), ranks=1.95).host
    assert alone.others_load == 0.0  # counters of two kinds leave a little less than nothing
    silent = conditions_of(
        two_cores(idle=0.1), began_s=5.0, ended_s=15.0, samples=1, ranks_cpu_s=None
    )
    assert (silent.host.others_load, silent.host.steal) == (None, 0.0)


def test_the_other_thread_of_a_core_counts_against_it() -> None:
    series = Series(cores=1, cpus=2, host=host_series(idle=0.7))
    assert conditions(series, ranks=1.0).host.others_load == pytest.approx(0.3)


def test_the_series_is_cut_to_the_window() -> None:
    # Another program takes a whole core, but before 5 s and after 15 s only.
    quiet = host_series(idle=1.0)
    loud = [
        replace(
            one, no_program_s=(one.no_program_s or 0) - min(one.at_s, 5) - max(one.at_s - 15, 0)
        )
        for one in quiet
    ]
    series = Series(cores=2, cpus=2, host=loud)
    for window, expected in (((5.1, 14.9), 0.0), ((0.0, 4.9), 0.5), ((2.5, 7.5), 0.25)):
        load = conditions(series, *window, ranks=1.0).host.others_load
        assert load == pytest.approx(expected, abs=1e-9)


def test_a_window_too_short_for_the_kernels_counters_has_no_loads() -> None:
    host = conditions(two_cores(idle=0.1), 5.0, 5.19).host
    assert (host.others_load, host.steal) == (None, None)
    assert conditions(two_cores(idle=0.1), 5.0, 5.3).host.others_load is not None


def test_counters_that_cannot_be_of_these_cores_say_nothing() -> None:
    for counted in (0.0, 0.5, 4.0):
        host = conditions(two_cores(idle=0.0, counted=counted)).host
        assert (host.others_load, host.steal) == (None, None)


def test_a_series_that_does_not_span_the_window_says_nothing() -> None:
    host = conditions(two_cores(idle=0.1, until_s=10)).host
    assert (host.others_load, host.throttled_s) == (None, None)
    nothing = conditions(Series(cores=2, cpus=2))
    assert (nothing.host, nothing.devices) == (HostConditions(), [])
    assert nothing.energy_per_sample_j is None
    assert nothing.span_s == pytest.approx(10.2)


def test_a_counter_that_wrapped_says_nothing() -> None:
    samples = [HostSample(at_s=0.0, steal_s=9.0), HostSample(at_s=1.0, steal_s=1.0)]
    assert increase(samples, lambda one: one.steal_s, (0.0, 1.0)) is None


def test_moments_outside_of_the_window_do_not_count() -> None:
    samples = [HostSample(at_s=float(at), frequency_hz=at * 1e9) for at in range(1, 6)]
    samples.append(HostSample(at_s=2.5))
    assert within(samples, lambda one: one.frequency_hz, (2.0, 4.0)) == [2e9, 3e9, 4e9]


def device_samples(**changes: Any) -> list[DeviceSample]:
    """Twice a second for 20 s: 300 W, a clock that falls a little, 1 GB/s in and 2 GB/s out."""
    return [
        replace(
            DeviceSample(
                at_s=at_s,
                utilisation=0.5,
                clock_hz=2e9 - 1e7 * at_s,
                temperature_c=40 + at_s,
                power_w=300.0,
                energy_j=300.0 * at_s,
                pcie_rx_bytes=1e9 * at_s,
                pcie_tx_bytes=2e9 * at_s,
                slowed_down=False,
                other_programs=0,
            ),
            **changes,
        )
        for at_s in (0.5 * number for number in range(41))
    ]


def test_devices_within_the_window() -> None:
    series = Series(cores=2, cpus=2, devices=[device_samples(), device_samples(power_w=None)])
    found = conditions(series, 5.0, 15.0)
    first, second = found.devices
    expected: dict[str, Any] = {
        "utilisation": 0.5,
        "clock_hz_mean": pytest.approx(1.9e9),
        "clock_hz_min": pytest.approx(1.85e9),
        "clock_hz_max": pytest.approx(1.95e9),
        "temperature_c_max": 55.0,
        "power_w_mean": 300.0,
        "energy_j": pytest.approx(3000.0),
        "pcie_rx_bytes_per_s": pytest.approx(1e9),
        "pcie_tx_bytes_per_s": pytest.approx(2e9),
        "throttled": False,
        "other_programs": 0,
    }
    assert msgspec.structs.asdict(first) == expected
    assert second.energy_j == pytest.approx(3000.0)
    assert found.energy_per_sample_j == pytest.approx(60.0)  # 6000 J over 100 samples


def test_without_counters_rates_and_powers_are_averaged() -> None:
    no_counters: dict[str, Any] = {"energy_j": None, "pcie_rx_bytes": None}
    series = Series(
        cores=2, cpus=2, devices=[device_samples(**no_counters, pcie_rx_bytes_per_s=5e6)]
    )
    (device,) = conditions(series, 5.0, 15.0).devices
    assert device.energy_j == pytest.approx(3000.0)
    assert device.pcie_rx_bytes_per_s == pytest.approx(5e6)


def test_energy_of_all_devices_or_none() -> None:
    silent = [DeviceSample(at_s=one.at_s) for one in device_samples()]
    found = conditions(Series(cores=2, cpus=2, devices=[device_samples(), silent]))
    assert found.devices[1] == DeviceConditions()
    assert found.energy_per_sample_j is None


def with_host(**fields: float) -> Conditions:
    return Conditions(span_s=10.0, host=HostConditions(**fields))


def with_device(**fields: Any) -> Conditions:
    return Conditions(span_s=10.0, host=HostConditions(), devices=[DeviceConditions(**fields)])


@pytest.mark.parametrize(
    ("seen", "flags"),
    [
        (with_host(), []),
        (with_host(others_load=0.04, steal=0.01, throttled_s=0.05), []),
        (with_host(others_load=0.06), ["other_programs"]),
        (with_host(steal=0.03), ["stolen"]),
        (with_host(throttled_s=0.2), ["throttled"]),
        (with_host(frequency_hz_min=2.5e9, frequency_hz_max=3e9), []),
        (with_host(frequency_hz_min=2.3e9, frequency_hz_max=3e9), ["throttled"]),
        (with_device(throttled=True), ["throttled"]),
        (with_device(throttled=False, other_programs=0), []),
        (with_device(clock_hz_min=1.5e9, clock_hz_max=1.98e9), ["throttled"]),
        (with_device(clock_hz_min=1.7e9, clock_hz_max=1.98e9), []),
        (with_device(other_programs=1), ["other_programs"]),
        (
            with_host(others_load=0.5, steal=0.5, throttled_s=9),
            ["throttled", "other_programs", "stolen"],
        ),
    ],
)
def test_flags_from_conditions(seen: Conditions, flags: list[str]) -> None:
    assert flags_of(seen, "cpu") == flags


def test_the_clock_of_a_host_that_waits_for_its_devices_is_free_to_fall() -> None:
    assert flags_of(with_host(frequency_hz_min=1e9, frequency_hz_max=3e9), "cuda") == []
