"""The line between node 0 and each other host of a run: what they say to each other, over TCP.

Node 0 listens at the rendezvous' endpoint, and tells the others every step. A host that leaves
closes its line, which the others see at once; one that is cut off is given up by the kernel after
``SILENCE_S``, so that nothing here has to send a sign of life or to wait for one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import msgspec

from bench.errors import BenchError, one_line
from bench.plan.case import Machine
from bench.run.handover import CaseShare, OtherShare, RankOutcome

SILENCE_S = 20
"""After which a host whose kernel answers no more is given up."""
PROBES = 3
"""Of the kernel, within that time."""
LONGEST = 2**30
"""Bytes of a message: outcomes with the events of a long profile take some of them."""
GREETING = 2**20
"""Bytes of the first message, which anybody could send."""
GREET_S = 10.0
"""For a host that has connected to say who it is."""
AGAIN_S = 0.5
"""Between two attempts to reach node 0."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one host tells another."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What must be alike on all hosts, and what is recorded of each."""

    name: str
    versions: dict[str, str]
    source: str
    """Digest of this package's code."""
    suite: str
    """Digest of what is to be run, as this host has read it."""
    machine: Machine
    environment: dict[str, Any] = {}
    """As ``run.json`` holds it."""


class Hello(Message, frozen=True, kw_only=True):
    """A host has come."""

    id: str
    nodes: int
    node_rank: int
    facts: HostFacts


class Welcome(Message, frozen=True, kw_only=True):
    """All hosts are there, and alike."""


class Refusal(Message, frozen=True, kw_only=True):
    """A host cannot take part, or none can."""

    reason: str


class Renew(Message, frozen=True, kw_only=True):
    """Start another fork server."""

    variables: dict[str, str]


class Order(Message, frozen=True, kw_only=True):
    """Get ready for a launch."""

    share: CaseShare | OtherShare


class Ready(Message, frozen=True, kw_only=True):
    """Nothing is missing but the word."""

    number: int


class Ask(Message, frozen=True, kw_only=True):
    """What does your clock say?"""


class Clock(Message, frozen=True, kw_only=True):
    """Monotonic time of the host."""

    now_s: float


class Go(Message, frozen=True, kw_only=True):
    """Begin the launch."""

    number: int


class Over(Message, frozen=True, kw_only=True):
    """Processes of the launch have ended: the others shall not wait for them."""

    number: int


class Done(Message, frozen=True, kw_only=True):
    """What became of a host's share of a launch."""

    number: int
    outcomes: list[RankOutcome] = []
    trouble: str | None = None
    """Why there are none."""


class End(Message, frozen=True, kw_only=True):
    """The run is over."""

    reason: str
    exit_code: int = 0


AnyMessage = (
    Hello | Welcome | Refusal | Renew | Order | Ready | Ask | Clock | Go | Over | Done | End
)


class LeftError(Exception):
    """The other end is gone; the message says how that was seen."""


class Channel:
    """One end of a line.

    Args:
        connected: a TCP connection.
    """

    _decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyMessage)

    def __init__(self, connected: socket.socket) -> None:
        self.local_address: str = connected.getsockname()[0]
        _watch_over(connected)
        connected.setblocking(True)
        self.connection = Connection(connected.detach())

    def send(self, message: Message) -> None:
        """Tell the other end.

        Raises:
            LeftError: it is gone.
        """
        try:
            self.connection.send_bytes(msgspec.json.encode(message))
        except OSError as error:
            raise LeftError(_words(error)) from error

    def receive(self, wait_s: float = 0.0, *, longest: int = LONGEST) -> Message | None:
        """The next message; None where none has come in time.

        Raises:
            LeftError: the other end is gone, or sent what is no message.
        """
        try:
            if not self.connection.poll(wait_s):
                return None
            message: Message = self._decoder.decode(self.connection.recv_bytes(longest))
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise LeftError(_words(error)) from error
        return message

    @contextlib.contextmanager
    def no_longer_than(self, seconds: float) -> Iterator[None]:
        """Cut the line after that, on which the other end may send a message byte by byte."""
        timer = threading.Timer(seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _cut(self) -> None:
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self.connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.connection.close()


def _words(error: BaseException) -> str:
    match error:
        case EOFError() | ConnectionResetError() | BrokenPipeError():
            return "its process ended or was killed"
        case TimeoutError() | BlockingIOError():
            return f"it has not answered for {SILENCE_S} s"
        case msgspec.MsgspecError():
            return f"what it sent cannot be read: {one_line(str(error))}"
    return f"the connection to it failed: {one_line(str(error))}"


def _watch_over(connected: socket.socket) -> None:
    """Have the kernel find out when the other end answers no more. As far as it can."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A message that has begun goes on, or the other end is as good as gone.
    patience = struct.pack("ll", SILENCE_S, 0)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    settings: Mapping[str, int] = {
        "TCP_KEEPIDLE": SILENCE_S // (PROBES + 1),
        "TCP_KEEPINTVL": SILENCE_S // (PROBES + 1),
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": SILENCE_S * 1000,  # of what was sent, in ms
    }
    for name, value in settings.items():
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def listen(port: int) -> socket.socket:
    """Begin to listen at a port; 0 is any that is free.

    Raises:
        BenchError: the port is taken, or not to be had.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=128)
    except OSError as error:
        raise BenchError(
            f"port {port} of --rdzv-endpoint cannot be listened at: {error.strerror}; another run"
            " or program may have it: name another on every host"
        ) from error


def connect(host: str, port: int, patience_s: float) -> Channel:
    """Reach node 0, which may not be there yet.

    Raises:
        BenchError: nobody answers in time.
    """
    until_s = time.monotonic() + patience_s
    while True:
        left_s = until_s - time.monotonic()
        try:
            return Channel(
                socket.create_connection((host, port), timeout=max(min(left_s, 10), 0.1))
            )
        except OSError as error:
            if left_s <= AGAIN_S:
                raise BenchError(
                    f"no answer from node 0 at {host}:{port} within {patience_s:g} s: "
                    f"{one_line(str(error))}; is it started, and the port open?"
                ) from error
            time.sleep(AGAIN_S)
