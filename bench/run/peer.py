"""Another host, as node 0 knows it: what it has said, and whether it is still there."""

from __future__ import annotations

import time
from collections import deque
from typing import TypeVar

from bench.run.channel import Channel, Clock, Done, HostFacts, LeftError, Message, Ready

WAIT_S = 0.5
"""Between two looks at a line while waiting for a message."""

Expected = TypeVar("Expected", Ready, Clock, Done)


class Peer:
    """Another host, as node 0 knows it.

    Args:
        rank: its node rank.
        facts: what it has said of itself.
        channel: the line to it.
    """

    def __init__(self, rank: int, facts: HostFacts, channel: Channel) -> None:
        self.rank = rank
        self.facts = facts
        self.channel = channel
        self.lost: str | None = None
        """Why it takes no part any more."""
        self._came: deque[Message] = deque()

    @property
    def name(self) -> str:
        """Of the host."""
        return self.facts.name

    def tell(self, message: Message) -> None:
        """Send a message; nothing to one that is lost."""
        if self.lost is None:
            try:
                self.channel.send(message)
            except LeftError as error:
                self.lose(str(error))

    def lose(self, why: str) -> None:
        """Give the host up: it will be told nothing any more, and sees that its line is closed."""
        self.lost = f"host {self.rank} ({self.name}) left the run: {why}"
        self.channel.close()

    def look(self, wait_s: float = 0.0) -> None:
        """Take in what has come."""
        while self.lost is None:
            try:
                message = self.channel.receive(wait_s)
            except LeftError as error:
                self.lose(str(error))
                return
            if message is None:
                return
            self._came.append(message)
            wait_s = 0.0

    def see_off(self, until_s: float) -> None:
        """Wait for the host to hang up: a line that is closed with something unread loses the rest.

        Args:
            until_s: monotonic time at which this end hangs up anyway.
        """
        while self.lost is None and (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)
        self.channel.close()

    def has_ended(self, number: int) -> bool:
        """Whether the processes of a launch have ended there, or the host is lost."""
        self.look()
        return self.lost is not None or any(
            isinstance(one, Done) and one.number == number for one in self._came
        )

    def expect(
        self, kind: type[Expected], wait_s: float, number: int | None = None
    ) -> Expected | None:
        """The next message of a kind; None from a host that is lost, or is now, as it sent none.

        Args:
            kind: of message; others are dropped, they are answers to what is over.
            wait_s: how long it may take.
            number: of the launch that it belongs to.
        """
        until_s = time.monotonic() + wait_s
        while True:
            while self._came:
                message = self._came.popleft()
                if isinstance(message, kind) and number == getattr(message, "number", None):
                    return message
            if self.lost is not None:
                return None
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                self.lose(f"it gave no sign for {wait_s:g} s")
                return None
            self.look(min(WAIT_S, left_s))
