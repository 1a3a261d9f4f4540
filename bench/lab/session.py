"""A run in the laboratory: build the network, measure it, start a host in each namespace, tidy up.

Each host is ``bench run`` as on a machine of its own, and finds the others as there. The laboratory
only starts them, passes signals on, and removes what it has made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.errors import BenchError, Interruption, one_line, plural
from bench.lab.guest import VARIABLE, Told
from bench.lab.host import Start
from bench.lab.network import (
    MOST_HOSTS,
    Layout,
    Link,
    abandoned,
    address_of,
    missing,
    network,
    remove_all,
    shape,
)
from bench.lab.rate import Measured, measure
from bench.measure.cores import usable_cores
from bench.run.progress import Lines
from bench.run.rendezvous import HOST_NAME, PORT
from bench.run.signals import signals_raise

OUTSIDE = ("GLOO_SOCKET_IFNAME", "TORCHELASTIC_", "SLURM_")
"""Beginnings of names of variables that mean nothing to an emulated host."""
POLL_S = 0.2
LEAVE_S = 20.0
"""For the other hosts to leave once node 0 has ended."""
TIDY_S = 60.0
"""For node 0 to write its report when it was interrupted."""
JOIN_S = 300
"""For all hosts to come: each imports torch, on a machine that they share."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a laboratory is to be."""

    hosts: int
    ranks_per_host: int
    rates: tuple[str, ...] = ()
    """Instead of the suite's own links."""
    latencies_ms: tuple[float, ...] = ()


def run_lab(
    wish: Wish,
    links: Sequence[Link],
    arguments: Sequence[str],
    *,
    scratch: Path,
    progress: Lines,
    cores_per_device: int = 1,
) -> int:
    """Run a command on emulated hosts; returns the exit code of node 0.

    Args:
        wish: of the laboratory.
        links: that will be asked for, to be measured.
        arguments: of the command line of every host; only where they meet is added.
        scratch: private folder, for what the other hosts write.
        progress: for people.
        cores_per_device: of the suite.

    Raises:
        BenchError: something is missing here; nothing is left behind.
        Interruption: a signal arrived before node 0 was there to hear of it.
    """
    check(wish)
    try:
        remove_all(abandoned())
    except BenchError as error:  # an earlier one's, which this one does not need
        progress.say(f"warning: of an earlier laboratory something is left: {error}")
    layout = Layout(maker=os.getpid(), hosts=wish.hosts)
    with signals_raise(), network(layout):
        measured = _measure(layout, links)
        for one in measured:
            progress.say(words_of(one))
        usable = usable_cores()
        told = Told(
            layout=layout,
            ranks_per_host=wish.ranks_per_host,
            cores=len(usable),
            rates=wish.rates,
            latencies_ms=wish.latencies_ms,
            measured=tuple(measured),
        )
        cores = cores_of(wish, cores_per_device, usable)
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(_host(number, told, cores[number], arguments, scratch))
                for number in range(wish.hosts)
            ]
            code = _wait(started)
        for number in range(1, wish.hosts):
            _report(number, started[number].returncode, _log(scratch, number), progress)
    return code


def check(wish: Wish) -> None:
    """Refuse what cannot be built.

    Raises:
        BenchError: what is missing, or too much, in one line.
    """
    lack = missing()
    if lack is not None:
        raise BenchError(f"no laboratory here: {lack}")
    if not 2 <= wish.hosts <= MOST_HOSTS:
        raise BenchError(f"--hosts {wish.hosts}: a laboratory has 2 to {MOST_HOSTS}")


def cores_of(wish: Wish, cores_per_device: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Cores of each host: sets of their own, from the first again when they run out.

    Args:
        wish: of the laboratory.
        cores_per_device: of the suite.
        cores: of this machine.

    Raises:
        BenchError: one host alone needs more than there are.

    >>> cores_of(Wish(hosts=3, ranks_per_host=1), 1, [4, 5])
    [(4,), (5,), (4,)]
    """
    each = wish.ranks_per_host * cores_per_device
    if each > len(cores):
        raise BenchError(
            f"{plural(wish.ranks_per_host, 'rank')} a host, of {plural(cores_per_device, 'core')} "
            f"each, need {each} cores; this machine has {len(cores)}"
        )
    sets = [tuple(cores[at : at + each]) for at in range(0, len(cores) - each + 1, each)]
    return [sets[number % len(sets)] for number in range(wish.hosts)]


def words_of(measured: Measured) -> str:
    """What a link carries, for people."""
    one_way, both = (
        f"{rate * 8 / 1e6:,.0f}"
        for rate in (measured.one_way_bytes_per_s, measured.both_ways_bytes_per_s)
    )
    return (
        f"link {measured.link}: {one_way} Mbit/s one way, {both} Mbit/s each when both are used, "
        f"a round trip {measured.round_trip_s * 1e3:.3g} ms"
    )


def _measure(layout: Layout, links: Sequence[Link]) -> list[Measured]:
    found: list[Measured] = []
    for link in links:
        shape(layout, link)
        try:
            found.append(measure(layout, link))
        except OSError as error:
            raise BenchError(f"the laboratory's link {link} carries nothing: {error}") from error
    shape(layout, Link())
    return found


def _log(scratch: Path, number: int) -> Path:
    return scratch / f"h{number}.log"


@contextlib.contextmanager
def _host(
    number: int, told: Told, cores: tuple[int, ...], arguments: Sequence[str], scratch: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A host as a process, which does not outlive this one."""
    meeting = (
        *("--nnodes", f"{told.layout.hosts}", "--node-rank", f"{number}"),
        *("--rdzv-endpoint", f"{address_of(0)}:{PORT}"),
        *("--rdzv-id", f"{told.layout.maker}", "--rdzv-conf", f"join_timeout={JOIN_S}"),
    )
    start = Start(
        parent=os.getpid(),
        namespace=told.layout.host(number),
        cores=cores,
        arguments=(*arguments, *meeting),
    )
    environment = outside(os.environ) | {
        VARIABLE: msgspec.json.encode(told).decode(),
        HOST_NAME: f"h{number}",
        "CUDA_VISIBLE_DEVICES": "",  # it would be the same device on all hosts
    }
    with _log(scratch, number).open("wb") as log:
        host = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "bench.lab.host", msgspec.json.encode(start).decode()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if number == 0 else log,
            stderr=None if number == 0 else log,
            start_new_session=True,  # Ctrl-C comes to this process alone, which passes it on
        )
    try:
        yield host
    finally:
        if host.poll() is None:
            host.kill()
        host.wait()


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that speak of the real network, or of a launcher around this process.

    >>> outside({"HOME": "/root", "GLOO_SOCKET_IFNAME": "ens3", "SLURM_STEP_NUM_NODES": "2"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environ.items() if not name.startswith(OUTSIDE)}


def _wait(hosts: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until node 0 has ended, and the others had time to; a signal goes to node 0."""
    first = hosts[0]
    try:
        while first.poll() is None:
            time.sleep(POLL_S)
    except Interruption as error:
        first.send_signal(error.signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(TIDY_S)
        if first.poll() is None:
            raise
    until_s = time.monotonic() + LEAVE_S
    while any(host.poll() is None for host in hosts) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    code = first.wait()
    return code if code >= 0 else 128 - code


def _report(number: int, code: int, log: Path, progress: Lines) -> None:
    """Say what another host had to say, if it did not end well."""
    if code == 0:
        return
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    progress.say(f"h{number} ended with {how}: {one_line(lines[-1]) if lines else 'no words'}")


def clean() -> list[str]:
    """Remove what laboratories have left whose process is gone; returns the names.

    Raises:
        BenchError: something is missing here.
    """
    lack = missing()
    if lack is not None:
        raise BenchError(f"no laboratory here: {lack}")
    found = abandoned()
    remove_all(found)
    return found
