"""Any other node than 0: do what it says, hand over what came of it, and leave when it says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bench.errors import BenchError, Interruption, in_words
from bench.plan.suite import Suite
from bench.run import server
from bench.run.alike import facts_of
from bench.run.channel import (
    Ask,
    Channel,
    Clock,
    Done,
    End,
    Go,
    LeftError,
    Message,
    Order,
    Over,
    Ready,
    Renew,
)
from bench.run.handover import CaseShare, OtherShare, RankOutcome
from bench.run.launch import Launcher, probe_in_server
from bench.run.loopback import interface_of
from bench.run.meet import join
from bench.run.rendezvous import Rendezvous
from bench.run.signals import signals_raise

LOOK_S = 1.0
"""Between two looks at the line, so that a signal is heard."""

RunOther = Callable[[Launcher, OtherShare, Callable[[], bool]], tuple[RankOutcome, ...]]
"""Launches this host's share of something else than a case."""


class LostNodeError(BenchError):
    """Node 0 is gone, and the run with it."""

    exit_code = 1


class Follower:
    """Follows node 0.

    Args:
        channel: the line to it.
        launcher: of this host.
        run_other: launches what is no case; None where nothing else can be.
    """

    def __init__(
        self, channel: Channel, launcher: Launcher, run_other: RunOther | None = None
    ) -> None:
        self._channel = channel
        self._launcher = launcher
        self._run_other = run_other
        self._interface = interface_of(channel.local_address)
        self._last: Message | LeftError | None = None
        """What came while processes were running, and ends them."""

    def follow(self) -> End:
        """Until node 0 ends the run.

        Raises:
            LostNodeError: it is gone.
            Interruption: a signal arrived; node 0 sees that this host has left.
        """
        while True:
            match self._next():
                case Renew(variables=variables):
                    self._renew(variables)
                case Order(share=share):
                    self._serve(share)
                case End() as end:
                    return end
                case _:  # about a launch that is over
                    pass

    def _next(self) -> Message:
        """What node 0 says next."""
        while True:
            message = self._last
            self._last = None
            if message is None:
                try:
                    message = self._channel.receive(LOOK_S)
                except LeftError as error:
                    message = error
            if isinstance(message, LeftError):
                raise LostNodeError(f"node 0 left the run: {message}") from message
            if message is not None:
                return message

    def _renew(self, variables: Mapping[str, str]) -> str | None:
        """A new fork server; returns why there is none."""
        try:
            self._launcher.renew(variables)
        except BenchError as error:
            return str(error)
        return None

    def _serve(self, share: CaseShare | OtherShare) -> None:
        """Be ready for a launch, wait for the word, carry it out, and hand over its outcomes."""
        variables = share.case.env if isinstance(share, CaseShare) else {}
        trouble = None if server.serves(variables) else self._renew(variables)
        self._tell(Ready(number=share.number))
        if not self._is_to_go():
            return
        outcomes: tuple[RankOutcome, ...] = ()
        if trouble is None:
            try:
                outcomes = self._run(share, lambda: self._is_over(share.number))
            except Interruption:
                raise
            except Exception as error:  # noqa: BLE001 - no fault of one launch may lose the others
                trouble = in_words(error)
        self._tell(Done(number=share.number, outcomes=list(outcomes), trouble=trouble))

    def _run(
        self, share: CaseShare | OtherShare, elsewhere: Callable[[], bool]
    ) -> tuple[RankOutcome, ...]:
        if share.node is not None:
            node = msgspec.structs.replace(share.node, interface=self._interface)
            share = msgspec.structs.replace(share, node=node)
        if isinstance(share, CaseShare):
            return self._launch(share, elsewhere)
        if self._run_other is None:
            raise BenchError("node 0 runs another command than this host")
        return self._run_other(self._launcher, share, elsewhere)

    def _is_to_go(self) -> bool:
        """Whether the launch begins; meanwhile the clock is told."""
        while True:
            match self._next():
                case Ask():
                    self._tell(Clock(now_s=time.monotonic()))
                case Go():
                    return True
                case Over():
                    return False
                case other:
                    self._last = other
                    return False

    def _is_over(self, number: int) -> bool:
        """Whether the ranks here have nobody to wait for any more."""
        if self._last is not None:
            return True
        try:
            message = self._channel.receive()
        except LeftError as error:
            self._last = error
            return True
        if isinstance(message, Over):
            return message.number == number
        self._last = message
        return message is not None

    def _tell(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except LeftError as error:
            self._last = error

    def _launch(self, share: CaseShare, elsewhere: Callable[[], bool]) -> tuple[RankOutcome, ...]:
        """With this host's own reference, which it has made when node 0 made its."""
        reference = self._launcher.scratch / "reference.pt"
        if share.job != "parity":
            reference.unlink(missing_ok=True)
        needs_it = share.job in {"parity", "reference"}
        _, outcomes = self._launcher.launch_share(share, reference if needs_it else None, elsewhere)
        return outcomes


def take_part(
    rendezvous: Rendezvous,
    suite: Suite | None,
    scratch: Path,
    say: Callable[[str], None],
    run_other: RunOther | None = None,
) -> End:
    """Join a run of another host, and follow it to its end. The fork server has been started.

    Args:
        rendezvous: where node 0 is.
        suite: what this host was told to run, which must be node 0's; None for collectives alone.
        scratch: private folder for what passes between processes.
        say: tells people.
        run_other: see ``Follower``.

    Raises:
        BenchError: node 0 cannot be reached, turned this host away, or is gone.
        Interruption: a signal arrived.
    """
    with signals_raise():
        machine = probe_in_server()
        channel = join(rendezvous, facts_of(suite, machine), say)
        try:
            say("all hosts are there; following node 0")
            return Follower(channel, Launcher(scratch, machine), run_other).follow()
        finally:
            channel.close()
