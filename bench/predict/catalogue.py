"""What is known of devices, links and models that are not here: ``catalogue.yaml``, as values."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

import msgspec
import yaml

from bench.errors import BenchError, did_you_mean
from bench.predict.architectures import Architecture
from bench.predict.curve import Curve, Timed, fit
from bench.predict.network import Level, Network

GIGABIT = 1e9 / 8
WHISKERS = 2 * 2.698
"""Standard deviations of a normal distribution between the whiskers of a box plot, which leaves
outliers out: Tukey's, 1.5 times the box beyond it."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing is read past."""


class Slowdown(_Strict, frozen=True, kw_only=True):
    """Of computation while something is communicated."""

    computation: float
    at_bus_bytes_per_s: float
    """Rate at which links carried what slowed it down."""
    source: str

    @property
    def stolen_s_per_byte(self) -> float:
        """Of the computation, for each byte on the bus.

        A computation that takes 1.25 times as long has lost a fifth of its time: beside a link of
        10 bytes a second, 0.02 s for each byte.
        """
        return (1 - 1 / self.computation) / self.at_bus_bytes_per_s


class Variation(_Strict, frozen=True, kw_only=True):
    """Between equal devices, from the lower whisker to the upper one, as a share."""

    range: float
    source: str

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return self.range / WHISKERS


class Kernel(_Strict, frozen=True, kw_only=True):
    """Least time of a small kernel."""

    seconds: float
    source: str


class Device(_Strict, frozen=True, kw_only=True):
    """An accelerator."""

    name: str
    memory_bytes_per_s: float
    """Read and written together, when copying."""
    memory_mib: int
    source: str


class PublishedCurve(_Strict, frozen=True, kw_only=True):
    """A curve of a collective: here, or by its id in ``published.yaml``."""

    ranks: int
    published: str | None = None
    op: str = "all_reduce"
    payload_bytes: tuple[int, ...] = ()
    time_us: tuple[float, ...] = ()
    source: str | None = None


class Link(_Strict, frozen=True, kw_only=True):
    """What connects the devices of a host."""

    name: str
    aliases: tuple[str, ...] = ()
    bus_bytes_per_s: float
    latency_s: float
    start_s: float
    source: str
    curves: tuple[PublishedCurve, ...] = ()


class Between(_Strict, frozen=True, kw_only=True):
    """What links between hosts reach of their rate."""

    share: float
    latency_s: float
    source: str


class Hardware(_Strict, frozen=True, kw_only=True):
    """What one row of a table ran on."""

    device: str
    link: str
    per_device_batch: int


class Table(_Strict, frozen=True, kw_only=True):
    """What a published table is predicted from."""

    id: str
    model: str | None = None
    """None where its rows name theirs."""
    device: str | None = None
    link: str | None = None
    optimizer: str
    strategy: str = "ddp"
    options: dict[str, Any] = {}
    between: str | None = None
    """Links of a host to others."""
    per_host: int | None = None
    per_device_batch: int | None = None
    devices: int | None = None
    units_per_sample: int = 1
    by_hardware: dict[str, Hardware] = {}
    bound_by_loader: tuple[str, ...] = ()
    """Rows that say so of themselves."""
    note: str | None = None


class Catalogue(_Strict, frozen=True, kw_only=True):
    """All of it."""

    contention: Slowdown
    variation: Variation
    kernel: Kernel
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    between_hosts: Between
    models: dict[str, Architecture]
    tables: tuple[Table, ...]

    def device(self, name: str) -> Device:
        """By its name.

        Raises:
            BenchError: there is none of that name.
        """
        for one in self.devices:
            if one.name.casefold() == name.casefold():
                return one
        raise BenchError(f"no device {name!r}{did_you_mean(name, [d.name for d in self.devices])}")

    def link(self, name: str) -> Link:
        """By its name, or one of its other names.

        Raises:
            BenchError: there is none of that name.
        """
        for one in self.links:
            if name.casefold() in {other.casefold() for other in (one.name, *one.aliases)}:
                return one
        raise BenchError(f"no link {name!r}{did_you_mean(name, [one.name for one in self.links])}")


@functools.cache
def catalogue() -> Catalogue:
    """The one that comes with this package."""
    return msgspec.convert(_read("bench.predict", "catalogue.yaml"), Catalogue)


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    """Published figures by id, as they are in ``published.yaml``."""
    return {one["id"]: one for one in _read("bench.records", "published.yaml")}


def _read(package: str, name: str) -> Any:
    return yaml.safe_load((resources.files(package) / name).read_text(encoding="utf-8"))


def gigabits(text: str) -> float:
    """Bytes a second of all links of a host, such as ``100 Gbit/s`` or ``4 x 100 Gbit/s``.

    Raises:
        BenchError: it cannot be read.
    """
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(G|M)bit(?:/s)?", text.strip(), re.I)
    if match is None or float(match[2]) == 0:
        raise BenchError(f"{text!r} is no rate of a link; write 100 Gbit/s, or 4 x 100 Gbit/s")
    unit = GIGABIT if match[3].upper() == "G" else GIGABIT / 1000
    return int(match[1] or 1) * float(match[2]) * unit


def network_of(link: str, between: str | None = None) -> Network:
    """What collectives among devices of a link, and hosts of another, go over.

    Args:
        link: of the catalogue, within a host.
        between: as ``gigabits`` reads it; None for one host.

    Raises:
        BenchError: it is not known.
    """
    known = catalogue()
    within = known.link(link)
    level = None
    if between is not None:
        share = known.between_hosts.share
        level = Level(
            bus_bytes_per_s=share * gigabits(between), latency_s=known.between_hosts.latency_s
        )
    return Network(
        name=within.name if between is None else f"{within.name}, {between} between hosts",
        within=Level(bus_bytes_per_s=within.bus_bytes_per_s, latency_s=within.latency_s),
        between=level,
        start_s=within.start_s,
        curves={(one.op, one.ranks): _timed(one) for one in within.curves},
    )


def _timed(one: PublishedCurve) -> Timed:
    """nccl-tests and its like call back to back: what a call alone takes is not published."""
    curve = _curve(one)
    return Timed(alone=curve, in_row=curve)


def _curve(one: PublishedCurve) -> Curve:
    if one.published is None:
        return fit(
            (size, us / 1e6) for size, us in zip(one.payload_bytes, one.time_us, strict=True)
        )
    found = published()[one.published]
    sizes = found["payload_bytes"]
    if "time_us" in found:
        return fit((size, us / 1e6) for size, us in zip(sizes, found["time_us"], strict=True))
    factor = 2 * (one.ranks - 1) / one.ranks
    rates = found["busbw_gb_s"]
    return fit(
        (size, factor * size / (1e9 * rate)) for size, rate in zip(sizes, rates, strict=True)
    )
