"""How the hosts of a run find each other, and make sure that they are alike."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bench.errors import BenchError, Interruption, in_words, one_line
from bench.run.alike import differences
from bench.run.channel import (
    GREET_S,
    GREETING,
    Channel,
    End,
    Hello,
    HostFacts,
    LeftError,
    Refusal,
    Welcome,
    connect,
    listen,
)
from bench.run.hosts import Hosts, Network
from bench.run.loopback import interface_of
from bench.run.peer import Peer
from bench.run.rendezvous import Rendezvous

TOLD = "bench/port"
"""Key of torchrun's store under which the port stands."""
LOOK_S = 0.5
"""Between two looks at those who have come."""


@contextlib.contextmanager
def meeting(
    rendezvous: Rendezvous,
    own: HostFacts,
    say: Callable[[str], None],
    network: Network | None = None,
) -> Iterator[Hosts]:
    """Node 0: wait for the others; let them go in the end, whatever that is.

    Args:
        rendezvous: where they meet.
        own: facts of this host.
        say: tells people.
        network: see ``Hosts``.

    Raises:
        BenchError: some have not come in time, or are unlike; those who came have been told.
    """
    with listen(rendezvous.port) as server:
        port = server.getsockname()[1]
        if rendezvous.told_by is not None:
            _torchrun_store(rendezvous).set(TOLD, str(port))
        say(f"node 0 of {rendezvous.nodes}: waiting at {rendezvous.host}:{port}")
        gathering = _Gathering(rendezvous, own, say)
        peers = gathering.until_all_are_there(server)
    hosts = Hosts(
        own,
        peers,
        address=rendezvous.host,
        interface=interface_of(peers[0].channel.local_address),
        network=network,
    )
    try:
        yield hosts
    except BenchError as error:
        hosts.end(f"node 0 gave up: {error}", error.exit_code)
        raise
    except Interruption as error:
        hosts.end(f"stopped by {error}", error.exit_code)
        raise
    except BaseException as error:
        hosts.end(f"node 0 failed: {in_words(error)}", 1)
        raise
    else:
        hosts.end("complete")


class _Gathering:
    """Those who have come so far."""

    def __init__(self, rendezvous: Rendezvous, own: HostFacts, say: Callable[[str], None]) -> None:
        self._rendezvous = rendezvous
        self._own = own
        self._say = say
        self._peers: dict[int, Peer] = {}

    def until_all_are_there(self, server: socket.socket) -> list[Peer]:
        """The other hosts, by node rank; each has been welcomed.

        Raises:
            BenchError: see ``meeting``.
        """
        try:
            self._wait(server)
            self._compare()
        except BaseException as error:
            reason = str(error) if isinstance(error, BenchError) else in_words(error)
            for peer in self._peers.values():
                peer.tell(Refusal(reason=reason))
                peer.channel.close()
            raise
        for peer in self._peers.values():
            peer.tell(Welcome())
        return [self._peers[rank] for rank in sorted(self._peers)]

    def _wait(self, server: socket.socket) -> None:
        wanted, patience_s = self._rendezvous.nodes - 1, self._rendezvous.join_timeout_s
        until_s = time.monotonic() + patience_s
        while len(self._peers) < wanted:
            if time.monotonic() >= until_s:
                missing = [r for r in range(1, wanted + 1) if r not in self._peers]
                raise BenchError(
                    f"{len(self._peers) + 1} of {wanted + 1} hosts came within {patience_s:g} s; "
                    f"missing: node {', '.join(map(str, missing))}"
                )
            lines = [peer.channel.connection for peer in self._peers.values()]
            if server in connection.wait([server, *lines], LOOK_S):
                self._greet(Channel(server.accept()[0]))
            for rank, peer in list(self._peers.items()):
                peer.look()
                if peer.lost is not None:
                    self._say(f"{peer.lost}; waiting for it again")
                    del self._peers[rank]

    def _greet(self, channel: Channel) -> None:
        try:
            with channel.no_longer_than(GREET_S):
                hello = channel.receive(GREET_S, longest=GREETING)
        except LeftError:  # anybody may connect to a port
            hello = None
        if not isinstance(hello, Hello):
            channel.close()
            return
        reason = self._objection(hello)
        if reason is not None:
            with contextlib.suppress(LeftError):
                channel.send(Refusal(reason=reason))
            channel.close()
            self._say(f"turned {one_line(hello.facts.name)} away: {one_line(reason)}")
            return
        name = one_line(hello.facts.name)
        taken = {self._own.name, *(peer.name for peer in self._peers.values())}
        facts = msgspec.structs.replace(
            hello.facts, name=f"{name}#{hello.node_rank}" if name in taken else name
        )
        self._peers[hello.node_rank] = Peer(hello.node_rank, facts, channel)
        self._say(f"node {hello.node_rank} has come: {facts.name}")

    def _objection(self, hello: Hello) -> str | None:
        """Why a host is not one of this run's."""
        ours = self._rendezvous
        if hello.id != ours.id:
            return f"node 0 has --rdzv-id {ours.id}, this host {hello.id}"
        if hello.nodes != ours.nodes:
            return f"node 0 has --nnodes {ours.nodes}, this host {hello.nodes}"
        if not 1 <= hello.node_rank < ours.nodes:
            return f"--node-rank {hello.node_rank} is none of the other hosts' of {ours.nodes}"
        if hello.node_rank in self._peers:
            return f"--node-rank {hello.node_rank} is taken by {self._peers[hello.node_rank].name}"
        return None

    def _compare(self) -> None:
        found = [
            one
            for rank in sorted(self._peers)
            for one in differences(self._own, self._peers[rank].facts)
        ]
        if found:
            raise BenchError(f"the hosts differ: {'; '.join(found)}")


def join(rendezvous: Rendezvous, own: HostFacts, say: Callable[[str], None]) -> Channel:
    """Another node than 0: find it, and be welcomed.

    Raises:
        BenchError: node 0 does not answer, or cannot have this host, or not all have come.
    """
    host, port = rendezvous.host, rendezvous.port
    if rendezvous.told_by is not None:
        port = int(_torchrun_store(rendezvous).get(TOLD))
    say(f"node {rendezvous.node_rank} of {rendezvous.nodes}: joining node 0 at {host}:{port}")
    channel = connect(host, port, rendezvous.join_timeout_s)
    try:
        channel.send(
            Hello(
                id=rendezvous.id,
                nodes=rendezvous.nodes,
                node_rank=rendezvous.node_rank,
                facts=own,
            )
        )
        answer = _answer(channel, 2 * rendezvous.join_timeout_s)
    except LeftError as error:
        raise BenchError(f"node 0 at {host}:{port} hung up: {error}") from error
    if isinstance(answer, Welcome):
        return channel
    channel.close()
    if isinstance(answer, Refusal | End):
        raise BenchError(answer.reason)
    raise BenchError(f"node 0 at {host}:{port} does not say that all hosts are there")


def _answer(channel: Channel, patience_s: float) -> Any:
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        message = channel.receive(LOOK_S)
        if message is not None:
            return message
    return None


def _torchrun_store(rendezvous: Rendezvous) -> TCPStore:
    """The store that torchrun has opened for the processes that it starts.

    Raises:
        BenchError: it does not answer.
    """
    assert rendezvous.told_by is not None
    host, port = rendezvous.told_by
    try:
        return TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=rendezvous.join_timeout_s)
        )
    except RuntimeError as error:
        raise BenchError(f"torchrun's store at {host}:{port} does not answer") from error
