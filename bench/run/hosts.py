"""Node 0's side of a run on several hosts: tell the others each step, and collect what they found.

The others only follow: they know no plan, and what they measure comes back over their line. A host
that leaves is not waited for again: what needs it fails at once, each case as a row, and what does
not goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bench.errors import Interruption
from bench.run.channel import (
    Ask,
    Clock,
    Done,
    End,
    Go,
    HostFacts,
    Message,
    Order,
    Over,
    Ready,
    Renew,
)
from bench.run.handover import CaseShare, Failure, Node, OtherShare, RankOutcome, Share
from bench.run.peer import Peer

DONE_S = 90.0
"""For a host to hand over what it has once node 0's own ranks have ended: its watch ends its ranks
within seconds, and those that are leaving have a minute."""
ASKED = 5
"""Times that a host's clock is read before a launch: the quickest answer tells most."""
SEE_OFF_S = 3.0
"""For the hosts to hear that the run is over, and to hang up."""
STORE_S = 60.0
AnyShare = TypeVar("AnyShare", CaseShare, OtherShare)
Run = Callable[[AnyShare, Callable[[], bool]], tuple[RankOutcome, ...]]
"""Launches this host's share; the second argument tells whether processes elsewhere have ended."""


class Network(Protocol):
    """What carries the hosts' talk, where it can be set."""

    def shape(self, rate: str | None, latency_ms: float | None) -> None:
        """Make it what a launch asks for, if it is not; see ``Case.link``."""


class Hosts:
    """The hosts of a run.

    Args:
        own: facts of node 0.
        peers: the others, by node rank.
        address: of node 0, as the others reach it.
        interface: of node 0, that leads to them.
        network: what carries their talk, where it can be set.
    """

    def __init__(
        self,
        own: HostFacts,
        peers: Sequence[Peer],
        *,
        address: str,
        interface: str | None,
        network: Network | None = None,
    ) -> None:
        self.own = own
        self.peers = peers
        self._address = address
        self._interface = interface
        self._network = network

    @property
    def facts(self) -> list[HostFacts]:
        """Of all hosts, by node rank."""
        return [self.own, *(peer.facts for peer in self.peers)]

    def renew(self, variables: Mapping[str, str]) -> None:
        """Have the other hosts start new fork servers; each says so with its next launch."""
        for peer in self.peers:
            peer.tell(Renew(variables=dict(variables)))

    def end(self, reason: str, exit_code: int = 0) -> None:
        """Let the other hosts go."""
        for peer in self.peers:
            peer.tell(End(reason=reason, exit_code=exit_code))
        until_s = time.monotonic() + SEE_OFF_S
        for peer in self.peers:
            peer.see_off(until_s)

    def launch(self, share: AnyShare, run: Run[AnyShare]) -> tuple[RankOutcome, ...]:
        """Launch on as many hosts as is asked for; returns the outcomes of all ranks in order.

        Args:
            share: of any host, without its place.
            run: launches node 0's.
        """
        peers = self.peers[: share.nodes - 1]
        if self._network is not None:
            self._network.shape(share.link, share.latency_ms)
        store = open_store() if share.meets else None  # lives until the launch is over
        shares = self._shares(share, None if store is None else store.port)
        offsets = self._prepare(peers, shares)
        if offsets is None:
            _tell(peers, Over(number=share.number))
            reason = next(peer.lost for peer in peers if peer.lost is not None)
            return self._not_started(share, reason)
        _tell(peers, Go(number=share.number))
        own = _run_own(shares[0], peers, run)
        if share.meets:
            _tell(peers, Over(number=share.number))
        outcomes = [msgspec.structs.replace(one, host=self.own.name) for one in own]
        limit_s = DONE_S if share.meets else share.limit_s
        for peer, theirs, offset_s in zip(peers, shares[1:], offsets, strict=True):
            outcomes += _handed_over(peer, theirs, offset_s, limit_s)
        return tuple(outcomes)

    def _shares(self, share: AnyShare, port: int | None) -> list[AnyShare]:
        """What each host is to launch; without a port, its processes meet no others."""
        if port is None:
            return [share] * share.nodes
        places = (
            Node(
                rank=rank,
                nodes=share.nodes,
                address=self._address,
                port=port,
                interface=self._interface if rank == 0 else None,
            )
            for rank in range(share.nodes)
        )
        return [msgspec.structs.replace(share, node=place) for place in places]

    def _prepare(self, peers: Sequence[Peer], shares: Sequence[AnyShare]) -> list[float] | None:
        """Have the hosts get ready; returns how far their clocks are ahead, None if one is lost."""
        for peer, share in zip(peers, shares[1:], strict=True):
            peer.tell(Order(share=share))
        for peer, share in zip(peers, shares[1:], strict=True):
            peer.expect(Ready, share.ready_s, share.number)
        if any(peer.lost is not None for peer in peers):
            return None
        offsets = [_ahead_s(peer) for peer in peers]
        return None if any(peer.lost is not None for peer in peers) else offsets

    def _not_started(self, share: Share, reason: str) -> tuple[RankOutcome, ...]:
        """The outcomes of a launch that could not begin."""
        lost = {peer.rank for peer in self.peers if peer.lost is not None}
        return tuple(
            _missing(rank * share.processes + local, facts.name, reason, is_echo=rank not in lost)
            for rank, facts in enumerate(self.facts[: share.nodes])
            for local in range(share.processes)
        )


def _tell(peers: Sequence[Peer], message: Message) -> None:
    for peer in peers:
        peer.tell(message)


def _run_own(share: AnyShare, peers: Sequence[Peer], run: Run[AnyShare]) -> tuple[RankOutcome, ...]:
    """Launch node 0's share; the others are told where that fails as a whole."""

    def elsewhere() -> bool:
        # Processes that meet no others wait for none, however much sooner those are done.
        return share.meets and any(peer.has_ended(share.number) for peer in peers)

    try:
        return run(share, elsewhere)
    except Interruption:
        raise  # the run ends, and with it everything on all hosts
    except BaseException:
        _tell(peers, Over(number=share.number))
        raise


def open_store() -> TCPStore:
    """A store for one launch, at a port of the system's choice.

    torch's static rendezvous in this process takes it for its own, and hands it to the ranks.
    """
    return TCPStore(
        "localhost",
        0,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timedelta(seconds=STORE_S),
    )


def _ahead_s(peer: Peer) -> float:
    """Seconds by which a host's monotonic clock is ahead of this one's, from the best of answers.

    Half the time of that answer is how far it can be off: Cristian, "Probabilistic clock
    synchronization", 1989.
    """
    best: tuple[float, float] = (float("inf"), 0.0)
    for _ in range(ASKED):
        asked_s = time.monotonic()
        peer.tell(Ask())
        answer = peer.expect(Clock, DONE_S)
        now_s = time.monotonic()
        if answer is None:
            break
        best = min(best, (now_s - asked_s, answer.now_s - (asked_s + now_s) / 2))
    return best[1]


def _handed_over(peer: Peer, share: Share, offset_s: float, limit_s: float) -> list[RankOutcome]:
    """What a host hands over of a launch, or why it does not."""
    done = peer.expect(Done, limit_s, share.number)
    trouble = done.trouble if done is not None else peer.lost
    if done is not None and trouble is None:
        return [on_our_clock(one, peer.name, offset_s) for one in done.outcomes]
    reason = str(trouble) if done is None else f"on host {peer.rank} ({peer.name}): {trouble}"
    return [
        _missing(share.first_rank + local, peer.name, reason) for local in range(share.processes)
    ]


def _missing(rank: int, host: str, reason: str, *, is_echo: bool = False) -> RankOutcome:
    failure = Failure(status="failed", reason=reason, is_of_launch=True, is_echo=is_echo)
    return RankOutcome(rank=rank, host=host, failure=failure)


def on_our_clock(outcome: RankOutcome, host: str, ahead_s: float) -> RankOutcome:
    """A rank's outcome with the times at which something happened as this host's clock has them.

    Args:
        outcome: as its own host's clock has them.
        host: its name.
        ahead_s: how far that clock is ahead of this host's.
    """
    failure, measured = outcome.failure, outcome.measured
    if failure is not None and failure.at_s is not None:
        failure = msgspec.structs.replace(failure, at_s=failure.at_s - ahead_s)
    if measured is not None and measured.began_s is not None and measured.ended_s is not None:
        measured = msgspec.structs.replace(
            measured, began_s=measured.began_s - ahead_s, ended_s=measured.ended_s - ahead_s
        )
    joined_s = outcome.joined_s
    return msgspec.structs.replace(
        outcome,
        host=host,
        failure=failure,
        measured=measured,
        joined_s=None if joined_s is None else joined_s - ahead_s,
    )
