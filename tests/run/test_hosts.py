"""Node 0 and another host, as two threads that talk over a real socket; no process is started."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import BenchError
from bench.plan.case import Machine
from bench.run.alike import differences
from bench.run.channel import (
    Ask,
    Channel,
    Clock,
    Done,
    End,
    Go,
    HostFacts,
    LeftError,
    Order,
    Ready,
    connect,
)
from bench.run.culprit import fault_of, find_culprit, reason_of
from bench.run.follow import Follower, LostNodeError
from bench.run.handover import Failure, Measured, OtherShare, RankOutcome
from bench.run.hosts import Hosts, on_our_clock
from bench.run.meet import join, meeting
from bench.run.peer import Peer
from bench.run.rendezvous import Rendezvous
from tests.fakes import TWO_CORES

Run = Callable[[Any, OtherShare, Callable[[], bool]], tuple[RankOutcome, ...]]


def facts(name: str = "a", **changed: Any) -> HostFacts:
    told: dict[str, Any] = {
        "name": name,
        "versions": {"torch": "2.14.1", "python": "3.11"},
        "source": "s",
        "suite": "q",
        "machine": TWO_CORES,
    }
    return HostFacts(**told | changed)


def rendezvous(rank: int, port: int = 0, **changed: Any) -> Rendezvous:
    told: dict[str, Any] = {"nodes": 2, "host": "127.0.0.1", "join_timeout_s": 20.0}
    return Rendezvous(node_rank=rank, port=port, **told | changed)


class Meeting:
    """Two hosts that have met: node 0 in this thread, the other in one of its own."""

    def __init__(self, run: Run, **changed: Any) -> None:
        self.said: list[str] = []
        self.end: End | None = None
        self.error: BenchError | None = None
        self._run = run
        self._changed = changed
        self._port = threading.Event()
        self.thread = threading.Thread(target=self._other)

    def say(self, text: str) -> None:
        self.said.append(text)
        self._port.set()

    @property
    def port(self) -> int:
        assert self._port.wait(10)
        return int(self.said[0].rpartition(":")[2])

    def _other(self) -> None:
        try:
            told = {"name": "b"} | self._changed
            channel = join(rendezvous(1, self.port), facts(**told), lambda _: None)
            launcher: Any = SimpleNamespace(renew=lambda _: None)
            self.end = Follower(channel, launcher, self._run).follow()
        except BenchError as error:
            self.error = error


def share(number: int = 1, **changed: Any) -> OtherShare:
    told: dict[str, Any] = {"nodes": 2, "processes": 1, "ready_s": 10.0, "limit_s": 10.0}
    return OtherShare(number=number, content="", **told | changed)


def ran(_: Any, share: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
    del elsewhere
    return (RankOutcome(rank=share.first_rank, joined_s=time.monotonic()),)


def own(share: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
    return ran(None, share, elsewhere)


def until_elsewhere(elsewhere: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not elsewhere():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.fixture(params=[ran])
def met(request: pytest.FixtureRequest) -> Iterator[tuple[Meeting, Hosts]]:
    meeting_ = Meeting(request.param)
    meeting_.thread.start()
    with meeting(rendezvous(0), facts(), meeting_.say) as hosts:
        yield meeting_, hosts
    meeting_.thread.join(10)
    assert not meeting_.thread.is_alive()


def test_both_hosts_launch_and_node_0_has_all_outcomes(met: tuple[Meeting, Hosts]) -> None:
    _, hosts = met
    begin = time.monotonic()
    outcomes = hosts.launch(share(), own)
    assert [(one.rank, one.host) for one in outcomes] == [(0, "a"), (1, "b")]
    for one in outcomes:  # both threads have one clock
        assert one.joined_s is not None
        assert begin < one.joined_s < time.monotonic() + 0.01


def test_where_ranks_meet_no_others_nobody_ends_them_for_being_slower(
    met: tuple[Meeting, Hosts],
) -> None:
    _, hosts = met
    (peer,) = hosts.peers

    def slower(share: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
        until_elsewhere(lambda: peer.has_ended(share.number))
        assert not elsewhere()
        return own(share, elsewhere)

    assert len(hosts.launch(share(meets=False), slower)) == 2


def test_the_end_is_told(met: tuple[Meeting, Hosts]) -> None:
    meeting_, hosts = met
    hosts.end("complete")
    meeting_.thread.join(10)
    assert meeting_.end == End(reason="complete")


def fails(*_: Any) -> tuple[RankOutcome, ...]:
    raise OSError("no handle left")


@pytest.mark.parametrize("met", [fails], indirect=True)
def test_a_host_that_cannot_launch_is_a_fault_and_stays(met: tuple[Meeting, Hosts]) -> None:
    _, hosts = met

    def waits(_: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
        until_elsewhere(elsewhere)
        return (RankOutcome(rank=0, failure=Failure(status="failed", reason="x", is_echo=True)),)

    for number in (1, 2):
        outcomes = hosts.launch(share(number), waits)
        culprit = find_culprit(outcomes)
        assert culprit is not None
        assert reason_of(culprit, outcomes) == "on host 1 (b): OSError: no handle left"
        assert fault_of(culprit, outcomes).host == "b"


def waits(_: Any, share: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
    until_elsewhere(elsewhere)
    return ran(_, share, elsewhere)


@pytest.mark.parametrize("met", [waits], indirect=True)
def test_where_node_0_fails_as_a_whole_the_others_do_not_wait(met: tuple[Meeting, Hosts]) -> None:
    _, hosts = met

    def breaks(*_: Any) -> tuple[RankOutcome, ...]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hosts.launch(share(1), breaks)
    assert len(hosts.launch(share(2), own)) == 2, "what is over is not taken for the next"


def test_a_stranger_who_sends_byte_by_byte_does_not_keep_hosts_from_meeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.run.meet.GREET_S", 0.5)
    other, sent = Meeting(ran), 0
    have_met = threading.Event()

    def send_slowly() -> None:
        nonlocal sent
        with socket.create_connection(("127.0.0.1", other.port), 5) as line:
            other.thread.start()
            with contextlib.suppress(OSError):  # until it is cut off
                while not have_met.wait(0.05):
                    line.send(b"\0\0\1\0"[sent : sent + 1] or b"x")
                    sent += 1

    stranger = threading.Thread(target=send_slowly)
    stranger.start()
    with meeting(rendezvous(0), facts(), other.say) as hosts:
        have_met.set()
        assert len(hosts.launch(share(), own)) == 2
    for thread in (stranger, other.thread):
        thread.join(10)
        assert not thread.is_alive()
    assert 4 < sent < 100, "its message had begun"


def connected() -> tuple[Peer, Channel]:
    """Node 0's view of a host, and that host's end of the line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = connect("127.0.0.1", server.getsockname()[1], 5)
        here = Channel(server.accept()[0])
    return Peer(1, facts("b"), here), there


def hosts_with(peer: Peer) -> Hosts:
    return Hosts(facts(), [peer], address="127.0.0.1", interface=None)


def test_a_host_that_left_costs_what_needs_it_and_no_time() -> None:
    peer, there = connected()
    there.close()
    hosts = hosts_with(peer)
    for number in (1, 2):
        outcomes = hosts.launch(share(number), own)
        culprit = find_culprit(outcomes)
        assert culprit is not None
        assert reason_of(culprit, outcomes) == (
            "host 1 (b) left the run: its process ended or was killed"
        )
        assert fault_of(culprit, outcomes).host == "b"


def test_a_host_that_leaves_meanwhile_ends_the_waiting() -> None:
    peer, there = connected()

    def leaves() -> None:
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            match there.receive(0.1):
                case Order():
                    there.send(Ready(number=1))
                    break
        peer_clock(there)
        there.close()

    def peer_clock(channel: Channel) -> None:
        while True:
            match channel.receive(0.1):
                case Ask():
                    channel.send(Clock(now_s=time.monotonic()))
                case Go():
                    return

    def waits(share: OtherShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
        until_elsewhere(elsewhere)
        return own(share, elsewhere)

    thread = threading.Thread(target=leaves)
    thread.start()
    outcomes = hosts_with(peer).launch(share(), waits)
    thread.join()
    assert [one.failure is None for one in outcomes] == [True, False]


def test_a_host_that_says_nothing_is_given_up() -> None:
    peer, there = connected()
    outcomes = hosts_with(peer).launch(share(ready_s=0.2), own)
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.reason == "host 1 (b) left the run: it gave no sign for 0.2 s"
    assert isinstance(there.receive(5), Order)
    with pytest.raises(LeftError):  # its line is closed
        there.receive(5)


def test_answers_to_what_is_over_are_dropped() -> None:
    peer, there = connected()
    there.send(Done(number=1))
    there.send(Ready(number=2))
    assert peer.expect(Ready, 5, 2) == Ready(number=2)
    there.close()


def test_node_0_that_leaves_ends_the_others() -> None:
    peer, there = connected()
    launcher: Any = SimpleNamespace()
    peer.channel.close()
    with pytest.raises(LostNodeError, match="node 0 left the run: its process ended"):
        Follower(there, launcher).follow()


def test_times_are_put_on_one_clock() -> None:
    measured = Measured(
        first_step_s=None, warmup_step_s=[], step_s=[1.0], phase_s={}, window_s=1.0,
        block_steps=1, stopped_by="min_steps", began_s=105.0, ended_s=106.0,
    )  # fmt: skip
    theirs = RankOutcome(
        rank=1,
        joined_s=104.0,
        measured=measured,
        failure=Failure(status="failed", reason="x", at_s=107.0),
    )
    ours = on_our_clock(theirs, "b", 100.0)
    assert (ours.host, ours.joined_s) == ("b", 4.0)
    assert ours.measured is not None
    assert (ours.measured.began_s, ours.measured.ended_s) == (5.0, 6.0)
    assert ours.measured.window_s == 1.0
    assert ours.failure is not None
    assert ours.failure.at_s == 7.0


def test_hosts_that_differ() -> None:
    other = facts(
        "b",
        versions={"torch": "2.13.0", "python": "3.12"},
        suite="other",
        machine=Machine(cores=(0, 1, 2)),
    )
    assert differences(facts(), other) == [
        "torch 2.14.1 on a, 2.13.0 on b",
        "the suite q on a, other on b",
        "2 cores on a, 3 cores on b",
    ]
    assert differences(facts(), facts("b")) == []


def test_unlike_hosts_end_in_the_same_words_on_both() -> None:
    other = Meeting(ran, suite="another")
    other.thread.start()
    with (
        pytest.raises(BenchError, match="the hosts differ: the suite q on a, another on b"),
        meeting(rendezvous(0), facts(), other.say),
    ):
        pass
    other.thread.join(10)
    assert str(other.error) == "the hosts differ: the suite q on a, another on b"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"id": "other"}, "node 0 has --rdzv-id none, this host other"),
        ({"nodes": 3}, "node 0 has --nnodes 2, this host 3"),
    ],
)
def test_hosts_of_another_run_are_turned_away(told: dict[str, Any], message: str) -> None:
    first = Meeting(ran)
    raised: list[BaseException] = []

    def node_0() -> None:
        try:
            with meeting(rendezvous(0, join_timeout_s=1.5), facts(), first.say):
                pass
        except BenchError as error:
            raised.append(error)

    thread = threading.Thread(target=node_0)
    thread.start()
    with pytest.raises(BenchError, match=message):
        join(rendezvous(1, first.port, **told), facts("b"), lambda _: None)
    thread.join(10)
    assert str(raised[0]) == "1 of 2 hosts came within 1.5 s; missing: node 1"
