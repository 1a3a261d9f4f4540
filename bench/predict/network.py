"""What a collective costs among any number of ranks on any number of hosts.

On one host: the curve of as many ranks, where there is one; else that of the nearest number, with
each step of the ring kept as it is, over chunks of equal size:
``t_n(S) = (n - 1) / (m - 1) x t_m(m S / n)``, exact for latency and for bandwidth (Thakur et al.,
"Optimization of Collective Communication Operations in MPICH", 2005). Without a curve: a start-up
time, a latency for each step, and bytes over the bus bandwidth, as NCCL's own tuning model has it
(nccl, src/graph/tuning.cc).

Between hosts a ring crosses each host's link in either direction once, so that ranks of a host
share it: ``2 (h - 1) / h x S`` for an all-reduce among h hosts, at the rate of the host's link.
Chunks go through both levels at the same time (NCCL's rings and trees are pipelines), so that the
slower level decides, and latencies add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from bench.errors import BenchError
from bench.measure.collectives import bus_factor
from bench.predict.curve import Curve, Timed

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Times (n - 1): steps of a ring. Others send once, and pass it on (n - 1) times."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Links of one kind: those within a host, or those between hosts."""

    bus_bytes_per_s: float
    """Of one device within a host; of a whole host between hosts."""
    latency_s: float
    """Of one step from a device to the next, or a host to the next."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """What collectives go over."""

    name: str
    within: Level | None = None
    """None where curves say it all."""
    between: Level | None = None
    """None for what has one host only."""
    start_s: float = 0.0
    """Of any collective, before its first step."""
    curves: Mapping[tuple[str, int], Timed] = {}
    """By operation and ranks: of one host, or of one rank on each of several."""
    half_of_all_reduce: bool = True
    """Whether an all-gather or a reduce-scatter without a curve takes half of an all-reduce, as in
    a ring. gloo's reduce-scatter takes as long as its all-reduce."""
    over_hosts: bool = False
    """Whether the curves' ranks are on a host each, so that they hold between hosts."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of a group are."""

    hosts: int
    per_host: int

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.per_host


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one call."""

    alone_s: float
    in_row_s: float


def cost(network: Network, op: str, size: float, places: Places) -> Cost:
    """What one collective costs.

    Args:
        network: that carries it.
        op: as ``bench comm`` names it, or ``reduce``; of another type than fp32, ``op:dtype``,
            which is taken for as many bytes of fp32 where that type was not measured.
        size: bytes as nccl-tests counts them.
        places: of the ranks.

    Raises:
        BenchError: the network is not known to reach several hosts.
    """
    if not any(name == op for name, _ in network.curves):
        op = op.partition(":")[0]
    if places.ranks == 1 or size <= 0:
        return Cost(alone_s=0.0, in_row_s=0.0)
    if places.hosts == 1 or (network.over_hosts and places.per_host == 1):
        return _flat(network, op, size, places.ranks)
    between = network.between
    if between is None:
        raise BenchError(
            f"{network.name}: nothing is known of links between hosts; name them, as in "
            f"'{network.name} + 100 Gbit/s'"
        )
    inner = _flat(network, op, size, places.per_host)
    name = op.partition(":")[0]
    wire_s = (bus_factor(name, places.hosts) or 0.0) * size / between.bus_bytes_per_s
    # A tree of hosts: there and back, as deep as the logarithm of their number.
    hops = ROUNDS.get(name, 1) * math.ceil(math.log2(places.hosts))
    latency_s = hops * between.latency_s + (network.start_s if places.per_host == 1 else 0.0)
    return Cost(
        alone_s=max(inner.alone_s, wire_s) + latency_s,
        in_row_s=max(inner.in_row_s, wire_s) + latency_s,
    )


def _flat(network: Network, op: str, size: float, ranks: int) -> Cost:
    """Among ranks that all have the same links."""
    if ranks == 1:
        return Cost(alone_s=0.0, in_row_s=0.0)
    known, factor = _nearest(network, op, ranks)
    if known is not None:
        timed, of_ranks = known
        return Cost(
            alone_s=factor * _as_ring(timed.alone, size, ranks, of_ranks),
            in_row_s=factor * _as_ring(timed.in_row, size, ranks, of_ranks),
        )
    level = network.within
    if level is None:
        raise BenchError(f"{network.name}: no curve of {op}, and no rate of its links")
    steps = ROUNDS.get(op, 1) * (ranks - 1)
    seconds = (
        network.start_s
        + steps * level.latency_s
        + (bus_factor(op, ranks) or 0.0) * size / level.bus_bytes_per_s
    )
    return Cost(alone_s=seconds, in_row_s=seconds)


def _nearest(network: Network, op: str, ranks: int) -> tuple[tuple[Timed, int] | None, float]:
    """The curve to use, with its number of ranks, and what its times are multiplied with."""
    own = {of: timed for (name, of), timed in network.curves.items() if name == op}
    factor = 1.0
    if not own and network.half_of_all_reduce and ROUNDS.get(op) == 1:
        own = {of: timed for (name, of), timed in network.curves.items() if name == "all_reduce"}
        factor = 0.5
    elif not own and op == "reduce":  # a broadcast the other way round
        own = {of: timed for (name, of), timed in network.curves.items() if name == "broadcast"}
    if not own:
        return None, 1.0
    nearest = min(own, key=lambda of: (abs(math.log(of / ranks)), of))
    return (own[nearest], nearest), factor


def _as_ring(curve: Curve, size: float, ranks: int, of_ranks: int) -> float:
    """What a curve of some ranks says of another number of them.

    >>> round(_as_ring(Curve(bytes=(1, 800), seconds=(7.0, 7.0)), 100, 4, 8), 9)
    3.0
    """
    if ranks == of_ranks:
        return curve.at(size)
    return (ranks - 1) / (of_ranks - 1) * curve.at(size * of_ranks / ranks)
