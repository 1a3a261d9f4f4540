"""What a host of the laboratory knows of it, and how node 0 sets the links' speed.

The laboratory tells its hosts by a variable. Node 0 has the links set to what a case asks for
before it is launched: it is root, and the namespaces have names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.errors import BenchError
from bench.lab.network import Layout, Link, require_own, shape
from bench.lab.rate import Measured
from bench.plan.suite import Suite

VARIABLE = "BENCH_LAB"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the laboratory tells its hosts."""

    layout: Layout
    ranks_per_host: int
    cores: int
    """Of the machine that the hosts are emulated on."""
    rates: tuple[str, ...] = ()
    """Asked for on the command line, in place of the suite's own."""
    latencies_ms: tuple[float, ...] = ()
    measured: tuple[Measured, ...] = ()
    """Of each link that the suite asks for."""


class Guest:
    """See ``bench.run.session.Lab``.

    Args:
        told: by the laboratory.
    """

    def __init__(self, told: Told) -> None:
        self._told = told
        self._link: Link | None = None

    def applied(self, suite: Suite) -> Suite:
        """See ``bench.run.session.Lab``."""
        return with_links(suite, self._told.rates, self._told.latencies_ms)

    def rates(self) -> Sequence[str]:
        """See ``bench.run.session.Lab``."""
        return self._told.rates

    def description(self) -> Mapping[str, Any]:
        """See ``bench.run.session.Lab``."""
        return {
            "kind": "emulated",
            "hosts": self._told.layout.hosts,
            "ranks_per_host": self._told.ranks_per_host,
            "cores": self._told.cores,
            "links": msgspec.to_builtins(self._told.measured),
        }

    def shape(self, rate: str | None, latency_ms: float | None) -> None:
        """See ``bench.run.hosts.Network``."""
        link = Link(rate=rate, latency_ms=latency_ms)
        if link != self._link:
            self._link = None
            shape(self._told.layout, link)
            self._link = link


def lab_of(environ: Mapping[str, str]) -> Guest | None:
    """The laboratory that this process is in; None for a real host.

    Raises:
        BenchError: the variable does not hold what a laboratory writes.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return None
    try:
        told = msgspec.json.decode(text, type=Told)
    except msgspec.MsgspecError as error:
        raise BenchError(
            f"{VARIABLE} is set by bench lab run, and by nothing else: {error}"
        ) from error
    for name in told.layout.names:
        require_own(name)
    return Guest(told)


def with_links(suite: Suite, rates: Sequence[str], latencies_ms: Sequence[float]) -> Suite:
    """A suite whose cases have these links instead of its own; nothing given leaves them."""
    axes: dict[str, list[Any]] = {}
    if rates:
        axes["link"] = list(rates)
    if latencies_ms:
        axes["latency_ms"] = list(latencies_ms)
    blocks = tuple(msgspec.structs.replace(block, axes=block.axes | axes) for block in suite.blocks)
    return msgspec.structs.replace(suite, blocks=blocks)


def links_of(suite: Suite) -> list[Link]:
    """Every link that a case of a suite may ask for, each once."""
    return list(
        dict.fromkeys(
            Link(rate=rate, latency_ms=latency)
            for block in suite.blocks
            for rate in block.axes.get("link", [None])
            for latency in block.axes.get("latency_ms", [None])
        )
    )
