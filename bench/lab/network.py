"""The emulated network: a namespace a host, one for the switch between them, and cables.

Everything is made inside namespaces whose names begin with ``bench-`` and hold the number of the
process that made them. Interfaces are born there, too: no interface, route or queue of the machine
itself is ever touched, and what a crash leaves behind is found by its name.

A link's speed is a token bucket (``tc-tbf``) at both ends of each cable, its latency ``tc-netem``
where packets leave a host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from bench.errors import BenchError, one_line
from bench.plan.case import bytes_per_s

NAME = re.compile(r"bench-(?P<maker>\d+)-(?P<what>h\d+|switch)")
NAMESPACES = Path("/run/netns")
"""Where ``ip netns`` keeps them."""
SLACK_S = 1.0
"""Between the clocks of processes and files."""
PORT = "eth0"
"""A host's own end of its cable; the switch's end has the host's name."""
BRIDGE = "switch"
MOST_HOSTS = 64
LEAST_BURST, BURST_S = 256 * 1024, 0.001
"""Bytes of a token bucket, or as much as the link carries in this time, if that is more: one
segment of 64 KiB must fit, and a timer's slack must not cost speed."""
QUEUE_S = 0.1
"""That a packet may wait in a bucket's queue before it is dropped."""
NETEM_PACKETS = 100_000
"""That may be held back at once: far more than are on the way."""
COMMAND_S = 20.0
GONE_S = 5.0
"""For the processes within a namespace to be gone."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how long a cable is."""

    rate: str | None = None
    """As ``tc`` writes it; None for as fast as it is."""
    latency_ms: float | None = None

    def __str__(self) -> str:
        latency = "" if not self.latency_ms else f", {self.latency_ms:g} ms"
        return f"{self.rate or 'unlimited'}{latency}"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a network's parts."""

    maker: int
    """Process that has made it, and removes it."""
    hosts: int

    def host(self, number: int) -> str:
        """Namespace of a host."""
        return f"bench-{self.maker}-h{number}"

    @property
    def switch(self) -> str:
        """Namespace of what connects them."""
        return f"bench-{self.maker}-switch"

    @property
    def names(self) -> list[str]:
        """All namespaces."""
        return [self.switch, *(self.host(number) for number in range(self.hosts))]


def address_of(host: int) -> str:
    """Address of a host on its cable, the same in every laboratory: none can see another.

    >>> address_of(0), address_of(1)
    ('10.0.0.1', '10.0.0.2')
    """
    return f"10.0.0.{host + 1}"


def building(layout: Layout) -> Iterator[tuple[str, ...]]:
    """The commands that make a network, in order."""
    for name in layout.names:
        yield ("ip", "netns", "add", name)
        yield ("ip", "-n", name, "link", "set", "lo", "up")
    switch = layout.switch
    yield ("ip", "-n", switch, "link", "add", BRIDGE, "type", "bridge")
    yield ("ip", "-n", switch, "link", "set", BRIDGE, "up")
    for number in range(layout.hosts):
        host, end = layout.host(number), f"h{number}"
        cable = ("type", "veth", "peer", "name", PORT, "netns", host)
        yield ("ip", "-n", switch, "link", "add", end, *cable)
        yield ("ip", "-n", switch, "link", "set", end, "master", BRIDGE, "up")
        yield ("ip", "-n", host, "addr", "add", f"{address_of(number)}/24", "dev", PORT)
        yield ("ip", "-n", host, "link", "set", PORT, "up")


def shaping(layout: Layout, link: Link) -> Iterator[tuple[str, ...]]:
    """The commands that make every cable, which has no limit yet, as fast and as long as asked."""
    ends = [(layout.host(number), PORT) for number in range(layout.hosts)]
    ends += [(layout.switch, f"h{number}") for number in range(layout.hosts)]
    for name, device in ends:
        place: tuple[str, ...] = ("root",)
        if link.rate is not None:
            burst = max(LEAST_BURST, round(bytes_per_s(link.rate) * BURST_S))
            bucket = ("tbf", "rate", link.rate, "burst", f"{burst}", "latency", f"{QUEUE_S}s")
            yield ("tc", "-n", name, "qdisc", "add", "dev", device, *place, "handle", "1:", *bucket)
            place = ("parent", "1:1")
        if link.latency_ms and device == PORT:
            delay = ("netem", "delay", f"{link.latency_ms:g}ms", "limit", f"{NETEM_PACKETS}")
            yield ("tc", "-n", name, "qdisc", "add", "dev", device, *place, *delay)


def unshaping(layout: Layout) -> Iterator[tuple[str, ...]]:
    """The commands that take all limits off; one fails where there is none."""
    for number in range(layout.hosts):
        for name, device in ((layout.host(number), PORT), (layout.switch, f"h{number}")):
            yield ("tc", "-n", name, "qdisc", "del", "dev", device, "root")


def shape(layout: Layout, link: Link) -> None:
    """Make every cable as fast and as long as asked.

    Raises:
        BenchError: the kernel cannot.
    """
    for command in unshaping(layout):
        carry_out(command, may_fail=True)
        _require_unlimited(command)
    for command in shaping(layout, link):
        try:
            carry_out(command)
        except BenchError as error:
            if "netem" in command:
                raise BenchError(
                    f"this kernel cannot hold packets back: {error}; it needs netem (module "
                    "sch_netem), so leave latency_ms out"
                ) from error
            raise


def _require_unlimited(command: Sequence[str]) -> None:
    """Taking a limit off fails where there is none, and may fail where there is one.

    Raises:
        BenchError: there still is one.
    """
    place = (*command[:4], "show", *command[5:7])
    left = carry_out(place)
    if "tbf" in left or "netem" in left:
        raise BenchError(f"{' '.join(command)}: the limit is still there: {one_line(left)}")


@contextlib.contextmanager
def network(layout: Layout) -> Iterator[Layout]:
    """Build a network, and remove it, whatever happens meanwhile.

    Raises:
        BenchError: a tool or a right is missing; nothing is left behind.
    """
    try:
        for command in building(layout):
            carry_out(command)
        yield layout
    except BaseException:
        with contextlib.suppress(BenchError):  # what has ended it is what is told
            remove_all(name for name in layout.names if name in existing())
        raise
    remove_all(name for name in layout.names if name in existing())


def carry_out(command: Sequence[str], *, may_fail: bool = False) -> str:
    """Run a command of ``ip`` or ``tc`` on one of our namespaces; returns what it prints.

    Raises:
        BenchError: it failed, in its words.
    """
    require_own(command[2] if command[1] == "-n" else command[3])
    try:
        done = subprocess.run(  # noqa: S603 - ip or tc, with arguments of our own
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{' '.join(command)}: {error}") from error
    if done.returncode and not may_fail:
        raise BenchError(f"{' '.join(command)}: {one_line(done.stderr) or 'it failed'}")
    return done.stdout


def require_own(name: str) -> None:
    """Nothing is done in a namespace that no laboratory has made.

    Raises:
        BenchError: its name is none of ours.
    """
    if not NAME.fullmatch(name):
        raise BenchError(f"{name} is none of our namespaces")


def missing() -> str | None:
    """What is missing here for a laboratory, in words; None where it can be built."""
    if sys.platform != "linux":
        return "it is made of Linux network namespaces, which this system has not"
    if os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    absent = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if absent:
        return f"it needs {' and '.join(absent)}, of the package iproute2"
    return None


def existing() -> dict[str, int]:
    """Namespaces of any laboratory, with the process that made each."""
    found = (NAME.fullmatch(path.name) for path in NAMESPACES.glob("bench-*"))
    return {one[0]: int(one["maker"]) for one in found if one is not None}


def abandoned() -> list[str]:
    """Those whose maker is gone."""
    return [name for name, maker in existing().items() if not _is_at_work(maker, name)]


def _is_at_work(maker: int, name: str) -> bool:
    """Whether the process that made a namespace is there; one of its number may have come later."""
    try:
        made_s = (NAMESPACES / name).stat().st_mtime
        process = psutil.Process(maker)
        if process.create_time() <= made_s + SLACK_S:
            return True
        # When it began is counted from when the machine did, which a clock set forward moves.
        return any("bench" in word for word in process.cmdline())
    except (OSError, psutil.Error):
        return False


def remove(name: str) -> None:
    """End what runs within a namespace, and remove it with all that is in it.

    Raises:
        BenchError: the system does not let us.
    """
    until_s = time.monotonic() + GONE_S
    while pids := [int(word) for word in carry_out(("ip", "netns", "pids", name)).split()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until_s:
            break  # what cannot be killed keeps the namespace, without its name
        time.sleep(0.05)
    carry_out(("ip", "netns", "delete", name))


def remove_all(names: Iterable[str]) -> None:
    """Remove each, although another may not be removed.

    Raises:
        BenchError: some are still there, with the reason of each.
    """
    problems = []
    for name in names:
        try:
            remove(name)
        except BenchError as error:
            problems.append(str(error))
    if problems:
        raise BenchError("; ".join(problems))
