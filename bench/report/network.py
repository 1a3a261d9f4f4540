"""Which hosts a run had, what their links really carried, and what emulating them distorts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.errors import plural
from bench.report.document import Heading, Items, Part, Prose, Text, grid_of

EMULATED = """\
The hosts were emulated: each a network namespace of one machine, with real processes that talk real
TCP over a pair of virtual interfaces, whose speed a token bucket limits. What that distorts: the
hosts share the machine's memory bandwidth, last-level cache and heat, so that computation on them
together is slower than on machines of their own; the kernel carries packets, and gloo copies them,
on the cores that compute, so that fast links cost more here than with a network card; a bucket lets
a short burst pass at full speed, which flatters a small message that comes alone; and there is no
loss, no jitter and no other traffic. What it does not distort is how many bytes a strategy sends,
and what a link of that speed needs for them."""


def network_section(environment: Mapping[str, Any]) -> list[Part]:
    """Parts of a report; nothing for a run on one host.

    Args:
        environment: of ``run.json``, whatever version wrote it.
    """
    hosts, network = environment.get("hosts"), environment.get("network")
    parts: list[Part] = []
    if isinstance(hosts, list) and hosts:
        lines = [*_hosts(one for one in hosts if isinstance(one, dict))]
        parts += [Heading(3, "Hosts"), Items(lines)]
    if isinstance(network, dict) and network.get("kind") == "emulated":
        parts += [Heading(3, "The emulated network"), Prose(EMULATED)]
        links = network.get("links")
        rows = [_link(one) for one in (links if isinstance(links, list) else []) if _is_link(one)]
        if rows:
            text = "Measured between the first two hosts before the run, with plain sockets:"
            parts += [Text(text), grid_of("What the links carry", LINK_HEADINGS, rows, words=1)]
    return parts


LINK_HEADINGS = ("link", "one way, Mbit/s", "each way of both, Mbit/s", "round trip, ms")


def _is_link(one: object) -> bool:
    names = ("one_way_bytes_per_s", "both_ways_bytes_per_s", "round_trip_s")
    return (
        isinstance(one, dict)
        and isinstance(one.get("link"), dict)
        and all(isinstance(one.get(name), int | float) for name in names)
    )


def _link(one: Mapping[str, Any]) -> list[str]:
    asked = str(one["link"].get("rate") or "no limit")
    latency = one["link"].get("latency_ms")
    asked += f", {latency:g} ms" if isinstance(latency, int | float) and latency else ""
    return [
        asked,
        f"{one['one_way_bytes_per_s'] * 8 / 1e6:,.0f}",
        f"{one['both_ways_bytes_per_s'] * 8 / 1e6:,.0f}",
        f"{one['round_trip_s'] * 1e3:.3g}",
    ]


def _hosts(hosts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in hosts:
        cores, devices = one.get("cores"), one.get("devices")
        count = len(cores) if isinstance(cores, list) else 0
        found = f"{plural(count, 'core')} of {one.get('cpu')}"
        names = [str(d.get("name")) for d in devices or [] if isinstance(d, dict)]
        yield f"{one.get('name')}: {', '.join([found, *names])}"
