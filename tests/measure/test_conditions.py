from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.measure.conditions import (
    DeviceSample,
    HostSample,
    Series,
    Window,
    conditions_of,
    flags_of,
    increase,
    within,
)
from bench.measure.counters import CoresUse
from bench.records.record import Conditions, DeviceConditions, HostConditions

NO_SERIES = Series()


def use(*, idle_s: float, steal_s: float = 0.0, cores: int = 2, **changes: Any) -> CoresUse:
    """Ten seconds of two logical CPUs."""
    made = CoresUse(
        cores=cores, cpus=2, counted_s=20.0, no_program_s=idle_s + steal_s, steal_s=steal_s
    )
    return msgspec.structs.replace(made, **changes)


def window(
    cores_use: CoresUse | None = None,
    *,
    began_s: float = 5.0,
    ended_s: float = 15.0,
    ranks_s: float | None = 0.0,
) -> Window:
    return Window(began_s=began_s, ended_s=ended_s, samples=100, cpu_s=ranks_s, cores_use=cores_use)


def test_what_programs_took_and_we_did_not_is_others() -> None:
    # Of 20 s, 1 s idle, 2 s stolen, 14 s the ranks', 1 s the parent's: 2 s are left.
    series = Series(
        host=[HostSample(at_s=at_s, parent_s=7 + 0.1 * at_s) for at_s in (4.0, 6.0, 14.0, 16.0)]
    )
    seen = use(idle_s=1.0, steal_s=2.0, throttled_s=0.5)
    host = conditions_of(series, window(seen, ranks_s=14.0)).host
    assert host.others_load == pytest.approx(0.1)
    assert host.steal == pytest.approx(0.1)
    assert host.throttled_s == 0.25  # half a second, summed over two CPUs
    alone = conditions_of(NO_SERIES, window(use(idle_s=1.0), ranks_s=19.5)).host
    assert alone.others_load == 0.0  # counters of two kinds leave a little less than nothing
    silent = conditions_of(NO_SERIES, window(use(idle_s=1.0), ranks_s=None)).host
    assert (silent.others_load, silent.steal) == (None, 0.0)


def test_the_other_thread_of_a_core_counts_against_it() -> None:
    seen = use(idle_s=7.0, cores=1)
    assert conditions_of(NO_SERIES, window(seen, ranks_s=10.0)).host.others_load == 0.3


def test_a_window_too_short_for_the_kernels_counters_has_no_loads() -> None:
    seen = use(idle_s=0.1, counted_s=0.98)
    host = conditions_of(NO_SERIES, window(seen, began_s=5.0, ended_s=5.49)).host
    assert (host.others_load, host.steal) == (None, None)
    host = conditions_of(NO_SERIES, window(seen, began_s=5.0, ended_s=5.51)).host
    assert host.others_load == pytest.approx(0.92 / 1.02)


@pytest.mark.parametrize("counted_s", [None, 0.0, 9.0, 31.0])
def test_counters_that_cannot_be_of_these_cores_say_nothing(counted_s: float | None) -> None:
    host = conditions_of(NO_SERIES, window(use(idle_s=0.0, counted_s=counted_s))).host
    assert (host.others_load, host.steal) == (None, None)


def test_where_nothing_was_read_nothing_is_said() -> None:
    nothing = conditions_of(NO_SERIES, window(began_s=5.1, ended_s=15.3))
    assert (nothing.host, nothing.devices) == (HostConditions(), [])
    assert nothing.energy_per_sample_j is None
    assert nothing.span_s == pytest.approx(10.2)


def test_counters_are_interpolated_at_the_ends_of_the_window() -> None:
    # One a second until 4 s, then three a second.
    points = {0.0: 0.0, 2.0: 2.0, 4.0: 4.0, 6.0: 10.0}
    samples = [HostSample(at_s=at_s, parent_s=value) for at_s, value in points.items()]
    for span, expected in (((1.0, 3.0), 2.0), ((3.5, 5.0), 3.5), ((0.0, 6.0), 10.0)):
        assert increase(samples, lambda one: one.parent_s, span) == pytest.approx(expected)
    for span in ((-1.0, 3.0), (3.0, 6.1)):
        assert increase(samples, lambda one: one.parent_s, span) is None


def test_a_counter_that_wrapped_says_nothing() -> None:
    samples = [HostSample(at_s=0.0, parent_s=9.0), HostSample(at_s=1.0, parent_s=1.0)]
    assert increase(samples, lambda one: one.parent_s, (0.0, 1.0)) is None


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
    series = Series(devices=[device_samples(), device_samples(power_w=None)])
    found = conditions_of(series, window())
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
    series = Series(devices=[device_samples(**no_counters, pcie_rx_bytes_per_s=5e6)])
    (device,) = conditions_of(series, window()).devices
    assert device.energy_j == pytest.approx(3000.0)
    assert device.pcie_rx_bytes_per_s == pytest.approx(5e6)


def test_energy_of_all_devices_or_none() -> None:
    silent = [DeviceSample(at_s=one.at_s) for one in device_samples()]
    found = conditions_of(Series(devices=[device_samples(), silent]), window())
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
